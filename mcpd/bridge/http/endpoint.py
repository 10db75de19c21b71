# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of a POST to ``/mcp/{server}`` before it is passed to an era."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

import httptools

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.exchange import Exchange
from mcpd.bridge.http.post import Post
from mcpd.bridge.http.routing import Refused, check_content_type, kinds_of_reply, server_of, short_cache
from mcpd.bridge.modern import Modern
from mcpd.bridge.observe.trace import REQUEST_ID, given_request_id, with_trace_in
from mcpd.bridge.observe.watch import refuse_all
from mcpd.bridge.upstream.hops import check_target
from mcpd.errors import HeaderMismatch, LimitExceeded, McpdError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.handshake.sse import Links
    from mcpd.bridge.http.cycle import Cycle
    from mcpd.bridge.http.gate import Gate
    from mcpd.bridge.parts import Parts


_HANDSHAKE: Final = frozenset({"", *eras.HANDSHAKE})
_ONCE: Final = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-length"})
LOOK_AGAIN: Final = 0.05
"""Seconds for which a client is who it was found to be, on one connection; then tokens are looked at again."""


@short_cache
def target_of(url: bytes) -> tuple[str, str]:
    """The server that the request target *url* names, and the id of a stream of 2024-11-05; empty if there is none."""
    try:
        parsed = httptools.parse_url(url)
        path = unquote((parsed.path or b"").decode("ascii"))
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return "", ""
    link = parse_qs((parsed.query or b"").decode("latin-1")).get("sse", [""])[0] if parsed.query else ""
    return server_of(path), link


@dataclass(slots=True)
class Head:
    """The headers of a POST, but its length, and what they came to."""

    raw: Mapping[bytes, bytes]
    """With names as they were sent."""
    headers: Mapping[bytes, bytes]
    """With names in lower case."""
    session_id: str
    version: str
    edition: int
    """That of the rules when it was let in."""
    cors: Headers
    """What goes back with every reply, with the id that the client gave its request."""
    request_id: str = ""
    """The id that the client gave its request."""
    repeated: frozenset[bytes] = frozenset()
    """Headers that are there in more than one spelling."""
    takes_json: bool = False
    takes_events: bool = False
    caller: Caller | None = None
    identified: float = 0.0
    """When, in seconds of the loop's clock."""
    post: Post | None = None
    """What the era was given last."""


