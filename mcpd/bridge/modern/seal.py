# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``requestState`` that a client carries from one round trip to the next: it cannot be made, changed or lent.

A state is authenticated with a key of this process and bound to the caller, the server, the request and a time. A
client that shows another one learns nothing about what was wrong with it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.bridge import jsonrpc
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message

LIFETIME: Final = 600.0
"""Seconds in which a client may come back with a state."""
_PREFIX: Final = "mcpd1."
_MAC: Final = 32
_TIME: Final = 8
_NOT_OF_REQUEST: Final = ("_meta", "inputResponses", "requestState")


def refused() -> InvalidArgument:
    """The error of a state that is not (any more) one of this request."""
    return InvalidArgument(
        '"requestState" is not valid here: it has expired, was used already, or belongs to another request; '
        "make the request again without it"
    )


def digest(method: str, params: Message) -> bytes:
    """Return a digest that identifies a request; it is equal for a request and its repetition with answers."""
    salient = {name: value for name, value in params.items() if name not in _NOT_OF_REQUEST}
    text: bytes = jsonrpc.encode(salient)
    # What is nested too deeply for this is the same request only if it has the same bytes.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    return hashlib.sha256(b"%b\0%b" % (method.encode(), text)).digest()


class Seal:
    """Makes and checks states."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def close(self, content: bytes, caller: Caller, server: str, request: bytes) -> str:
        """A state that holds *content*, for the *request* digest of *caller* to *server*."""
        body = int(time.time() + LIFETIME).to_bytes(_TIME, "big") + content
        mac = self._mac(body, caller, server, request)
        return _PREFIX + base64.urlsafe_b64encode(mac + body).decode().rstrip("=")

    def open(self, state: str, caller: Caller, server: str, request: bytes) -> bytes:
        """The content of *state*. Raises :class:`~mcpd.errors.InvalidArgument` if it is not one of that request."""
        try:
            text = state.removeprefix(_PREFIX).encode("ascii") if state.startswith(_PREFIX) else b""
            sealed = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise refused() from None
        mac, body = sealed[:_MAC], sealed[_MAC:]
        if not hmac.compare_digest(mac, self._mac(body, caller, server, request)):
            raise refused()
        if int.from_bytes(body[:_TIME], "big") < time.time():
            raise refused()
        return body[_TIME:]

    def _mac(self, body: bytes, caller: Caller, server: str, request: bytes) -> bytes:
        bound = jsonrpc.encode([repr(tuple(caller)), server, request.hex()])
        return hmac.digest(self._key, len(bound).to_bytes(4, "big") + bound + body, "sha256")


def state_of(params: Message) -> str:
    """The ``requestState`` of a request, empty if it has none. Raises InvalidArgument for one that is no string."""
    raw = params.get("requestState")
    if raw is None or bytes(raw) == b"null":
        return ""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidArgument('"requestState" is not a string') from None


def answers_of(params: Message) -> Message:
    """The ``inputResponses`` of a request, by key. Raises :class:`~mcpd.errors.InvalidArgument` for nonsense."""
    raw = params.get("inputResponses")
    if raw is None or bytes(raw) == b"null":
        return {}
    if bytes(memoryview(raw)[:1]) != b"{":
        raise InvalidArgument('"inputResponses" is not an object')
    answers = jsonrpc.members(raw)
    for key, answer in answers.items():
        if bytes(memoryview(answer)[:1]) != b"{":
            raise InvalidArgument(f'the answer {key[:100]!r} in "inputResponses" is not an object')
    return answers
