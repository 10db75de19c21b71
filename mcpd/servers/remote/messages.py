# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON-RPC messages, which are parsed but never rewritten."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Maximum size of one message in bytes, in both directions."""
INTERNAL: Final = -32603
"""JSON-RPC code for a failure of the remote server or of the connection."""
TIMED_OUT: Final = -32000
TOO_MANY: Final = -32005
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
"""Member of ``_meta`` that shows that a request is of revision 2026-07-28 or later."""


class Fault(Exception):
    """The reason for an error response: its code, and a message for people without secrets."""

    def __init__(self, text: str, code: int = INTERNAL) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """A JSON-RPC message."""

    raw: bytes = field(repr=False)
    """The message as received, on one line."""
    data: dict[str, Any] = field(repr=False)

    @property
    def method(self) -> str:
        """The method; empty for a response."""
        method = self.data.get("method")
        return method if isinstance(method, str) else ""

    @property
    def is_request(self) -> bool:
        """True if it expects an answer."""
        return "id" in self.data and bool(self.method)

    @property
    def is_response(self) -> bool:
        """True if it is an answer."""
        return not self.method

    @property
    def key(self) -> str:
        """Its id in a form in which 1, ``"1"`` and 1.0 differ."""
        return key_of(self.data.get("id"))

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters; empty if they are not an object."""
        params = self.data.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def revision(self) -> str:
        """The revision in a message of the modern era; empty for others."""
        meta = self.params.get("_meta")
        named = meta.get(PROTOCOL_VERSION) if isinstance(meta, dict) else None
        return named if isinstance(named, str) else ""


def key_of(identity: object) -> str:
    """Return *identity* as a key for dictionaries."""
    return json.dumps(identity)


def parse(raw: bytes | str) -> list[Message]:
    """Return the message in *raw*, or those of a batch. Raises :class:`ValueError` if it is invalid."""
    try:
        data = json.loads(raw, parse_constant=_no_constant)
        if isinstance(data, list):
            return [Message(dump(item), _checked(item)) for item in data]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    text = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    # In JSON, line breaks can only be white space between tokens.
    return [Message(text.replace(b"\r", b" ").replace(b"\n", b" ").strip(), _checked(data))]


def dump(data: object) -> bytes:
    """Return *data* as JSON on one line, without newline."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def made(**members: object) -> Message:
    """Return a message with *members*."""
    data: dict[str, Any] = {"jsonrpc": "2.0", **members}
    return Message(dump(data), data)


def error(identity: object, code: int, text: str) -> bytes:
    """Return an error response to the request *identity*."""
    return dump({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": text}})


def _checked(data: object) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("jsonrpc") != "2.0":
        raise ValueError("not a JSON-RPC 2.0 message")
    if isinstance(data.get("id"), (dict, list)):
        raise ValueError("its id is neither a string nor a number")  # noqa: TRY004 -- see parse
    if not isinstance(data.get("method"), str) and not ("id" in data and ("result" in data or "error" in data)):
        raise ValueError("neither a request nor an answer")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
