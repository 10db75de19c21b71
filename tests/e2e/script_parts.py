# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine with scripts on it, and what its clients say."""

from __future__ import annotations

import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import httpx2

from tests.children import marked as marked  # noqa: PLC0414 -- for the tests beside
from tests.rig import PATIENCE, Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

BOTH = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
HELLO = '''\
"""Greets people."""


def greet(name: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        name: Whom to greet.
        times: How often.
    """
    return "\\n".join([f"Hello {name}!"] * times)
'''


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until *condition* holds; fails if it does not within a generous time."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"never happened: {what}"
        time.sleep(0.05)


class ScriptRig(Rig):
    """A :class:`~tests.rig.Rig` whose servers are scripts. Directories are as on a real machine, below its home."""

    def __init__(self) -> None:
        super().__init__()
        root = self.home / "system"
        self.scripts = self.home / ".local/share/mcp/scripts"
        self.system_scripts = root / "etc/mcp/scripts"
        self.vendor_scripts = root / "usr/share/mcp/scripts"
        self.vendor = root / "usr/share/mcp"
        self.map = self.home / ".config/mcp/mcps.json"
        self._entries: dict[str, Any] = {}
        self._clients: list[httpx2.Client] = []

    def __enter__(self) -> Self:
        super().__enter__()
        for directory in (self.scripts, self.system_scripts, self.vendor_scripts, self.map.parent):
            directory.mkdir(parents=True)
        return self

    def __exit__(self, *about: object) -> None:
        for client in self._clients:
            client.close()
        super().__exit__(*about)

    def boot(self) -> None:
        """Start mcpd and the bridge."""
        self.start_daemon()
        self.start_bridge()

    def put(self, name: str, text: str) -> Path:
        """Write the user's script *name* as an editor does, and have mcpd look at it."""
        path = self.scripts / name
        new = path.with_name(f".{name}.new")
        new.write_text(text)
        new.rename(path)
        self.listed()
        return path

    def enter(self, **entries: Any) -> None:
        """Set *entries* of the user's map beside those that are there; ``None`` takes one away."""
        self._entries = {name: entry for name, entry in (self._entries | entries).items() if entry is not None}
        new = self.map.with_suffix(".new")
        new.write_text(json.dumps(self._entries))
        new.rename(self.map)
        self.listed()

    def forget(self) -> None:
        """Remove all scripts, and what the user's map says."""
        for directory in (self.scripts, self.system_scripts, self.vendor_scripts, self.map.parent):
            for path in directory.rglob("*.*"):
                if path.is_file():
                    path.unlink()
        self._entries = {}

    def listed(self) -> dict[str, dict[str, Any]]:
        """What ``mcpctl list`` says, by id."""
        return {each["id"]: each for each in self.json("list", "--json")["servers"]}

    def json(self, *argv: str) -> Any:
        """What ``mcpctl`` prints."""
        done = self.mcpctl(*argv)
        assert done.stdout, (argv, done.returncode, done.stderr)
        return json.loads(done.stdout)

    def done(self, *argv: str, stdin: str = "") -> str:
        """What ``mcpctl`` prints, which has to succeed."""
        done = self.mcpctl(*argv, stdin=stdin)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def call(self, server: str, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool, by ``mcpctl call``."""
        result: dict[str, Any] = self.json("call", server, tool, json.dumps(arguments), "--json")
        return result

    def value(self, server: str, tool: str, **arguments: Any) -> str:
        """The text that a tool gives, which has to succeed."""
        result = self.call(server, tool, **arguments)
        assert not result.get("isError"), result
        return text_of(result)

    def fault(self, server: str, tool: str, **arguments: Any) -> str:
        """The text with which a tool fails."""
        result = self.call(server, tool, **arguments)
        assert result["isError"] is True, result
        return text_of(result)

    def tools(self, server: str) -> dict[str, dict[str, Any]]:
        """The tools of *server*, by name."""
        return {each["name"]: each for each in self.json("tools", server, "--json")["tools"]}

    def logged(self, server: str) -> str:
        """What a server wrote to its log."""
        return self.mcpctl("logs", server).stdout

    def http(self) -> httpx2.Client:
        """A client of the unix socket."""
        transport = httpx2.HTTPTransport(uds=os.fspath(self.socket))
        client = httpx2.Client(transport=transport, base_url="http://localhost", timeout=60, trust_env=False)
        self._clients.append(client)
        return client

    def client(self, server: str) -> Session:
        """A client in a session."""
        return Session(self.http(), server)

    @contextlib.contextmanager
    def in_call(
        self, server: str, tool: str, /, client: Session | None = None, **arguments: Any
    ) -> Iterator[Future[Any]]:
        """While *tool* is called; the future is its result."""
        caller = client or self.client(server)
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(caller.call, tool, **arguments)

    def page(self, server: str) -> str:
        """The page about *server*, when its button was pressed to have the server asked."""
        http = self.http()
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost"}
        reply = http.post(f"/mcp/meta/{server}", headers=headers)
        assert reply.status_code in {200, 303}, reply.text
        reply = http.get(f"/mcp/meta/{server}", headers={"Accept": "text/html"})
        assert reply.status_code == 200, reply.text
        return reply.text

    def state_of(self, server: str) -> Path:
        """The directory that *server* may write to, which is its home."""
        return self.state / server


class Session:
    """A client of the handshake era."""

    def __init__(self, http: httpx2.Client, server: str) -> None:
        self.http = http
        self.path = f"/mcp/{server}"
        self.headers = dict(BOTH)
        about = {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
        }  # fmt: skip
        reply = self.post("initialize", **about)
        assert reply.status_code == 200, reply.text
        self.greeting = reply.json()["result"]
        self.headers |= {"Mcp-Session-Id": reply.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert http.post(self.path, json=told, headers=self.headers).status_code == 202

    def post(self, method: str, /, **params: Any) -> httpx2.Response:
        """The reply to a request."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.http.post(self.path, json=message, headers=self.headers)

    def result(self, method: str, /, **params: Any) -> Any:
        """The result of a request."""
        answer = self.post(method, **params).json()
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, /, **params: Any) -> Any:
        """The error of a request."""
        answer = self.post(method, **params).json()
        assert "error" in answer, answer
        return answer["error"]

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """The result of a tool."""
        return self.result("tools/call", name=tool, arguments=arguments)

    def tools(self) -> dict[str, Any]:
        """The tools, by name."""
        return {each["name"]: each for each in self.result("tools/list")["tools"]}


def text_of(result: Any) -> str:
    """The only text of a result."""
    (content,) = result["content"]
    return str(content["text"])


def messages(reply: httpx2.Response) -> Iterator[Any]:
    """The messages of an event stream, as they come."""
    for line in reply.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def modern(method: str, identity: object = 1, /, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A request of revision 2026-07-28, and its headers."""
    meta = {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
        PREFIX + "clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": identity, "method": method, "params": {**params, "_meta": meta}}
    return message, {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
