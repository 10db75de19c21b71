# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines from stdin of limited length, and the refusal of those without a valid message."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from mcpd.errors import InvalidArgument, InvalidRequest, ParseError
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE: Final = 16 * 1024 * 1024
"""Maximum size of one message in bytes."""
MAX_DEPTH: Final = 200
"""Maximum depth of a message; the SDK's parser accepts one more level."""
MAX_DIGITS: Final = 4300
"""Maximum number of digits of an integer, as in Python."""
_CHUNK: Final = 64 * 1024
_WINDOW: Final = 4096
"""Bytes at either end of an unparsable line in which its id is searched for."""
_BATCH: Final = 1000
"""Maximum number of messages in an array that are refused individually; a larger one gets a single answer."""
_IN_ARRAY: Final = "messages in an array are not read: send each on a line of its own"
_HUGE: Final = object()
"""Marker for an integer of more than :data:`MAX_DIGITS` digits."""
_NOTIFICATION: Final = "notifications/"
_STRING: Final = rb'"(?:[^"\\]|\\.)*+"'
_MEMBER: Final = rb"(" + _STRING + rb")\s*+:\s*+(" + _STRING + rb"|-?\d[\d.eE+-]*+|true|false|null)\s*+"
_OPENING: Final = re.compile(rb"\s*\{\s*")
_LEADING: Final = re.compile(_MEMBER + rb"(?:,\s*|(?=\}))", re.DOTALL)
_ENDING: Final = re.compile(rb"(?:[{,]\s*+" + _MEMBER + rb")++\}\s*\Z", re.DOTALL)
_ANY: Final = re.compile(_MEMBER, re.DOTALL)


@dataclass(frozen=True, slots=True)
class TooLong:
    """Both ends of a line over :data:`MAX_LINE`."""

    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The id, code and message of the error for an unparsable message; not *answered* if it is not a request."""

    identity: str | int | None
    code: int
    message: str
    answered: bool = True


# ------------------------------------------------------------------------------------------------------- reading


def claim_stdin() -> int:
    """Return a descriptor for the client's messages; stdin itself is then at its end, for all later processes, too.

    Raises OSError if there is no stdin.
    """
    fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    os.set_blocking(fd, True)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    return fd


class Lines:
    """The non-blank lines of the descriptor *fd*, iterated by the SDK like those of a file.

    Each is kept until :meth:`taken` is called by the recipient of the SDK's result. For a line over :data:`MAX_LINE`
    the SDK gets an empty line.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._ready: deque[bytes | TooLong] = deque()
        self._given: deque[bytes | TooLong] = deque()
        self._ended = False

    def taken(self) -> bytes | TooLong:
        """Return the oldest line that was not taken yet."""
        return self._given.popleft()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            # The thread cannot be interrupted; it is abandoned.
            self._take(await anyio.to_thread.run_sync(_read, self._fd, abandon_on_cancel=True))
        line = self._ready.popleft()
        self._given.append(line)
        return b"" if isinstance(line, TooLong) else line

    def _take(self, chunk: bytes) -> None:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            self._end()
        self._add(rest)
        if not chunk:
            self._ended = True
            self._end()

    def _add(self, piece: bytes) -> None:
        self._buffer += piece
        if self._head is None and len(self._buffer) > MAX_LINE:
            self._head = bytes(self._buffer[:_WINDOW])
        if self._head is not None:
            del self._buffer[:-_WINDOW]

    def _end(self) -> None:
        line: bytes | TooLong = bytes(self._buffer)
        if self._head is not None:
            line = TooLong(self._head, bytes(self._buffer))
        if isinstance(line, TooLong) or (line and not line.isspace()):
            self._ready.append(line)
        self._buffer, self._head = bytearray(), None


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------------------ refusing


def refusals(line: bytes | TooLong, reason: str) -> list[Refusal]:
    """Return a refusal for each message in *line*, which the SDK could not parse because of *reason*."""
    if isinstance(line, TooLong):
        return [_outlined(line.head, line.tail, f"a message has at most {MAX_LINE} bytes: send less at once")]
    spoilt = ""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        text, spoilt = line.decode(errors="replace"), f"not UTF-8 text (byte {error.start})"
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        return [_too_deep(line)]
    except ValueError as error:
        return [Refusal(None, ParseError.jsonrpc_code, f"Parse error: {spoilt or error}")]
    if isinstance(value, list) and value:
        if len(value) > _BATCH:
            return [Refusal(None, InvalidRequest.jsonrpc_code, _IN_ARRAY)]
        found = [_refusal(each, _IN_ARRAY, spoilt) for each in value]
        return [Refusal(each.identity, InvalidRequest.jsonrpc_code, _IN_ARRAY, each.answered) for each in found]
    return [_refusal(value, reason, spoilt)]


