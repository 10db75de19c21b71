# SPDX-License-Identifier: LGPL-2.1-or-later
"""A client of revision 2026-07-28 that shows what travels."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bridge.bridge_harness import BOTH, messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.bridge.bridge_harness import Bridge

MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION = PREFIX + "subscriptionId"
FIXTURE = Path(__file__).parent / "fixtures" / "modern_server.py"
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
ALL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def command(*eras: str, wire: Path | None = None) -> str:
    return f"{sys.executable} {FIXTURE} {' '.join(eras)}" + (f" --wire {wire}" if wire else "")


def envelope(capabilities: object = None, **more: object) -> dict[str, Any]:
    """The ``_meta`` of a request; *more* are further members of it."""
    meta = {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
        PREFIX + "clientCapabilities": capabilities or {},
    }
    return {**meta, **more}


def request(method: str, identity: object = 1, meta: object = None, **params: object) -> dict[str, Any]:
    params["_meta"] = envelope() if meta is None else meta
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def call(tool: str, identity: object = 1, meta: object = None, more: Any = None, **arguments: object) -> dict[str, Any]:
    return request("tools/call", identity, meta, name=tool, arguments=arguments, **(more or {}))


def headers_for(message: Any) -> dict[str, str]:
    found = {"MCP-Protocol-Version": MODERN, "Mcp-Method": message["method"]}
    parameter = NAMED.get(message["method"])
    if parameter and parameter in message["params"]:
        found["Mcp-Name"] = message["params"][parameter]
    return found


class ModernClient:
    """One client of one server."""

    def __init__(self, http: httpx2.Client, server: str = "s") -> None:
        self.http = http
        self.path = f"/mcp/{server}"

    def post(self, message: Any, **changed: str | None) -> httpx2.Response:
        """Post *message* with the headers it needs, of which *changed* replaces or (``None``) leaves out some."""
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        derived = headers_for(message) if isinstance(message, dict) and "params" in message else {}
        merged = {**BOTH, "MCP-Protocol-Version": MODERN, **derived}
        by_name: dict[str, str | None] = {name.lower(): value for name, value in merged.items()}
        by_name |= {name.replace("_", "-").lower(): value for name, value in changed.items()}
        sent = {name: value for name, value in by_name.items() if value is not None}
        return self.http.post(self.path, content=content, headers=sent)

    def ask(self, message: Any, **changed: str | None) -> Any:
        """Post *message* and return the only message of the JSON reply."""
        return self.post(message, **changed).json()

    def result(self, message: Any, **changed: str | None) -> Any:
        """Post *message* and return the result in the reply."""
        answer = self.ask(message, **changed)
        assert "result" in answer, answer
        return answer["result"]

    @contextlib.contextmanager
    def streaming(self, message: Any) -> Iterator[Iterator[Any]]:
        """Post *message* and read its answer as a stream."""
        with self.http.stream("POST", self.path, json=message, headers={**BOTH, **headers_for(message)}) as reply:
            assert reply.headers["content-type"] == "text/event-stream", reply.read()
            yield messages(reply)


def client(bridge: Bridge, server: str = "s") -> ModernClient:
    return ModernClient(bridge.http(), server)
