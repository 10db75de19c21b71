# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ASGI application: routes, and what HTTP demands of a request.

POSTs to servers do not come here, see :mod:`.endpoint`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.exchange import EventQueue
from mcpd.bridge.handshake.serve import Handshake
from mcpd.bridge.handshake.sse import Links
from mcpd.bridge.http import gate
from mcpd.bridge.http.endpoint import Endpoint, check_repeated
from mcpd.bridge.http.request import Request, stream
from mcpd.bridge.http.routing import Refused, is_server_name, not_allowed, server_of, stream_of
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.hops import check_target
from mcpd.errors import McpdError, NotAuthorized, NotFound, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import Headers
    from mcpd.bridge.handshake.session import Session
    from mcpd.bridge.http.gate import Gate
    from mcpd.bridge.pages.view import Pages
    from mcpd.bridge.parts import Parts

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    Handler = Callable[[Request], Awaitable[None]]

_READ: Final = ("GET", "HEAD")
_METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
_META: Final = "/mcp/meta/"
_PRIVATE: Final = ((b"cache-control", b"no-store"),)
_PEM: Final = b"-----BEGIN PUBLIC KEY-----"
_LARGEST_KEY: Final = 65536
_ED25519: Final = bytes.fromhex("302a300506032b6570032100")
"""What comes before the key itself in the encoding of an Ed25519 public key (RFC 8410)."""
_RAW_KEY: Final = 32


