# SPDX-License-Identifier: LGPL-2.1-or-later
"""The only module that imports dbus-next.

dbus-next 0.2.3 parses the address, authenticates, says Hello and watches the socket. Reading, writing and dispatching
are implemented in :mod:`mcpd.bus.transport` and above: those of dbus-next disconnect when the socket is full, leak and
mix up file descriptors, cache every signature that a caller makes up, and answer with tracebacks. The version is pinned
exactly, so its private names are stable; ``tests/bus`` has a test for each fault.
"""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from mcpd import errors
from mcpd.bus import codec
from mcpd.bus.transport import Frame, FrameReader, Kind

# dbus_next imports its GLib backend, and with it all of PyGObject if that is installed.
sys.modules.setdefault("dbus_next.glib", ModuleType("dbus_next.glib"))

from dbus_next.aio.message_bus import MessageBus  # noqa: E402
from dbus_next.constants import MessageType  # noqa: E402
from dbus_next.errors import AuthError, InvalidAddressError, InvalidMessageError  # noqa: E402
from dbus_next.message import Message  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

SYSTEM_SOCKET: Final = "unix:path=/run/dbus/system_bus_socket"
REFUSALS: Final = (OSError, EOFError, AuthError, InvalidAddressError, InvalidMessageError, ValueError, AttributeError)
"""Exceptions of connecting; the last two come from replies that dbus-next does not check."""
_BATCH: Final = 64
"""Messages handled before the event loop gets a turn, so that a flood does not starve other tasks."""


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


class Bus(MessageBus):
    """dbus-next's connection with our reader, and without its dispatching."""

    def __init__(self, address: str, max_message: int) -> None:
        super().__init__(bus_address=address, negotiate_unix_fd=True)
        self._writer = _NoWriter()  # type: ignore[assignment]
        self.reader = FrameReader(self._sock, max_message)
        self.on_frame: Callable[[Frame], None] = self._on_hello
        self.on_lost: Callable[[Exception | None], None] = lambda _: None

    @property
    def socket(self) -> Any:
        """The socket, non-blocking."""
        return self._sock

    def _setup_socket(self) -> None:
        try:
            super()._setup_socket()  # type: ignore[no-untyped-call]
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Close the socket, which dbus-next leaves to the garbage collector."""
        for part in (getattr(self, "_stream", None), getattr(self, "_sock", None)):
            if part is not None:
                part.close()

    def lost(self, error: Exception | None) -> None:
        """Disconnect, because of *error* or because the connection is not needed any more."""
        if not self._disconnected:
            self._finalize(error)

    def _finalize(self, err: Exception | None = None) -> None:
        super()._finalize(err)  # type: ignore[no-untyped-call]
        if self._disconnect_future.done():
            self._disconnect_future.exception()
        self.on_lost(err)

    def _message_reader(self) -> None:
        try:
            for _ in range(_BATCH):
                try:
                    frame = self.reader.read()
                except codec.WireError as error:
                    log.warning("Dropped a message with an unusable header: %s", error)
                    continue
                if frame is None:
                    return
                self._dispatch(frame)
        except (EOFError, OSError) as error:
            self._finalize(error)

    def _dispatch(self, frame: Frame) -> None:
        """Pass *frame* on. Exceptions end here, so that one message cannot affect the others."""
        try:
            self.on_frame(frame)
        except Exception:
            frame.fds.close()
            log.exception("Failed to handle a message of %s", frame.sender)

    def _on_hello(self, frame: Frame) -> None:
        """Pass the reply to Hello to dbus-next, as one of its messages."""
        with frame.fds:
            handler = self._method_return_handlers.pop(frame.reply_serial, None)
            if handler is not None:
                kind = MessageType.METHOD_RETURN if frame.kind == Kind.RETURN else MessageType.ERROR
                message = Message(
                    message_type=kind,
                    reply_serial=frame.reply_serial,
                    error_name=frame.error_name or "org.mcpd.None",
                    signature=frame.signature,
                    body=frame.values(),
                )
                handler(message, None)


class _NoWriter:
    """Replacement for dbus-next's writer that does nothing."""

    def schedule_write(self) -> None:
        """Do nothing; called after Hello."""
