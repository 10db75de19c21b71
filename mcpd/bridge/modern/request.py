# SPDX-License-Identifier: LGPL-2.1-or-later
"""One request of revision 2026-07-28: read, and checked against the headers it came with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import envelope, headers
from mcpd.errors import HeaderMismatch, InvalidArgument, UnsupportedRevision

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Exchange
    from mcpd.bridge.http.post import Post
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.modern.envelope import Envelope


class Agreed(NamedTuple):
    """What a request said that its headers agree with; they agree with any other that says the same, byte for byte."""

    method: str
    meta: Raw
    parameter: str
    """The one that ``Mcp-Name`` repeats; empty for a method without."""
    named: Raw | None
    said: Envelope
    name: str
    """The tool of a ``tools/call``."""


@dataclass(slots=True)
class Request:
    """A request that its headers agree with."""

    post: Post
    identity: bytes
    method: str
    message: Message
    params: Message
    said: Envelope
    name: str
    """The tool of a ``tools/call``."""
    exchange: Exchange

    @property
    def caller(self) -> Caller:
        """The caller who makes it."""
        return self.post.caller

    @property
    def token(self) -> Raw | None:
        """The progress token of its client, if that wants to hear of progress."""
        raw = jsonrpc.members(Raw(self.said.rest or b"{}")).get(jsonrpc.PROGRESS_TOKEN)
        return None if raw is None or bytes(raw) == b"null" else raw

    def for_handshake(self, *, with_token: bool = False) -> Message:
        """The message as a server of the handshake era gets it, *with_token* also if its client gave none.

        Can be made once.
        """
        params = self.params
        del params["_meta"]
        if "inputResponses" in params:
            del params["inputResponses"]
        if "requestState" in params:
            del params["requestState"]
        if self.said.rest:
            params["_meta"] = Raw(self.said.rest)
        if with_token and self.token is None:
            meta = {**jsonrpc.members(params.get("_meta")), jsonrpc.PROGRESS_TOKEN: Raw(b"0")}
            params["_meta"] = Raw(jsonrpc.encode(meta))
        self.message["params"] = Raw(jsonrpc.encode(params))
        return self.message

    def with_param(self, name: str, value: bytes) -> Message:
        """The message with the parameter *name* set to the JSON *value*."""
        return {**self.message, "params": Raw(jsonrpc.encode({**self.params, name: Raw(value)}))}


def check_version(version: str) -> None:
    """Raise unless *version*, of the ``MCP-Protocol-Version`` header, is this revision."""
    if version == eras.MODERN:
        return
    if not version:
        raise HeaderMismatch("there is no MCP-Protocol-Version header: send the revision of the body in it")
    text = f"revision {version[:40]!r} is not served here: use one of {', '.join(eras.SUPPORTED)}"
    raise UnsupportedRevision(text, eras.SUPPORTED, version[:40])


def read(post: Post, identity: bytes, method: str, message: Message, exchange: Exchange) -> Request:
    """The request *message*. Raises the :class:`~mcpd.errors.McpdError` for the first rule that it breaks."""
    params = jsonrpc.members(message.get("params"))
    meta = params.get("_meta")
    agreed = post.agreed
    if (
        agreed is not None
        and agreed.method == method
        and agreed.meta == meta
        and agreed.named == params.get(agreed.parameter)
    ):
        return Request(post, identity, method, message, params, agreed.said, agreed.name, exchange)
    version = post.version
    try:
        said = envelope.read(meta)
    except InvalidArgument:
        # A client of a revision that nobody knows here may not have an envelope.
        if version and version != eras.MODERN:
            check_version(version)
        raise
    if said.version != version:
        raise HeaderMismatch(
            f"the MCP-Protocol-Version header is {version[:40]!r}, and {envelope.VERSION} of the body "
            f"{said.version[:40]!r}"
        )
    if not post.over_stdio:
        headers.check_method(post.headers, method)
        headers.check_name(post.headers, method, params)
    if version != eras.MODERN:
        check_version(version)
    name = jsonrpc.text(params.get("name")) if method == "tools/call" else ""
    parameter = headers.NAMED.get(method, "")
    named = params.get(parameter)
    if said.is_lasting and meta is not None and (named is None or len(memoryview(named)) <= envelope.MAX_KEPT):
        # Copies, as these are parts of the whole body.
        post.agreed = Agreed(method, meta.copy(), parameter, named.copy() if named is not None else None, said, name)
    return Request(post, identity, method, message, params, said, name, exchange)
