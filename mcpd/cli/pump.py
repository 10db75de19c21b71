# SPDX-License-Identifier: LGPL-2.1-or-later
"""The way to a server through the bridge: its ``stdio.sock``, and bytes between that and our own streams."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final

from mcpd.bridge.places import places
from mcpd.errors import McpdError, ServiceUnavailable, from_dbus
from mcpd.paths import from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK: Final = 64 * 1024
MAX_ANSWER: Final = 64 * 1024
"""Bytes of the line that answers ours."""
ANSWER_TIMEOUT: Final = 60.0
"""Seconds in which it must come; the bridge and mcpd may have to be started first."""
_ABSENT: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})


def connect(server_id: str, environment: Mapping[str, str], *, system: bool) -> socket.socket:
    """A connection to *server_id* through the user's bridge, or the *system*'s, which speaks as its stdio would.

    The *environment* is for a process that is ours alone. Raises :class:`~mcpd.errors.ServiceUnavailable` if there is
    no bridge, and the :class:`~mcpd.errors.McpdError` with which it turns us away.
    """
    known = from_environment()
    path = places(known.system if system else known.user).stdio
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(ANSWER_TIMEOUT)
        connection.connect(str(path))
        hello: dict[str, object] = {"server": server_id}
        if environment and not system:
            hello["environment"] = dict(environment)
        connection.sendall(json.dumps(hello).encode() + b"\n")
        _check(_line(connection), server_id)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise ServiceUnavailable(_unreachable(server_id, str(path), error, system=system)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _line(connection: socket.socket) -> bytes:
    """The first line, and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < MAX_ANSWER:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return bytes(line)


def _check(line: bytes, server_id: str) -> None:
    try:
        answer = json.loads(line)
        if answer.get("ok") is True:
            return
        fault = answer["error"]
        error = from_dbus(str(fault["name"]), str(fault["message"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        error = ServiceUnavailable(f"the bridge ended the connection to server {server_id}; see its log")
    raise error


def _unreachable(server_id: str, path: str, error: OSError, *, system: bool) -> str:
    start = "systemctl start mcpd-bridge.socket" if system else "systemctl --user start mcpd-bridge.socket"
    plain = "mcpd-bridge --system" if system else "mcpd-bridge --user"
    why = (
        f"server {server_id} is used through the bridge, because its entry in the mcps map changes what it offers or "
        f"its process is shared, and the bridge cannot be reached at {path}: {error.strerror or error}"
    )
    if error.errno in _ABSENT:
        return f"{why}. Start it with '{start}', or where there is no systemd with '{plain}'"
    if isinstance(error, PermissionError):
        return f"{why}. Members of the group mcp may" if system else why
    return why


def join(connection: socket.socket) -> int:
    """Carry bytes between our standard streams and *connection* until the server's side ends; returns the exit code.

    A signal ends us, upon which the bridge ends what is ours.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # Each direction blocks on its own: neither may wait for the other, and the streams are not ours to make unblocking.
    threading.Thread(target=_upwards, args=(connection,), daemon=True).start()
    with connection:
        while data := _read(connection):
            _write_all(1, data)
    return 0


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(CHUNK)
    except ConnectionError:
        raise McpdError("the connection to the bridge broke off; see its log") from None


def _upwards(connection: socket.socket) -> None:
    try:
        while data := os.read(0, CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        # The other direction tells how it ended.
        return


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
