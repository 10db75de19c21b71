# SPDX-License-Identifier: LGPL-2.1-or-later
"""The event streams of a session, and what was sent on them lately, so that a client that was cut off can go on.

Each event has an id that names its stream and its place there. A client that comes back with the last id it saw gets
what followed on that stream, and then the stream itself (2025-03-26 to 2025-11-25, "Resumability and Redelivery").
What is kept is bounded in number and bytes for the session as a whole, and counted in the budget of its caller.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.exchange import event
from mcpd.errors import InvalidRequest

if TYPE_CHECKING:
    from mcpd.bridge.budget import Budget, Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.exchange import EventQueue
    from mcpd.errors import McpdError

KEPT_EVENTS: Final = 256
KEPT_BYTES: Final = 1 << 20
"""What is kept of all streams of a session. A larger event is kept, alone, until it was read."""
MOST_UNSENT: Final = 100
UNSENT_BYTES: Final = 1 << 20
"""What is kept of the messages of one stream, beside answers, while nobody listens to it."""
RETRY: Final = 1000
"""Milliseconds after which a client that was cut off may come back."""
PRIMED_FROM: Final = "2025-11-25"
"""The first revision whose clients take an event without data."""
COUNTED_FROM: Final = 4096
"""Bytes that a session keeps without being counted, as there may be thousands of sessions."""
_OVERHEAD: Final = 200
"""Bytes that keeping an event takes beside its text."""
_ID: Final = re.compile(rb"([0-9a-f]{16})-(\d{1,12})-(\d{1,12})")


class Track:
    """One stream, whose events go to *sink* as long as its client is there."""

    __slots__ = ("_streams", "ended", "kept", "number", "place", "sent", "sink", "unsent")

    def __init__(self, streams: Streams, number: int, sink: EventQueue | None) -> None:
        self._streams = streams
        self.number = number
        self.sink = sink
        self.place = 0
        """The place of its newest event."""
        self.sent = 0
        """The place of the newest event that was given to a sink."""
        self.kept = 0
        """How many of its events are kept."""
        self.unsent = 0
        """Bytes of its events that are kept and were given to no sink."""
        self.ended = False

    def push(self, message: bytes, *, needed: bool = False) -> bool:
        """Send *message*, which is no answer; false if too much waits already.

        While nobody listens, one that is *needed* drives out an older one.
        """
        if self.ended:
            return False
        if self.sink is not None:
            if not self.sink.takes(message):
                return False
        elif self._streams.is_full(self):
            if not needed:
                return False
            self._streams.skip(self)
        return self._add(message)

    def answer(self, response: bytes) -> None:
        """Send *response*, or an error in its place if there is no room for it."""
        if self.sink is not None:
            response = self.sink.fitting(response)
        if not self._add(response):
            self._add(self._streams.failure(response))

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        if self.sink is not None:
            self.sink.end()
        self._streams.forget_ended(self)

    def leave(self, sink: EventQueue) -> None:
        """The client behind *sink* is gone; what comes now is kept for its return."""
        if self.sink is sink:
            self.sink = None

    def read(self) -> None:
        """Its client has read all that was sent."""
        self._streams.trim(self)

    def _add(self, message: bytes) -> bool:
        """False if it was neither sent nor kept."""
        self.place += 1
        text = b"id: %b\n%b" % (self._streams.id_of(self, self.place), event(message))
        sink = self.sink
        if sink is not None:
            self.sent, self.unsent = self.place, 0
            sink.put(text)
        return self._streams.keep(self, text) or sink is not None


class Streams:
    """The streams of one session: its own, for GET, and one for each POST whose reply became a stream."""

    __slots__ = ("_budget", "_caller", "_closed", "_events", "_held", "_kept_own", "_number", "_size", "_tag",
                 "_tracks", "link", "primes")  # fmt: skip

    def __init__(self, budget: Budget, caller: Caller) -> None:
        self._budget = budget
        self._caller = caller
        self._tag = b""
        self._number = 0
        self._kept_own: Track | None = None
        self._closed = False
        self._tracks: dict[int, Track] = {}
        self._events: list[tuple[Track, int, bytes]] = []
        self._size = 0
        self._held: Holding | None = None
        self.primes = False
        """Whether a stream begins with an event without data, which tells its id at once."""
        self.link: EventQueue | None = None
        """Where everything goes that is for the session's own stream, if its client is of 2024-11-05."""

    # ------------------------------------------------------------------------------------ streams

    def open(self, sink: EventQueue) -> Track:
        """A stream for the answers to a POST, which go to *sink*."""
        self._number += 1
        track = self._tracks[self._number] = Track(self, self._number, sink)
        self._prime(track, sink)
        return track

    @property
    def is_heard(self) -> bool:
        """True if a client listens to the session's own stream."""
        return self.link is not None or (self._kept_own is not None and self._kept_own.sink is not None)

    @property
    def _own(self) -> Track:
        """The session's own stream. Most sessions end before anything is sent on it."""
        own = self._kept_own
        if own is None:
            own = self._kept_own = Track(self, 0, None)
            own.ended = self._closed
        return own

    def push(self, message: bytes, *, needed: bool = False) -> bool:
        """Send *message* on the session's own stream, see :meth:`Track.push`."""
        if self.link is not None:
            return self.link.push(message)
        return not self._closed and self._own.push(message, needed=needed)

    def listen(self, sink: EventQueue, last_event_id: bytes = b"") -> None:
        """Serve a GET: *sink* gets the stream of *last_event_id* from there on, or the session's own if that is empty.

        Whoever listened to it before hears nothing more, as a client that comes back has not always hung up before.
        Raises :class:`~mcpd.errors.InvalidRequest` for an id that is unknown or too old, and
        :class:`~mcpd.errors.LimitExceeded` if there is no room for all that was missed.
        """
        track, place = self._find(last_event_id) if last_event_id else (self._own, self._own.sent)
        missed = [text for of, at, text in self._events if of is track and at > place]
        if not last_event_id:
            self._prime(track, sink)
        sink.put_all(missed)
        before, track.sink, sink.track = track.sink, sink, track
        track.sent, track.unsent = track.place, 0
        if before is not None:
            before.end()
        if track.ended:
            sink.end()

    def close(self) -> None:
        """End all streams, and keep nothing."""
        if self.link is not None:
            self.link.end()
        self._closed = True
        # Each of them refers to this, and would keep it until the collector finds both.
        own, self._kept_own = self._kept_own, None
        for track in (*self._tracks.values(), *((own,) if own is not None else ())):
            track.ended = True
            if track.sink is not None:
                track.sink.end()
        self._tracks.clear()
        self._events.clear()
        self._size = 0
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _find(self, event_id: bytes) -> tuple[Track, int]:
        found = _ID.fullmatch(event_id)
        if found is None or found[1] != self._tag:
            raise _unknown(event_id)
        number, place = int(found[2]), int(found[3])
        track = self._tracks.get(number) if number else self._own
        if track is None or place > track.place:
            raise _unknown(event_id)
        return track, place

    def id_of(self, track: Track, place: int) -> bytes:
        """The id of an event. Its first part is no secret, but nothing of another session can be mistaken for it."""
        if not self._tag:
            self._tag = secrets.token_hex(8).encode()
        return b"%b-%d-%d" % (self._tag, track.number, place)

    def _prime(self, track: Track, sink: EventQueue) -> None:
        if self.primes:
            sink.put(b"id: %b\nretry: %d\ndata:\n\n" % (self.id_of(track, track.sent), RETRY))

    # ------------------------------------------------------------------------------------ what is kept

    def keep(self, track: Track, text: bytes) -> bool:
        """Keep the newest event of *track*; false if there is no memory for it."""
        if self._closed:
            return False
        self._events.append((track, track.place, text))
        track.kept += 1
        if track.place > track.sent:
            track.unsent += len(text)
        self._size += len(text) + _OVERHEAD
        while len(self._events) > KEPT_EVENTS or (self._size > KEPT_BYTES and len(self._events) > 1):
            self._drop()
        if self._held is None:
            self._held = self._budget.holding(self._caller, self._forget, COUNTED_FROM)
        if self._held.hold(self._size):
            return True
        self._forget()
        self._held.hold(0)
        return False

    def is_full(self, track: Track) -> bool:
        """Return True if so much of *track* waits for a listener that no more is kept, beside answers."""
        return track.place - track.sent >= MOST_UNSENT or track.unsent > UNSENT_BYTES

    def skip(self, track: Track) -> None:
        """Have the oldest event of *track* that waits for a listener count as sent."""
        track.sent += 1
        place = track.sent
        track.unsent -= next((len(text) for of, at, text in self._events if of is track and at == place), 0)

    def failure(self, response: bytes) -> bytes:
        """An error in the place of *response*, for which there is no memory."""
        fault = self._budget.fault()
        return jsonrpc.failure(bytes(jsonrpc.members(jsonrpc.Raw(response)).get("id", b"")), fault)

    def trim(self, track: Track) -> None:
        """Drop what was too large to be kept after it was read on *track*."""
        if self._size > KEPT_BYTES and self._events[0][0] is track and self._events[0][1] <= track.sent:
            self._forget()
            if self._held is not None:
                self._held.hold(0)

    def forget_ended(self, track: Track) -> None:
        """Forget *track* if it has ended and nothing of it is kept."""
        if track.ended and not track.kept:
            self._tracks.pop(track.number, None)

    def _drop(self) -> None:
        """Drop one event: the oldest that was sent, or else the oldest."""
        index = next((i for i, (of, at, _) in enumerate(self._events) if at <= of.sent), 0)
        track, place, text = self._events.pop(index)
        self._size -= len(text) + _OVERHEAD
        track.kept -= 1
        if place > track.sent:
            track.unsent -= len(text)
        self.forget_ended(track)

    def _forget(self, _fault: McpdError | None = None) -> None:
        """Keep nothing of what there was."""
        events, self._events, self._size = self._events, [], 0
        for track, _, _ in events:
            track.kept -= 1
            track.unsent = 0
            self.forget_ended(track)


def _unknown(event_id: bytes) -> InvalidRequest:
    text = event_id[:80].decode("latin-1")
    return InvalidRequest(
        f"Last-Event-ID {text!r} is no event of this session, or too old to go on from: leave it out to listen to the "
        "session's own stream, and make calls again whose answers are missing"
    )
