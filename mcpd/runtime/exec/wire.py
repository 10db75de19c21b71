# SPDX-License-Identifier: LGPL-2.1-or-later
"""What comes over the leash: docs/launch-protocol.md."""

from __future__ import annotations

import _socket
import os
import sys
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

MAX_LINE: Final = 1024 * 1024
MAX_FDS: Final = 16


class Failure(Exception):
    """Nothing was started; *name* is the error's name on the bus, without its prefix."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class JsonContext:
    """What the scanner of :mod:`json` asks of its decoder."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def parse(text: str) -> Any:
    """The JSON value that *text* begins with; :class:`StopIteration` or :class:`ValueError` if there is none."""
    return make_scanner(JsonContext())(text, 0)[0]  # type: ignore[arg-type]


class Request:
    """The launch line and the descriptors that came with it."""

    def __init__(self, line: dict[str, Any], fds: list[int]) -> None:
        if line["v"] != 1:
            raise Failure("SpawnFailed", f"launch protocol {line['v']!r} is not known to this mcpd-exec, only 1")
        self.id: str = line["id"]
        self.argv: list[str] = line["argv"]
        self.cwd: str = line["cwd"]
        self.env: dict[str, str] = line["env"]
        self.permissions: list[str] = line["permissions"]
        self.mounts: list[list[str]] = line["mounts"]
        self.manifest: str | None = line["manifest"]
        self.confined: bool = line["confined"]
        self.bus: dict[str, str] = line.get("bus", {})
        numbers = line["fds"]
        if len(fds) != len(numbers) + (self.manifest is not None) or not set(numbers) <= {0, 1, 2} or not self.argv:
            raise Failure("SpawnFailed", f"{self.id}: the launch line and its {len(fds)} descriptors do not agree")
        self.fds: dict[int, int] = dict(zip(numbers, fds, strict=False))
        self.manifest_fd = fds[-1] if self.manifest is not None else -1


def receive(leash: _socket.socket) -> Request:
    """Read the launch line; the descriptors come with its first byte, so nothing but recvmsg may touch the socket."""
    data, fds = bytearray(), []
    while b"\n" not in data[-65536:]:
        chunk, ancillary, flags, _ = leash.recvmsg(65536, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [int.from_bytes(payload[i : i + 4], sys.byteorder) for i in range(0, len(payload) - 3, 4)]
        data += chunk
        if not chunk or len(data) > MAX_LINE or flags & _socket.MSG_CTRUNC:
            raise Failure("SpawnFailed", f"no whole launch line of at most {MAX_LINE} bytes came over the leash")
    try:
        line = parse(data.decode())
        return Request(line, fds)
    except (StopIteration, ValueError, KeyError, TypeError) as error:
        raise Failure("SpawnFailed", f"the launch line cannot be read: {error!r}") from error


def check_peer(leash: _socket.socket, user: str) -> None:
    """Refuse a leash that is not held by *user*; by our own if empty."""
    credentials = leash.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    peer = int.from_bytes(credentials[4:8], sys.byteorder)
    expected = os.getuid()
    if user:
        import pwd  # noqa: PLC0415 - needed in the system's units only

        expected = pwd.getpwnam(user).pw_uid
    if peer != expected:
        raise Failure("SpawnFailed", f"the leash is held by uid {peer}, only mcpd (uid {expected}) may do that")
