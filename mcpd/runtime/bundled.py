# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs that come with mcpd, and the Python environment they run in."""

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
    from mcpd.runtime.launch import Mount

PYTHON: Final = Path("/usr/lib/mcpd-servers/bin/python")
"""The interpreter of the package mcpd-servers."""
NEEDED: Final = ("httpx2", "websockets")
"""What tells an environment with the programs' libraries from one without."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program that comes with mcpd."""

    argv: tuple[str, ...]

    def mounts(self) -> list[Mount]:
        """What a sandbox has to show besides its interpreter."""
        package = Path(mcpd.__file__).parent.resolve()
        return [] if package.is_relative_to("/usr") else [mounts.bind(package)]


def remote_program(whom: str) -> Program:
    """``mcpd-remote``, for the server *whom* that runs elsewhere.

    Raises :class:`~mcpd.errors.NotSupported` if it is not installed, which says how to have it.
    """
    # Isolated: neither the directory it is started in nor a variable adds to what it imports.
    return Program((_python(whom), "-I", "-m", "mcpd.servers.remote"))


def _python(whom: str) -> str:
    """An environment that mcpd itself runs in comes before the distribution's, which holds another mcpd."""
    complete = all(importlib.util.find_spec(name) for name in NEEDED)
    if sys.prefix != sys.base_prefix:
        if complete:
            return sys.executable
        raise NotSupported(
            f"{whom} runs elsewhere, and what reaches it is not installed; install it with:"
            f" {sys.executable} -m pip install 'mcpd-system[servers]'"
        )
    if PYTHON.exists():
        return str(PYTHON)
    if complete:
        return sys.executable
    raise NotSupported(f"{whom} runs elsewhere, and what reaches it is not installed; install the package mcpd-servers")
