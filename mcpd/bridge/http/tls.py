# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTPS for TCP clients: the certificate, if one is configured, and the listener that uses it."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, from_oserror

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any, TypeAlias

    from mcpd.bridge.http.connection import Connection
    from mcpd.bridge.http.listeners import Room

    _Handshake: TypeAlias = asyncio.Task[tuple[asyncio.BaseTransport, Any]]

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds within which a client must complete the TLS handshake."""
SHORTAGE_PAUSE: Final = 1.0
"""Seconds without accepting connections when descriptors or memory are used up."""
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Certificate:
    """A certificate with its chain, and its key, in files; the key may be in the same file."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._files = certificate, key
        self.context = _context()
        self.load()

    def load(self) -> None:
        """Read the files, for connections from now on.

        Raises :class:`~mcpd.errors.InvalidConfig`, and leaves everything as it is, if they cannot be used.
        """
        # A context whose certificate has been replaced, but not its key, could greet nobody any more.
        self._load_into(_context())
        self._load_into(self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        where = str(certificate) if key is None else f"{certificate} with the key {key}"
        try:
            # A password, which nobody could give, must not be asked for at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except ssl.SSLError as error:
            why = error.reason or "no certificate, or none with this key"
            raise InvalidConfig(f"{where} cannot be used for HTTPS ({why}): give a PEM file with the certificate "
                                "and its chain, and one with its key, without a password") from error  # fmt: skip
        except OSError as error:
            raise from_oserror(error, f"reading {where}") from error


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsServer:
    """A TCP listener that takes a place in a room for each connection before its TLS handshake.

    asyncio's own server shows a connection to the protocol only after the handshake. Strangers could take all
    descriptors with connections that never begin one.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        listener: socket.socket,
        context: ssl.SSLContext,
        room: Room,
    ) -> None:
        """*make* returns the protocol of a connection that has a place already; *listener* is closed with this."""
        self._make = make
        self._listener = listener
        self._context = context
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[_Handshake] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop accepting connections, and close those whose handshake is not complete."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._handshakes:
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            # Any other error belongs to a connection that is gone.
            if error.errno in _SHORTAGES:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(SHORTAGE_PAUSE, self._resume)
            return
        if not self._room.enter(None):
            client.close()
            return
        client.setblocking(False)
        connection = self._make()
        handshake = self._loop.connect_accepted_socket(
            lambda: connection, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT
        )
        task = self._loop.create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(partial(self._handshake_ended, connection, client))

    def _handshake_ended(self, connection: Connection, client: socket.socket, task: _Handshake) -> None:
        self._handshakes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.debug("a TLS handshake failed: %s", error)
        if error is not None or task.cancelled():
            connection.leave_room()
            client.close()
