# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plexus hears of runs where it is configured, and never harms one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.ensembles_harness import CONFIG, ERAS, PAIR, Room, invoked

if TYPE_CHECKING:
    from pathlib import Path

SERVER = """\
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "plexus", "version": "1"}}
    else:
        with open("heard.jsonl", "a") as heard:
            heard.write(json.dumps(message["params"]) + "\\n")
        HOW
        result = {"content": [{"type": "text", "text": "{}"}], "structuredContent": {"edges": 3}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with an ensemble, and Plexus."""
    made = Room(tmp_path)
    made.put(PAIR)
    configure(made)
    return made


def configure(room: Room, how: str = "pass", **plexus: Any) -> None:
    """Have a Plexus that does *how* when it is called."""
    (room.project / "plexus.py").write_text(SERVER.replace("HOW", how))
    said = {"enabled": True, "context_id": "my-project", "server_command": "/usr/bin/python3 plexus.py", **plexus}
    (room.base / "config.yaml").write_text(f"{CONFIG}plexus: {json.dumps(said)}\n")


def heard(room: Room) -> list[dict[str, Any]]:
    """The calls that Plexus got."""
    file = room.project / "heard.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("mode", ERAS)
async def test_plexus_hears_once_of_a_run(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        answer = await invoked(client, "pair", "moon")
    assert answer["plexus"] == {"sent": True, "answer": {"edges": 3}}
    (call,) = heard(room)
    assert call["name"] == "analyze_ensemble"
    assert sorted(call["arguments"]) == ["context_id", "ensemble_config", "execution_metadata"]
    assert call["arguments"]["context_id"] == "my-project"
    assert call["arguments"]["ensemble_config"]["name"] == "pair"
    assert call["arguments"]["execution_metadata"]["status"] == "completed"
    assert call["arguments"]["execution_metadata"]["artifact_id"] == answer["artifact_id"]


async def test_the_context_of_the_call_comes_before_the_configured_one(room: Room) -> None:
    async with room.started() as client:
        await invoked(client, "pair", "moon", plexus_context="mine")
    assert [each["arguments"]["context_id"] for each in heard(room)] == ["mine"]


async def test_plexus_hears_of_an_analysis_unless_that_is_not_wanted(room: Room) -> None:
    configure(room, enabled=False)
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
        configure(room)
        given = {"artifact_id": answer["artifact_id"]}
        silent = await client.call_tool("analyze_execution", {**given, "plexus_feedback": False})
        assert heard(room) == []
        told = await client.call_tool("analyze_execution", given)
    assert "plexus" not in answer
    assert "plexus" not in (silent.structured_content or {})
    assert (told.structured_content or {})["plexus"]["sent"] is True
    (call,) = heard(room)
    assert "analysis" in call["arguments"]["execution_metadata"]


@pytest.mark.parametrize(
    ("how", "plexus", "says"),
    [
        ("sys.exit(7)", {}, "ended with status 7"),
        ("pass", {"server_command": "no-such-plexus"}, "no-such-plexus is not there"),
        ("print('x' * 5_000_000)", {}, "more than 4 MiB"),
    ],
)
async def test_a_plexus_that_fails_does_not_fail_the_run(
    room: Room, how: str, plexus: dict[str, Any], says: str
) -> None:
    configure(room, how, **plexus)
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
    assert answer["status"] == "completed"
    assert answer["plexus"]["sent"] is False
    assert says in answer["plexus"]["error"]
    assert "plexus: " in room.log


async def test_a_plexus_that_hangs_is_given_up(room: Room) -> None:
    configure(room, "time.sleep(600)")
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
    assert answer["status"] == "completed"
    assert "did not answer within 10 s" in answer["plexus"]["error"]


async def test_a_context_without_a_plexus_is_told(room: Room) -> None:
    configure(room, enabled=False)
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon", plexus_context="mine")
    assert answer["plexus"]["sent"] is False
    assert "plexus.enabled" in answer["plexus"]["error"]
    assert heard(room) == []
