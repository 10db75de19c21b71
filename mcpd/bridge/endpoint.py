# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a POST to ``/mcp/{server}`` has to be before an era gets it (design §8 "Routes", "Status", "Caller")."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

import httptools

from mcpd.bridge.exchange import Exchange
from mcpd.bridge.negotiation import Refused, check_content_type, kinds_of_reply
from mcpd.bridge.post import Post
from mcpd.bridge.routing import server_of
from mcpd.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.cycle import Cycle
    from mcpd.bridge.handshake import Handshake
    from mcpd.bridge.seat import Parts
    from mcpd.bridge.security import Gate
    from mcpd.errors import LimitExceeded


@lru_cache(maxsize=256)
def target_of(url: bytes) -> tuple[str, str]:
    """The server that the request target *url* names, and the id of a stream of 2024-11-05; empty if there is none."""
    try:
        parsed = httptools.parse_url(url)
        path = unquote((parsed.path or b"").decode("ascii"))
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return "", ""
    link = parse_qs((parsed.query or b"").decode("latin-1")).get("sse", [""])[0] if parsed.query else ""
    return server_of(path), link


class Endpoint:
    """Lets POSTs in and hands them to the era they are of."""

    def __init__(self, parts: Parts, gate: Gate, handshake: Handshake) -> None:
        self._parts = parts
        self._gate = gate
        self._handshake = handshake

    def admit(self, cycle: Cycle) -> tuple[Post, Exchange]:
        """Let the POST in whose head *cycle* has.

        Raises :class:`~mcpd.bridge.negotiation.Refused` or the :class:`~mcpd.errors.McpdError` that says why not.
        """
        headers, peer = cycle.headers, cycle.connection.peer
        gate = self._gate
        if not gate.check_host(headers, peer):
            host = headers.get(b"host", b"").decode("latin-1")[:200]
            raise Refused(421, f"this bridge does not answer for the host {host!r}")
        if b"upgrade" in headers.get(b"connection", b"").lower():
            raise Refused(400, "this bridge speaks plain HTTP/1.1: leave out 'Connection: Upgrade'")
        origin = headers.get(b"origin")
        if origin is not None:
            cycle.cors = gate.check_origin(origin)
        caller = gate.identify(headers, peer)
        check_content_type(headers.get(b"content-type", b""))
        takes_json, takes_events = kinds_of_reply(headers.get(b"accept", b""))
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.max_body:
            raise self.too_large()
        exchange = Exchange(takes_json=takes_json, takes_events=takes_events)
        exchange.charge(self._parts.budget, caller, cycle.connection.transport.abort)
        session_id = headers.get(b"mcp-session-id", b"").decode("latin-1")
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        return Post(cycle.server, caller, session_id, version, headers, cycle.link), exchange

    def limit(self, post: Post, cut: Callable[[LimitExceeded], None]) -> Holding:
        """What counts the body of *post* while it comes."""
        return self._parts.budget.holding(post.caller, cut)

    @property
    def max_body(self) -> int:
        """Bytes that a body may have."""
        return self._parts.options.max_body

    def too_large(self) -> TooLarge:
        """The error of a body that is larger than the limit."""
        return TooLarge(f"the body is larger than {self.max_body} bytes, see bridge.max_body")

    def post(self, post: Post, body: bytes, exchange: Exchange) -> None:
        """Serve one POST; its reply goes to *exchange*, perhaps later."""
        self._handshake.post(post, body, exchange)
