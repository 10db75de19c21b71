# SPDX-License-Identifier: LGPL-2.1-or-later
"""Correlation of calls: the client's trace, and the id of the HTTP request.

MCP carries a trace in ``params._meta``, under the bare names of the HTTP headers (specification, "Trace context";
OpenTelemetry's conventions for MCP). The formats are those of W3C Trace Context and W3C Baggage. The bridge records no
span of its own, so it passes on what it gets.
"""

from __future__ import annotations

import re
import secrets
from itertools import count
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.errors import McpdError

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST_ID: Final = b"x-request-id"
_PARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?"
)
_LATER: Final = 55
"""Bytes of version 00; only later versions may have more."""
_KEY: Final = rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER: Final = re.compile(_KEY + rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MOST_MEMBERS: Final = 32
_LONGEST_STATE: Final = 512
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_OCTETS: Final = rb"[!#-+\--:<-\[\]-~]*"
_PROPERTY: Final = rb"[ \t]*;[ \t]*" + _TOKEN + rb"(?:[ \t]*=[ \t]*" + _OCTETS + rb")?"
_ENTRY: Final = re.compile(_TOKEN + rb"[ \t]*=[ \t]*" + _OCTETS + rb"(?:" + _PROPERTY + rb")*")
_MOST_ENTRIES: Final = 64
_LONGEST_BAGGAGE: Final = 8192
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._~:/+=@-]{0,127}")
_name: Final = (secrets.token_hex(4) + "-%d").__mod__
_numbers: Final = count(1)


def with_trace(message: Message, headers: Mapping[bytes, bytes]) -> Message:
    """*message* with the trace of *headers* in its ``_meta``, unless it has one of its own or theirs is not valid."""
    found = trace_of(headers)
    if not found:
        return message
    params = jsonrpc.members(message.get("params"))
    raw = params.get("_meta")
    meta = jsonrpc.members(raw)
    if "traceparent" in meta or (raw is not None and bytes(memoryview(raw)[:1]) != b"{"):
        return message
    for name, value in found.items():
        meta.setdefault(name, Raw(jsonrpc.encode(value.decode("ascii"))))
    params["_meta"] = Raw(jsonrpc.encode(meta))
    return {**message, "params": Raw(jsonrpc.encode(params))}


def with_trace_in(body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    """The same for the *body* of a POST; one that is no message stays as it is, for others to find fault with."""
    try:
        parsed = jsonrpc.parse_body(body)
        if isinstance(parsed, dict):
            return jsonrpc.encode(with_trace(parsed, headers)) if "method" in parsed else body
        members = [jsonrpc.parse_member(raw) for raw in parsed]
    except McpdError:
        return body
    return jsonrpc.encode([with_trace(member, headers) if "method" in member else member for member in members])


def trace_of(headers: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """The valid ones of the three headers of a trace; nothing without a valid ``traceparent``."""
    parent = headers.get(b"traceparent", b"").strip()
    if _PARENT.fullmatch(parent) is None or (parent[:2] == b"00" and len(parent) != _LATER):
        return {}
    found = {"traceparent": parent}
    state = headers.get(b"tracestate", b"").strip()
    if _is_list(state, _MEMBER, _LONGEST_STATE, _MOST_MEMBERS):
        found["tracestate"] = state
    baggage = headers.get(b"baggage", b"").strip()
    if _is_list(baggage, _ENTRY, _LONGEST_BAGGAGE, _MOST_ENTRIES):
        found["baggage"] = baggage
    return found


def _is_list(value: bytes, member: re.Pattern[bytes], longest: int, most: int) -> bool:
    if not value or len(value) > longest:
        return False
    members = [each for part in value.split(b",") if (each := part.strip(b" \t"))]
    return 0 < len(members) <= most and all(member.fullmatch(each) for each in members)


def new_request_id() -> str:
    """An id that no other request to this process has, and hardly one to another."""
    return _name(next(_numbers))


def given_request_id(headers: Mapping[bytes, bytes]) -> str:
    """The id that a client or proxy gave its request in ``X-Request-Id``; empty if there is none that can be used."""
    given = headers.get(REQUEST_ID, b"")
    return given.decode("ascii") if _REQUEST_ID.fullmatch(given) else ""