class Endpoint:
    """Lets POSTs in and hands them to the era they are of."""

    def __init__(self, parts: Parts, gate: Gate, handshake: Handshake, links: Links) -> None:
        self.parts = parts
        self._gate = gate
        self._handshake = handshake
        self._links = links
        self.watch = parts.watch
        self.modern = Modern(parts, handshake.pools)

    def admit(self, cycle: Cycle) -> tuple[Post, Exchange]:
        """Let the POST in whose head *cycle* has.

        Raises :class:`~mcpd.bridge.http.routing.Refused` or the :class:`~mcpd.errors.McpdError` that says why not.
        """
        connection, raw = cycle.connection, cycle.raw_headers
        length = raw.pop(b"content-length", None) or raw.pop(b"Content-Length", None)
        head = connection.head
        if head is None or head.raw != raw or head.edition != self._gate.edition:
            head = connection.head = self._head(raw, cycle)
        if cycle.repeated or head.repeated:
            cycle.cors = head.cors
            check_repeated(cycle.repeated | head.repeated)
        length = length or head.headers.get(b"content-length")
        return self.let_in(cycle, head, int(length) if length is not None else 0)

    def is_current(self, head: Head) -> bool:
        """Return True if the rules are those by which *head* was looked at."""
        return head.edition == self._gate.edition

    def let_in(self, cycle: Cycle, head: Head, length: int) -> tuple[Post, Exchange]:
        """Let the POST in that has *head* and a body of *length* bytes, as far as is known; raises as :meth:`admit`."""
        connection = cycle.connection
        cycle.cors = head.cors
        now = connection.loop.time()
        caller = head.caller
        if caller is None or now - head.identified > LOOK_AGAIN:
            caller = head.caller = self._gate.identify(head.headers, connection.peer)
            head.identified = now
        if caller.server:
            check_target(caller, cycle.server)
        if not head.takes_json and not head.takes_events:
            # Only now, as who is not let in has to hear of that first.
            check_content_type(head.headers.get(b"content-type", b""))
            head.takes_json, head.takes_events = kinds_of_reply(head.headers.get(b"accept", b""))
        if length > self.parts.options.max_body:
            raise self.too_large()
        exchange = Exchange(takes_json=head.takes_json, takes_events=head.takes_events)
        exchange.charge(self.parts.budget, caller, connection.transport.abort)
        if head.request_id:
            exchange.request_id = head.request_id
        post = head.post
        if post is None or post.server != cycle.server or post.caller is not caller or cycle.link:
            post = Post(cycle.server, caller, head.session_id, head.version, head.headers, cycle.link)
            head.post = None if cycle.link else post
        return post, exchange

    def _head(self, raw: dict[bytes, bytes], cycle: Cycle) -> Head:
        headers = {name.lower(): value for name, value in raw.items()}
        gate = self._gate
        if not gate.check_host(headers, cycle.connection.peer):
            host = headers.get(b"host", b"").decode("latin-1")[:200]
            raise Refused(421, f"this bridge does not answer for the host {host!r}; alone, --allow-host adds one")
        if b"upgrade" in headers.get(b"connection", b"").lower():
            raise Refused(400, "this bridge supports only plain HTTP/1.1: omit 'Connection: Upgrade'")
        origin = headers.get(b"origin")
        cors = gate.check_origin(origin, headers.get(b"host", b"")) if origin is not None else ()
        request_id = given_request_id(headers)
        return Head(
            raw.copy(),
            headers,
            headers.get(b"mcp-session-id", b"").decode("latin-1"),
            headers.get(b"mcp-protocol-version", b"").decode("latin-1"),
            gate.edition,
            (*cors, (REQUEST_ID, request_id.encode())) if request_id else cors,
            request_id,
            spelt_differently(raw),
        )

    def limit(self, post: Post, cut: Callable[[LimitExceeded], None]) -> Holding:
        """What counts the body of *post* while it comes."""
        return self.parts.budget.holding(post.caller, cut)

    @property
    def max_body(self) -> int:
        """Bytes that a body may have."""
        return self.parts.options.max_body

    @property
    def keepalive(self) -> float:
        """Seconds after which a silent stream carries a comment."""
        return self.parts.options.keepalive

    def too_large(self) -> TooLarge:
        """The error of a body that is larger than the limit."""
        return TooLarge(f"the body is larger than {self.max_body} bytes, see bridge.max_body")

    def post(self, post: Post, body: bytes, exchange: Exchange) -> None:
        """Serve one POST; its reply goes to *exchange*, perhaps later."""
        calls = 1 if body[:1] == b"{" else jsonrpc.count(body)
        wait = self.parts.limiter.take(post.caller, post.server, calls)
        if wait:
            self._too_often(post, body, exchange, wait)
            return
        if b"traceparent" in post.headers:
            body = with_trace_in(body, post.headers)
        if post.link:
            self._post_to_link(post, body, exchange)
            return
        if post.version in _HANDSHAKE or (post.session_id and post.version != eras.MODERN):
            self._handshake.post(post, body, exchange)
        else:
            self.modern.post(post, body, exchange)

    def _too_often(self, post: Post, body: bytes, exchange: Exchange, wait: float) -> None:
        refuse_all(self.parts.watch, post.caller, post.server, body, "rate", exchange.request_id)
        options = self.parts.options
        fault = LimitExceeded(
            f"you call server {post.server} too often: {options.rate:g} calls a second are allowed, "
            f"{options.burst} at once, see bridge.rate and bridge.burst (--rate, --burst); try again in {wait:.3g} s"
        )
        identity = jsonrpc.id_of(jsonrpc.only_message(body))
        exchange.refuse(fault, identity, ((b"retry-after", b"%d" % math.ceil(wait)),))

    def _post_to_link(self, post: Post, body: bytes, exchange: Exchange) -> None:
        try:
            self._links.find(post.link, post.server, post.caller).post(post, body, exchange)
        except McpdError as fault:
            refuse_all(self.parts.watch, post.caller, post.server, body, fault.word, exchange.request_id)
            exchange.refuse(fault)


def spelt_differently(names: Iterable[bytes]) -> frozenset[bytes]:
    """Those of the header *names*, in lower case, that are there in more than one spelling."""
    return frozenset(name for name, count in Counter(map(bytes.lower, names)).items() if count > 1)


def check_repeated(names: frozenset[bytes]) -> None:
    """Refuse a request whose headers *names* are there more than once, if others may read another of them than we do.

    Raises :class:`~mcpd.errors.HeaderMismatch` or :class:`~mcpd.bridge.http.routing.Refused`.
    """
    for name in sorted(names):
        if name.startswith(b"mcp-"):
            raise HeaderMismatch(f"the header {name.decode('latin-1')} is repeated: send it once")
        if name in _ONCE:
            raise Refused(400, f"the header {name.decode()} is repeated: send it once")
