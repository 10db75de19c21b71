# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sockets that the bridge listens on, and limits on connections."""

from __future__ import annotations

import errno
import grp
import ipaddress
import os
import resource
import socket
from collections import Counter
from pathlib import Path
from typing import Final

from mcpd.errors import Busy, InvalidConfig, McpdError, from_oserror
from mcpd.notify import passed_fds
from mcpd.paths import CALLS_SOCKET, STDIO_SOCKET

MOST_DESCRIPTORS: Final = 32768
"""The limit that the bridge sets for itself if it may."""
MOST_CONNECTIONS: Final = 4096
BACKLOG: Final = 512


class Room:
    """Count of the connections of one kind of listener: at most *limit* at a time, at most *share* of one uid."""

    __slots__ = ("_free", "_of_uid", "_share", "entered")

    def __init__(self, limit: int, share: int) -> None:
        self._free = limit
        self._share = share
        self._of_uid = Counter[int]()
        self.entered = 0
        """Number of attempts to connect."""

    def enter(self, uid: int | None) -> bool:
        """Take a place for *uid*, ``None`` if it is unknown; return False if none is free."""
        self.entered += 1
        if self._free <= 0 or (uid is not None and self._of_uid[uid] >= self._share):
            return False
        self._free -= 1
        if uid is not None:
            self._of_uid[uid] += 1
        return True

    def leave(self, uid: int | None) -> None:
        """Release the place of *uid*."""
        self._free += 1
        if uid is not None:
            self._of_uid[uid] -= 1


def connection_limit() -> int:
    """Raise the limit on open descriptors, and return the maximum number of connections of one kind.

    Each kind gets a quarter, so that TCP, where anyone may connect, takes nothing from the Unix socket.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return min(soft // 4, MOST_CONNECTIONS)


class LineSocket(socket.socket):
    """A listening unix socket for clients that speak as over stdio, one message a line."""


class CallsSocket(socket.socket):
    """A listening unix socket for servers that may call others, over HTTP."""


_KINDS: Final[dict[str, type[socket.socket]]] = {STDIO_SOCKET: LineSocket, CALLS_SOCKET: CallsSocket}


def unix_listener(path: Path, group: str = "") -> socket.socket:
    """A unix socket at *path*, mode 0600 from its first moment; then open to *group*, if one is given.

    Raises :class:`~mcpd.errors.Busy` if somebody serves there already; a dead socket is replaced.
    """
    listener = _KINDS.get(path.name, socket.socket)(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            _remove_dead(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        if group:
            _open_to(path, group)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise from_oserror(error, f"listening on {path}") from error
    except McpdError:
        listener.close()
        raise
    return listener


def _open_to(path: Path, group: str) -> None:
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidConfig(
            f"there is no group {group!r}, which may use {path}; make it: groupadd -r {group}"
        ) from None
    os.chown(path, -1, gid)
    path.chmod(0o660)


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
            f"{address!r} is not on loopback: anyone who can reach it could use every server (see --allow-remote)"
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
        raise InvalidConfig(f"{address!r} is not an address to listen on: use HOST:PORT, e.g. 127.0.0.1:7411")
    return host, number


def is_loopback(host: str) -> bool:
    """Return True if the address *host* is reached from this machine only."""
    return ipaddress.ip_address(host).is_loopback


def passed_listeners() -> list[socket.socket]:
    """The sockets that the service manager passed; empty if it passed none to this process.

    Raises :class:`~mcpd.errors.InvalidConfig` for what is not a listening stream socket, on TCP one of loopback.
    """
    listeners: list[socket.socket] = []
    try:
        for name, fds in passed_fds().items():
            listeners.extend(_listener(fd, name) for fd in fds)
    except McpdError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listener(fd: int, name: str) -> socket.socket:
    try:
        found = socket.socket(fileno=fd)
    except OSError as error:
        raise InvalidConfig(
            f"the descriptor {fd} ({name}) that was passed is not a socket: {error.strerror}"
        ) from error
    if found.type != socket.SOCK_STREAM or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen for streams: its unit needs ListenStream= and Accept=no"
    elif found.family not in {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}:
        fault = f"is of the family {found.family}, which this bridge does not serve: use a path or an address"
    elif found.family != socket.AF_UNIX and not is_loopback(found.getsockname()[0]):
        fault = "is not on loopback: tokens would travel in the clear; use 127.0.0.1 or [::1] in ListenStream="
    elif found.family == socket.AF_UNIX:
        kind = _KINDS.get(Path(os.fsdecode(found.getsockname())).name, socket.socket)
        return kind(fileno=found.detach())
    else:
        return found
    found.close()
    raise InvalidConfig(f"the socket {name} that was passed {fault}")


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The base URL of a TCP *listener*."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
