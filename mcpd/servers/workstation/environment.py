# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands find: variables, programs, and what of the system they may read."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Final

from mcpd.errors import from_oserror

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.settings import Settings

_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/sys",
    "/run/systemd/resolve",
)  # fmt: skip
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SHARED: Final = ("/dev/ptmx", "/dev/pts", "/dev/shm")  # noqa: S108 - semaphores are there
_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")
_WITH_NETWORK: Final = frozenset(
    {
        "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "PIP_INDEX_URL", "npm_config_registry", "GOPROXY",
    }
)  # fmt: skip


class Environment:
    """The same for all commands of one server."""

    def __init__(self, settings: Settings) -> None:
        """Make the home of commands below the state directory, and a directory for temporary files.

        Raises McpdError.
        """
        self._home = settings.state / "home"
        try:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise from_oserror(error, f"making {self._home}") from error
        self._temporary = tempfile.mkdtemp(prefix="mcp-workstation-")
        self.missing = tuple(str(each) for each in settings.toolchains if not each.is_dir())
        """The toolchains that are not there."""
        self._search = ":".join((*(str(_programs(each)) for each in settings.toolchains), *_PATH))
        self.readable = (*_SYSTEM, *map(str, settings.toolchains))
        # Terminals and shared memory are other programs' as well, where no sandbox has its own.
        shared = _SHARED if settings.confined else ()
        self.writable = (str(self._home), self._temporary, *_DEVICES, *shared)
        self.confined = settings.confined
        self.is_offline = not settings.allow_network and not _is_isolated()
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
        given = {
            "PATH": self._search,
            "HOME": str(self._home),
            "TMPDIR": self._temporary,
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "CI": "1",
        }
        if (zone := os.environ.get("TZ")) is not None:
            given["TZ"] = zone
        if settings.allow_network:
            given |= {name: value for name, value in os.environ.items() if name in _WITH_NETWORK}
        for toolchain in settings.toolchains:
            if (toolchain / "toolchains").is_dir() and (toolchain / "settings.toml").is_file():
                given["RUSTUP_HOME"] = str(toolchain)
        return given


def _programs(toolchain: Path) -> Path:
    below = toolchain / "bin"
    return below if below.is_dir() else toolchain


def _is_isolated() -> bool:
    """Whether there is no way to a network: only the loopback."""
    return {name for _, name in socket.if_nameindex()} <= {"lo"}
