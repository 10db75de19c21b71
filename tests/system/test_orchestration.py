# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configurations of MCP clients on a booted system, from the packages: a user's own, and those of the system."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from tests.system.machine import Machine

pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")

FILE: Final = "/home/alice/.cursor/mcp.json"
MINE: Final = '{\n  // mine\n  "mcpServers": {"own": {"command": "own"}}\n}\n'
SCRIPT: Final = "def note() -> str:\n    return 'noted'\n"


def called(machine: Machine, server: str, tool: str, user: str, **arguments: Any) -> dict[str, Any]:
    printed = machine.mcpctl("call", server, tool, json.dumps(arguments), "--json", user=user, check=False).stdout
    result: dict[str, Any] = json.loads(printed)
    return result


def owner(machine: Machine, path: str) -> str:
    return machine.run("stat", "--format=%U %a", path).stdout.strip()


def test_a_users_server_writes_to_their_home_and_mcpctl_to_their_clients(machine: Machine) -> None:
    machine.write("/home/alice/notes.py", SCRIPT, owner="alice")
    machine.mcpctl("script", "add", "/home/alice/notes.py", user="alice")
    config = called(machine, "mcp-orchestration", "get_config", "alice", client_id="cursor")["structuredContent"]
    assert config["payload"]["mcpServers"]["notes"] == {"command": "mcpctl", "args": ["run", "notes"]}
    assert owner(machine, "/home/alice/.mcp-orchestration/keys/signing_key.pem") == "alice 600"
    machine.run("mkdir", "/home/alice/.cursor", user="alice")
    machine.write(FILE, MINE, 0o640, "alice")
    # Debian's Python, which mcpctl begins with, lacks libraries for it: it goes on in the environment of the servers.
    machine.mcpctl("client", "deploy", "cursor", "--yes", user="alice")
    written = machine.read(FILE)
    assert "// mine" in written
    assert '"notes"' in written
    assert owner(machine, FILE) == "alice 640"
    machine.mcpctl("client", "undo", "cursor", user="alice")
    assert machine.read(FILE) == MINE
    machine.mcpctl("script", "remove", "notes", user="alice")


def test_what_root_publishes_everybody_deploys_and_nobody_else_signs(machine: Machine) -> None:
    tree = "/var/lib/mcp/orchestration"
    refused = machine.mcpctl("--system", "client", "publish", "zed", user="alice", check=False)
    assert refused.returncode != 0
    assert tree in refused.stderr
    machine.write("/etc/mcp/scripts/shared.py", SCRIPT)
    machine.mcpctl("client", "publish", "zed")
    assert owner(machine, f"{tree}/keys/signing_key.pem") == "root 600"
    shown = json.loads(machine.mcpctl("--system", "client", "show", "zed", "--json", user="alice").stdout)
    assert shown["payload"]["mcpServers"]["shared"] == {"command": "mcpctl", "args": ["run", "shared"]}
    served = called(machine, "mcp-orchestration-system", "get_config", "root", client_id="zed")
    assert served["structuredContent"] == shown
    refusal = called(machine, "mcp-orchestration-system", "get_config", "root", client_id="vscode")
    assert refusal["_meta"]["org.mcpd/error"]["error"] == "artifact_not_found"
    machine.mcpctl("--system", "client", "deploy", "zed", "--yes", user="alice")
    assert '"shared"' in machine.read("/home/alice/.config/zed/settings.json")
    machine.run("rm", "/etc/mcp/scripts/shared.py")


def test_a_configuration_with_urls_has_the_port_of_whoever_deploys_it(machine: Machine) -> None:
    machine.write("/etc/mcp/scripts/shared.py", SCRIPT)
    machine.mcpctl("client", "publish", "claude-code", "--profile", "http")
    deploy = ("--system", "client", "deploy", "claude-code", "--profile", "http", "--yes")
    for user in ("alice", "bob"):
        refused = machine.mcpctl(*deploy, user=user, check=False)
        assert (refused.returncode, "enable --now mcpd-bridge-tcp.socket" in refused.stderr) == (1, True)
        machine.run("systemctl", "--user", "stop", "mcpd-bridge.service", user=user)
        machine.run("systemctl", "--user", "start", "mcpd-bridge-tcp.socket", user=user)
        machine.mcpctl(*deploy, user=user)
        written = json.loads(machine.read(f"/home/{user}/.claude.json"))["mcpServers"]
        assert written["shared"]["url"] == f"http://127.0.0.1:{20_000 + machine.uid(user)}/mcp/shared"
        machine.run("systemctl", "--user", "stop", "mcpd-bridge.service", "mcpd-bridge-tcp.socket", user=user)
        machine.run("rm", f"/home/{user}/.claude.json")
    machine.run("rm", "/etc/mcp/scripts/shared.py")
