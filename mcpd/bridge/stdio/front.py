# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers over ``stdio.sock``: what stdio is to a client, with the bridge between.

The first line of a connection names the server, ``{"server": ID}``, and is answered by ``{"ok": true}`` or
``{"error": {"name", "message"}}``. Everything after that is newline-delimited JSON-RPC in both directions, of
any revision: a message is served as a POST over HTTP is, and its answers come as lines.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.exchange import QUEUE_LIMIT
from mcpd.bridge.http.post import Post
from mcpd.bridge.http.routing import is_server_name
from mcpd.bridge.observe.watch import refuse_all
from mcpd.bridge.stdio import lines
from mcpd.bridge.stdio.lines import Again, Line, Outlet
from mcpd.bridge.tasks import fault_of
from mcpd.bridge.upstream.pipes import KEPT_OF_OVERSIZED, LineReader
from mcpd.errors import LimitExceeded, McpdError, NotFound, TimedOut, TooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.handshake.serve import Handshake
    from mcpd.bridge.handshake.session import Session
    from mcpd.bridge.http.endpoint import Endpoint
    from mcpd.bridge.http.gate import Gate
    from mcpd.bridge.http.listeners import Room
    from mcpd.bridge.jsonrpc import Raw
    from mcpd.bridge.parts import Parts

log = logging.getLogger(__name__)

FIRST_LINE: Final = 1 << 20
"""Bytes of the line that names the server."""
FIRST_LINE_TIMEOUT: Final = 10.0
"""Seconds in which it must come."""
HANG_UP_LOOK: Final = 1.0
"""Seconds between two looks whether a client that has nothing more to say still listens."""
MOST_PENDING: Final = 1024
"""Requests of one connection that may wait for their answers."""
_CREDENTIALS: Final = struct.Struct("3i")


