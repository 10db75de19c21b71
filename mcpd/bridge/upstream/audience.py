# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who receives the notifications of a pool's processes: changes, updates of resources, log messages."""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from mcpd.bridge import jsonrpc
from mcpd.bridge.eras import LEVELS
from mcpd.bridge.tasks import LimitedLog, fault_of
from mcpd.errors import InvalidArgument, LimitExceeded, McpdError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mcpd.bridge.jsonrpc import Message

    Key: TypeAlias = tuple[str, str]

PAUSE: Final = 0.05
"""Seconds between two rounds, at least."""
SHARE: Final = 10
"""A pause is so many times as long as the round before it took, so that others have most of the time."""
MOST_TOLD: Final = 1000
"""Pieces of news that may wait."""
MOST_HEARD: Final = 2000
"""How often something is heard in one round, at about which the next one begins; what comes then waits."""
MOST_SUBSCRIPTIONS: Final = 1000
"""Resources to which one member may be subscribed."""
MOST_URI: Final = 2048
"""Characters of the URI of one of them."""
MOST_LEVELS: Final = 64
"""Levels of a path, whose parts are told of to those who subscribed to the whole."""
MOST_BYTES: Final = 4096
"""Bytes of a piece of news that is kept as the server wrote it; of a longer one only what it is about."""
_CHANGES: Final = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
})  # fmt: skip
_JOINT: Final = re.compile("[/?#]")
DEFAULT_LEVEL: Final = LEVELS.index("info")
"""What a member hears that has not asked for another level, while others have."""


