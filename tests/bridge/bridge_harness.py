# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bridge as a process of its own, and a client that shows what travels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from tests.preloaded import process_of, python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pytest

ROOT = Path(__file__).parents[2]
FIXTURE = Path(__file__).parent / "fixtures" / "stdio_server.py"
COMMAND = f"{sys.executable} {FIXTURE}"
JSON = {"Content-Type": "application/json"}
BOTH = {**JSON, "Accept": "application/json, text/event-stream"}
PATIENCE = 120.0


def initialize(identity: object = 0, version: str = "2025-11-25", capabilities: object = None) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": identity, "method": "initialize", "params": params}


def call(tool: str, identity: object = 1, /, meta: object = None, **arguments: object) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params}


def text_of(message: dict[str, Any]) -> str:
    return str(message["result"]["content"][0]["text"])


def events(body: str) -> list[Any]:
    """The messages of an event stream."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that may be written at the moment, without one that is not whole yet."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until *condition* holds; fails if it does not within a generous time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """All processes that *pid* started, directly or not."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, (task / "children").read_text().split()):
                    found |= {child} | descendants(child)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Client:
    """One client of one server: an httpx2 client that remembers its session."""

    def __init__(self, http: httpx2.Client, server: str) -> None:
        self.http = http
        self.path = f"/mcp/{server}"
        self.headers = dict(BOTH)
        self.opened: Any = None

    def post(self, message: object, **headers: str) -> httpx2.Response:
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.http.post(self.path, content=content, headers=self._headers(headers))

    def ask(self, message: object, **headers: str) -> Any:
        """Post *message* and return the only message of the JSON reply."""
        return self.post(message, **headers).json()

    def open(self, version: str = "2025-11-25", capabilities: object = None) -> Client:
        reply = self.post(initialize(version=version, capabilities=capabilities))
        assert reply.status_code == 200, reply.text
        self.opened = reply.json()
        self.headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
        self.headers["MCP-Protocol-Version"] = self.opened["result"]["protocolVersion"]
        assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
        return self

    @contextlib.contextmanager
    def listen(self) -> Iterator[Iterator[Any]]:
        """The session's own stream, as an iterator of messages."""
        headers = {**self.headers, "Accept": "text/event-stream"}
        with self.http.stream("GET", self.path, headers=headers) as reply:
            assert reply.status_code == 200
            yield messages(reply)

    @contextlib.contextmanager
    def streaming(self, message: object) -> Iterator[Iterator[Any]]:
        """Post *message* and read its answer as a stream."""
        with self.http.stream("POST", self.path, json=message, headers=self.headers) as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            yield messages(reply)

    def delete(self) -> httpx2.Response:
        return self.http.delete(self.path, headers=self.headers)

    def _headers(self, changed: dict[str, str]) -> dict[str, str]:
        merged = {**self.headers, **{name.replace("_", "-"): value for name, value in changed.items()}}
        return {name: value for name, value in merged.items() if value}


class Frame:
    """A server-sent event, or a comment between events."""

    def __init__(self, lines: list[str]) -> None:
        fields = dict(line.partition(":")[::2] for line in lines)
        self.comment = fields.get("", "").strip()
        self.id = fields.get("id", "").strip()
        self.event = fields.get("event", "").strip()
        self.data = fields.get("data", "").strip()
        self.retry = fields.get("retry", "").strip()

    @property
    def message(self) -> Any:
        """What its data is as JSON."""
        return json.loads(self.data)


def frames(reply: httpx2.Response) -> Iterator[Frame]:
    """The events and comments of a stream, whole."""
    lines: list[str] = []
    for line in reply.iter_lines():
        if line:
            lines.append(line)
        elif lines:
            yield Frame(lines)
            lines = []


def messages(reply: httpx2.Response) -> Iterator[Any]:
    for line in reply.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


class Bridge:
    """A running ``mcpd-bridge``; *prefix* is a command that executes it."""

    def __init__(
        self, arguments: Sequence[str], environment: dict[str, str], log: Path, prefix: Sequence[str] = ()
    ) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*prefix, sys.executable if prefix else python(), "-m", "mcpd.bridge.main", *arguments],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, **environment},
            )
        self.headers: dict[str, str] = {}
        self._clients: list[httpx2.Client] = []

    @property
    def pid(self) -> int:
        return process_of(self.process.pid)

    def said(self) -> str:
        return self.log.read_text()

    def wait_url(self) -> str:
        def listening() -> bool:
            assert self.process.poll() is None, self.said()
            return "listening on" in self.said()

        eventually(listening, "the bridge listens")
        line = next(line for line in self.said().splitlines() if "listening on" in line)
        return line.split("listening on ")[1].removesuffix("/mcp/NAME")

    @property
    def url(self) -> str:
        return self.wait_url()

    def http(self, **options: Any) -> httpx2.Client:
        options.setdefault("base_url", self.url)
        options["headers"] = {**self.headers, **options.get("headers", {})}
        client = httpx2.Client(timeout=PATIENCE, trust_env=False, **options)
        self._clients.append(client)
        return client

    def client(self, server: str = "s") -> Client:
        return Client(self.http(), server)

    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    def stop(self) -> int:
        """Stop it, as systemd does; clients may be waiting."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Leave nothing behind."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.stop()


@contextlib.contextmanager
def bridges(directories: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Starts bridges with the given arguments; they end with the block."""
    running: list[Bridge] = []

    def start(*arguments: str, prefix: Sequence[str] = (), **environment: str) -> Bridge:
        bridge = Bridge(arguments, environment, directories.mktemp("bridge") / "log", prefix)
        running.append(bridge)
        return bridge

    try:
        yield start
    finally:
        for bridge in running:
            bridge.close()
