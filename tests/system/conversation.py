# SPDX-License-Identifier: LGPL-2.1-or-later
"""Talking with servers that run in a machine."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Inside, Machine


@contextmanager
def running(machine: Machine, server_id: str, user: str = "root") -> Iterator[Conversation]:
    """A session of *server_id* that ends with the block."""
    program = machine.popen(
        "mcpctl", "run", server_id, user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Conversation(program)
    finally:
        assert program.stdin
        program.stdin.close()
        program.wait(20)


class Conversation:
    """Talks to one running server."""

    def __init__(self, program: Inside) -> None:
        self.program = program
        self._number = 0
        self.request(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"}
        )

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.program.stdin
        assert self.program.stdout
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.program.stdin.write(json.dumps(message).encode() + b"\n")
        self.program.stdin.flush()
        line = self.program.stdout.readline()
        assert line, f"the server ended: {self.program.stderr.read() if self.program.stderr else b''!r}"
        answer: dict[str, Any] = json.loads(line)["result"]
        return answer

    def python(self, code: str) -> str:
        """What *code* prints in the server."""
        result = self.request("tools/call", name="python", arguments={"code": code})
        text: str = result["content"][0]["text"]
        assert not result.get("isError"), text
        return text


def install(machine: Machine, server_id: str, user: str = "root", **manifest: Any) -> None:
    """Install the server of ``servers/echo`` under another id, with additions to its manifest."""
    document = {
        "id": server_id,
        "name": server_id,
        "transports": [{"type": "stdio", "command": "mcp-echo"}],
        "source": {"type": "git", "url": "file:///srv/git/echo"},
        **manifest,
    }
    path = f"/tmp/{server_id}.{user}.json"
    # Nobody opens another's file in /tmp to write it anew (fs.protected_regular).
    machine.run("rm", "-f", path)
    machine.write(path, json.dumps(document), owner=user)
    if server_id not in {
        one["id"] for one in json.loads(machine.mcpctl("list", "--json", user=user).stdout)["servers"]
    }:
        machine.mcpctl("install", path, "--yes", user=user, timeout=120)


def sessions(machine: Machine, user: str = "root") -> list[dict[str, Any]]:
    """What runs, as mcpctl ps lists it."""
    found: list[dict[str, Any]] = json.loads(machine.mcpctl("ps", "--json", user=user).stdout)["sessions"]
    return found
