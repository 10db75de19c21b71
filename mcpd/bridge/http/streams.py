# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replies over ASGI: one piece, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mcpd.bridge.exchange import EventQueue, Headers
    from mcpd.bridge.http.connection import Connection

    Event = MutableMapping[str, Any]
    Send = Callable[[Event], Awaitable[None]]

SLOWEST_READ: Final = 75.0
"""Seconds that a client may leave a piece of a stream unread."""
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_KEEPALIVE: Final = b": keepalive\n\n"


async def reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole reply; a body is JSON."""
    if body:
        headers = (_JSON, (b"content-length", b"%d" % len(body)), *headers)
    elif status != 204:
        headers = ((b"content-length", b"0"), *headers)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Send, queue: EventQueue, headers: Headers, connection: Connection) -> None:
    """Send what comes into *queue* until it ends or the client goes away, and a comment where nothing comes."""
    await send({"type": "http.response.start", "status": 200, "headers": (*_EVENTS, *headers)})
    try:
        while True:
            piece = queue.take()
            if piece:
                async with asyncio.timeout(SLOWEST_READ):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if queue.counted:
                        del piece
                        await connection.flow.drain()
                queue.sent()
            elif queue.ended:
                break
            else:
                await _next(send, queue, connection.keepalive)
    except TimeoutError:
        connection.transport.abort()
        return
    await send({"type": "http.response.body", "body": b""})


async def _next(send: Send, queue: EventQueue, keepalive: float) -> None:
    try:
        async with asyncio.timeout(keepalive):
            await queue.wait()
    except TimeoutError:
        async with asyncio.timeout(SLOWEST_READ):
            await send({"type": "http.response.body", "body": _KEEPALIVE, "more_body": True})
