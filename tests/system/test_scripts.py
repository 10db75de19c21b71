# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script servers on a booted system, from the packages: for everybody, for one user, and for the machine."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.machine import Machine

pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")

SCRIPT: Final = '''
"""Tells who it is."""
import os

def who() -> dict:
    """Say who it runs as, and what it sees."""
    return {"uid": os.getuid(), "home": os.access("/home/alice", os.F_OK), "files": os.listdir(".")}

def write(path: str) -> str:
    """Write into a file."""
    with open(path, "w") as file:
        file.write("x")
    return "written"
'''
TRANSFORM: Final = """
import os

def generate_tools(server_name, context):
    found = []
    for path in (os.environ["HOME"] + "/mark", "/tmp/mark"):
        try:
            open(path, "w").close()
            found.append("wrote")
        except OSError as error:
            found.append(error.strerror)
    return [{"name": "who", "description": ", ".join(found), "inputSchema": {"type": "object"}}]
"""


def listed(machine: Machine, user: str = "root") -> dict[str, dict[str, Any]]:
    found = json.loads(machine.mcpctl("list", "--json", user=user).stdout)["servers"]
    return {each["id"]: each for each in found}


def called(machine: Machine, server: str, tool: str, *arguments: str, user: str = "root") -> str:
    return machine.mcpctl("call", server, tool, *arguments, user=user).stdout.strip()


def test_T10_3_the_shipped_scripts_are_there_for_everybody(machine: Machine) -> None:
    for user in ("root", "alice"):
        found = listed(machine, user)
        assert {"date", "jq", "markdown"} <= set(found)
        assert {found[each]["state"] for each in ("date", "jq", "markdown")} == {"installed"}
    html = called(machine, "markdown", "convert", "markdown=*hi* <script>alert(1)</script>", user="alice")
    assert "<em>hi</em>" in html
    assert "<script" not in html


def test_a_users_script_is_theirs_and_runs_as_them(machine: Machine) -> None:
    machine.write("/home/alice/mine.py", SCRIPT, owner="alice")
    machine.mcpctl("script", "add", "/home/alice/mine.py", user="alice")
    try:
        assert "mine" in listed(machine, "alice")
        assert "mine" not in listed(machine, "bob")
        who = json.loads(called(machine, "mine", "who", user="alice"))
        assert who == {"uid": machine.uid("alice"), "home": True, "files": ["mine.py"]}
        refused = machine.mcpctl("call", "mine", "write", "path=/home/alice/out", user="alice", check=False)
        assert refused.returncode == 1
        assert machine.run("ls", "/home/alice/out", check=False).returncode != 0
    finally:
        machine.mcpctl("script", "remove", "mine", user="alice")
    assert "mine" not in listed(machine, "alice")


def test_a_script_of_the_system_runs_as_whoever_calls_or_as_the_machines_own_user(
    fresh_machine: Callable[[], Machine],
) -> None:
    machine = fresh_machine()
    machine.write("/root/ours.py", SCRIPT)
    machine.mcpctl("script", "add", "/root/ours.py")
    assert machine.run("stat", "--format=%U %a", "/etc/mcp/scripts/ours.py").stdout.strip() == "root 644"
    assert json.loads(called(machine, "ours", "who", user="bob"))["uid"] == machine.uid("bob")
    # What mcpd's own unit lets it do to read these is another thing than what a user's process may.
    machine.write("/etc/mcp/scripts/large.py", '"""Is large."""\n' + "# and larger\n" * 2000)
    machine.write("/etc/mcp/scripts/shell.sh", "#!/bin/sh\n# Is a shell's.\necho\n")
    machine.write("/etc/mcp/scripts/endless.sh", "#!/bin/sh\ncat " + "<<A " * 65_000 + "\n")
    found = listed(machine)
    assert [found[name]["summary"] for name in ("large", "shell")] == ["Is large.", "Is a shell's."]
    assert [found[name]["state"] for name in ("large", "shell", "endless")] == ["installed", "installed", "broken"]
    assert found["endless"]["problem"].endswith("reading the script takes too long")
    machine.write("/root/transform.py", TRANSFORM)
    machine.write(
        "/root/mcps.source.json",
        json.dumps({"ours": {
            "runtime": {"runAs": "system", "sharing": "all"}, "tools_transform_cid": "transform.py", "tools": {},
            "auto_discover": False,
        }}),
    )  # fmt: skip
    machine.mcpctl("mcps", "build", "/root/mcps.source.json", "-o", "/etc/mcp/mcps.json")
    machine.wait_until(lambda: listed(machine)["ours"]["run-as"] == "system", "mcpd has read the map")
    who = json.loads(called(machine, "ours", "who"))
    assert (who["uid"], who["home"]) == (machine.uid("mcp-server"), False)
    (tool,) = json.loads(machine.mcpctl("tools", "ours", "--json").stdout)["tools"]
    assert tool["description"] == "Operation not permitted, Operation not permitted"


def test_T10_4_a_read_only_machine_lists_and_runs_and_changes_nothing(fresh_machine: Callable[[], Machine]) -> None:
    machine = fresh_machine()
    machine.run("cp", "/usr/share/mcp/profiles/read-only.toml", "/etc/mcp/mcpd.toml")
    machine.run("systemctl", "restart", "mcpd.service")
    assert "date" in listed(machine)
    assert called(machine, "echo", "echo", "message=still here") == "still here"
    refused = machine.mcpctl("source", "add", "https://example.com/registry.json", check=False)
    assert refused.returncode == 1
    assert "read-only" in refused.stderr
