# SPDX-License-Identifier: LGPL-2.1-or-later
"""The entry of the modern era: what a POST of revision 2026-07-28 is, and where it goes.

As in the handshake era, a request that can go to a running process goes there at once, by plain calls; only what needs
a new process, or has to learn something first, takes the detour of a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import eras, jsonrpc
from mcpd.bridge.jsonrpc import Kind, Raw
from mcpd.bridge.modern import headers, results, seal
from mcpd.bridge.modern import request as requests
from mcpd.bridge.modern.listen import Listener, Listeners, ListenForward
from mcpd.bridge.modern.profile import Profile
from mcpd.bridge.modern.run import Forward, Run, Suspended
from mcpd.bridge.modern.seal import Seal
from mcpd.bridge.observe.watch import refuse_all
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.slot import turn_away
from mcpd.errors import HeaderMismatch, InvalidRequest, McpdError, UnknownMethod

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mcpd.bridge.exchange import Exchange
    from mcpd.bridge.http.post import Post
    from mcpd.bridge.jsonrpc import Message
    from mcpd.bridge.modern.headers import Param
    from mcpd.bridge.modern.request import Request
    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.pool import Pool, Pools

_OF_HANDSHAKE_ALONE: Final = "tasks/"


class Modern:
    """Serves the requests of this era."""

    def __init__(self, parts: Parts, pools: Pools) -> None:
        self._parts = parts
        self._pools = pools
        self._seal = Seal()
        self._suspended = Suspended(parts.budget, self._seal)
        self._listeners = Listeners()
        self._modern: set[str] = set()
        """Servers whose processes are of this era."""
        self._profiles: dict[Pool, Profile] = {}
        """Those of pools that take calls, and of some that did."""

    def close(self) -> None:
        """End streams and calls that wait for their clients, as the bridge stops."""
        self._listeners.close()
        self._suspended.close()

    def post(self, post: Post, body: bytes, exchange: Exchange) -> None:
        """Serve one POST; its reply goes to *exchange*, perhaps later."""
        try:
            message = jsonrpc.parse_body(body)
            if not isinstance(message, dict):
                raise InvalidRequest(f"revision {eras.MODERN} has no batches: send one message per POST")
        except McpdError as fault:
            refuse_all(self._parts.watch, post.caller, post.server, body, fault.word, exchange.request_id)
            exchange.refuse(fault)
            return
        identity = b""
        try:
            kind, method, identity = jsonrpc.classify(message)
            if kind is Kind.REQUEST:
                self._request(requests.read(post, identity, method, message, exchange))
            elif kind is Kind.NOTIFICATION:
                # No notification of a client means anything here: who closes the stream of a request, cancels it.
                requests.check_version(post.version)
                exchange.accept()
            else:
                raise InvalidRequest("the body is a response: servers of this revision ask nothing by themselves")
        except McpdError as fault:
            self._refuse(post, exchange, message, identity or jsonrpc.id_of(message), fault)

    def _refuse(self, post: Post, exchange: Exchange, message: Message, identity: bytes, fault: McpdError) -> None:
        method = jsonrpc.method_of(message)
        turn_away(exchange, identity, method, message, fault, server=post.server, watch=self._parts.watch)

    def _request(self, request: Request) -> None:
        method, post = request.method, request.post
        if method in results.REMOVED:
            raise UnknownMethod(f"revision {eras.MODERN} has no {method}")
        if method == "subscriptions/listen" and not request.exchange.takes_events:
            fault = InvalidRequest("subscriptions/listen is answered with events: accept text/event-stream")
            request.exchange.reply(406, jsonrpc.failure(request.identity, fault))
            return
        own = b"" if post.server in self._modern else request.said.greeting
        found = self._pools.find(post.server, post.caller, own)
        profile = self._profiles.get(found) if found is not None else None
        if profile is None:
            self._later(self._open(request), request)
        else:
            self._serve(profile, request)

    async def _open(self, request: Request) -> None:
        post = request.post
        info = await self._parts.source.describe(post.server)
        speaks_handshake, speaks_modern = await self._pools.eras(info, post.caller)
        own = b"" if speaks_modern else request.said.greeting
        found = await self._pools.open(info, post.caller, own)
        (self._modern.add if speaks_modern else self._modern.discard)(post.server)
        profile = self._profiles.get(found)
        if profile is None:
            self._profiles = {pool: known for pool, known in self._profiles.items() if not pool.closed}
            profile = self._profiles[found] = Profile(found, speaks_handshake=speaks_handshake)
        if not request.exchange.gone:
            self._serve(profile, request)

    # ------------------------------------------------------------------------------------ with a pool

    def _serve(self, profile: Profile, request: Request) -> None:
        if request.method == "tools/call" and not request.post.over_stdio:
            declared = profile.declared(request)
            if declared is None:
                self._later(self._learn(profile, request), request)
                return
            if declared:
                try:
                    self._check(request, declared)
                except HeaderMismatch:
                    # The tool may have changed since.
                    self._later(self._learn(profile, request), request)
                    return
        self._send(profile, request)

    async def _learn(self, profile: Profile, request: Request) -> None:
        if "arguments" in request.params or headers.has_params(request.post.headers):
            await profile.ask_tools(request)
            self._check(request, profile.declared(request) or ())
        if not request.exchange.gone:
            self._send(profile, request)

    @staticmethod
    def _check(request: Request, declared: tuple[Param, ...]) -> None:
        headers.check_params(request.post.headers, declared, request.params.get("arguments"))

    def _send(self, profile: Profile, request: Request) -> None:
        method = request.method
        if profile.is_modern:
            self._forward(profile, request)
        elif method in results.MRTR:
            self._translate(profile, request)
        elif method == "server/discover":
            self._discover(profile, request)
        elif method == "subscriptions/listen":
            self._later(Listener(profile, request, self._listeners).open(), request)
        elif method.startswith(_OF_HANDSHAKE_ALONE):
            raise UnknownMethod(f"revision {eras.MODERN} has no {method[:100]}")
        else:
            self._start(profile, request)

    # ------------------------------------------------------------------------------------ a server of this era

    def _forward(self, profile: Profile, request: Request) -> None:
        message: Message = request.message
        if request.method == "subscriptions/listen":
            ListenForward(profile, request, self._listeners).send(message)
            return
        state = seal.state_of(request.params) if "requestState" in request.params else ""
        if state:
            wanted = seal.digest(request.method, request.params)
            content = self._seal.open(state, request.caller, request.post.server, wanted)
            message = request.with_param("requestState", content)
        call = _Sealing(profile, request, self._seal) if request.method in results.MRTR else Forward(profile, request)
        if request.method == "server/discover":
            call = _Discover(profile, request)
        call.send(message)

    # ------------------------------------------------------------------------------------ a handshake server

    def _discover(self, profile: Profile, request: Request) -> None:
        if profile.pool.result:
            request.exchange.answer(jsonrpc.result(request.identity, profile.discovered))
        else:
            self._later(self._get_ready(profile, request), request)

    @staticmethod
    async def _get_ready(profile: Profile, request: Request) -> None:
        await profile.pool.ready(request.caller)
        request.exchange.answer(jsonrpc.result(request.identity, profile.discovered))

    def _translate(self, profile: Profile, request: Request) -> None:
        """Serve a request whose client may have been told to come back with answers."""
        if "requestState" in request.params and (state := seal.state_of(request.params)):
            answers = seal.answers_of(request.params)
            self._suspended.take(state, request).resume(request, answers)
        else:
            self._start(profile, request)

    def _start(self, profile: Profile, request: Request) -> None:
        if profile.suspended:
            self._suspended.make_room(profile)
        run = Run(profile, request, self._suspended)
        if request.said.level:
            self._later(self._with_level(run), request)
        else:
            run.start()

    @staticmethod
    async def _with_level(run: Run) -> None:
        request, found = run.request, run.profile.pool
        run.exchange.on_gone = run.gone
        await found.ready(request.caller)
        if run.done:
            return
        found.join(run)
        capabilities = jsonrpc.members(jsonrpc.members(Raw(found.result)).get("capabilities"))
        if "logging" in capabilities:
            try:
                await found.log_level(run, request.said.level)
            except McpdError as fault:
                run.refuse(fault)
        if not run.done:
            run.start()

    # ------------------------------------------------------------------------------------ tasks

    def _later(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        held, request.post.held = request.post.held, None
        exchange, identity = request.exchange, request.identity

        async def guarded() -> None:
            # The boundary: whatever went wrong, the client waits for an answer.
            try:
                await work
            except Exception as error:  # noqa: BLE001 -- logged by fault_of
                fault = fault_of(error, request.post.server, exchange.request_id)
                self._refuse(request.post, exchange, request.message, identity, fault)
            finally:
                if held is not None:
                    held.close()

        self._parts.tasks.spawn(guarded())


class _Sealing(Forward):
    """A call whose result may be that the client has to come back, with a state that nobody else may use."""

    def __init__(self, profile: Profile, request: Request, state: Seal) -> None:
        super().__init__(profile, request)
        self._seal = state

    def shape(self, message: Message) -> None:
        """Bind the state."""
        super().shape(message)
        result = message.get("result")
        if result is None or b"requestState" not in bytes(result):
            return
        members = jsonrpc.members(result)
        if "requestState" in members:
            wanted = seal.digest(self.request.method, self.request.params)
            content = bytes(members["requestState"])
            state = self._seal.close(content, self.request.caller, self.request.post.server, wanted)
            members["requestState"] = Raw(jsonrpc.encode(state))
            message["result"] = Raw(jsonrpc.encode(members))


class _Discover(Forward):
    """A ``server/discover``, whose result names the revisions of the server as the bridge serves them."""

    def shape(self, message: Message) -> None:
        """Name them."""
        super().shape(message)
        if "result" in message:
            members = jsonrpc.members(message["result"])
            members["supportedVersions"] = results.versions(speaks_handshake=self.profile.speaks_handshake)
            message["result"] = Raw(jsonrpc.encode(members))
