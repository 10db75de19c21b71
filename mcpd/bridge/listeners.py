# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sockets the bridge listens on, and the token that TCP clients show."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import secrets
import socket
import stat
from shlex import quote
from typing import TYPE_CHECKING, Final

from mcpd.errors import Busy, InvalidConfig, McpdError, from_oserror

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

FIRST_PASSED_FD: Final = 3
BACKLOG: Final = 512


def unix_listener(path: Path) -> socket.socket:
    """A unix socket at *path*, mode 0600 from its first moment.

    Raises :class:`~mcpd.errors.Busy` if somebody serves there already; a dead socket is replaced.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            _remove_dead(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise from_oserror(error, f"listening on {path}") from error
    except McpdError:
        listener.close()
        raise
    return listener


def _remove_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise Busy(f"another bridge serves {path} already")


def tcp_listener(address: str, *, remote: bool) -> socket.socket:
    """A TCP socket for ``HOST:PORT``; port 0 takes a free one. Only *remote* allows a host that is not loopback.

    Raises :class:`~mcpd.errors.InvalidConfig` for anything else.
    """
    host, port = split_address(address)
    if not remote and not is_loopback(host):
        raise InvalidConfig(
            f"{address!r} is not on loopback: whoever can reach it could use every server (see --allow-remote)"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Busy(f"{address} is in use by another program: choose another port, or 0 for a free one") from error
        raise from_oserror(error, f"listening on {address}") from error
    return listener


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[HOST]:PORT``; ``localhost`` is 127.0.0.1, other names are refused."""
    host, colon, port = address.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port) if colon and port.isdigit() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise InvalidConfig(f"{address!r} is no address to listen on: write HOST:PORT, e.g. 127.0.0.1:7411")
    return host, number


def is_loopback(host: str) -> bool:
    """Whether the address *host* is reached from this machine only."""
    return ipaddress.ip_address(host).is_loopback


def passed_listeners() -> list[socket.socket]:
    """The sockets systemd passed (sd_listen_fds(3)); empty if it passed none to this process."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    listeners = []
    for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + count):
        os.set_inheritable(fd, False)
        listeners.append(socket.socket(fileno=fd))
    return listeners


def url_of(listener: socket.socket) -> str:
    """The base URL of a TCP *listener*."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def load_token(path: Path) -> str:
    """The token in *path*, created with mode 0600 if there is none, renewed if others could have read it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return _create_token(path)
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        log.warning("%s could be read by others, so the token in it is replaced", path)
        path.unlink()
        return _create_token(path)
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in *path*.

    Raises :class:`~mcpd.errors.InvalidConfig` if others can reach it, or there is none that fits into a header.
    """
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read().strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    if mode & 0o077:
        raise InvalidConfig(f"{path} is open to others, who could use every server; run: chmod 600 {quote(str(path))}")
    if not token or not token.isprintable() or " " in token:
        raise InvalidConfig(f"{path} does not hold a token: one word of ASCII characters")
    return token


def _create_token(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        # Another bridge was quicker.
        return read_token(path)
    except OSError as error:
        raise from_oserror(error, f"writing {path}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token
