# SPDX-License-Identifier: LGPL-2.1-or-later
"""A connection to a message bus: calls, replies, signals and names, independent of any interface.

This is the only module that imports dbus-next, which parses addresses and authenticates; ADR 0001 explains why it does
no more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from mcpd import errors
from mcpd.bus import codec
from mcpd.bus.codec import Variant
from mcpd.bus.names import DBUS, DBUS_PATH
from mcpd.bus.transport import MAX_MESSAGE, NO_REPLY_EXPECTED, Frame, FrameReader, Kind, Writer, encode

# dbus_next imports its GLib backend, and with it all of PyGObject if that is installed.
sys.modules.setdefault("dbus_next.glib", ModuleType("dbus_next.glib"))

from dbus_next._private.address import parse_address  # noqa: E402
from dbus_next.auth import AuthExternal  # noqa: E402
from dbus_next.errors import AuthError, InvalidAddressError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcpd.bus.transport import Fds, Frame

__all__ = ["Connection", "Match", "Reply", "Signal"]

log = logging.getLogger(__name__)

SYSTEM_SOCKET: Final = "unix:path=/run/dbus/system_bus_socket"
CONNECT_TIMEOUT: Final = 10.0
"""Seconds for authentication and Hello."""
MAX_QUEUED: Final = 32 * 1024 * 1024
"""Maximum number of bytes that wait for a bus that does not read; later messages are dropped."""
_UNAVAILABLE_ERRORS: Final = frozenset(
    {
        errors.FREEDESKTOP_PREFIX + "NameHasNoOwner",
        errors.FREEDESKTOP_PREFIX + "Disconnected",
        "org.freedesktop.systemd1.NoSuchUnit",
    }
)
"""Further D-Bus errors that mean that the service is not available."""
_REFUSALS: Final = (OSError, EOFError, ValueError, AuthError, InvalidAddressError, errors.McpdError)
"""Exceptions that connecting may raise; ``ValueError`` comes from answers that dbus-next does not check."""
_MAX_AUTH_LINE: Final = 4096
_BATCH: Final = 64
"""Number of messages handled before the event loop gets a turn, so that a flood does not starve other tasks."""
_MAX_EARLY_CALLS: Final = 256
"""Maximum number of calls that wait for :meth:`Connection.serve`; a mere client never answers any."""
_PRIMARY_OWNER: Final = 1
_DO_NOT_QUEUE: Final = 4


def bus_address(*, system: bool) -> str:
    """Return the address of the system or session bus. Raises :class:`~mcpd.errors.ServiceUnavailable`."""
    if system:
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or SYSTEM_SOCKET
    address = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
    if address:
        return address
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.exists(f"{runtime}/bus"):  # noqa: PTH110 -- pathlib costs mcpctl its start-up time
        return f"unix:path={runtime}/bus"
    raise errors.ServiceUnavailable(
        "there is no session bus: DBUS_SESSION_BUS_ADDRESS is not set and $XDG_RUNTIME_DIR/bus does not exist. "
        "Log in through a desktop or ssh session, or use --system."
    )


class Reply(NamedTuple):
    """The result of a call. The receiver owns *fds*."""

    sender: str
    values: list[Any]
    fds: Fds


class Connection:
    """Sends and receives messages, independent of any interface.

    A context manager; leaving it closes the connection, and calls in flight fail.
    """

    def __init__(self, sock: socket.socket, max_message: int) -> None:
        """*sock* is connected and authenticated."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._reader = FrameReader(sock, max_message)
        self._writer = Writer(self._loop, sock, self._end)
        self._serials = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Frame]] = {}
        self._matches: dict[Match, list[Callable[[Signal], None]]] = {}
        self._active_matches: set[Match] = set()
        self._adding: dict[Match, asyncio.Event] = {}
        self._lost: asyncio.Future[Exception | None] = self._loop.create_future()
        self._dropping = False
        self._handler: Callable[[Frame], None] | None = None
        self._early_calls: list[Frame] = []
        self.unique_name = ""
        """The unique name that the bus gave this connection."""
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @classmethod
    async def open(cls, address: str, *, max_message: int = MAX_MESSAGE) -> Self:
        """Connect to the bus at *address*, a list of D-Bus addresses separated by ``;``.

        Messages above *max_message* bytes arrive without their body. Raises :class:`~mcpd.errors.ServiceUnavailable`.
        """
        fault: Exception | None = None
        for one in filter(None, address.split(";")):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    connection = cls(await _authenticated(one), max_message)
                    try:
                        connection.unique_name = str(await connection.call_bus("Hello"))
                    except BaseException:
                        connection.close()
                        raise
            except _REFUSALS as error:
                fault = error
            else:
                return connection
        raise errors.ServiceUnavailable(f"cannot connect to the message bus at {address!r}: {fault}") from fault

    @property
    def congested(self) -> bool:
        """True if so much is queued that long replies should be refused."""
        return self._writer.queued > MAX_QUEUED // 2

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pending calls fail with ``ServiceUnavailable``."""
        self._end(None)

    async def wait_lost(self) -> Exception | None:
        """Wait until the connection is lost; return the reason, ``None`` if :meth:`close` was called."""
        return await asyncio.shield(self._lost)

    async def drain(self) -> None:
        """Wait until everything queued so far is sent."""
        await self._writer.drain()

    def serve(self, handler: Callable[[Frame], None]) -> None:
        """Pass every call, including earlier ones, to *handler*, which then owns its descriptors.

        Calls are kept until then, so that a service can take its name before it is ready.
        """
        self._handler = handler
        early, self._early_calls = self._early_calls, []
        for frame in early:
            handler(frame)

    # --- outgoing ---

    async def call(  # noqa: PLR0913 -- as many as a D-Bus call needs
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        args: Sequence[object] = (),
        *,
        fds: Sequence[int] = (),
        flags: int = 0,
        timeout: float | None = 25.0,  # noqa: ASYNC109 -- D-Bus calls have a timeout; None disables it
    ) -> Reply:
        """Call a method and wait at most *timeout* seconds for its reply. The caller keeps ownership of *fds*.

        Raises the error that the reply carries, :class:`~mcpd.errors.ServiceUnavailable` if the connection is lost,
        :class:`~mcpd.errors.TimedOut`, and :class:`~mcpd.bus.codec.WireError` if *args* do not fit.
        """
        body = codec.marshal(signature, args)
        serial = next(self._serials)
        fields = _call_fields(destination, path, interface, member)
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._calls[serial] = future
        try:
            self._send(Kind.CALL, serial, fields, signature, body, fds, flags)
            async with asyncio.timeout(timeout):
                frame = await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().fds.close()
            if isinstance(error, TimeoutError):
                raise errors.TimedOut(
                    f"{destination} did not answer {interface}.{member} within {timeout} s"
                ) from error
            raise
        finally:
            del self._calls[serial]
        return _result(frame)

    def post(
        self, destination: str, path: str, interface: str, member: str, signature: str, args: Sequence[object]
    ) -> None:
        """Call a method without waiting for a reply; do nothing if the connection is lost."""
        if not self._lost.done():
            fields = _call_fields(destination, path, interface, member)
            body = codec.marshal(signature, args)
            self._send(Kind.CALL, next(self._serials), fields, signature, body, flags=NO_REPLY_EXPECTED)

    def reply(self, frame: Frame, signature: str = "", body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Answer the call *frame*. The caller keeps ownership of *fds*."""
        if not frame.flags & NO_REPLY_EXPECTED:
            fields = [(5, Variant("u", frame.serial)), (6, Variant("s", frame.sender))]
            self._send(Kind.RETURN, next(self._serials), fields, signature, body, fds)

    def reply_error(self, frame: Frame, name: str, message: str) -> None:
        """Answer the call *frame* with an error."""
        if not frame.flags & NO_REPLY_EXPECTED:
            fields = [(4, Variant("s", name)), (5, Variant("u", frame.serial)), (6, Variant("s", frame.sender))]
            # File names in *message* may contain any bytes; an error that cannot be sent would leave the caller
            # waiting.
            sendable = message.replace("\0", "\ufffd").encode(errors="backslashreplace").decode()
            body = codec.marshal("s", [sendable])
            self._send(Kind.ERROR, next(self._serials), fields, "s", body)

    def emit(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        args: Sequence[object] = (),
        *,
        destination: str = "",
    ) -> None:
        """Emit a signal to everyone, or only to *destination*."""
        fields = [(1, Variant("o", path)), (2, Variant("s", interface)), (3, Variant("s", member))]
        if destination:
            fields.append((6, Variant("s", destination)))
        self._send(Kind.SIGNAL, next(self._serials), fields, signature, codec.marshal(signature, args))

    def _send(
        self,
        kind: Kind,
        serial: int,
        fields: list[tuple[int, Variant]],
        signature: str,
        body: bytes,
        fds: Sequence[int] = (),
        flags: int = 0,
    ) -> None:
        if self._lost.done():
            raise errors.ServiceUnavailable("the connection to the message bus was lost")
        if self._writer.queued + len(body) > MAX_QUEUED and kind is not Kind.CALL:
            if not self._dropping:
                log.error("The message bus is not reading: %d bytes are queued, dropping messages", MAX_QUEUED)
            self._dropping = True
            return
        self._dropping = False
        if signature:
            fields.append((8, Variant("g", signature)))
        if fds:
            fields.append((9, Variant("u", len(fds))))
        self._writer.send(encode(kind, serial, fields, body, flags), fds)

    # --- names and signals ---

    async def request_name(self, name: str) -> bool:
        """Request the well-known *name*; return whether this connection owns it now."""
        reply = await self.call_bus("RequestName", "su", name, _DO_NOT_QUEUE)
        return bool(reply == _PRIMARY_OWNER)

    async def call_bus(self, member: str, signature: str = "", *args: object) -> Any:
        """Call a method of the bus itself; return its single result, ``None`` if it has none."""
        reply = await self.call(DBUS, DBUS_PATH, DBUS, member, signature, args)
        with reply.fds:
            return reply.values[0] if reply.values else None

    async def subscribe(self, match: Match, listener: Callable[[Signal], None]) -> Callable[[], None]:
        """Call *listener* for every signal that fits *match*; return a function that unsubscribes.

        The match rule is active on return, so signals caused by later calls are not missed.
        """
        self._matches.setdefault(match, []).append(listener)
        try:
            while match not in self._active_matches:
                if match in self._adding:
                    await self._adding[match].wait()
                else:
                    await self._add(match)
        except BaseException:
            self._forget(match, listener)
            raise

        def unsubscribe() -> None:
            if self._forget(match, listener):
                self.post(DBUS, DBUS_PATH, DBUS, "RemoveMatch", "s", [match.rule()])

        return unsubscribe

    async def _add(self, match: Match) -> None:
        self._adding[match] = asyncio.Event()
        try:
            await self.call_bus("AddMatch", "s", match.rule())
            self._active_matches.add(match)
        except asyncio.CancelledError:
            self.post(DBUS, DBUS_PATH, DBUS, "RemoveMatch", "s", [match.rule()])
            raise
        finally:
            self._adding.pop(match).set()

    def _forget(self, match: Match, listener: Callable[[Signal], None]) -> bool:
        """Remove *listener*; return whether it was the last one for *match*."""
        listeners = self._matches.get(match)
        if listeners is None or listener not in listeners:
            return False
        listeners.remove(listener)
        if listeners:
            return False
        del self._matches[match]
        self._active_matches.discard(match)
        return True

    # --- incoming ---

    def _on_readable(self) -> None:
        try:
            for _ in range(_BATCH):
                try:
                    frame = self._reader.read()
                except codec.WireError as error:
                    log.warning("Dropped a message with an unusable header: %s", error)
                    continue
                if frame is None:
                    return
                self._dispatch(frame)
        except (EOFError, OSError) as error:
            self._end(error)

    def _dispatch(self, frame: Frame) -> None:
        """Pass *frame* on. Exceptions are handled here, so that one message cannot affect the others."""
        try:
            self._on_frame(frame)
        except Exception:
            frame.fds.close()
            log.exception("Failed to handle a message of %s", frame.sender)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.CALL:
            self._on_call(frame)
            return
        future = self._calls.get(frame.reply_serial) if frame.kind in (Kind.RETURN, Kind.ERROR) else None
        if future is not None and not future.done():
            future.set_result(frame)
            return
        with frame.fds:
            if frame.kind == Kind.SIGNAL:
                self._on_signal(frame)

    def _on_signal(self, frame: Frame) -> None:
        wanted = [(match, list(found)) for match, found in self._matches.items() if match.accepts(frame)]
        if not wanted:
            return
        try:
            signal = Signal(frame.sender, frame.path, frame.interface, frame.member, frame.values())
        except codec.WireError as error:
            log.warning("Dropped the signal %s.%s: %s", frame.interface, frame.member, error)
            return
        for match, listeners in wanted:
            if match.fits(signal.args):
                for listener in listeners:
                    listener(signal)

    def _on_call(self, frame: Frame) -> None:
        if self._handler is not None:
            self._handler(frame)
        elif len(self._early_calls) < _MAX_EARLY_CALLS:
            self._early_calls.append(frame)
        else:
            with frame.fds:
                self.reply_error(
                    frame, errors.LimitExceeded.dbus_name, "mcpd is starting, and too many calls are waiting"
                )

    def _end(self, error: Exception | None) -> None:
        """End the connection because of *error*, or on purpose if *error* is None."""
        if self._lost.done():
            return
        self._lost.set_result(error)
        self._loop.remove_reader(self._socket.fileno())
        for frame in self._early_calls:
            frame.fds.close()
        self._early_calls.clear()
        self._writer.close()
        self._reader.close()
        self._socket.close()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(errors.ServiceUnavailable("the connection to the message bus was lost"))


