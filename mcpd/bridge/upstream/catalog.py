# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cache of what servers reported about themselves, which can be answered without a process.

It is kept per server, state and greeting: the InitializeResult, and what its lists were answered with by a process
that had done nothing yet but to answer lists. It goes with a ``list_changed``, with another state of the server, when
a process says something else of itself, and when there is too much of it.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.jsonrpc import Message, Raw
from mcpd.bridge.upstream.call import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.parts import Parts
    from mcpd.bridge.upstream.call import Shape, Sink
    from mcpd.bridge.upstream.policy import Policy

LISTS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
"""Methods whose results are kept."""
CHANGES: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
"""What a notification says has changed."""
MOST_CACHES: Final = 256
"""Cached catalogs of all servers."""
MOST_BYTES: Final = 4 << 20
"""Bytes that one cached catalog may keep."""
TOTAL_BYTES: Final = 64 << 20
"""Bytes that all of them together may keep."""
MOST_PAGES: Final = 64
MOST_GREETING: Final = 16384
"""Bytes of a greeting for which something is kept."""


_OF_ONE_REQUEST: Final = frozenset({jsonrpc.PROGRESS_TOKEN, "traceparent", "tracestate"})
"""Members of ``_meta`` that tell requests apart and say nothing to a server, as W3C Baggage may."""


def is_plain(params: Raw | None) -> bool:
    """Return True if the answer to *params* holds for others, too: nothing in their ``_meta`` can have shaped it."""
    text = bytes(params or b"")
    if b"_meta" not in text and b"\\u" not in text:
        return True
    # Which of two, or of what is written in another way, a server takes is not known.
    if text.count(b"_meta") > 1 or b"\\u" in text:
        return False
    meta = jsonrpc.members(params).get("_meta")
    if meta is None:
        return b'"_meta"' not in text
    members = jsonrpc.members(meta)
    return bytes(meta)[:1] == b"{" and members.keys() <= _OF_ONE_REQUEST


def page_of(params: Raw | None) -> bytes | None:
    """Return the cursor in *params* of a list, empty for the first page; ``None`` if there are other parameters."""
    if not is_plain(params):
        return None
    asked = jsonrpc.members(params)
    asked.pop("_meta", None)
    cursor = bytes(asked.pop("cursor", b""))
    return None if asked else b"" if cursor == b"null" else cursor


class CachedCatalog:
    """The cached answers of one server to clients that greet it alike."""

    __slots__ = ("_ended", "_lists", "_tell", "confirmed", "greeting", "result", "size")

    def __init__(self, tell: Callable[[CachedCatalog, int], None]) -> None:
        self.greeting = b""
        """The ``initialize`` params that :attr:`result` answers, as they were sent."""
        self.result = b""
        """The InitializeResult; empty if it is not known."""
        self.confirmed = False
        """Two processes gave the same one, so that it can be given without asking a third."""
        self.size = 0
        """Bytes that are kept."""
        self._ended = False
        self._tell = tell
        self._lists: dict[str, dict[bytes, tuple[bytes, bytes]]] = {}

    def greeted(self, greeting: bytes, result: bytes) -> None:
        """Take what a process said of itself."""
        if self.result == result:
            self.confirmed = True
            return
        self.clear()
        if not self._ended and len(greeting) <= MOST_GREETING and self._fits(len(result)):
            self.greeting, self.result = greeting, result

    def put(self, method: str, page: bytes, result: Raw) -> None:
        """Take a page of a list. The first one ends what is known of the others."""
        if not self.result:
            return
        if not page:
            self.drop(method)
        pages = self._lists.setdefault(method, {})
        self._count(-len(pages.pop(page, (b"",))[0]))
        value = bytes(result)
        if len(pages) < MOST_PAGES and self._fits(len(value)):
            pages[page] = value, bytes(jsonrpc.members(result).get("nextCursor", b""))

    def find(self, method: str, page: bytes) -> bytes:
        """The result for a page, if the list is known to its end; else empty."""
        pages = self._lists.get(method)
        if not pages:
            return b""
        following, seen = b"", 0
        while seen <= MOST_PAGES:
            if following not in pages:
                return b""
            following = pages[following][1]
            if not following or following == b"null":
                break
            seen += 1
        return pages[page][0] if page in pages else b""

    def lists(self) -> dict[str, list[Raw]]:
        """The pages of each list that is known to its end, by its method."""
        return {method: [Raw(value) for value, _ in pages.values()] for method, pages in self._lists.items()
                if self.find(method, b"")}  # fmt: skip

    def changed(self, method: str) -> None:
        """Forget what the notification *method* says has changed."""
        for each in CHANGES.get(method, ()):
            self.drop(each)

    def end(self) -> None:
        """Forget everything, and keep nothing any more."""
        self.clear()
        self._ended = True

    def drop(self, method: str) -> None:
        """Forget the list *method*."""
        pages = self._lists.pop(method, None)
        if pages:
            self._count(-sum(len(value) for value, _ in pages.values()))

    def clear(self) -> None:
        """Forget everything."""
        self.greeting = self.result = b""
        self.confirmed = False
        self._lists.clear()
        self._count(-self.size)

    def _fits(self, size: int) -> bool:
        if self.size + size > MOST_BYTES:
            return False
        self._count(size)
        return True

    def _count(self, more: int) -> None:
        if more:
            self.size += more
            self._tell(self, more)


