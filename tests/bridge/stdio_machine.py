# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine with servers behind the bridge's ``stdio.sock``, and a client of that socket."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any, Self

from tests.bridge.bridge_harness import PATIENCE, initialize
from tests.bridge.bridge_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
MAPPED = {
    "narrow": {"tools": {"echo": {"name": "say", "arguments": {"text": {"default": "fixed", "hide": True}}}}},
    "off": {"enabled": False},
}


@contextlib.contextmanager
def mapped_machine(directory: Path) -> Iterator[Machine]:
    """A machine whose ``mcps`` map changes some of its servers."""
    found = Machine(directory)
    try:
        for name in ("narrow", "off"):
            found.install(name, {})
        found.install("shared", {"runtime": {"sharing": "caller"}})
        found.install("sleepy", {"runtime": {"idleTimeout": 1}})
        path = found.home / ".config/mcp/mcps.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(MAPPED))
        found.environ["MCPD_BRIDGE_AUDIT"] = str(found.home / "audit")
        found.boot()
        yield found
    finally:
        found.close()


def stdio_socket(machine: Machine) -> Path:
    return machine.runtime / "mcp/stdio.sock"


class Talk:
    """A conversation over ``stdio.sock``."""

    def __init__(self, machine: Machine, server: object) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(stdio_socket(machine)))
        self.file = self.socket.makefile("rb")
        first = server if isinstance(server, bytes) else json.dumps({"server": server}).encode()
        self.write(first)
        self.hello = self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def write(self, *messages: object) -> None:
        lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    def read(self) -> Any:
        line = self.file.readline()
        return json.loads(line) if line else None

    def ask(self, message: object) -> Any:
        self.write(message)
        return self.read()

    def open(self, version: str = "2025-11-25", capabilities: object = None) -> Self:
        assert self.hello == {"ok": True}
        answer = self.ask(initialize("i", version, capabilities))
        assert (answer["id"], answer["result"]["protocolVersion"]) == ("i", version)
        self.write(INITIALIZED)
        return self


def modern(method: str, identity: object, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": {**params, "_meta": MODERN}}
