# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of the system that are the same for all commands: files, devices, and environment variables."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack

READABLE: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/sys",
    "/run/systemd/resolve",
)  # fmt: skip
PROGRAMS: Final = "/usr/local/bin:/usr/bin:/bin"
"""Directories of programs, in the format of PATH."""
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SHARED: Final = ("/dev/ptmx", "/dev/pts", "/dev/shm")  # noqa: S108 - semaphores are there
_WITH_NETWORK: Final = frozenset(
    {
        "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "PIP_INDEX_URL", "npm_config_registry", "GOPROXY",
    }
)  # fmt: skip


def devices(*, confined: bool) -> tuple[str, ...]:
    """Return the devices that commands may read and write; *confined* is True in a sandbox with its own ``/dev``."""
    # Outside a sandbox, terminals and shared memory are shared with other programs.
    return (*_DEVICES, *_SHARED) if confined else _DEVICES


def variables(*, home: str, temporary: str, search: str = PROGRAMS, network: bool) -> dict[str, str]:
    """Return the environment of a command; of the server's own only what it needs for the *network*, if permitted."""
    given = {
        "PATH": search,
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
    if network:
        given |= {name: value for name, value in os.environ.items() if name in _WITH_NETWORK}
    return given


def is_isolated() -> bool:
    """Return True if there is no network but the loopback."""
    return {name for _, name in socket.if_nameindex()} <= {"lo"}


def descriptors(stack: ExitStack, paths: Iterable[str]) -> list[int]:
    """Return descriptors of those of *paths* that exist; *stack* closes them."""
    found = []
    for path in paths:
        with suppress(OSError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            found.append(fd)
    return found
