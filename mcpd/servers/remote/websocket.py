# SPDX-License-Identifier: LGPL-2.1-or-later
"""WebSocket, with the subprotocol ``mcp``: one message in each text frame."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, PayloadTooBig, WebSocketException
from websockets.typing import Subprotocol

from mcpd import __version__
from mcpd.servers.remote.duplex import Duplex
from mcpd.servers.remote.http import CONNECT_TIMEOUT, reason, refusal
from mcpd.servers.remote.messages import MAX_MESSAGE, TIMED_OUT, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcpd.servers.remote.messages import Message
    from mcpd.servers.remote.target import Remote


class _Connect(connect):
    """A connection that follows no redirects, as these would get all headers."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class WebSocket(Duplex):
    """WebSocket transport with consecutive connections."""

    async def connect(self) -> WebSocketChannel:
        """See :class:`Duplex`."""
        place = self.remote.place
        try:
            connection = await _Connect(
                self.remote.url,
                ssl=ssl.create_default_context() if self.remote.url.startswith("wss:") else None,
                additional_headers=dict(self.remote.headers),
                user_agent_header=f"mcpd-remote/{__version__}",
                subprotocols=[Subprotocol("mcp")],
                compression=None,
                max_size=MAX_MESSAGE,
                open_timeout=CONNECT_TIMEOUT,
                close_timeout=2,
            )
        except TimeoutError as error:
            raise Fault(f"{place}: no connection in time", TIMED_OUT) from error
        except InvalidStatus as error:
            raise Fault(refusal(self.remote, error.response.status_code)) from error
        except (WebSocketException, OSError) as error:
            raise Fault(f"{place} cannot be reached: {reason(error)}") from error
        return WebSocketChannel(self.remote, connection)


class WebSocketChannel:
    """A WebSocket connection."""

    def __init__(self, remote: Remote, connection: ClientConnection) -> None:
        self._remote = remote
        self._connection = connection

    async def send(self, message: Message) -> None:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        try:
            await self._connection.send(message.raw, text=True)
        except ConnectionClosed as error:
            raise Fault(f"{self._remote.place} ended the connection") from error

    async def messages(self) -> AsyncIterator[bytes | str]:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        try:
            async for message in self._connection:
                yield message
        except PayloadTooBig as error:
            raise Fault(f"{self._remote.place} sent a message over {MAX_MESSAGE} bytes") from error
        except ConnectionClosed as error:
            raise Fault(f"{self._remote.place} ended the connection before the answer: {reason(error)}") from error

    async def close(self) -> None:
        """See :class:`~mcpd.servers.remote.duplex.Channel`."""
        await self._connection.close()
