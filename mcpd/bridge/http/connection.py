# SPDX-License-Identifier: LGPL-2.1-or-later
"""One HTTP connection: uvicorn's protocol class, with the peer's identity and strict framing of requests.

POSTs to servers do not take uvicorn's way through a task and ASGI, see :mod:`.cycle`.
"""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mcpd.bridge.http.cycle import Cycle
from mcpd.bridge.http.endpoint import spelt_differently, target_of
from mcpd.bridge.http.gate import Peer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from mcpd.bridge.exchange import EventQueue
    from mcpd.bridge.http.cycle import KnownHead
    from mcpd.bridge.http.endpoint import Endpoint, Head
    from mcpd.bridge.http.listeners import Room

LONGEST_LINE: Final = 65536
"""Bytes of one line."""
SPARE_LINES: Final = 1024
"""Lines between requests, and before the chunks of one; beyond them there has to be data."""
DATA_FOR_LINE: Final = 64
"""Bytes of a body that allow one line more: each takes its time, and a body of tiny chunks would take everybody's."""
_REQUEST: Final = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]\r\n")
_HEADER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*\r\n")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?\r\n")
_BLANK: Final = b"\r\n"
KEEP_ALIVE: Final = 75
"""Seconds that an idle connection is kept, and that a client may take to read on."""
HEAD_TIMEOUT: Final = 10.0
"""Seconds in which a request's line and headers must come, and the first one altogether."""
LINGER: Final = 3.0
"""Seconds in which the rest of a request may come that was answered already, so that its client reads the answer."""
HEAD_LIMIT: Final = 65536
"""Bytes of a request's line and headers."""
MOST_HEADERS: Final = 256
"""Maximum number of headers of a request. Each takes much more memory than its bytes."""
SLICE: Final = 16384
"""Bytes parsed at once. The requests in them may wait for the one before them, and take 20 times as much memory."""
_CREDENTIALS: Final = struct.Struct("3i")


def needs_strictness() -> bool:
    """Return True if the parser that is installed is one of those that forgive."""
    major, minor = httptools.__version__.split(".")[:2]
    return (int(major), int(minor)) < (0, 2)


class Misframed(Exception):
    """The request can be read in more than one way."""


class _At(Enum):
    REQUEST = auto()
    HEADERS = auto()
    SIZE = auto()
    """The line before a chunk."""
    CHUNK_END = auto()
    """The line break after one."""
    END = auto()
    """After the last chunk, where trailers could be."""


