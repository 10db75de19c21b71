# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTTPS for TCP clients: the certificate, if one is configured, and the listener that uses it."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, from_oserror

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.bridge.http.connection import Connection
    from mcpd.bridge.http.room import Room

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds in which a client must have come to terms."""
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
    """Accept connections at *listener*, to be closed with this, and give each a protocol of *make* after its handshake.

    asyncio's servers count no connection before its handshake, so that strangers could take all descriptors with
    connections that never begin one. Here each has a place in *room* before.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        listener: socket.socket,
        context: ssl.SSLContext,
        room: Room,
    ) -> None:
        self._make = make
        self._listener = listener
        self._context = context
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._tasks = {self._loop.create_task(self._accept())}

    def close(self) -> None:
        """Accept no more connections, and end those whose handshake is not complete."""
        for task in self._tasks:
            task.cancel()
        # The cancelled accept would do so only once it is closed, while the loop still watches the socket behind it.
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                await asyncio.sleep(error.errno in _SHORTAGES)
                continue
            if self._room.enter(None):
                task = self._loop.create_task(self._greet(client))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                client.close()

    async def _greet(self, client: socket.socket) -> None:
        client.setblocking(False)
        connection, is_made = self._make(), False
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT
            )
            is_made = True
        except OSError as error:
            log.debug("a TLS handshake failed: %s", error)
        finally:
            if not is_made:
                connection.leave_room()
