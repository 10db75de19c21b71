# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests over the leash, and their validation (docs/launch-protocol.md)."""

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
"""Maximum number of descriptors in a request: 0, 1, 2 and the private manifest."""
MANIFEST_FD: Final = 3
"""Descriptor of the private manifest without a sandbox, where there is no private path for it."""
MANIFEST_PATH: Final = f"/proc/self/fd/{MANIFEST_FD}"
LINE_TIMEOUT: Final = 10.0
"""Seconds within which the whole line must be received; mcpd sends it at once."""


class Failure(Exception):
    """The launch failed; *name* is the error's name on the bus, without its prefix."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Refusal(Failure):
    """The holder of the leash is not mcpd, or violates the protocol; it is logged to the journal."""

    def __init__(self, message: str) -> None:
        super().__init__("SpawnFailed", message)


class JsonContext:
    """The attributes of a JSON decoder that the scanner of :mod:`json` uses."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def parse(text: str) -> Any:
    """Return the JSON value at the start of *text*; raise :class:`StopIteration` or :class:`ValueError` if invalid."""
    return make_scanner(JsonContext())(text, 0)[0]  # type: ignore[arg-type]


class Request:
    """The launch line and the descriptors received with it."""

    def __init__(self, line: dict[str, Any], fds: list[int]) -> None:
        if line["v"] != 1:
            raise Failure("SpawnFailed", f"launch protocol {line['v']!r} is not supported by this mcpd-exec, only 1")
        self.id = _text(line["id"])
        if not self.id.isprintable():
            raise ValueError("the id contains control characters")
        self.argv = _texts(line["argv"])
        self.cwd = _text(line["cwd"])
        self.env = _fields(line["env"])
        self.permissions = _texts(line["permissions"])
        self.mounts: list[list[str]] = [_texts(mount, 3) for mount in _list(line["mounts"])]
        self.manifest = None if line["manifest"] is None else _text(line["manifest"])
        self.confined = line["confined"] is not False
        self.bus = _fields(line.get("bus", {}))
        if not self.confined and self.manifest not in {None, MANIFEST_PATH}:
            raise ValueError("without a sandbox a manifest cannot be mounted")
        numbers = line["fds"]
        if not self.argv:
            raise ValueError("argv is empty")
        wanted = len(set(numbers)) + (self.manifest is not None)
        if not set(numbers) <= {0, 1, 2} or not wanted == len(numbers) + (self.manifest is not None) == len(fds):
            raise ValueError(f"it does not match the {len(fds)} descriptors received with it")
        self.fds: dict[int, int] = dict(zip(numbers, fds, strict=False))
        self.manifest_fd = fds[-1] if self.manifest is not None else -1


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def _text(value: Any) -> str:
    """Return *value* if it is a string without NUL, which separates bubblewrap's arguments."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError("expected a string without NUL")
    return value


def _texts(value: Any, length: int = -1) -> list[str]:
    found = [_text(one) for one in _list(value)]
    if length >= 0 and len(found) != length:
        raise ValueError(f"expected a list of {length} strings")
    return found


def _fields(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("expected an object")
    return {_text(key): _text(one) for key, one in value.items()}


def receive(leash: _socket.socket) -> Request:
    """Read the launch line and the descriptors, which are sent with its first byte, so that only recvmsg may be used.

    Raises :class:`Refusal` for anything other than one whole line in time.
    """
    data, fds = bytearray(), []
    deadline = time.monotonic() + LINE_TIMEOUT
    while b"\n" not in data[-65536:]:
        leash.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            chunk, ancillary, flags, _ = leash.recvmsg(65536, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise Refusal(f"no complete launch line was received within {LINE_TIMEOUT:.0f} s") from None
        except OSError as error:
            raise Refusal(f"the leash failed before a complete launch line was received: {error.strerror}") from error
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [int.from_bytes(payload[i : i + 4], sys.byteorder) for i in range(0, len(payload) - 3, 4)]
        data += chunk
        if not chunk or len(data) > MAX_LINE:
            raise Refusal(f"no complete launch line of at most {MAX_LINE} bytes was received")
        if flags & _socket.MSG_CTRUNC or len(fds) > MAX_FDS:
            raise Refusal(f"more than {MAX_FDS} descriptors were received")
    leash.settimeout(None)
    try:
        return Request(parse(data.decode()), fds)
    except UnicodeDecodeError as error:
        # The error contains the line, which may contain secrets.
        raise Refusal("the launch line cannot be read: it is not UTF-8") from error
    except (StopIteration, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(f"the launch line cannot be read: {type(error).__name__}: {error}"[:500]) from error


def unsuitable(fd: int, *, pipes: bool) -> str:
    """Return why *fd* cannot be a standard stream of a server; empty if it can.

    A directory gives access to files outside the sandbox, and a socket may carry the descriptor of one. A server of the
    system gets only *pipes* and ``/dev/null``, as its callers are other users. A user's server gets any descriptor
    except a directory and a socket with queued descriptors.
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
        # Without a buffer for it, a queued descriptor is reported but not received.
        flags = sock.recvmsg(1, 0, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)[2]
    except OSError:
        return False
    finally:
        sock.close()
    return bool(flags & _socket.MSG_CTRUNC)


def peer_uid(leash: _socket.socket) -> int:
    """Return the uid of the process that connected the other end of *leash*."""
    credentials = leash.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def check_peer(leash: _socket.socket, user: str) -> None:
    """Raise :class:`Refusal` unless the leash is held by *user*, or by our own user if *user* is empty."""
    peer = peer_uid(leash)
    expected = os.getuid()
    if user:
        import pwd  # needed in the system's units only

        try:
            expected = pwd.getpwnam(user).pw_uid
        except KeyError:
            raise Refusal(f"the user {user}, who may hold the leash, does not exist") from None
    if peer != expected:
        raise Refusal(f"the leash is held by uid {peer}, but only mcpd (uid {expected}) may hold it")
