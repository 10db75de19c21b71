# SPDX-License-Identifier: LGPL-2.1-or-later
"""``subscriptions/listen``: a request whose answer is a stream of what changes at the server."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import envelope
from mcpd.bridge.modern.run import Forward
from mcpd.errors import LimitExceeded, McpdError

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.modern.profile import Profile
    from mcpd.bridge.modern.request import Request
    from mcpd.bridge.upstream.child import Child

log = logging.getLogger(__name__)

MOST_LISTENING: Final = 64
"""Streams that one caller may have open."""
MOST_URIS: Final = 256
"""Resources that one stream may be about."""
MOST_EARLY: Final = 1000
"""Notifications that are kept until the stream was acknowledged."""
_LISTS: Final = {
    "toolsListChanged": ("tools", "notifications/tools/list_changed"),
    "promptsListChanged": ("prompts", "notifications/prompts/list_changed"),
    "resourcesListChanged": ("resources", "notifications/resources/list_changed"),
}
_UPDATED: Final = "notifications/resources/updated"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_TRUE: Final = b"true"


class Listeners:
    """Counts the streams of each caller, and ends them."""

    def __init__(self) -> None:
        self._per_caller: dict[Caller, int] = {}
        self._open: dict[Listener | ListenForward, None] = {}

    def add(self, listener: Listener | ListenForward) -> None:
        """*listener* begins. Raises :class:`~mcpd.errors.LimitExceeded` if its caller has too many."""
        caller = listener.request.caller
        count = self._per_caller.get(caller, 0)
        if count >= MOST_LISTENING:
            raise LimitExceeded(f"{count} subscriptions are open, the limit for one caller: close some of them")
        self._per_caller[caller] = count + 1
        self._open[listener] = None

    def remove(self, listener: Listener | ListenForward) -> None:
        """*listener* has ended."""
        if listener not in self._open:
            return
        del self._open[listener]
        caller = listener.request.caller
        left = self._per_caller[caller] - 1
        if left:
            self._per_caller[caller] = left
        else:
            del self._per_caller[caller]

    def close(self) -> None:
        """End all, as the protocol has it."""
        for listener in list(self._open):
            listener.end()


def _ending(identity: bytes) -> bytes:
    meta = b'{"resultType":"complete","_meta":{"%b":%b}}' % (envelope.SUBSCRIPTION.encode(), identity)
    return jsonrpc.result(identity, meta)


class ListenForward(Forward):
    """A stream of a server of this revision, which has one of its own for every one of a client."""

    def __init__(self, profile: Profile, request: Request, table: Listeners) -> None:
        super().__init__(profile, request)
        self._table = table
        self._methods: list[str] = []
        """The changes of lists that the server said it will tell."""
        self.is_over = False

    def send(self, message: Message) -> None:
        """Open the stream. Raises :class:`~mcpd.errors.LimitExceeded`."""
        self._table.add(self)
        self.exchange.on_gone = self.gone
        self.profile.pool.join(self)
        method = self.request.method
        # It is over when one of the two sides says so, however long nothing changes.
        self.profile.pool.request(self, self, self.identity, method, message, timeout=math.inf, shape=self.shape)

    def gone(self) -> None:
        """The client closed the stream."""
        self._over()
        super().gone()

    def shape(self, message: Message) -> None:
        """Give the result that ends the stream the id that the client knows."""
        super().shape(message)
        result = jsonrpc.members(message.get("result"))
        meta = jsonrpc.members(result.get("_meta"))
        if envelope.SUBSCRIPTION in meta:
            meta[envelope.SUBSCRIPTION] = Raw(self.identity)
            result["_meta"] = Raw(jsonrpc.encode(meta))
            message["result"] = Raw(jsonrpc.encode(result))

    def answer(self, response: bytes) -> None:
        """Take the end of the stream."""
        self._over()
        super().answer(response)

    def refuse(self, fault: McpdError, identity: bytes = b"") -> None:
        """Take *fault* instead of a stream."""
        self._over()
        super().refuse(fault, identity)

    def cancelled(self, identity: bytes) -> None:
        """The server ended the stream."""
        self.end()

    def server_notification(self, _child: Child, method: str, message: Message) -> None:
        """Pass everything on: what comes here is about this stream."""
        if method == "notifications/cancelled":
            self.end()
            return
        if method == _ACKNOWLEDGED:
            honored = jsonrpc.members(jsonrpc.members(message.get("params")).get("notifications"))
            self._methods = [each for name, (_, each) in _LISTS.items() if bytes(honored.get(name, b"")) == _TRUE]
        self.exchange.push(jsonrpc.encode(message))

    def pool_notification(self, method: str, message: Message) -> None:
        """What its process tells comes with the id of this stream; what is told to all is for others."""

    def pool_ended(self, *, changed: bool) -> None:
        """Another process may take the place of this one, which does not know what that has to offer."""
        meta = jsonrpc.encode({"_meta": {envelope.SUBSCRIPTION: Raw(self.identity)}})
        for method in self._methods if changed else ():
            self.exchange.push(jsonrpc.encode(jsonrpc.notification(method, meta)))
        self.end()

    def end(self) -> None:
        """End the stream on behalf of the server."""
        if not self.is_over:
            self._over()
            self.exchange.answer(_ending(self.identity))
            self.profile.pool.abandon(self)

    def _over(self) -> None:
        self.is_over = True
        self.exchange.on_gone = None
        self._table.remove(self)
        self.profile.pool.leave(self)


class Listener:
    """A stream of a server of the handshake era, made of what its processes tell without being asked."""

    def __init__(self, profile: Profile, request: Request, table: Listeners) -> None:
        self.request = request
        self._profile = profile
        self._exchange = request.exchange
        self._table = table
        self._meta = Raw(b'{"%b":%b}' % (envelope.SUBSCRIPTION.encode(), request.identity))
        self._methods: set[str] = set()
        self._uris: set[str] = set()
        self._early: list[bytes] | None = []
        self._is_over = False

    async def open(self) -> None:
        """Subscribe and acknowledge. Raises the :class:`~mcpd.errors.McpdError` that tells why there is no stream."""
        wanted = jsonrpc.members(self.request.params.get("notifications"))
        uris = list(
            dict.fromkeys(filter(None, map(jsonrpc.text, jsonrpc.elements(wanted.get("resourceSubscriptions")))))
        )
        if len(uris) > MOST_URIS:
            raise LimitExceeded(f"one subscription can be about {MOST_URIS} resources, not {len(uris)}: open several")
        self._table.add(self)
        try:
            await self._profile.pool.ready(self.request.caller)
            if not self._exchange.gone:
                await self._join(wanted, uris)
        except BaseException:
            self._over()
            raise
        if self._exchange.gone:
            self._over()

    async def _join(self, wanted: Message, uris: list[str]) -> None:
        pool = self._profile.pool
        capabilities = jsonrpc.members(jsonrpc.members(Raw(pool.result)).get("capabilities"))
        honored: dict[str, object] = {}
        for name, (feature, method) in _LISTS.items():
            declared = jsonrpc.members(capabilities.get(feature))
            if bytes(wanted.get(name, b"")) == _TRUE and bytes(declared.get("listChanged", b"")) == _TRUE:
                honored[name] = True
                self._methods.add(method)
        self._exchange.on_gone = self._gone
        pool.join(self)
        if bytes(jsonrpc.members(capabilities.get("resources")).get("subscribe", b"")) == _TRUE:
            for uri in uris:
                await self._subscribe(uri)
        if self._uris:
            honored["resourceSubscriptions"] = [uri for uri in uris if uri in self._uris]
        if self._is_over:
            return
        acknowledged = jsonrpc.encode({"_meta": self._meta, "notifications": honored})
        self._push(jsonrpc.encode(jsonrpc.notification(_ACKNOWLEDGED, acknowledged)))
        early, self._early = self._early or [], None
        for notification in early:
            self._push(notification)

    async def _subscribe(self, uri: str) -> None:
        if self._is_over:
            return
        self._uris.add(uri)
        try:
            await self._profile.pool.subscribe(self, uri)
        except McpdError as fault:
            # The acknowledgement leaves out what the server does not do.
            log.debug("server %s: %s is not subscribed: %s", self.request.post.server, uri[:200], fault.message)
            self._uris.discard(uri)

    def pool_notification(self, method: str, message: Message) -> None:
        """Pass on what the client asked for."""
        params = jsonrpc.members(message.get("params"))
        if method not in self._methods and not (method == _UPDATED and self._uris):
            return
        meta = jsonrpc.members(params.get("_meta"))
        meta[envelope.SUBSCRIPTION] = Raw(self.request.identity)
        params["_meta"] = Raw(jsonrpc.encode(meta))
        notification = jsonrpc.encode({**message, "params": Raw(jsonrpc.encode(params))})
        if self._early is None:
            self._push(notification)
        elif len(self._early) < MOST_EARLY:
            self._early.append(notification)

    def pool_ended(self, *, changed: bool) -> None:
        """The server has changed or is gone: a client that comes back listens to what there is then."""
        for method in sorted(self._methods) if changed else ():
            self.pool_notification(method, jsonrpc.notification(method))
        self.end()

    def _push(self, notification: bytes) -> None:
        if not self._exchange.push(notification) and not self._is_over:
            # A client that does not read learns that it missed something, and comes back.
            self.end()

    def end(self) -> None:
        """End the stream on behalf of the server."""
        if not self._is_over:
            self._over()
            self._exchange.answer(_ending(self.request.identity))

    def _gone(self) -> None:
        self._over()

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._exchange.on_gone = None
            self._table.remove(self)
            self._profile.pool.leave(self)