class Framing:
    """Cuts what comes over a connection at the ends of lines, and refuses those that are not as they must be."""

    def __init__(self) -> None:
        self._at = _At.REQUEST
        self._line = bytearray()
        self._left = 0
        """Bytes of the body, or of its chunk, that are to come."""
        self._spare = SPARE_LINES * DATA_FOR_LINE
        """Bytes of data that lines may still stand for."""

    @property
    def is_between(self) -> bool:
        """True if the last request is complete, and no byte of another one has arrived."""
        return self._at is _At.REQUEST and not self._left and not self._line

    def split(self, data: bytes) -> Iterator[bytes]:
        """The pieces of *data*, each to be parsed before the next one is asked for; raises :class:`Misframed`."""
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                self._left -= len(piece)
            else:
                end = data.find(b"\n", position) + 1
                piece = data[position : end or len(data)]
                self._line += piece
                if len(self._line) > LONGEST_LINE:
                    raise Misframed("a line is too long")
                if end:
                    line = bytes(self._line)
                    self._line.clear()
                    self._check(line)
            position += len(piece)
            yield piece

    def body(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The parser has seen the end of a head with these *headers*; raises :class:`Misframed`."""
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        lengths = [value for name, value in headers if name == b"content-length"]
        if codings:
            if lengths or len(codings) > 1 or codings[0].lower() != b"chunked":
                raise Misframed("the only way to send a body without its length is one 'Transfer-Encoding: chunked'")
            self._at = _At.SIZE
            return
        if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
            raise Misframed("Content-Length is one number")
        self._at = _At.REQUEST
        self._left = int(lengths[0]) if lengths else 0

    def _check(self, line: bytes) -> None:
        """Go on by one *line*."""
        if self._at is _At.REQUEST:
            # Line breaks between requests are allowed.
            if line == _BLANK:
                self._spend(0)
            else:
                _must_match(_REQUEST, line)
                self._at = _At.HEADERS
                self._spare = SPARE_LINES * DATA_FOR_LINE
        elif self._at is _At.HEADERS:
            if line != _BLANK:
                _must_match(_HEADER, line)
        elif self._at is _At.SIZE:
            self._left = int(_must_match(_SIZE, line).group(1), 16)
            self._spend(self._left)
            self._at = _At.CHUNK_END if self._left else _At.END
        elif line != _BLANK:
            raise Misframed("a chunk is longer than it says, or there are trailers")
        else:
            self._at = _At.SIZE if self._at is _At.CHUNK_END else _At.REQUEST

    def _spend(self, data: int) -> None:
        """One line more, before *data* bytes."""
        self._spare += data - DATA_FOR_LINE
        if self._spare < 0:
            raise Misframed("there are many lines and little data")


def _must_match(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(line)
    if found is None:
        raise Misframed("a line is not as HTTP/1.1 has it")
    return found


_IS_STRICT: Final = needs_strictness()


class Connection(HttpToolsProtocol):
    """A client. The application finds it as ``scope["state"]["connection"]``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        room: Room,
        endpoint: Endpoint,
        *,
        has_place: bool = False,
    ) -> None:
        self.raw_headers: dict[bytes, bytes] = {}
        """The headers of the newest request that was parsed, with names as they were sent."""
        self.repeated: frozenset[bytes] = frozenset()
        """Headers that are there more than once, of which the last is in :attr:`raw_headers`."""
        self._all_headers: list[tuple[bytes, bytes]] = []
        super().__init__(config, server_state, {**app_state, "connection": self}, loop)
        self.head: Head | None = None
        """What the headers of the last POST came to that was parsed, as clients send the same ones again and again."""
        self._known: KnownHead | None = None
        self.peer = Peer(None)
        self.waiting: EventQueue | None = None
        """What the client waits for: the answer to a POST, or the stream of a session."""
        self._room: Room | None = room
        self._has_place = has_place
        """True if it has a place in the room already."""
        self._endpoint = endpoint
        self._cycle: Cycle | None = None
        """The newest request, if it is a POST to a server."""
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._waiting_head: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_size = 0
        self._header_count = 0
        self._rest = b""
        """Bytes that came after the requests in the pipeline; parsed when the last of these begins."""
        self._reader_check: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._unread: list[EventQueue] = []
        self._lost = False
        self._is_behind = False
        """It was answered more than it has read."""
        self._framing = Framing() if _IS_STRICT else None

    @property
    def keepalive(self) -> float:
        """Seconds after which a silent stream to it carries a comment."""
        return self._endpoint.keepalive

    @property
    def has_whole_body(self) -> bool:
        """True if nothing of the request is still to come."""
        return not self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look up the peer, and whether there is room for it."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected.family == socket.AF_UNIX:
            raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.peer = Peer(_CREDENTIALS.unpack(raw)[1])
        else:
            self.peer = Peer(None, self.client, self.server)
        if self._room is not None and not self._has_place and not self._room.enter(self.peer.uid):
            self._room = None
            transport.abort()
            return
        self._waiting_head = self.loop.call_later(HEAD_TIMEOUT, self._no_head)

    def data_received(self, data: bytes) -> None:
        """Serve what has a head that is known; hold clients to the limits on any other, which uvicorn does not have."""
        if self._rest:
            self._rest += data
            return
        known, before, head, is_between = self._known, self._cycle, self.head, self._is_between
        if known is not None and is_between and (body := known.body(data)) is not None:
            if self._endpoint.is_current(known.head):
                self._serve(known, body)
                return
            self._known = None
        self._parse(data)
        cycle = self._cycle
        if is_between and cycle is not None and cycle is not before and head is self.head:
            # Those who send other headers each time would only pay for it.
            self._known = cycle.learn(data)

    @property
    def _is_between(self) -> bool:
        """True if every received request is parsed and answered."""
        cycle = self.cycle
        if self._in_head or self._is_behind or self.transport.is_closing():
            return False
        if self._framing is not None and not self._framing.is_between:
            return False
        return cycle is None or (cycle.response_complete and not cycle.more_body)

    def _serve(self, known: KnownHead, body: bytes) -> None:
        self._cycle = cycle = Cycle(self, self._endpoint, known.server, known.link)
        self.cycle = cycle  # type: ignore[assignment]
        cycle.serve(known.head, body)

    def _parse(self, data: bytes) -> None:
        """Parse *data*, up to the slice with a request that has to wait for the one before it; keep the rest."""
        position = 0
        while position < len(data) and not self.transport.is_closing():
            if self.pipeline:
                self._rest = data[position:]
                return
            piece = data[position : position + SLICE]
            position += len(piece)
            if self._framing is None:
                self._feed(piece)
            else:
                self._feed_strictly(self._framing, piece)
            if self._in_head:
                # How much of the first piece belongs to requests before it, is not known.
                self._head_size = 0 if self._head_size < 0 else self._head_size + len(piece)
                if self._head_size > HEAD_LIMIT:
                    self.send_400_response("The headers are too large.")
        if self.transport.is_closing():
            return
        if self._in_head:
            if self._waiting_head is None:
                self._waiting_head = self.loop.call_later(HEAD_TIMEOUT, self._no_head)
        elif self._cycle is not None and self._cycle.more_body:
            self._cycle.wait_for_body()

    def _feed(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade:
            # It was refused when its head was there.
            pass

    def _feed_strictly(self, framing: Framing, piece: bytes) -> None:
        try:
            for line in framing.split(piece):
                self._feed(line)
                if self.transport.is_closing():
                    return
        except Misframed as fault:
            self.send_400_response(f"Invalid HTTP request received: {fault}.")

    @property
    def _is_idle(self) -> bool:
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_head and self._lingering is None and not self.transport.is_closing()

    def on_message_begin(self) -> None:
        """A request begins. What ASGI needs of it is made only for it."""
        self._in_head = True
        self._head_size = -1
        self._header_count = 0
        self.url = b""
        self.raw_headers.clear()
        self.repeated = frozenset()
        self._all_headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came."""
        self._header_count += 1
        if self._header_count > MOST_HEADERS:
            # The parser makes an error of its own of it.
            raise ValueError("too many headers")
        if name in self.raw_headers:
            self.repeated |= {name.lower()}
        self.raw_headers[name] = value
        if self._framing is not None:
            # The parser does not check that those which frame the body are there once.
            self._all_headers.append((name.lower(), value))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, but not where the client waits for the reply to something before it."""
        cycle = self.cycle
        is_of_this = cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline
        if cycle is None or cycle.response_complete or is_of_this:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that nobody waits for it any more."""
        self._lost = True
        super().connection_lost(exc)
        self._release()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._rest = b""
        self._heard()
        self._end_lingering()
        self._unwatch_reader()
        if self._cycle is not None:
            self._cycle.hang_up()
        self.leave_room()
        if self.waiting is not None:
            self.waiting.hang_up()
            self.waiting = None
        self._let_go()

    def leave_room(self) -> None:
        """Give its place in the room back, if it has one."""
        if self._room is not None:
            self._room.leave(self.peer.uid)
            self._room = None

    def _let_go(self) -> None:
        """Refer to nothing that refers to this: until the collector finds such circles, thousands may have come."""
        self.parser = None  # type: ignore[assignment]
        self.app_state = {}
        self.scope = None  # type: ignore[assignment]
        self._known = self.head = None
        if self._cycle is not None or (self.cycle is not None and self.cycle.response_complete):
            self.cycle = self._cycle = None  # type: ignore[assignment]

    def until_read(self, queue: EventQueue) -> None:
        """All of *queue* was written: it is counted until the client has read it."""
        if queue.counted and self.flow.write_paused and not self._lost:
            self._unread.append(queue)
        else:
            queue.release()

    def pause_writing(self) -> None:
        """The client does not read what is written."""
        super().pause_writing()
        self._unwatch_reader()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client has read what was written."""
        super().resume_writing()
        self._unwatch_reader()
        self._release()
        if self._is_behind:
            self._is_behind = False
            self._go_on()

    def _release(self) -> None:
        read, self._unread = self._unread, []
        for queue in read:
            queue.release()

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        self._in_head = False
        if self._waiting_head is not None:
            self._heard()
        if self._framing is not None:
            # The parser makes an error of its own of what is raised here.
            self._framing.body(self._all_headers)
        if self.parser.get_method() == b"POST":
            server, link = target_of(self.url)
            if server:
                cycle = Cycle(self, self._endpoint, server, link)
                cycle.parsed()
                self._begin(cycle)
                return
        self._cycle = None
        url = self.url
        super().on_message_begin()
        self.url = url
        self.scope["state"]["repeated"] = self.repeated | spelt_differently(self.raw_headers)
        for name, value in self.raw_headers.items():
            super().on_header(name, value)
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # The parser takes no body then, and would read it as the next request.
            self.cycle.keep_alive = False

    def _begin(self, cycle: Cycle) -> None:
        before = self.cycle
        self._cycle = cycle
        # It is to uvicorn what a cycle of its own is.
        self.cycle = cycle  # type: ignore[assignment]
        if (before is None or before.response_complete) and not self._is_behind:
            cycle.begin()
        else:
            cycle.keep_headers()
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body is there."""
        if self._cycle is not None:
            self._cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request is there."""
        if self._lingering is not None:
            self._end_lingering()
        if self._cycle is not None:
            self._cycle.complete()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """A reply went out. Where it was given before the whole request came, the rest is not waited for long."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        # One timer for many requests, where uvicorn makes one for each.
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(KEEP_ALIVE, self.timeout_keep_alive_handler)
        if self.flow.write_paused:
            # A client that does not read its replies is asked for nothing more.
            self.flow.pause_reading()
            self._is_behind = True
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Serve what came meanwhile, and read on once nothing more of it waits."""
        following = self.pipeline.pop() if self.pipeline else None
        if self._rest and not self.pipeline:
            rest, self._rest = self._rest, b""
            self._parse(rest)
        if self.flow.read_paused and not self.pipeline:
            # Earlier, more would come each time than is answered; later, the rest of the last one never.
            self.flow.resume_reading()
        if following is not None:
            cycle, app = following
            task = self.loop.create_task(cycle.run_asgi(app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        if self.cycle.more_body and self.cycle.response_complete and self._lingering is None:
            self._lingering = self.loop.call_later(LINGER, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, but not one whose client is still reading the last reply."""
        self._idle = None
        if not self._is_idle:
            return
        left = self._idle_since + KEEP_ALIVE - self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if left <= 0 and not unsent:
            super().timeout_keep_alive_handler()
        elif left <= 0 and unsent == self._unsent:
            self.transport.abort()
        else:
            self._unsent = unsent
            self._idle = self.loop.call_later(left if left > 0 else KEEP_ALIVE, self.timeout_keep_alive_handler)

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._reader_check = self.loop.call_later(KEEP_ALIVE, self._check_reader)

    def _check_reader(self) -> None:
        """Disconnect a client that has read nothing since the last check."""
        self._reader_check = None
        if self.transport.get_write_buffer_size() >= self._unsent:
            self.transport.abort()
        else:
            self._watch_reader()

    def _unwatch_reader(self) -> None:
        if self._reader_check is not None:
            self._reader_check.cancel()
            self._reader_check = None

    def _end_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _heard(self) -> None:
        if self._waiting_head is not None:
            self._waiting_head.cancel()
            self._waiting_head = None

    def _no_head(self) -> None:
        self._waiting_head = None
        self.transport.abort()


class ServerConnection(Connection):
    """A server that may call others. What it may, its pass tells and not its uid."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look up the peer, and whether there is room for it."""
        super().connection_made(transport)
        self.peer = replace(self.peer, is_server=True)
