# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that call servers: which they may, and for how long a chain of them may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.bridge import jsonrpc
from mcpd.bridge.callers import Caller
from mcpd.bridge.jsonrpc import Raw
from mcpd.errors import LimitExceeded, NotAuthorized, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.bridge.jsonrpc import Message

HOPS: Final = "org.mcpd/hops"
"""In ``_meta`` of a request: how many servers it came through. A server passes it on with what it asks in turn."""
MOST_HOPS: Final = 8


class Passes:
    """Knows servers by the passes that mcpd gave them, signed with the key at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = b""

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The server that shows its pass in *headers*; raises :class:`~mcpd.errors.Unauthenticated`."""
        from mcpd.runtime import calls  # few servers call others

        given = headers.get(b"authorization", b"")
        token = given[7:].strip() if given[:7].lower() == b"bearer " else b""
        found = calls.read(token, self._key)
        if found is None:
            try:
                self._key = self._path.read_bytes()
            except OSError:
                self._key = b""
            found = calls.read(token, self._key)
        if found is None:
            raise Unauthenticated(
                "this socket is for servers with the permission mcp: send what MCPD_SOCKET_TOKEN holds in the header "
                "'Authorization: Bearer TOKEN'"
            )
        return Caller(found.uid, found.server, found.allowed)


def check_target(caller: Caller, server: str) -> None:
    """Raise :class:`~mcpd.errors.NotAuthorized` unless *caller*, a server, may call *server*."""
    if server == caller.server:
        raise NotAuthorized(f"server {server} cannot call itself through the bridge")
    if caller.allowed and server not in caller.allowed:
        raise NotAuthorized(
            f"server {caller.server} may call {', '.join(caller.allowed)}, and not {server[:128]!r}: for that its "
            f"manifest would need the permission mcp:{server[:128]}"
        )


def counted(message: Message) -> Message:
    """The request *message* of a server with one hop more.

    Raises :class:`~mcpd.errors.LimitExceeded` if that is too many, or no number.
    """
    params = jsonrpc.members(message.get("params"))
    meta = jsonrpc.members(params.get("_meta"))
    given = bytes(meta.get(HOPS, b"0"))
    hops = int(given) + 1 if given.isdigit() and len(given) < 4 else MOST_HOPS + 1
    if hops > MOST_HOPS:
        raise LimitExceeded(
            f"the call has passed through {MOST_HOPS} servers: they seem to call each other in a circle"
        )
    meta[HOPS] = Raw(b"%d" % hops)
    params["_meta"] = Raw(jsonrpc.encode(meta))
    return {**message, "params": Raw(jsonrpc.encode(params))}
