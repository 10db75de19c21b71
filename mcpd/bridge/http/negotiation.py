# SPDX-License-Identifier: LGPL-2.1-or-later
"""Content types that a client sends and accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.bridge.http.short_cache import short_cache
from mcpd.errors import InvalidRequest

if TYPE_CHECKING:
    from mcpd.bridge.exchange import Headers


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
    """Whether a client with that Accept header takes JSON, and whether events. Raises :class:`Refused` with 406."""
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
