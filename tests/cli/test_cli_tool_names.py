# SPDX-License-Identifier: LGPL-2.1-or-later
"""Warnings of doctor, client validate and client deploy: tools that a client refuses for their names."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.cli import conversation
from mcpd.errors import TimedOut
from mcpd.paths import Paths, Scope, from_environment
from mcpd.store import Store
from tests.cli.fake import CALCULATOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

LISTS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in sys.argv[1:]]
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "notes", "version": "1"}},
        "tools/list": {"tools": tools},
    }
    result = answers.get(asked["method"])
    answer = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
"""A server whose tools have the names in its arguments."""
REFUSED = "refuses the name of 1 tool: notes/read"


@pytest.fixture
def notes(mcpctl: Mcpctl, mcpd: FakeMcpd) -> Path:
    """The server notes, installed, with one name that Claude Desktop refuses, which is installed as well."""
    home = Path(mcpctl.environ["HOME"])
    directory = home / ".local/share/mcp/installed/notes"
    directory.mkdir(parents=True)
    transports = [{"type": "stdio", "command": "python3", "args": ["server.py"]}]
    manifest = {"id": "notes", "name": "Notes", "summary": "Keeps notes", "version": "1", "transports": transports}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (home / ".config/Claude").mkdir(parents=True)
    mcpd.servers["notes"] = CALCULATOR | {"id": "notes"}
    _lists(mcpd, "notes/read", "notes_write")
    return directory


def _lists(mcpd: FakeMcpd, *names: str) -> None:
    mcpd.program = [sys.executable, "-c", LISTS, *names]


def _paths(mcpctl: Mcpctl, monkeypatch: pytest.MonkeyPatch) -> Paths:
    for name in ("HOME", "MCP_ROOT"):
        monkeypatch.setenv(name, mcpctl.environ[name])
    return from_environment()


async def test_doctor_warns_for_the_clients_that_are_installed(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    async def found() -> list[str]:
        checks = json.loads((await mcpctl("doctor", "--json")).out)["checks"]
        return [check["message"] for check in checks if check["name"] == "tool names" and check["result"] == "warn"]

    assert await found() == [f"notes: Claude Desktop {REFUSED}"]
    (Path(mcpctl.environ["HOME"]) / ".config/Claude").rmdir()
    assert await found() == []


async def test_validate_warns_for_its_client(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    report = json.loads((await mcpctl("client", "validate", "claude-desktop", "--json")).out)
    assert report["valid"]
    (warning,) = [each for each in report["warnings"] if each["code"] == "TOOL_NAMES"]
    assert warning["server_id"] == "notes"
    assert f"Claude Desktop {REFUSED}; rename the tools" in warning["message"]
    # Zed takes any name.
    assert "TOOL_NAMES" not in (await mcpctl("client", "validate", "zed")).out
    _lists(mcpd, "notes_read")
    assert "TOOL_NAMES" not in (await mcpctl("client", "validate", "claude-desktop")).out


async def test_a_name_that_is_too_long_with_the_servers_is_told_so(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    _lists(mcpd, "n" * 59)
    ended = await mcpctl("client", "validate", "cursor")
    why = "because they are longer than 59 characters with the server's name"
    assert f"refuses the name of 1 tool {why}: {'n' * 59}" in ended.out


async def test_validate_warns_of_a_given_configuration(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    entries = {"mine": {"command": "mcpctl", "args": ["run", "notes"]}, "other": {"command": "other", "args": []}}
    given = json.dumps({"mcpServers": entries}).encode()
    ended = await mcpctl("client", "validate", "claude-desktop", "--file", "-", stdin=given)
    assert f"server 'mine': Claude Desktop {REFUSED}" in ended.out


async def test_deploy_warns_and_deploys(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    ended = await mcpctl("client", "deploy", "claude-desktop", "--yes")
    assert ended.code == 0, ended.err
    assert f"server 'notes': Claude Desktop {REFUSED}" in ended.err
    assert "notes" in (Path(mcpctl.environ["HOME"]) / ".config/Claude/claude_desktop_config.json").read_text()


async def test_recorded_names_are_known_without_starting_the_server(
    mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(_paths(mcpctl, monkeypatch), Scope.USER).set_tools("notes", [{"name": "read notes"}])
    ended = await mcpctl("client", "validate", "claude-desktop")
    assert "refuses the name of 1 tool: read notes" in ended.out
    assert not mcpd.processes


async def test_a_server_that_lists_nothing_is_passed_over(mcpctl: Mcpctl, mcpd: FakeMcpd, notes: Path) -> None:
    mcpd.program = ["false"]
    ended = await mcpctl("client", "validate", "claude-desktop")
    assert ended.code == 0
    assert "TOOL_NAMES" not in ended.out + ended.err


@pytest.mark.parametrize("options", [{}, {"timeout": 0.01}])
async def test_only_a_command_with_a_timeout_names_the_option(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    @asynccontextmanager
    async def silent(*_: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(conversation, "spawned", silent)
    with pytest.raises(TimedOut) as caught:
        await conversation.names_of_tools(argparse.Namespace(**options), "notes", 0.01)
    more = "; --timeout allows more" if options else ""
    assert caught.value.message == f"notes did not answer within 0.01 s{more}"