class Catalog:
    """The cached catalogs of all servers; the least recently used ones are dropped first."""

    def __init__(self) -> None:
        self._caches: dict[tuple[str, str, bytes], CachedCatalog] = {}
        self._size = 0

    def cached(self, server: str, state: str, greeting: bytes) -> CachedCatalog:
        """Return the cached catalog of *server* in *state* for processes with *greeting*."""
        key = (server, state, greeting)
        found = self._caches.pop(key, None)
        if found is None:
            found = CachedCatalog(self._tell)
            while len(self._caches) >= MOST_CACHES:
                self._caches.pop(next(iter(self._caches))).end()
        self._caches[key] = found
        return found

    def known(self, server: str, state: str, greeting: bytes) -> CachedCatalog | None:
        """Return the cached catalog, or None if there is none or its answers must not be repeated yet."""
        found = self._caches.get((server, state, greeting))
        return found if found is not None and found.confirmed else None

    def lists(self, server: str, state: str) -> dict[str, list[Raw]]:
        """What is known of the lists of *server* in *state*: the pages of each, by its method."""
        found: dict[str, list[Raw]] = {}
        for (name, of, _), cached in self._caches.items():
            if (name, of) == (server, state):
                found |= cached.lists()
        return found

    def keep_only(self, server: str, state: str | None) -> None:
        """Forget all of *server* that is of another state; everything if *state* is ``None``."""
        for key in [key for key in self._caches if key[0] == server and key[1] != state]:
            self._caches.pop(key).end()

    def _tell(self, cached: CachedCatalog, more: int) -> None:
        self._size += more
        while more > 0 and self._size > TOTAL_BYTES:
            fullest = max(self._caches.values(), key=lambda each: 0 if each is cached else each.size, default=cached)
            if fullest is cached or not fullest.size:
                return
            fullest.clear()


def announced(greeted: bytes, *policies: Policy | None) -> list[str]:
    """By which notifications clients are told that lists changed, as the server declared in the result *greeted*.

    Those of *policies* that the server had and has count as one: what the one lets out may have been seen, or be seen.
    """
    capabilities = jsonrpc.members(jsonrpc.members(Raw(greeted)).get("capabilities")) if greeted else {}
    declared = [
        method
        for method in CHANGES
        if bytes(jsonrpc.members(capabilities.get(method.split("/")[1])).get("listChanged", b"")) == b"true"
    ]
    return [method for method in declared if any(each is None or each.lets_out(method) for each in policies)]


def replay(
    cached: CachedCatalog,
    parts: Parts,
    server: str,
    sink: Sink,
    identity: bytes,
    method: str,
    message: Message,
    shape: Shape | None = None,
) -> bool:
    """Answer a request as a process of *server* would, from *cached*; return false if the answer is not there."""
    if method not in LISTS:
        return False
    params = message.get("params")
    page = page_of(params)
    result = cached.find(method, page) if page is not None else b""
    if not result:
        return False
    call = Call(sink, identity, method, params, b"", monotonic(), 0.0, shape)
    call.respond({"jsonrpc": Raw(b'"2.0"'), "id": Raw(identity), "result": Raw(result)}, server, parts.watch)
    return True
