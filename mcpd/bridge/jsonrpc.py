# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON-RPC 2.0 on the level of messages: the members of an object as raw bytes, nothing below them.

A message is a ``dict`` from member name to :data:`Raw`, the bytes of the value exactly as they came. So an id goes
back byte for byte, unknown members survive, and a large result is checked once but never built as objects. A member
that occurs twice is collapsed to its last value, as every reader does, before it can mean two things to two readers.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from mcpd.errors import InvalidArgument, InvalidRequest, McpdError, ParseError

Raw = msgspec.Raw
Message: TypeAlias = dict[str, Raw]

PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 -- no secret
MAX_BATCH: Final = 1000
MAX_COSTLY: Final = 1 << 20
"""Bytes of a server's line that is a batch, which takes many times its length."""
MAX_REPAIRED: Final = 1 << 16
"""Bytes of one that needs repair, which also takes many times as long."""

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
encode = msgspec.json.encode

_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_VERSION_2: Final = Raw(b'"2.0"')
_NULL: Final = b"null"
_BRACE: Final = ord("{")
_FEW: Final = 32
_SHORT: Final = 2048
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ID: Final = rb'(-?\d{1,20}|"[^"\\]{1,100}")'
_ID_FIRST: Final = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*' + _ID + rb"\s*,")
_ID_LAST: Final = re.compile(rb',\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*' + _ID + rb"\s*\}\s*\Z")