class LineConnection(asyncio.Protocol):
    """One client of ``stdio.sock``."""

    def __init__(self, front: StdioFront) -> None:
        self._front = front
        self._parts = front.parts
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.caller: Caller
        self._uid: int | None = None
        self._server = ""
        self._environment: Mapping[str, str] = {}
        self._is_ready = False
        """Messages can be served."""
        self._waiting: list[bytes] = []
        """Lines that came before that, of which there are no more than one read brings."""
        self._session: Session | None = None
        self._outlet: Outlet | None = None
        self._greeting = b""
        """The line with which the client opened its session."""
        self._opening: Line | None = None
        self._pending: set[Line] = set()
        self._reader: LineReader
        self._unread: Holding
        self._half_closed = self._lost = self._is_behind = False
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look up the peer, and whether there is room for it."""
        self.transport = transport
        raw = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid = _CREDENTIALS.unpack(raw)[1]
        self.caller = Caller(uid)
        budget, limit = self._parts.budget, max(FIRST_LINE, self._parts.options.max_body)
        self._unread = budget.holding(self.caller, self._cut)
        self._reader = LineReader(self._line, self._oversized, limit, budget.holding(self.caller, self._cut))
        if not self._front.room.enter(uid):
            transport.abort()
            return
        self._uid = uid
        self._front.connections.add(self)
        self._timer = self._loop.call_later(FIRST_LINE_TIMEOUT, self._no_first_line)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all that the client began."""
        self._lost = True
        self._front.connections.discard(self)
        self._reader.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._uid is not None:
            self._front.room.leave(self._uid)
        for line in list(self._pending):
            line.hang_up()
        self._end_session("its client is gone")
        self._unread.close()

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        self._is_behind = not self._reader.feed(data)
        if self._is_behind:
            self._loop.call_soon(self._go_on)
        self._read_or_wait()

    def eof_received(self) -> bool:
        """The client has nothing more to say: what it asked for is answered, then the connection ends."""
        self._half_closed = True
        if not self._server:
            self._turn_away(lines.no_server())
            return True
        if self._session is not None:
            self._session.deafen()
        for line in [line for line in self._pending if line.is_stream]:
            line.hang_up()
        self._until_hung_up()
        self._close_if_done()
        return True

    def shutdown(self) -> None:
        """The bridge stops."""
        self._half_closed = True
        self._close_if_done()

    def resume_writing(self) -> None:
        """The client has read what was written."""
        self._unread.hold(self.transport.get_write_buffer_size())

    def _go_on(self) -> None:
        if self._lost:
            return
        self._is_behind = not self._reader.go_on()
        if self._is_behind:
            self._loop.call_soon(self._go_on)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self._lost or self.transport.is_closing():
            return
        if (not self._is_ready and self._server) or self._is_behind:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _until_hung_up(self) -> None:
        """Look whether a client that says nothing more has also stopped listening, which makes no event."""
        if self._lost:
            return
        if self._timer is not None:
            self._timer.cancel()
        look = select.poll()
        look.register(self.transport.get_extra_info("socket").fileno(), 0)
        if look.poll(0):
            self.transport.abort()
        else:
            self._timer = self._loop.call_later(HANG_UP_LOOK, self._until_hung_up)

    def _close_if_done(self) -> None:
        if self._half_closed and self._is_ready and not self._pending and not self._lost:
            self.transport.close()

    def _no_first_line(self) -> None:
        self._turn_away(TimedOut(f"the line that names the server did not come within {FIRST_LINE_TIMEOUT:g} s"))

    # ------------------------------------------------------------------------------------ the first line

    def _first_line(self, line: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            hello = lines.hello(line)
            self.caller = self._front.gate.admission.by_uid(self.caller.uid)
            if not is_server_name(hello.server):
                raise NotFound(f"{hello.server[:140]!r} is not the name of a server")
        except McpdError as fault:
            self._turn_away(fault)
            return
        self._server, self._environment = hello.server, hello.environment
        self._parts.tasks.spawn(self._look_up())

    async def _look_up(self) -> None:
        # The boundary: whatever went wrong, the client waits for an answer.
        try:
            await self._parts.source.describe(self._server)
        except Exception as error:  # noqa: BLE001 -- logged by fault_of
            self._turn_away(fault_of(error))
            return
        if not self._lost:
            self.transport.write(b'{"ok":true}\n')
            self._go_on_with_waiting()

    def _turn_away(self, fault: McpdError) -> None:
        if not self._lost and not self.transport.is_closing():
            said = {"name": fault.dbus_name, "message": fault.message}
            self.transport.write(jsonrpc.encode({"error": said}) + b"\n")
            self.transport.close()
        self._reader.close()
        self._waiting.clear()

    # ------------------------------------------------------------------------------------ from the client

    def _line(self, line: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._server:
            self._first_line(line)
        elif len(line) > self._parts.options.max_body + len(b"\n"):
            self._oversized(line[:KEPT_OF_OVERSIZED], line[-KEPT_OF_OVERSIZED:])
        elif not self._is_ready:
            self._waiting.append(line)
        elif len(self._pending) >= MOST_PENDING:
            fault = LimitExceeded(f"{MOST_PENDING} requests wait for their answers: wait for some of them")
            self._told_of(line, fault.word)
            self.send_needed(jsonrpc.failure(lines.id_of(line), fault))
        else:
            self._message(line)

    def _told_of(self, line: bytes, reason: str) -> None:
        refuse_all(self._parts.watch, self.caller, self._server, line, reason)

    def _message(self, line: bytes) -> None:
        if lines.MODERN in line and self._modern(line):
            return
        if self._pending and b"notifications/cancelled" in line and self._cancelled(line):
            return
        self._handshake(line)

    def _modern(self, line: bytes) -> bool:
        """Serve *line* if it is of revision 2026-07-28."""
        version, identity, is_stream = lines.modern(line)
        if version:
            self._post(line, Line(self, identity=identity, is_modern=True, is_stream=is_stream), version)
        return bool(version)

    def _cancelled(self, line: bytes) -> bool:
        """Return True if *line* was the cancellation of a request of 2026-07-28, which needs nothing else."""
        wanted = lines.cancelled(line)
        found = [each for each in self._pending if each.is_modern and each.identity == wanted]
        if len(found) == 1:
            found[0].hang_up()
        return bool(found)

    def _handshake(self, line: bytes) -> None:
        self._forget_ended()
        if self._session is not None:
            self._post(line, Line(self), self._session.version)
        elif lines.is_initialize(line):
            self._greeting = line
            self._open(line, Line(self))
        elif self._greeting:
            self._waiting.append(line)
            self._open(self._greeting, Again(self))
        else:
            self._post(line, Line(self), "")

    def _open(self, greeting: bytes, sink: Line) -> None:
        """Open a session; what comes meanwhile waits for it."""
        self._is_ready = False
        self._opening = sink
        self._post(greeting, sink, "")

    def _post(self, line: bytes, sink: Line, version: str) -> None:
        session_id = self._session.id if self._session is not None and not sink.is_modern else ""
        post = Post(self._server, self.caller, session_id, version, {}, over_stdio=True, environment=self._environment)
        self._pending.add(sink)
        self._front.endpoint.post(post, line, sink)

    def _oversized(self, head: bytes, tail: bytes) -> None:
        fault = TooLarge(f"a line is longer than {self._parts.options.max_body} bytes, see bridge.max_body")
        if self._server:
            self.send_needed(jsonrpc.failure(jsonrpc.id_of_broken(head) or jsonrpc.id_of_broken(tail), fault))
        else:
            self._turn_away(fault)

    # ------------------------------------------------------------------------------------ to the client

    def send(self, message: bytes) -> bool:
        """Send *message*, which is no answer; false if the client does not read."""
        return self.transport.get_write_buffer_size() <= QUEUE_LIMIT and self._write(message)

    def send_needed(self, message: bytes) -> None:
        """Send *message*. A client that does not read what it asks for is cut off."""
        if not self._write(message) and not self.transport.is_closing():
            self._cut(self._unread.fault())

    def _write(self, message: bytes) -> bool:
        if self._lost or self.transport.is_closing():
            return False
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        size = self.transport.get_write_buffer_size() + len(message)
        # What the client takes at once is not kept, but it has to fit all the same.
        if not self._unread.hold(size):
            return False
        self.transport.write(message + b"\n")
        self._unread.hold(self.transport.get_write_buffer_size())
        return True

    def _cut(self, fault: McpdError) -> None:
        log.warning("disconnected a client of server %s over stdio: %s", self._server, fault.message)
        self.transport.abort()

    # ------------------------------------------------------------------------------------ the session

    def opened(self, session: Session) -> None:
        """The client, or this in its place, opened *session*."""
        self._end_session("its client opened another one")
        self._session = session
        self._outlet = session.streams.link = Outlet(self)
        if self._half_closed:
            session.deafen()

    def opened_again(self, fault: Raw | None) -> None:
        """Go on with what the client sent meanwhile, or answer that with *fault*."""
        if fault is None:
            self._post(jsonrpc.encode(jsonrpc.notification("notifications/initialized")), Line(self), "")
        else:
            waiting, self._waiting = self._waiting, []
            for line in waiting:
                self._told_of(line, "session")
                identity = lines.id_of(line)
                if identity:
                    self.send_needed(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (identity, bytes(fault)))

    def session_ended(self, outlet: Outlet) -> None:
        """The session of *outlet* has ended: the next message opens another one."""
        if outlet is self._outlet:
            self._session = self._outlet = None

    def done(self, line: Line) -> None:
        """All of *line* was answered."""
        self._pending.discard(line)
        if line is self._opening:
            self._opening = None
            # Not before who answered it has ended its own work.
            self._loop.call_soon(self._go_on_with_waiting)
        self._close_if_done()

    def _forget_ended(self) -> None:
        """Forget a session that was ended since."""
        if self._session is not None and not self._front.handshake.sessions.has(self._session):
            self._session = self._outlet = None

    def _end_session(self, reason: str) -> None:
        session, self._session, self._outlet = self._session, None, None
        if session is not None:
            self._front.handshake.sessions.end(session, reason)

    def _go_on_with_waiting(self) -> None:
        if self._lost:
            return
        self._is_ready = True
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._line(line)
        self._read_or_wait()
        self._close_if_done()


class StdioFront:
    """What the connections of ``stdio.sock`` share. *connections* are all of the bridge, which stays while there are
    any.
    """

    def __init__(
        self, parts: Parts, gate: Gate, endpoint: Endpoint, handshake: Handshake, room: Room, connections: set[Any]
    ) -> None:
        self.parts = parts
        self.gate = gate
        self.endpoint = endpoint
        self.handshake = handshake
        self.room = room
        self.connections = connections

    def __call__(self) -> LineConnection:
        """A connection."""
        return LineConnection(self)
