# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands find: variables, programs, and what of the system they may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from mcpd.errors import from_oserror
from mcpd.paths import make_private
from mcpd.servers.commands import system

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.settings import Settings


class Environment:
    """The same for all commands of one server."""

    def __init__(self, settings: Settings) -> None:
        """Make the home of commands below the state directory, and a directory for temporary files.

        Raises McpdError.
        """
        self._home = settings.state / "home"
        try:
            make_private(self._home)
        except OSError as error:
            raise from_oserror(error, f"making {self._home}") from error
        self._temporary = tempfile.mkdtemp(prefix="mcp-workstation-")
        self.missing = tuple(str(each) for each in settings.toolchains if not each.is_dir())
        """The toolchains that are not there."""
        self._search = ":".join((*(str(_programs(each)) for each in settings.toolchains), system.PROGRAMS))
        self.readable = (*system.READABLE, *map(str, settings.toolchains))
        self.writable = (str(self._home), self._temporary, *system.devices(confined=settings.confined))
        self.confined = settings.confined
        self.is_offline = not settings.allow_network and not system.is_isolated()
        """Whether commands are kept from the network here, as nobody else has done it."""
        self.variables = self._variables(settings)

    def which(self, program: str) -> str | None:
        """The absolute path of *program*: a name, or an absolute path, which is its own if it can be executed."""
        return shutil.which(program, path=self._search)

    def close(self) -> None:
        """Take the temporary files away."""
        # Builds leave trees deeper than Python's recursion goes, and symlinks wherever they like; rm copes with both.
        command = ("/bin/rm", "-rf", "--one-file-system", "--", self._temporary)
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def _variables(self, settings: Settings) -> dict[str, str]:
        given = system.variables(
            home=str(self._home), temporary=self._temporary, search=self._search, network=settings.allow_network
        )
        given["CI"] = "1"
        if (zone := os.environ.get("TZ")) is not None:
            given["TZ"] = zone
        for toolchain in settings.toolchains:
            if (toolchain / "toolchains").is_dir() and (toolchain / "settings.toml").is_file():
                given["RUSTUP_HOME"] = str(toolchain)
        return given


def _programs(toolchain: Path) -> Path:
    below = toolchain / "bin"
    return below if below.is_dir() else toolchain