async def _authenticated(address: str) -> socket.socket:
    """Connect to the bus at *address*; return the non-blocking socket, ready for Hello."""
    loop = asyncio.get_running_loop()
    transport, options = parse_address(address)[0]  # type: ignore[no-untyped-call]
    path = options.get("path") or "\0" + options.get("abstract", "")
    if transport != "unix" or path == "\0":
        raise InvalidAddressError(f"{address!r} is not the address of a Unix socket")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A non-blocking connect() does not wait while many others connect, but fails.
        sock.connect(path)
        sock.setblocking(False)
        auth = AuthExternal()  # type: ignore[no-untyped-call]
        line = auth._authentication_start(negotiate_unix_fd=True)  # noqa: SLF001 -- see ADR 0001
        await loop.sock_sendall(sock, b"\0")
        while True:
            await loop.sock_sendall(sock, f"{line}\r\n".encode())
            if line == "BEGIN":
                return sock
            line = auth._receive_line(await _auth_line(sock))  # noqa: SLF001
    except BaseException:
        sock.close()
        raise


async def _auth_line(sock: socket.socket) -> str:
    """Return the next line of the authentication; the bus sends nothing more until it is answered."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        received = await asyncio.get_running_loop().sock_recv(sock, _MAX_AUTH_LINE)
        line += received
        if not received or len(line) > _MAX_AUTH_LINE:
            raise EOFError("the message bus aborted the authentication")
    return line[:-2].decode()


def _call_fields(destination: str, path: str, interface: str, member: str) -> list[tuple[int, Variant]]:
    return [
        (1, Variant("o", path)),
        (6, Variant("s", destination)),
        (2, Variant("s", interface)),
        (3, Variant("s", member)),
    ]


def _result(frame: Frame) -> Reply:
    try:
        values = frame.values()
    except codec.WireError as error:
        frame.fds.close()
        raise errors.McpdError(f"{frame.sender} sent an invalid reply: {error}") from error
    if frame.kind == Kind.ERROR:
        frame.fds.close()
        message = str(values[0]) if values else frame.error_name
        if frame.error_name in _UNAVAILABLE_ERRORS or frame.error_name.startswith(errors.FREEDESKTOP_PREFIX + "Spawn."):
            raise errors.ServiceUnavailable(message)
        raise errors.from_dbus(frame.error_name, message)
    return Reply(frame.sender, values, frame.fds)


class Signal(NamedTuple):
    """A received signal."""

    sender: str
    path: str
    interface: str
    member: str
    args: list[Any]


class Match(NamedTuple):
    """A match rule; empty fields match anything."""

    sender: str = ""
    path: str = ""
    interface: str = ""
    member: str = ""
    arg0: str = ""
    arg2: str | None = None
    """Unlike in other fields, an empty string is a value: NameOwnerChanged has it for a name that lost its owner."""

    def rule(self) -> str:
        """Return the match rule as text for the bus."""
        wanted = {key: value for key, value in self._asdict().items() if value or (key, value) == ("arg2", "")}
        return ",".join(["type='signal'", *(f"{key}='{value}'" for key, value in wanted.items())])

    def accepts(self, frame: Frame) -> bool:
        """Return whether the header of *frame* fits. A well-known sender name is left to the bus to check."""
        return (
            self.path in ("", frame.path)
            and self.interface in ("", frame.interface)
            and self.member in ("", frame.member)
            and (not self.sender.startswith((":", DBUS)) or self.sender == frame.sender)
        )

    def fits(self, args: Sequence[Any]) -> bool:
        """Return whether the arguments of a signal fit."""
        return (not self.arg0 or args[:1] == [self.arg0]) and (self.arg2 is None or args[2:3] == [self.arg2])