class Kind(Enum):
    """The kind of a message."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"


def _first(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def parse_body(body: bytes) -> Message | list[Raw]:
    """One message or the members of a batch, from a client.

    Raises :class:`~mcpd.errors.ParseError` if *body* is not JSON in UTF-8 and
    :class:`~mcpd.errors.InvalidRequest` if it is neither an object nor an array that may be a batch.
    """
    try:
        if not body.isascii():
            body.decode()
        if body[:1] == b"{" or body.lstrip()[:1] != b"[":
            return _decode_object(body) if len(body) <= _SHORT else _without_rest(_decode_object(body), body)
        batch = _decode_array(body)
    except msgspec.ValidationError:
        _check_json(body)
        raise InvalidRequest("the body is JSON, but not a JSON-RPC message: send an object") from None
    except _FAULTS as error:
        raise ParseError(f"the body is not JSON: {_fault(error)}") from None
    if not batch:
        raise InvalidRequest("the batch is empty: send at least one message")
    if len(batch) > MAX_BATCH:
        raise InvalidRequest(f"the batch has {len(batch)} messages: send at most {MAX_BATCH}")
    # What is kept of one member must not keep the others.
    return batch if len(body) <= _SHORT else [raw.copy() for raw in batch]


def _without_rest(message: Message, whole: bytes | Raw) -> Message:
    """*message*, whose values do not keep *whole* in memory if they are little of it."""
    if 2 * sum(len(memoryview(raw)) for raw in message.values()) > len(memoryview(whole)):
        return message
    return {name: raw.copy() for name, raw in message.items()}


def _check_json(body: bytes) -> None:
    # The decoder tells that the first value is no object before it sees what comes after it.
    try:
        msgspec.json.decode(body, type=Raw)
    except _FAULTS as error:
        raise ParseError(f"the body is not JSON: {_fault(error)}") from None


def parse_member(raw: Raw) -> Message:
    """One message of a batch; raises :class:`~mcpd.errors.InvalidRequest` for anything but an object."""
    try:
        return _without_rest(_decode_object(raw), raw)
    except _FAULTS:
        raise InvalidRequest("a member of the batch is not a JSON-RPC message: send objects") from None


def count(body: bytes) -> int:
    """Return the number of messages in *body*; 1 if it is not a batch."""
    try:
        return len(_decode_array(body)) if body.lstrip()[:1] == b"[" else 1
    except _FAULTS:
        return 1


def only_message(body: bytes) -> Message:
    """The one message that *body* is; empty if it is none, or a batch."""
    try:
        parsed = parse_body(body)
    except McpdError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def messages(body: bytes, most: int) -> list[Message]:
    """The messages in *body*, of a batch the first *most*; an empty one for whatever is none."""
    try:
        parsed = parse_body(body)
    except McpdError:
        return [{}]
    if isinstance(parsed, dict):
        return [parsed]
    found: list[Message] = []
    for raw in parsed[:most]:
        try:
            found.append(parse_member(raw))
        except McpdError:
            found.append({})
    return found


def _fault(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).removeprefix("JSON is malformed: ")


def classify(message: Message) -> tuple[Kind, str, bytes]:
    """The kind of a client's *message*, its method and its id (empty where it has none).

    Raises :class:`~mcpd.errors.InvalidRequest` if it is no JSON-RPC 2.0 message of MCP, or one that some servers read
    otherwise, and :class:`~mcpd.errors.InvalidArgument` if ``params`` is not an object.
    """
    refuse_alike(message, _MEMBERS)
    if message.get("jsonrpc") != _VERSION_2:
        raise InvalidRequest('"jsonrpc" is not "2.0"')
    identity = _identity(message)
    raw_method = message.get("method")
    if raw_method is None:
        if identity and ("result" in message) != ("error" in message):
            return Kind.RESPONSE, "", identity
        raise InvalidRequest('the message has no "method"')
    try:
        method = _decode_text(raw_method)
    except _FAULTS:
        raise InvalidRequest('"method" is not a string') from None
    params = message.get("params")
    if params is not None and memoryview(params)[0] != _BRACE:
        raise InvalidArgument('"params" is not an object')
    if "result" in message or "error" in message:
        raise InvalidRequest('the message has a "method" and a "result" or "error": it can only be one of both')
    return (Kind.REQUEST if identity else Kind.NOTIFICATION), method, identity


def refuse_alike(members: Message, known: frozenset[str]) -> None:
    """Raise :class:`~mcpd.errors.InvalidRequest` if some servers confuse one of *members* with a *known* one.

    A server that takes ``ID`` for ``id`` would answer the call of another client.
    """
    for key in members:
        if key not in known and _fold(key) in _folded(known):
            raise InvalidRequest(f"the message has a member {key[:40]!r}, which some servers take for another one")


def _fold(name: str) -> str:
    """*name* without what servers differ in: some take ``list_changed`` or ``ListChanged`` for ``listChanged``."""
    return name.replace("_", "").casefold()


@lru_cache
def _folded(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(_fold, names))


def _identity(message: Message) -> bytes:
    raw = message.get("id")
    if raw is None:
        return b""
    identity = bytes(raw)
    if identity[0] not in b'"-0123456789':
        raise InvalidRequest('"id" is neither a string nor a number')
    return identity


def id_of(message: Message) -> bytes:
    """The id to put into an error about *message*: its own if that can be an id, else ``null``."""
    try:
        return _identity(message) or _NULL
    except InvalidRequest:
        return _NULL


# ---------------------------------------------------------------------------------------- from servers


def parse_line(line: bytes) -> list[Message]:
    """The messages of one line that a server wrote: one, or those of a batch (2025-03-26).

    Raises :class:`~mcpd.errors.ParseError` if it is not JSON, or not in UTF-8, or a batch that is too large.
    """
    try:
        if not line.isascii():
            line.decode()
        if line[:1] == b"{":
            return [_decode_object(line)]
        if line.lstrip()[:1] == b"[":
            return _parse_batch(line)
        return [_decode_object(line)]
    except _FAULTS as error:
        repaired = _lone_surrogates(line)
        if repaired is None:
            raise ParseError(_fault(error)) from None
        return [repaired]


def _parse_batch(line: bytes) -> list[Message]:
    batch = _decode_array(line) if len(line) <= MAX_COSTLY else None
    if batch is None or len(batch) > MAX_BATCH:
        raise ParseError(f"a batch of more than {MAX_BATCH} messages or {MAX_COSTLY} bytes")
    return [_decode_object(member) for member in batch]


def _lone_surrogates(line: bytes) -> Message | None:
    r"""The message of a *line* whose only fault is half of a ``\ud83d\ude00``, as cut strings of JavaScript have."""
    if len(line) > MAX_REPAIRED or b"\\u" not in line:
        return None
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
        return {key: Raw(json.dumps(value).encode()) for key, value in found.items()}
    except (ValueError, AttributeError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def id_of_broken(line: bytes) -> bytes:
    """The id of a response that cannot be parsed, so that its caller need not wait; empty if it cannot be told."""
    found = _ID_FIRST.match(line) or _ID_LAST.search(line, max(0, len(line) - 256))
    return found.group(1) if found else b""


def method_of(message: Message) -> str:
    """The method of a server's *message*, empty for a response or nonsense."""
    raw = message.get("method")
    if raw is None:
        return ""
    try:
        return _decode_text(raw)
    except _FAULTS:
        return ""


def text(raw: Raw | None) -> str:
    """The text of a string; empty if *raw* is missing or something else."""
    try:
        return _decode_text(raw) if raw is not None else ""
    except _FAULTS:
        return ""


def members(raw: Raw | None) -> Message:
    """The members of an object; empty if *raw* is missing or something else."""
    if raw is None:
        return {}
    try:
        return _decode_object(raw)
    except _FAULTS:
        return {}


def elements(raw: Raw | None) -> list[Raw]:
    """The elements of an array; empty if *raw* is missing or something else."""
    if raw is None:
        return []
    try:
        return _decode_array(raw)
    except _FAULTS:
        return []


# ---------------------------------------------------------------------------------------- building


