# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shipped rules for polkit, evaluated with a stand-in for its JavaScript objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

DBUS = Path(__file__).parents[2] / "dbus"
RULES = DBUS / "rules.d/org.mcpd.mcp1.rules.in"
PREFIX = "org.mcpd.mcp1."
ACTIONS = sorted(str(found.get("id")) for found in ET.parse(DBUS / "org.mcpd.mcp1.policy").iter("action"))
ROUTINE = {PREFIX + name for name in ("install-trusted", "update", "uninstall", "rollback", "refresh", "configure")}
NODE = shutil.which("node")
POLKIT = """
"use strict";
const rules = [];
const polkit = {Result: {NO: "no", YES: "yes", NOT_HANDLED: null}, addRule: rule => rules.push(rule)};
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
new Function("polkit", input.rules)(polkit);
function decide(action, subject) {
    const given = {id: action.id, lookup: key => action.details[key]};
    const asking = {...subject, isInGroup: name => subject.groups.includes(name)};
    for (const rule of rules) {
        const result = rule(given, asking);
        if (result !== null && result !== undefined) return result;
    }
    return "default";
}
console.log(JSON.stringify(input.asked.map(([action, subject]) => decide(action, subject))));
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node to evaluate JavaScript")


def decide(*asked: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
    rules = RULES.read_text(encoding="utf-8").replace("@privileged_group@", "sudo")
    assert "@" not in rules
    given = json.dumps({"rules": rules, "asked": asked})
    done = subprocess.run([str(NODE), "-e", POLKIT], input=given, capture_output=True, text=True, check=True)
    answers: list[str] = json.loads(done.stdout)
    return answers


def action(name: str, **details: str) -> dict[str, Any]:
    return {"id": PREFIX + name, "details": {key.replace("_", "-"): value for key, value in details.items()}}


def subject(user: str, *groups: str, active: bool = True, local: bool = True) -> dict[str, Any]:
    return {"user": user, "groups": groups, "active": active, "local": local}


BRIDGE = subject("mcpd-bridge", active=False, local=False)


def spawn(uid: int, groups: str) -> dict[str, Any]:
    return action("spawn", id="x", caller_uid=str(uid), caller_user="somebody", caller_groups=groups)


def test_the_bridge_starts_servers_for_members_of_the_groups_and_root() -> None:
    asked = [spawn(1000, " mcp "), spawn(1000, " audio mcp users "), spawn(1000, " sudo "), spawn(0, " root ")]
    assert decide(*[(each, BRIDGE) for each in asked]) == ["yes"] * 4


def test_the_bridge_starts_nothing_for_others() -> None:
    groups = [" users ", "mcp", "  ", "", " mcpd ", " xmcp ", " mcp-server ", " sudoers ", " MCP "]
    asked = [*(spawn(1000, each) for each in groups), spawn(10, " users "), action("spawn", id="x")]
    assert decide(*[(each, BRIDGE) for each in asked]) == ["default"] * len(asked)


def test_nobody_but_the_bridge_is_believed_whom_it_calls_for() -> None:
    others = [subject("alice"), subject("mcpd"), subject("mcp-server"), subject("mcpd-bridge2"), subject("root")]
    assert decide(*[(spawn(0, " mcp sudo "), each) for each in others]) == ["default"] * len(others)


def test_members_of_the_group_start_servers_without_a_session() -> None:
    people = [subject("carol", "users", "mcp", active=False, local=False), subject("carol", "users", active=False)]
    assert decide(*[(action("spawn", id="x"), each) for each in people]) == ["yes", "default"]
    assert decide((action("install-untrusted", id="x"), people[0])) == ["default"]


def test_the_bridge_may_nothing_else() -> None:
    others = [each for each in ACTIONS if each != PREFIX + "spawn"]
    asked = [{**spawn(0, " mcp sudo "), "id": each} for each in [*others, PREFIX + "spawn2", "org.example.spawn"]]
    assert len(others) >= 10
    assert decide(*[(each, BRIDGE) for each in asked]) == ["default"] * len(asked)


def test_administrators_in_front_of_the_machine_are_not_asked_about_routine() -> None:
    assert set(ACTIONS) >= ROUTINE
    asked = [({"id": each, "details": {}}, subject("admin", "sudo")) for each in ACTIONS]
    answers = dict(zip(ACTIONS, decide(*asked), strict=True))
    assert answers == {each: "yes" if each in ROUTINE else "default" for each in ACTIONS}


def test_others_and_those_far_away_are_asked() -> None:
    people = [subject("alice", "users"), subject("admin", "sudo", active=False), subject("admin", "sudo", local=False)]
    for each in people:
        asked = [({"id": name, "details": {}}, each) for name in ACTIONS]
        assert decide(*asked) == ["default"] * len(ACTIONS)
