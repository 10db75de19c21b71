# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command line of mcpctl: import servers from files of other programs, and export them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.cli.argument_types import add_consent, add_id

if TYPE_CHECKING:
    from mcpd.cli.parser import _Adder


def add_exchange(add: _Adder) -> None:
    """Add ``mcpctl import`` and ``mcpctl export``."""
    importer = add("import", "import_:import_file", "install the servers in another program's file")
    importer.add_argument(
        "file",
        metavar="FILE",
        help="MCP client configuration (JSON, TOML or YAML), registry, page of the official registry, or "
        "server.json (-: standard input)",
    )
    importer.add_argument("names", metavar="NAME", nargs="*", help="names in FILE, or ids (default: all its servers)")
    importer.add_argument("--dry-run", action="store_true", help="show what would be installed, without installing it")
    add_consent(importer)
    importer.add_argument("--json", action="store_true", help="print JSON")
    exporter = add("export", "export:export", "export installed servers as registry entries")
    exporter.epilog = (
        "Entries contain no configuration. They contain the environment variables that an imported entry sets."
    )
    add_id(exporter, nargs="*")
    exporter.add_argument(
        "--format",
        choices=("registry", "server.json"),
        default="registry",
        help="write one registry, or a server.json for each server (default: registry)",
    )
    exporter.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        help="write to FILE (default: standard output), or several server.json files to the existing directory DIR",
    )
