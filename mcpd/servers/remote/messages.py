# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON-RPC messages as they travel: looked into, never rewritten."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""Bytes of one message, either way."""
INTERNAL: Final = -32603
"""JSON-RPC code: the remote server, or the way there, does not work."""
TIMED_OUT: Final = -32000
TOO_MANY: Final = -32005
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
"""Member of ``_meta`` by which a request says that it is of 2026-07-28 or later."""


class Fault(Exception):
    """Why a request gets an error instead of its answer: the code, and a text for people that holds no secret."""

    def __init__(self, text: str, code: int = INTERNAL) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    raw: bytes = field(repr=False)
    """As it came, on one line."""
    data: dict[str, Any] = field(repr=False)

    @property
    def method(self) -> str:
        """Empty for a response."""
        method = self.data.get("method")
        return method if isinstance(method, str) else ""

    @property
    def is_request(self) -> bool:
        """True if it wants an answer."""
        return "id" in self.data and bool(self.method)

    @property
    def is_response(self) -> bool:
        """True if it is an answer."""
        return not self.method

    @property
    def key(self) -> str:
        """Its id, such that 1, ``"1"`` and 1.0 are different ones."""
        return key_of(self.data.get("id"))

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters; empty if they are no object."""
        params = self.data.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def revision(self) -> str:
        """The revision that a message of the era without a handshake names; empty for any other."""
        meta = self.params.get("_meta")
        named = meta.get(PROTOCOL_VERSION) if isinstance(meta, dict) else None
        return named if isinstance(named, str) else ""


def key_of(identity: object) -> str:
    """*identity* as a key of dictionaries."""
    return json.dumps(identity)


def parse(raw: bytes | str) -> list[Message]:
    """The message in *raw*, or those of a batch. Raises :class:`ValueError` for anything else."""
    try:
        data = json.loads(raw, parse_constant=_no_constant)
        if isinstance(data, list):
            return [Message(dump(item), _checked(item)) for item in data]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    text = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    # Only white space between tokens can be a line's end in JSON.
    return [Message(text.replace(b"\r", b" ").replace(b"\n", b" ").strip(), _checked(data))]


def dump(data: object) -> bytes:
    """*data* as one line of JSON, without its newline."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def made(**members: object) -> Message:
    """A message of our own."""
    data: dict[str, Any] = {"jsonrpc": "2.0", **members}
    return Message(dump(data), data)


def error(identity: object, code: int, text: str) -> bytes:
    """An error as the answer to the request *identity*."""
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