class Application:
    """Serves HTTP requests, as an ASGI 3 application."""

    def __init__(self, parts: Parts, gate: Gate) -> None:
        self._parts = parts
        self._gate = gate
        self.handshake = Handshake(parts)
        self.links = Links(parts, self.handshake)
        self.endpoint = Endpoint(parts, gate, self.handshake, self.links)
        self._pages_made: Pages | None = None
        self._routes: dict[str, tuple[str, Handler, tuple[str, ...]]] = {
            "/health": ("health", self._health, _READ),
            "/metrics": ("metrics", self._metrics, _READ),
            "/token": ("token", self._token, ("GET", "POST")),
            "/sign-in": ("sign-in", self._sign_in, ("POST",)),
            "/sign-out": ("sign-out", self._sign_out, ("POST",)),
            "/": ("page", self._home, _READ),
            "/mcp": ("page", self._overview, _READ),
            "/mcp/": ("page", self._overview, _READ),
            "/keys/verification_key.pem": ("key", self._key, _READ),
            "/keys/verification_key.raw": ("key", self._raw_key, _READ),
        }
        self._below: tuple[tuple[str, str, Handler, tuple[str, ...]], ...] = (
            (_META, "page", self._meta, (*_READ, "POST")),
            ("/open/", "open", self._open, ("GET",)),
            ("/assets/", "asset", self._asset, _READ),
            ("/.well-known/", "well-known", self._well_known, _METHODS),
        )

    @property
    def in_use(self) -> bool:
        """True if a browser is signed in, or about to be."""
        signs = self._gate.sign_in
        return signs is not None and signs.in_use

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request."""
        since = time.monotonic()
        request = Request(scope, send, dict(scope["headers"]), scope["state"]["connection"])
        route, handler, methods = self._route(request)
        try:
            await self._serve(request, route, handler, methods)
        except Refused as refusal:
            await self._refuse(request, refusal.status, refusal.fault, refusal.headers)
        except McpdError as fault:
            await self._refuse(request, fault.http_status, fault, gate.challenge(fault))
        # The boundary: whatever went wrong, the client waits for a reply.
        except Exception as error:
            if request.status:
                raise
            own = fault_of(error)
            await self._refuse(request, own.http_status, own, ())
        finally:
            request.connection.waiting = None
            self._parts.watch.http(route, request.status, time.monotonic() - since)

    async def _serve(self, request: Request, route: str, handler: Handler, methods: tuple[str, ...]) -> None:
        self._check(request)
        if request.method == "OPTIONS" and route != "nothing":
            await request.reply(204, b"", gate.preflight(request.headers))
        elif request.method not in methods:
            raise not_allowed(request.method, ", ".join((*methods, "OPTIONS")))
        else:
            if request.peer.is_server:
                self._check_server(route, request)
            await handler(request)

    def _route(self, request: Request) -> tuple[str, Handler, tuple[str, ...]]:
        """What the request is counted as, who serves it, and the methods that works with."""
        path = request.path
        found = self._routes.get(path)
        if found is not None:
            return found
        for prefix, name, handler, methods in self._below:
            if path.startswith(prefix):
                return name, handler, methods
        if stream_of(path):
            return "sse", self._links, ("GET",)
        if server_of(path):
            return "mcp", self._server, _METHODS
        return "nothing", self._nothing, (request.method,)

    def _check(self, request: Request) -> None:
        """Raise what forbids to serve it at all; find out what lets the page read the reply that asks."""
        headers = request.headers
        check_repeated(request.scope["state"]["repeated"])
        if not self._gate.check_host(headers, request.peer):
            host = headers.get(b"host", b"").decode("latin-1")[:200]
            raise Refused(421, f"this bridge does not answer for the host {host!r}; alone, --allow-host adds one")
        if b"upgrade" in headers.get(b"connection", b"").lower():
            raise Refused(400, "this bridge supports only plain HTTP/1.1: omit 'Connection: Upgrade'")
        origin = headers.get(b"origin")
        if origin is not None:
            request.cors = self._gate.check_origin(origin, headers.get(b"host", b""))

    def _check_server(self, route: str, request: Request) -> None:
        """Raise unless the server that asks may have what it asks for: other servers, and no pages."""
        caller = self._gate.identify(request.headers, request.peer, safe=True)
        shows_page = route == "mcp" and request.reads and "text/event-stream" not in request.accepts
        if route not in {"mcp", "sse"} or shows_page:
            raise NotAuthorized("servers find other servers here, at /mcp/ID, and nothing else")
        check_target(caller, server_of(request.path) or stream_of(request.path))

    async def _refuse(self, request: Request, status: int, fault: McpdError, headers: Headers) -> None:
        """Tell a person by a page, and a program by JSON."""
        if not request.wants_page:
            await request.reply(status, jsonrpc.failure(b"", fault), headers)
            return
        pages = await self._pages()
        if isinstance(fault, Unauthenticated):
            hint, command = self._how_to_sign_in()
            message = "These pages are private, and the bridge does not know yet whose browser this is."
            await pages.error(request, status, message, hint=hint, command=command, headers=headers)
        else:
            await pages.error(request, status, fault.message, headers=headers)

    def _how_to_sign_in(self) -> tuple[str, str]:
        kind = self._parts.site.kind
        if kind == "user":
            return "Run this command; it opens your browser and signs it in:", f"{self._parts.site.shell} open"
        if kind == "system":
            return "Read them through the unix socket of the bridge:", (
                f"curl --unix-socket {self._parts.site.socket} -H 'Accept: text/html' http://localhost/mcp"
            )
        return "Send the header 'Authorization: Bearer TOKEN', with the token in the file the bridge was given.", ""

    async def _pages(self) -> Pages:
        if self._pages_made is None:
            # Templates take long to import, and most bridges never show a page.
            made = await asyncio.to_thread(_pages_class)
            self._pages_made = self._pages_made or made(self._parts, self.endpoint, self.handshake)
        return self._pages_made

    # ------------------------------------------------------------------------------------ open to everybody

    async def _health(self, request: Request) -> None:
        await request.reply(200, b'{"status":"ok"}')

    async def _nothing(self, _request: Request) -> None:
        raise NotFound("there is nothing at this path: servers are at /mcp/NAME")

    async def _well_known(self, request: Request) -> None:
        """Clients look here for an OAuth server, and use the token they were given when there is none."""
        text = "this bridge has no OAuth: send its token in the header 'Authorization: Bearer TOKEN'"
        await request.reply(404, jsonrpc.encode({"error": "not_found", "error_description": text}))

    async def _key(self, request: Request) -> None:
        """The public key as PEM, whose owner publishes it. Nothing else that may lie there is given away."""
        await self._reply_key(request, await self._public_key(), b"application/x-pem-file")

    async def _raw_key(self, request: Request) -> None:
        """The same as its 32 bytes. They are taken from the PEM, as any 32 bytes might be a private key."""
        pem = await self._public_key()
        try:
            lines = pem.split(_PEM, 1)[1].split(b"-----END", 1)[0]
            encoded = base64.b64decode(b"".join(lines.split()), validate=True)
        except ValueError:
            encoded = b""
        if len(encoded) != len(_ED25519) + _RAW_KEY or not encoded.startswith(_ED25519):
            raise NotFound("no Ed25519 key was published here")
        await self._reply_key(request, encoded[len(_ED25519) :], b"application/octet-stream")

    async def _public_key(self) -> bytes:
        path = self._parts.site.key

        def read() -> bytes:
            if path is None:
                return b""
            # A server writes where it lies: neither a link nor a pipe is followed.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                return file.read(_LARGEST_KEY + 1) or b""

        try:
            key = await asyncio.to_thread(read)
        except OSError:
            key = b""
        if not key.lstrip().startswith(_PEM) or b"PRIVATE" in key or len(key) > _LARGEST_KEY:
            raise NotFound("no verification key was published here: nothing was signed yet")
        return key

    async def _reply_key(self, request: Request, key: bytes, mime: bytes) -> None:
        headers = ((b"content-type", mime), (b"cache-control", b"no-cache"), *request.cors)
        await request.reply_as(200, key, headers)

    async def _asset(self, request: Request) -> None:
        from mcpd.bridge.pages.view import asset  # with the first page

        await self._pages()
        found = asset(request.path.removeprefix("/assets/"))
        if found is None:
            raise NotFound("there is no such file")
        await request.reply_as(200, found.body, found.headers)

    # ------------------------------------------------------------------------------------ pages

    async def _home(self, request: Request) -> None:
        await request.reply_as(303, b"", ((b"location", b"/mcp"),))

    async def _overview(self, request: Request) -> None:
        caller = self._gate.identify(request.headers, request.peer, safe=True)
        await (await self._pages()).overview(request, caller)

    async def _meta(self, request: Request) -> None:
        caller = self._gate.identify(request.headers, request.peer, safe=request.reads)
        name = request.path.removeprefix(_META).removesuffix("/")
        if not is_server_name(name):
            raise NotFound("there is no such server: its page is at /mcp/meta/NAME")
        await (await self._pages()).server(request, caller, name)

    async def _open(self, request: Request) -> None:
        """Exchange a one-time link for a cookie. Whoever only looks ahead does not use it up."""
        headers = request.headers
        if b"prefetch" in headers.get(b"sec-purpose", headers.get(b"purpose", headers.get(b"x-moz", b""))).lower():
            raise Refused(403, "this link works only once and cannot be prefetched")
        navigates = headers.get(b"sec-fetch-mode", b"navigate") == b"navigate"
        if not navigates or headers.get(b"sec-fetch-site", b"none") not in {b"none", b"same-origin"}:
            raise Refused(403, "another page asks for this link: copy it into the address bar of your browser")
        if not gate.names_its_port(headers, request.peer):
            raise Refused(403, "this link came to another port than it names, where no browser can be signed in: "
                          "give a tunnel the same port at both ends")  # fmt: skip
        signs = self._gate.sign_in
        found = signs.redeem(request.path.removeprefix("/open/"), request.peer) if signs is not None else None
        if found is None:
            raise Refused(410, "this link was used already, is older than a minute, or was made for another user: "
                          f"run '{self._parts.site.shell} open' again")  # fmt: skip
        secret, path = found
        cookie = gate.cookie(secret, secure=request.scope["scheme"] == "https")
        await request.reply_as(303, b"", ((b"location", path.encode("ascii")), cookie, *_PRIVATE))

    # ------------------------------------------------------------------------------------ signing in

    async def _sign_in(self, request: Request) -> None:
        """Make a one-time link for a user of the unix socket."""
        signs, open_tcp = self._gate.sign_in, self._parts.site.open_tcp
        if signs is None or open_tcp is None or request.peer.uid is None:
            raise NotFound("sign in at the Unix socket of a user's own bridge instead")
        caller = self._gate.identify({}, request.peer)
        server = request.argument("server")
        if server:
            await self._parts.source.describe(server)
        base = await open_tcp()
        code = signs.code(caller, _META + quote(server, safe="") if server else "/mcp")
        answer = {"url": f"{base}/open/{code}", "seconds": gate.CODE_LIFE}
        await request.reply(200, jsonrpc.encode(answer), _PRIVATE)

    async def _sign_out(self, request: Request) -> None:
        signs = self._gate.sign_in
        if signs is None or not gate.is_own(request.headers):
            raise Refused(403, "only a page of this bridge signs its browser out")
        signs.sign_out(request.headers)
        gone = gate.cookie("", secure=request.scope["scheme"] == "https")
        await request.reply_as(303, b"", ((b"location", b"/mcp"), gone, *_PRIVATE))

    async def _metrics(self, request: Request) -> None:
        """Return the metrics that the caller may see."""
        caller = self._gate.identify(request.headers, request.peer)
        # It is imported when somebody asks: most bridges never are.
        from mcpd.bridge.observe.exposition import render

        accept = request.headers.get(b"accept", b"").decode("latin-1")
        body, kind = await render(self._parts.metrics, caller, accept)
        await request.reply_as(200, body, ((b"content-type", kind), *_PRIVATE))

    async def _token(self, request: Request) -> None:
        """Tell a user of the unix socket the token that TCP clients of that user need, a new one for POST."""
        if request.peer.uid is None:
            raise NotFound("tokens are only available on the Unix socket")
        caller = self._gate.identify({}, request.peer)
        renew = request.method == "POST"
        token = await asyncio.to_thread(self._gate.admission.own_token, caller.uid, renew=renew)
        self._gate.edition += renew
        await request.reply(200, jsonrpc.encode({"token": token}), _PRIVATE)

    # ------------------------------------------------------------------------------------ servers

    async def _links(self, request: Request) -> None:
        """The stream of a client of 2024-11-05."""
        caller = self._gate.identify(request.headers, request.peer, safe=True)
        await self.links.serve(stream_of(request.path), caller, request.send, request.cors, request.connection)

    async def _server(self, request: Request) -> None:
        """What is no POST to a server: the stream of a session or its end, or a page."""
        caller = self._gate.identify(request.headers, request.peer, safe=request.reads)
        name = server_of(request.path)
        if request.headers.get(b"mcp-protocol-version", b"").decode("latin-1") == eras.MODERN:
            # That revision has neither sessions nor a stream of their own.
            raise not_allowed(request.method, "POST")
        if request.method == "DELETE":
            self.handshake.delete(await self._session(request, name, caller))
            await request.reply(204)
        elif request.method == "GET" and "text/event-stream" in request.accepts:
            await self._listen(request, await self._session(request, name, caller))
        elif request.takes_page:
            await (await self._pages()).server(request, caller, name)
        else:
            raise Refused(406, "GET opens the event stream of a session: send 'Accept: text/event-stream'")

    async def _session(self, request: Request, name: str, caller: Caller) -> Session:
        session_id = request.headers.get(b"mcp-session-id", b"").decode("latin-1")
        if not session_id:
            # That there is no such server comes before what the request lacks.
            await self._parts.source.describe(name)
        return self.handshake.session(name, session_id, caller)

    async def _listen(self, request: Request, session: Session) -> None:
        connection = request.connection
        queue = EventQueue()
        queue.charge(self._parts.budget, session.caller, connection.transport.abort)
        session.streams.listen(queue, request.headers.get(b"last-event-id", b""))
        connection.waiting = queue
        request.status = 200
        try:
            await stream(request.send, queue, (*request.cors, *session.headers), connection)
        finally:
            session.unheard()
            connection.until_read(queue)


def _pages_class() -> type[Pages]:
    from mcpd.bridge.pages.view import Pages  # see Application._pages

    return Pages
