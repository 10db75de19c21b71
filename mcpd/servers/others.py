# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of other servers' tools through the bridge, if permitted."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mcpd import __version__
from mcpd.errors import McpdError, NotAuthorized, ServiceUnavailable, TimedOut
from mcpd.model import load_json
from mcpd.servers.remote.params import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import httpx2

SOCKET: Final = "MCPD_SOCKET"
TOKEN: Final = "MCPD_SOCKET_TOKEN"  # noqa: S105 -- the name of a variable
HOPS: Final = "org.mcpd/hops"
"""Key in ``_meta`` of a request for the number of servers it came through."""
REVISION: Final = "2026-07-28"
MOST: Final = 32 * 1024 * 1024
"""Maximum size of an answer in bytes."""
_TOO_LARGE: Final = f"the answer has more than {MOST} bytes"
_MOST_PAGES: Final = 20
"""Maximum number of pages of a list that are read."""
_MOST_SAID: Final = 2000
"""Maximum length of a server's message about a failure, in characters."""
_IN_THE_MAP: Final = '"permissions" of its entry in the mcps map'


class Others:
    """Calls tools for the server *server_id*, with the socket and token in *environ*; a call may take *seconds*."""

    def __init__(
        self,
        server_id: str,
        seconds: float,
        environ: Mapping[str, str] = os.environ,
        *,
        grant: str = _IN_THE_MAP,
        bridge: Path | None = None,
    ) -> None:
        """Name *grant* in errors as the place where permissions are granted.

        *bridge* is the socket of the user's bridge, for a server not started by mcpd, which then calls as the user.
        """
        self._server_id = server_id
        self._seconds = seconds
        self._socket = environ.get(SOCKET, "")
        self._token = environ.get(TOKEN, "")
        self._grant = grant
        self._bridge = "" if bridge is None else str(bridge)

    async def __call__(self, server: str, tool: str, arguments: dict[str, Any], hops: int) -> dict[str, Any]:
        """Return the result of *tool* of *server*, for a request that came through *hops* servers.

        Raises :class:`~mcpd.errors.NotAuthorized` without the permission, :class:`~mcpd.errors.TimedOut`,
        :class:`~mcpd.errors.ServiceUnavailable` and McpdError for a failure of the tool.
        """
        where = f"tool {tool} of server {server}"
        result = await self._asked(where, server, "tools/call", {"name": tool, "arguments": arguments}, hops)
        if result.get("resultType", "complete") != "complete":
            raise McpdError(f"{where} asks its user something, and nobody is there who could answer")
        if result.get("isError") is True:
            raise McpdError(f"{where}: {_text(result)}")
        return result

    async def tools(self, server: str, hops: int) -> list[str]:
        """Return the names of the tools of *server*. Raises as a call does."""
        names: list[str] = []
        params: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            result = await self._asked(f"the tools of server {server}", server, "tools/list", params, hops)
            tools = result.get("tools")
            names += (
                [str(each.get("name")) for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
            )
            if not isinstance(cursor := result.get("nextCursor"), str):
                break
            params = {"cursor": cursor}
        return names

    async def _asked(self, where: str, server: str, method: str, params: dict[str, Any], hops: int) -> dict[str, Any]:
        """Return the result of a request; messages call it *where*."""
        if not (self._socket and self._token) and not self._bridge:
            raise NotAuthorized(
                f"server {self._server_id} may not call {server}: grant it the permission mcp:{server}, in"
                f" {self._grant}"
            )
        answer = await self._post(server, method, params.get("name"), self._request(method, params, hops))
        error = answer.get("error")
        if isinstance(error, dict):
            raise McpdError(f"{where}: {str(error.get('message'))[:_MOST_SAID]}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise McpdError(f"{where}: the answer is none")
        return result

    def _request(self, method: str, params: dict[str, Any], hops: int) -> bytes:
        prefix = "io.modelcontextprotocol/"
        about = {
            prefix + "protocolVersion": REVISION,
            prefix + "clientInfo": {"name": self._server_id, "version": __version__},
            prefix + "clientCapabilities": {},
            HOPS: hops,
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": about}}
        return json.dumps(message).encode()

    async def _post(self, server: str, method: str, name: str | None, body: bytes) -> dict[str, Any]:
        import httpx2  # rarely needed

        socket = self._socket
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": method,
        }
        if name is not None:
            headers["Mcp-Name"] = encoded(name)
        if socket and self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        else:
            socket = self._bridge
        # By default it would load the system's certificates for each call, but there is no TLS here.
        transport = httpx2.AsyncHTTPTransport(uds=socket, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        url = f"http://localhost/mcp/{quote(server, safe='')}"
        try:
            # The timeout of httpx is for each part of the answer.
            async with (
                asyncio.timeout(self._seconds),
                httpx2.AsyncClient(transport=transport, timeout=None, trust_env=False) as http,
                http.stream("POST", url, content=body, headers=headers) as response,
            ):
                return await _answer(response)
        except TimeoutError:
            raise TimedOut(f"server {server} did not answer within {self._seconds:g} s") from None
        except httpx2.HTTPError as error:
            raise ServiceUnavailable(
                f"server {server} cannot be reached through the bridge at {socket}: {error}; start the bridge:"
                " systemctl --user start mcpd-bridge.socket, or where there is no systemd: mcpd-bridge --user"
            ) from error


async def _answer(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON-RPC response in *response*: its body, or the last one in its stream of events."""
    events = response.headers.get("content-type", "").startswith("text/event-stream")
    data = await (_last_event(response) if events else _body(response))
    origin = f"the answer of the bridge (HTTP {response.status_code})"
    found = load_json(data, origin)
    if not isinstance(found, dict):
        raise McpdError(f"{origin} is no answer")
    return found


async def _body(response: httpx2.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MOST:
            raise McpdError(_TOO_LARGE)
    return bytes(data)


async def _last_event(response: httpx2.Response) -> str:
    import httpx2  # rarely needed

    data = "null"
    try:
        async for event in httpx2.EventSource(response, max_event_size=MOST):
            data = event.data if event.data.strip() else data
    except httpx2.SSEError as error:
        raise McpdError(_TOO_LARGE) from error
    return data


def _text(result: dict[str, Any]) -> str:
    blocks = result.get("content")
    texts = [str(each.get("text", "")) for each in blocks if isinstance(each, dict)] if isinstance(blocks, list) else []
    return "\n".join(texts)[:_MOST_SAID] or "it failed"