def overlooked(line: bytes | TooLong) -> Refusal | None:
    """Return the refusal of *line* if it is a request that the SDK would not answer, as it ignores an invalid id."""
    if isinstance(line, TooLong):
        return None
    value = json.loads(line.decode(errors="replace"), parse_int=_integer)
    if "id" not in value or "method" not in value:
        return None
    return _refusal(value, "a message is either a request or an answer", "")


def _integer(digits: str) -> object:
    return int(digits) if len(digits.lstrip("-")) <= MAX_DIGITS else _HUGE


def _refusal(value: Any, reason: str, spoilt: str) -> Refusal:
    """Return the refusal of the message *value*; *reason* is the default text, *spoilt* the fault of invalid JSON."""
    if not isinstance(value, dict):
        return Refusal(None, InvalidRequest.jsonrpc_code, "a message has to be a JSON object")
    identity, method = _identity(value.get("id")), value.get("method")
    answered = not (isinstance(method, str) if "id" not in value else _is_answer(value))
    if spoilt:
        return Refusal(identity, ParseError.jsonrpc_code, f"Parse error: {spoilt}", answered)
    code, fault = InvalidRequest.jsonrpc_code, None
    if value.get("jsonrpc") != "2.0":
        fault = 'jsonrpc has to be "2.0"'
    elif not isinstance(method, str) and not _is_answer(value):
        fault = "method has to be a string"
    elif "id" in value and identity is None:
        fault = _trouble(value["id"], "id") or "the id has to be a string or an integer"
    elif not isinstance(value.get("params"), dict | None):
        code, fault = InvalidArgument.jsonrpc_code, "params has to be an object"
    elif "params" in value and (fault := _trouble(value["params"], "params")):
        code = InvalidArgument.jsonrpc_code
    return Refusal(identity, code, fault or _trouble(value, "") or reason, answered)


def _is_answer(value: dict[str, Any]) -> bool:
    return "method" not in value and ("result" in value or "error" in value)


def _identity(value: object) -> str | int | None:
    """Return *value* if it can be the id of an error, else None."""
    if isinstance(value, str):
        return None if _broken(value) else value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _broken(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _trouble(value: object, name: str) -> str | None:
    """Return the fault in *value*, the member *name* of a message, that the SDK does not accept, without recursion."""
    path: list[object] = []
    levels: list[Iterator[tuple[object, object]]] = [iter([(name, value)])]
    most = MAX_DEPTH - 1 if name else MAX_DEPTH
    while levels:
        step = next(levels[-1], None)
        if step is None:
            levels.pop()
            continue
        key, found = step
        path[len(levels) - 1 :] = [key]
        fault = _fault(key) or _fault(found)
        if fault is not None:
            return f"{printable('.'.join(map(str, path)).lstrip('.'))}: {fault}"
        if isinstance(found, dict):
            levels.append(iter(found.items()))
        elif isinstance(found, list):
            levels.append(enumerate(found))
        if len(levels) - 1 > most:
            return f"{name or 'a message'}: nested deeper than {MAX_DEPTH} levels"
    return None


def _fault(value: object) -> str | None:
    if value is _HUGE:
        return f"an integer of more than {MAX_DIGITS} digits"
    if isinstance(value, str) and _broken(value):
        return "half a surrogate pair, which is no character"
    return None


# ------------------------------------------------------------------ messages too deep or too large to be parsed


def _too_deep(line: bytes) -> Refusal:
    stripped = line.strip()
    if (stripped[:1], stripped[-1:]) not in ((b"{", b"}"), (b"[", b"]")):
        return Refusal(None, ParseError.jsonrpc_code, "Parse error: what was opened is not closed")
    return _outlined(stripped[:_WINDOW], stripped[-_WINDOW:], f"nested deeper than {MAX_DEPTH} levels")


def _outlined(head: bytes, tail: bytes, fault: str) -> Refusal:
    """Return the refusal for a *fault* of the message that begins with *head* and ends with *tail*."""
    members = _outline(head, tail)
    method = members.get("method")
    answered = "id" in members or not isinstance(method, str) or not method.startswith(_NOTIFICATION)
    return Refusal(_identity(members.get("id")), InvalidRequest.jsonrpc_code, fault, answered)


def _outline(head: bytes, tail: bytes) -> dict[str, Any]:
    """Return the members before the first array or object in a message, and those after the last one."""
    opening = _OPENING.match(head)
    if opening is None:
        return {}
    found: list[tuple[bytes, bytes]] = []
    position = opening.end()
    while member := _LEADING.match(head, position):
        found.append((member[1], member[2]))
        position = member.end()
    if ending := _ENDING.search(tail):
        found.extend((member[1], member[2]) for member in _ANY.finditer(ending[0]))
    members: dict[str, Any] = {}
    for key, value in found:
        try:
            members[json.loads(key)] = json.loads(value)
        # Not JSON after all.
        except ValueError:
            continue
    return members
