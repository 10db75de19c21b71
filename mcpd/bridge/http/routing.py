# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server that a request addresses, by its path, and its content types, by its headers."""

from __future__ import annotations

import re
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Final, TypeVar

from mcpd.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.bridge.exchange import Headers

LONGEST: Final = 1024
"""Maximum length of a cached argument; usual clients send shorter ones."""

_Text = TypeVar("_Text", str, bytes)
_Result = TypeVar("_Result")


def short_cache(function: Callable[[_Text], _Result]) -> Callable[[_Text], _Result]:
    """Return *function* with a cache of 256 results, except for long arguments: anyone who connects may send them."""
    kept = lru_cache(maxsize=256)(function)

    @wraps(function)
    def call(argument: _Text) -> _Result:
        return kept(argument) if len(argument) <= LONGEST else function(argument)

    return call


RESERVED: Final = frozenset({"meta", "sse"})
"""Names below ``/mcp`` that are no servers."""
_NAME: Final = re.compile(r"[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,127}")
_PREFIX: Final = "/mcp/"


def is_server_name(name: str) -> bool:
    """Return True if *name* can be that of a server: it is one segment of a path and climbs nowhere."""
    return name not in RESERVED and _NAME.fullmatch(name) is not None


def stream_of(path: str) -> str:
    """The server whose stream of 2024-11-05 the decoded *path* is; empty if it is none's."""
    return server_of(path.removesuffix("/sse")) if path.endswith("/sse") else ""


@short_cache
def server_of(path: str) -> str:
    """The server whose endpoint the decoded *path* is; empty if it is none's."""
    if not path.startswith(_PREFIX):
        return ""
    name = path[len(_PREFIX) :].removesuffix("/")
    return name if is_server_name(name) else ""


class Refused(Exception):
    """A request that HTTP itself turns away, with *status* and a JSON-RPC error as its body."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.fault = InvalidRequest(text)
        self.headers = headers


def not_allowed(method: str, allowed: str) -> Refused:
    """The refusal of *method* where only those *allowed* work."""
    return Refused(405, f"{method} is not allowed here, use {allowed}", ((b"allow", allowed.encode()),))


@short_cache
def check_content_type(kind: bytes) -> None:
    """Raise :class:`Refused` with 415 if a body of the Content-Type *kind* is no JSON."""
    if kind.split(b";")[0].strip().lower() != b"application/json":
        raise Refused(415, "send JSON-RPC with 'Content-Type: application/json'")


@short_cache
def kinds_of_reply(accept: bytes) -> tuple[bool, bool]:
    """Return whether that Accept header allows JSON, and whether events. Raises :class:`Refused` with 406."""
    ranges = accepted(accept)
    anything = not accept.strip() or "*/*" in ranges
    takes_json = anything or "application/json" in ranges or "application/*" in ranges
    takes_events = "text/event-stream" in ranges or "text/*" in ranges
    if not takes_json and not takes_events:
        raise Refused(406, "accept application/json, or text/event-stream, or better both")
    return takes_json, takes_events


@short_cache
def accepted(accept: bytes) -> frozenset[str]:
    """The media ranges of an Accept header, without those that ``q=0`` rules out."""
    ranges = set()
    for part in accept.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        quality = next((p.strip()[2:] for p in parameters.split(";") if p.strip().startswith("q=")), "1")
        if quality.strip("0.") or not quality.startswith("0"):
            ranges.add(name.strip())
    return frozenset(ranges)
