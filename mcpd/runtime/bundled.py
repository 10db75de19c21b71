# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled servers and programs, and the Python environment they run in."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import mcpd
from mcpd.errors import NotSupported
from mcpd.runtime import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.runtime.launch import Mount
    from mcpd.store.index import InstalledServer

PYTHON: Final = Path("/usr/lib/mcpd-servers/bin/python")
"""The interpreter of the package mcpd-servers."""
NEEDED: Final = ("httpx2", "websockets")
"""Modules whose presence shows that an environment has the libraries of ``mcpd-remote``."""
NEEDED_BY_SCRIPTS: Final = ("mcp", "jinja2", "jsonschema", "docstring_parser")
"""Modules whose presence shows that an environment has the libraries of ``mcp-scripts``."""
ORCHESTRATION: Final = "mcp-orchestration"
ORCHESTRATION_URL: Final = "MCP_ORCHESTRATION_URL"
"""Environment variable with the base URL below which the verification key is published."""


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundled server that has a manifest."""

    module: str
    needs: tuple[str, ...]
    """Modules whose presence shows that an environment has the server's libraries."""
    reads_data: bool = False
    """True if the server reads data files of the package."""
    confines: bool = False
    """True if the server runs programs of projects, and confines them itself."""


COMMANDS: Final = {
    "llm-orc": Bundled(
        "mcpd.servers.ensembles", ("mcp", "jsonschema", "tenacity", "asyncinotify"), reads_data=True, confines=True
    ),
    ORCHESTRATION: Bundled("mcpd.servers.orchestration", ("mcp", "cryptography"), reads_data=True),
    "mcp-workstation": Bundled("mcpd.servers.workstation", ("mcp", "jsonschema"), confines=True),
}
"""The bundled servers by the command that their manifest names."""


@dataclass(frozen=True, slots=True)
class Program:
    """A bundled program."""

    argv: tuple[str, ...]
    reads_data: bool = False
    """True if the program reads data files of the package, which are next to the package in a source tree."""

    def mounts(self) -> list[Mount]:
        """Return the mounts that the program needs besides its interpreter."""
        package = Path(mcpd.__file__).parent.resolve()
        if package.is_relative_to("/usr"):
            return []
        data = package.parent / "data"
        is_source = self.reads_data and (package.parent / "pyproject.toml").is_file() and data.is_dir()
        return [mounts.bind(package), *([mounts.bind(data)] if is_source else [])]


def remote_program(whom: str) -> Program:
    """Return ``mcpd-remote`` for the remote server *whom*.

    Raises :class:`~mcpd.errors.NotSupported`, with instructions, if it is not installed.
    """
    return _program(f"{whom} is a remote server, and mcpd-remote, which reaches it,", "mcpd.servers.remote", NEEDED)


def scripts_program(whom: str, manifest: str) -> Program:
    """Return ``mcp-scripts`` for the script server *whom* with its private manifest at the path *manifest*.

    Raises :class:`~mcpd.errors.NotSupported`, with instructions, if it is not installed.
    """
    found = _program(f"{whom} is a script, and mcp-scripts, which runs it,", "mcpd.servers.scripts", NEEDED_BY_SCRIPTS)
    return Program((*found.argv, "--manifest", manifest))


def command_of(server: InstalledServer) -> str | None:
    """Return the key of *server* in :data:`COMMANDS`; None if it is not a bundled server."""
    stdio = server.manifest.stdio if server.layer == "vendor" and server.manifest is not None else None
    return stdio.command if stdio is not None and stdio.command in COMMANDS else None


def command(server_id: str, name: str) -> Program:
    """Return the program of the bundled server *server_id*; *name* is its key in :data:`COMMANDS`.

    Raises :class:`~mcpd.errors.NotSupported`, with instructions, if it is not installed.
    """
    bundled = COMMANDS[name]
    found = _program(f"{server_id} is a bundled server, and its Python environment", bundled.module, bundled.needs)
    return Program(found.argv, reads_data=bundled.reads_data)


def _program(what: str, module: str, needed: Iterable[str]) -> Program:
    # Isolated: neither the working directory nor environment variables add to the import path.
    return Program((_python(what, needed), "-I", "-m", module))


def _python(what: str, needed: Iterable[str]) -> str:
    """Return the interpreter. mcpd's own virtual environment is preferred; the packaged one has its own mcpd."""
    complete = all(importlib.util.find_spec(name) for name in needed)
    if sys.prefix != sys.base_prefix:
        if complete:
            return sys.executable
        raise NotSupported(
            f"{what} is not installed; install it with: {sys.executable} -m pip install 'mcpd-system[servers]'"
        )
    if PYTHON.exists():
        return str(PYTHON)
    if complete:
        return sys.executable
    raise NotSupported(f"{what} is not installed; install the package mcpd-servers")