class News:
    """Gives news to *spread*, which says how many heard it: the first at once, what comes soon after that together.

    A key is a method and what it is about; there are few methods that are about nothing in particular, and what these
    tell is never lost. What says the same as something that waits takes its place; the log calls the teller *server*.
    """

    def __init__(self, spread: Callable[[Key, Message], int], server: str) -> None:
        self._spread = spread
        self._warn = LimitedLog(server)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Key, Message] = {}
        self._told: set[Key] = set()
        """What was told since the last round began."""
        self._heard = 0
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, key: Key, message: Message) -> None:
        """Tell *message*, now or with the next round."""
        if self._waiting or key in self._told or self._heard >= MOST_HEARD or len(self._told) >= MOST_TOLD:
            if key in self._waiting or len(self._waiting) < MOST_TOLD or not key[1]:
                self._waiting[key] = message
            else:
                self._lose()
        else:
            self._one(key, message)
        self._plan(PAUSE)

    def waits(self, key: Key) -> bool:
        """Return True if something that says the same waits already."""
        return key in self._waiting

    def allows(self, hearers: int) -> bool:
        """Return True if so many may hear something now that cannot wait."""
        if self._heard >= MOST_HEARD:
            self._lose()
            return False
        self._heard += hearers
        self._plan(PAUSE)
        return True

    def forget(self) -> None:
        """Nobody wants to know any more."""
        self._waiting.clear()

    def _lose(self) -> None:
        self._warn.warning("it tells so much at once that some of it is lost")

    def _plan(self, pause: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(pause, self._round)

    def _round(self) -> None:
        self._timer = None
        self._told.clear()
        self._heard = 0
        began = self._loop.time()
        while self._waiting and self._heard < MOST_HEARD:
            key = next(iter(self._waiting))
            self._one(key, self._waiting.pop(key))
        if self._waiting or self._told:
            self._plan(max(PAUSE, SHARE * (self._loop.time() - began)))

    def _one(self, key: Key, message: Message) -> None:
        self._told.add(key)
        # The boundary: what goes wrong with one piece of news must not keep others back.
        try:
            self._heard += self._spread(key, message)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            fault_of(error)


class Member(Protocol):
    """A client that hears of what no call asked for. Must be hashable by identity."""

    def pool_notification(self, method: str, message: Message) -> None:
        """``list_changed`` of anything, ``resources/updated`` for what it subscribed to, and log messages that belong
        to no call, from the level on that it asked for. *message* is shared with other members: do not edit it.
        """


@runtime_checkable
class Tied(Protocol):
    """A member that stays with its pool to the end."""

    def pool_ended(self, *, changed: bool) -> None:
        """The pool takes no more calls, and nothing more will be heard of it.

        If its server has *changed*, another one takes its place, whose lists may be others.
        """


class ServerError(McpdError):
    """A server's own answer to what the bridge asked of it; :attr:`raw` is the error object."""

    def __init__(self, raw: jsonrpc.Raw) -> None:
        super().__init__(jsonrpc.text(jsonrpc.members(raw).get("message")) or "the server answered with an error")
        self.raw = bytes(raw)


class Audience:
    """The members of a pool, and what each wants to hear.

    *ask* sends a request to a process that is started if need be, and raises :class:`ServerError`; *tell* sends one
    to all that run, whatever they answer; *server* is what the log calls them. With *one_caller*, what belongs to
    nobody's call is for all members.
    """

    def __init__(
        self,
        ask: Callable[[str, dict[str, str]], Awaitable[None]],
        tell: Callable[[str, dict[str, str]], None],
        *,
        one_caller: bool,
        server: str,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._one_caller = one_caller
        self._members: dict[Member, None] = {}
        self._uris: dict[Member, set[str]] = {}
        """What those are subscribed to who are to anything."""
        self._counts: dict[str, int] = {}
        self._levels: dict[object, int] = {}
        self._level = -1
        """What the server was told, -1 for nothing."""
        self._lock = asyncio.Lock()
        self._pending: tuple[Member, str] | None = None
        """Who is being subscribed to what: updates may come before the answer that says so."""
        self._subscribed: dict[str, dict[object, Member]] = {}
        self._news = News(self._spread, server)

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def is_waiting(self) -> bool:
        """True if a member waits for updates of a resource."""
        return bool(self._counts)

    def wishes(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The requests that tell a fresh process what was told to the one before it."""
        if self._level >= 0:
            yield "logging/setLevel", {"level": LEVELS[self._level]}
        for uri in self._counts:
            yield "resources/subscribe", {"uri": uri}

    def join(self, member: Member) -> None:
        """See :meth:`Pool.join`."""
        self._members[member] = None

    def leave(self, member: Member) -> None:
        """See :meth:`Pool.leave`."""
        self._members.pop(member, None)
        for uri in self._uris.pop(member, ()):
            self._unlist(member, uri)
            self._uncount(uri)
        if not self._members:
            self._news.forget()
        if self._levels.pop(member, None) is not None:
            wanted = min(self._levels.values(), default=self._level)
            if wanted != self._level:
                self._level = wanted
                self._tell("logging/setLevel", {"level": LEVELS[wanted]})

    def end(self, *, changed: bool = False) -> None:
        """Tell those who cannot go on elsewhere that the pool is at its end, perhaps as its server has *changed*."""
        for member in list(self._members):
            if isinstance(member, Tied):
                member.pool_ended(changed=changed)

    def subscriptions(self, member: Member) -> set[str]:
        """Return the subscriptions of *member*."""
        return set(self._uris.get(member, ()))

    async def subscribe(self, member: Member, uri: str) -> None:
        """See :meth:`Pool.subscribe`."""
        async with self._lock:
            uris = self._uris.get(member, set[str]())
            if uri in uris:
                return
            if not uri:
                raise InvalidArgument("'uri' is not a string")
            if len(uris) >= MOST_SUBSCRIPTIONS or len(uri) > MOST_URI:
                raise LimitExceeded(
                    f"a client may be subscribed to {MOST_SUBSCRIPTIONS} resources, "
                    f"with URIs of up to {MOST_URI} characters"
                )
            if uri not in self._counts:
                self._pending = member, uri
                try:
                    await self._ask("resources/subscribe", {"uri": uri})
                finally:
                    self._pending = None
            self._counts[uri] = self._counts.get(uri, 0) + 1
            if member in self._members:
                self._uris.setdefault(member, uris).add(uri)
                self._subscribed.setdefault(uri, {})[member] = member
            else:
                self._uncount(uri)

    async def unsubscribe(self, member: Member, uri: str) -> None:
        """See :meth:`Pool.unsubscribe`."""
        async with self._lock:
            uris = self._uris.get(member, set[str]())
            if uri not in uris:
                return
            uris.discard(uri)
            if not uris:
                del self._uris[member]
            self._unlist(member, uri)
            if self._counts[uri] > 1:
                self._counts[uri] -= 1
            else:
                del self._counts[uri]
                await self._ask("resources/unsubscribe", {"uri": uri})

    async def log_level(self, member: Member, level: str) -> None:
        """See :meth:`Pool.log_level`."""
        if level not in LEVELS:
            raise InvalidArgument(f"'level' is one of {', '.join(LEVELS)}")
        async with self._lock:
            if member not in self._members:
                return
            wanted = min([LEVELS.index(level), *(each for of, each in self._levels.items() if of is not member)])
            if wanted != self._level:
                await self._ask("logging/setLevel", {"level": LEVELS[wanted]})
                self._level = wanted
                self._tell("logging/setLevel", {"level": LEVELS[wanted]})
            if member in self._members:
                self._levels[member] = LEVELS.index(level)

    def wants(self, owner: object, method: str, message: Message) -> bool:
        """Return True if *owner* is to get what a server said in the course of its call."""
        if not self._levels or method != "notifications/message":
            return True
        return _level_of(message) >= self._levels.get(owner, DEFAULT_LEVEL)

    def hear(self, method: str, message: Message) -> None:
        """Let those hear the notification *message* who want to; what says the same as one before it comes later."""
        if method == "notifications/resources/updated":
            uri = jsonrpc.text(jsonrpc.members(message.get("params")).get("uri"))
            key = method, uri
            if uri and len(uri) <= MOST_URI and (self._news.waits(key) or self._listeners(uri)):
                self._news.tell(key, _kept(message, method, {"uri": uri}))
        elif method in _CHANGES:
            if self._members:
                self._news.tell((method, ""), _kept(message, method, {}))
        elif self._one_caller and self._news.allows(len(self._members)):
            for member in list(self._members):
                if self.wants(member, method, message):
                    member.pool_notification(method, message)

    def _spread(self, key: tuple[str, str], message: Message) -> int:
        method, uri = key
        hearers = self._listeners(uri) if uri else list(self._members)
        for member in hearers:
            member.pool_notification(method, message)
        return len(hearers)

    def _listeners(self, uri: str) -> list[Member]:
        """Who subscribed to *uri*, or to what it is a part of, which may be told of in its place.

        Where several callers share, only the first, as the second would tell them what others are subscribed to.
        """
        wholes = [uri, *(_wholes(uri) if self._one_caller else ())]
        found: dict[object, Member] = {}
        for each in wholes:
            found.update(self._subscribed.get(each, {}))
        if self._pending is not None and self._pending[1] in wholes:
            found[self._pending[0]] = self._pending[0]
        return list(found.values())

    def _unlist(self, member: Member, uri: str) -> None:
        of_it = self._subscribed.get(uri)
        if of_it is not None:
            of_it.pop(member, None)
            if not of_it:
                del self._subscribed[uri]

    def _uncount(self, uri: str) -> None:
        if self._counts[uri] > 1:
            self._counts[uri] -= 1
        else:
            del self._counts[uri]
            self._tell("resources/unsubscribe", {"uri": uri})


def _kept(message: Message, method: str, params: dict[str, str]) -> Message:
    """The notification *message*, which may wait, without what else came with it."""
    if sum(len(memoryview(raw)) for raw in message.values()) > MOST_BYTES:
        return jsonrpc.notification(method, jsonrpc.encode(params) if params else b"")
    return {name: raw.copy() for name, raw in message.items()}


def _wholes(uri: str) -> Iterator[str]:
    """Of which resources *uri* is a part by its path."""
    for found in islice(_JOINT.finditer(uri), MOST_LEVELS):
        yield uri[: found.start()]
        if found[0] == "/" and found.end() < len(uri):
            yield uri[: found.end()]


def _level_of(message: Message) -> int:
    level = jsonrpc.text(jsonrpc.members(message.get("params")).get("level"))
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