def to_line(message: Message) -> bytes:
    """*message* as a line for a server. Line breaks between tokens become blanks, or one message would be two."""
    line: bytes = encode(message)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line + b"\n"


def upstream_line(message: Message, own: bytes, *, always: bool) -> tuple[bytes, bytes]:
    """The request *message* as a line for a server with *own* as its id and, if it has one, its progress token.

    A request without a token gets one only if *always*. Returns the line and the token that was replaced, empty if
    there was none.
    """
    params = message.get("params")
    if params is not None and len(message) == 4:
        text = bytes(params)
        # This is what nearly every request is like, and nothing in it has to be taken apart.
        if text[1:2] == b'"' and b"\n" not in text and not _may_have_meta(text):
            if b"\r" in text:
                text = text.replace(b"\r", b" ")
            # Joined, as parameters can be large and this copies them once.
            head = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":' % (own, message["method"])
            if always:
                token = b'{"_meta":{"progressToken":%b},' % own
                return b"".join((head, token, memoryview(text)[1:], b"}\n")), b""
            return b"".join((head, text, b"}\n")), b""
    changed = {**message, "id": Raw(own)}
    token = take_token(changed, own, always=always)
    return to_line(changed), token


def _may_have_meta(text: bytes) -> bool:
    """Return True if *text* contains ``_meta``, even escaped. One byte is found 30 times as fast as several."""
    if len(text) < _SHORT:
        return b"_meta" in text or b"\\u" in text
    if b"\\" in text and b"\\u" in text:
        return True
    at = text.find(b"_")
    for _ in range(_FEW):
        if at < 0:
            return False
        if text.startswith(b"_meta", at):
            return True
        at = text.find(b"_", at + 1)
    return b"_meta" in text


def response_line(message: Message, identity: bytes) -> bytes:
    """The response *message* of a server, with *identity* as its id."""
    value = message.get("result")
    if value is not None and len(message) == 3 and message.get("jsonrpc") == _VERSION_2:
        return b"".join((b'{"jsonrpc":"2.0","id":', identity, b',"result":', value, b"}"))
    message["id"] = Raw(identity)
    return encode(message)


def take_token(message: Message, own: bytes, *, always: bool) -> bytes:
    """Replace the progress token of a request by *own* (a JSON number); returns the client's, empty if it had none.

    A request without a token gets one only if *always*.
    """
    params = message.get("params")
    if params is None:
        if always:
            message["params"] = Raw(b'{"_meta":{"progressToken":%b}}' % own)
        return b""
    text = bytes(params)
    if not _may_have_meta(text):
        if always:
            if text[1:2] == b'"':
                message["params"] = Raw(b'{"_meta":{"progressToken":%b},%b' % (own, text[1:]))
            elif not text[1:-1].strip():
                message["params"] = Raw(b'{"_meta":{"progressToken":%b}}' % own)
            else:
                _set_token(message, own)
        return b""
    meta = members(members(params).get("_meta"))
    token = bytes(meta.get(PROGRESS_TOKEN, b""))
    if token == _NULL:
        token = b""
    if token or always:
        _set_token(message, own)
    return token


def _set_token(message: Message, own: bytes) -> None:
    params = members(message["params"])
    raw = params.get("_meta")
    if raw is not None and _first(raw) not in {b"{", b"n"}:
        return
    meta = members(raw)
    meta[PROGRESS_TOKEN] = Raw(own)
    params["_meta"] = Raw(encode(meta))
    message["params"] = Raw(encode(params))


def with_param(message: Message, name: str, value: bytes) -> Message:
    """*message* with the parameter *name* set to the JSON *value*."""
    params = members(message.get("params"))
    params[name] = Raw(value)
    return {**message, "params": Raw(encode(params))}


def request(identity: bytes, method: str, params: bytes) -> Message:
    """A request of the bridge itself."""
    return {"jsonrpc": _VERSION_2, "id": Raw(identity), "method": Raw(encode(method)), "params": Raw(params)}


def notification(method: str, params: bytes = b"") -> Message:
    """A notification of the bridge itself."""
    message = {"jsonrpc": _VERSION_2, "method": Raw(encode(method))}
    if params:
        message["params"] = Raw(params)
    return message


def result(identity: bytes, value: bytes) -> bytes:
    """A response that holds the JSON *value*."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (identity, value)


def error(identity: bytes, code: int, text: str, data: bytes = b"") -> bytes:
    """An error response; an empty *identity* stands for ``null``."""
    body = b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b' % (identity or _NULL, code, encode(text))
    return body + (b',"data":' + data if data else b"") + b"}}"


def failure(identity: bytes, fault: McpdError) -> bytes:
    """The error response for *fault*."""
    data = encode(fault.data) if fault.data is not None else b""
    return error(identity, fault.jsonrpc_code, fault.message, data)
