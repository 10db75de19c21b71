# SPDX-License-Identifier: LGPL-2.1-or-later
"""What comes over the leash: docs/launch-protocol.md."""

from __future__ import annotations

import _socket
import os
import stat
import sys
import time
from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

MAX_LINE: Final = 1024 * 1024
MAX_FDS: Final = 4
"""0, 1, 2 and the private manifest."""
MANIFEST_FD: Final = 3
"""What a program without a sandbox has the private manifest as, there being no path that only it sees."""
MANIFEST_PATH: Final = f"/proc/self/fd/{MANIFEST_FD}"
LINE_TIMEOUT: Final = 10.0
"""Seconds until the whole line must be there; mcpd sends it at once."""


class Failure(Exception):
    """Nothing was started; *name* is the error's name on the bus, without its prefix."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Refusal(Failure):
    """Whoever holds the leash is not mcpd, or does not keep to the protocol: the journal hears of it."""

    def __init__(self, message: str) -> None:
        super().__init__("SpawnFailed", message)


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
        self.id = _text(line["id"])
        if not self.id.isprintable():
            raise ValueError("the id holds control characters")
        self.argv = _texts(line["argv"])
        self.cwd = _text(line["cwd"])
        self.env = _fields(line["env"])
        self.permissions = _texts(line["permissions"])
        self.mounts: list[list[str]] = [_texts(mount, 3) for mount in _list(line["mounts"])]
        self.manifest = None if line["manifest"] is None else _text(line["manifest"])
        self.confined = line["confined"] is not False
        self.bus = _fields(line.get("bus", {}))
        if not self.confined and self.manifest not in {None, MANIFEST_PATH}:
            raise ValueError("without a sandbox there is nothing to mount a manifest over")
        numbers = line["fds"]
        if not self.argv:
            raise ValueError("argv is empty")
        wanted = len(set(numbers)) + (self.manifest is not None)
        if not set(numbers) <= {0, 1, 2} or not wanted == len(numbers) + (self.manifest is not None) == len(fds):
            raise ValueError(f"it and the {len(fds)} descriptors that came with it do not agree")
        self.fds: dict[int, int] = dict(zip(numbers, fds, strict=False))
        self.manifest_fd = fds[-1] if self.manifest is not None else -1


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


def _text(value: Any) -> str:
    """bubblewrap's arguments travel separated by NUL, so one in a text would begin another argument."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError("a text is none, or holds NUL")
    return value


def _texts(value: Any, length: int = -1) -> list[str]:
    found = [_text(one) for one in _list(value)]
    if length >= 0 and len(found) != length:
        raise ValueError(f"a list has not {length} texts")
    return found


def _fields(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("an object is missing")
    return {_text(key): _text(one) for key, one in value.items()}


def receive(leash: _socket.socket) -> Request:
    """Read the launch line; the descriptors come with its first byte, so nothing but recvmsg may touch the socket.

    Raises :class:`Refusal` for anything else than one whole line in time.
    """
    data, fds = bytearray(), []
    deadline = time.monotonic() + LINE_TIMEOUT
    while b"\n" not in data[-65536:]:
        leash.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            chunk, ancillary, flags, _ = leash.recvmsg(65536, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise Refusal(f"no whole launch line came over the leash within {LINE_TIMEOUT:.0f} s") from None
        except OSError as error:
            raise Refusal(f"the leash broke before a whole launch line came: {error.strerror}") from error
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [int.from_bytes(payload[i : i + 4], sys.byteorder) for i in range(0, len(payload) - 3, 4)]
        data += chunk
        if not chunk or len(data) > MAX_LINE:
            raise Refusal(f"no whole launch line of at most {MAX_LINE} bytes came over the leash")
        if flags & _socket.MSG_CTRUNC or len(fds) > MAX_FDS:
            raise Refusal(f"more than {MAX_FDS} descriptors came over the leash")
    leash.settimeout(None)
    try:
        return Request(parse(data.decode()), fds)
    except UnicodeDecodeError as error:
        # The error holds the line, and the line secrets.
        raise Refusal("the launch line cannot be read: it is not UTF-8") from error
    except (StopIteration, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(f"the launch line cannot be read: {type(error).__name__}: {error}"[:500]) from error


def unsuitable(fd: int, *, pipes: bool) -> str:
    """Return why *fd* cannot be a standard stream of a server, empty if it can.

    A directory opens files outside the sandbox, and over a socket one can be passed. A server of the system gets
    *pipes* and ``/dev/null`` only, as its callers are other users; a user's gets what the user gives, except a
    directory and a socket on which descriptors wait.
    """
    status = os.fstat(fd)
    if stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)):
        return ""
    if pipes:
        return "is neither a pipe nor /dev/null"
    if stat.S_ISDIR(status.st_mode):
        return "is a directory"
    if stat.S_ISSOCK(status.st_mode) and _brings_descriptors(fd):
        return "is a socket on which descriptors wait"
    return ""


def _brings_descriptors(fd: int) -> bool:
    sock = _socket.socket(fileno=os.dup(fd))
    try:
        # Without room for one, a descriptor that waits is announced and not received.
        flags = sock.recvmsg(1, 0, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)[2]
    except OSError:
        return False
    finally:
        sock.close()
    return bool(flags & _socket.MSG_CTRUNC)


def peer_uid(leash: _socket.socket) -> int:
    """Who connected the other end of *leash*."""
    credentials = leash.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def check_peer(leash: _socket.socket, user: str) -> None:
    """Refuse a leash that is not held by *user*; by our own if empty."""
    peer = peer_uid(leash)
    expected = os.getuid()
    if user:
        import pwd  # noqa: PLC0415 - needed in the system's units only

        try:
            expected = pwd.getpwnam(user).pw_uid
        except KeyError:
            raise Refusal(f"there is no user {user} that may hold the leash") from None
    if peer != expected:
        raise Refusal(f"the leash is held by uid {peer}, only mcpd (uid {expected}) may do that")
