# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of mcpctl's command line that takes servers from other programs' files, and writes files for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.cli.argument_types import add_consent, add_id

if TYPE_CHECKING:
    from mcpd.cli.parser import _Adder


def add_exchange(add: _Adder) -> None:
    """Add ``mcpctl import`` and ``mcpctl export``."""
    importer = add("import", "import_:import_file", "install the servers that a file of another program names")
    importer.add_argument(
        "file",
        metavar="FILE",
        help="configuration of an MCP client (JSON, TOML or YAML), registry, page of the official registry, or "
        "server.json (-: standard input)",
    )
    importer.add_argument("names", metavar="NAME", nargs="*", help="names in FILE, or ids (default: all servers of it)")
    importer.add_argument("--dry-run", action="store_true", help="show what the file says of each, and install nothing")
    add_consent(importer)
    importer.add_argument("--json", action="store_true", help="print JSON")
    exporter = add("export", "export:export", "write the entries of installed servers for others")
    exporter.epilog = (
        "An entry holds no value of the configuration. Environment variables that an imported entry set are part of it."
    )
    add_id(exporter, nargs="*")
    exporter.add_argument(
        "--format",
        choices=("registry", "server.json"),
        default="registry",
        help="a registry of all of them, or a server.json for each (default: registry)",
    )
    exporter.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        help="where to write it (default: standard output); server.json of several servers go to an existing directory",
    )
