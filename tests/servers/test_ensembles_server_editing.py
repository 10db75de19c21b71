# SPDX-License-Identifier: LGPL-2.1-or-later
"""``update_ensemble`` of ``llm-orc`` with the SDK's client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.ensembles_harness import ERAS, PAIR, Room, read
from tests.servers.failures import refused

if TYPE_CHECKING:
    from pathlib import Path

    from mcp import Client

CHANGES = {
    "add_agents": [{"name": "third", "model_profile": "fast"}],
    "remove_agents": ["second"],
    "modify_dependencies": [{"agent": "sum", "depends_on": ["first", "third"]}],
    "update_model_profiles": {"first": "slow"},
}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with an ensemble."""
    made = Room(tmp_path)
    made.put(PAIR)
    return made


async def updated(client: Client, **arguments: Any) -> dict[str, Any]:
    """What a change comes to."""
    result = await client.call_tool("update_ensemble", {"ensemble_name": "pair", **arguments})
    assert not result.is_error
    return result.structured_content or {}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_dry_run_shows_the_change_and_makes_none(room: Room, mode: str) -> None:
    file = room.base / "ensembles/pair.yaml"
    async with room.started(mode=mode) as client:
        found = await updated(client, changes=CHANGES)
    assert (found["dry_run"], found["changed"]) == (True, True)
    assert "-  - {name: second, model_profile: fast}" in found["diff"]
    assert "+  - {name: first, model_profile: slow}" in found["diff"]
    assert "backup" not in found
    assert file.read_text() == PAIR
    assert [each.name for each in file.parent.iterdir()] == ["pair.yaml"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_change_is_made_with_a_backup(room: Room, mode: str) -> None:
    file = room.base / "ensembles/pair.yaml"
    async with room.started(mode=mode) as client:
        found = await updated(client, changes=CHANGES, dry_run=False)
        resource = await read(client, "llm-orc://ensemble/pair")
        names = [each["name"] for each in (await read(client, "llm-orc://ensembles"))["ensembles"]]
    assert [each["name"] for each in resource["agents"]] == ["first", "sum", "third"]
    assert resource["agents"][0]["model_profile"] == "slow"
    assert resource["agents"][1]["depends_on"] == ["first", "third"]
    assert file.read_text().startswith("# Two readers, and one who sums up.\n")
    (backup,) = [each for each in file.parent.iterdir() if each != file]
    assert found["backup"] == str(backup)
    assert backup.read_text() == PAIR
    assert names.count("pair") == 1


async def test_two_changes_at_once_are_made_one_after_the_other(room: Room) -> None:
    async with room.started() as client:
        await asyncio.gather(*(
            updated(
                client,
                changes={"add_agents": [{"name": f"more{number}", "model_profile": "fast"}]},
                dry_run=False,
                backup=False,
            )
            for number in range(4)
        ))  # fmt: skip
        resource = await read(client, "llm-orc://ensemble/pair")
    assert {each["name"] for each in resource["agents"]} >= {f"more{number}" for number in range(4)}


async def test_without_a_backup_there_is_none(room: Room) -> None:
    file = room.base / "ensembles/pair.yaml"
    async with room.started() as client:
        await updated(client, changes={"remove_agents": ["sum"]}, dry_run=False, backup=False)
    assert list(file.parent.iterdir()) == [file]
    assert "name: sum" not in file.read_text()


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modify_dependencies": [{"agent": "first", "depends_on": ["sum"]}]}, "sum"),
        ({"remove_agents": ["nobody"]}, "nobody"),
        ({"remove_agents": ["first"]}, "first"),
        ({"update_model_profiles": {"first": "no-such-profile"}}, "no-such-profile"),
        ({"add_agents": [{"name": "x", "script": "scripts/none.py"}]}, "none.py"),
        ({"add_agents": [{"name": "x", "script": "/bin/sh"}]}, "/bin/sh"),
        ({"add_agents": [{"name": "x", "model_profile": "fast", "sript": 1}]}, "sript"),
        ({"rename_agents": {}}, "rename_agents"),
    ],
)
async def test_what_would_leave_a_fault_is_refused(room: Room, mode: str, changes: dict[str, Any], says: str) -> None:
    async with room.started(mode=mode) as client:
        failure = await refused(client, "update_ensemble", ensemble_name="pair", changes=changes, dry_run=False)
    assert failure.code == -32602
    assert says in failure.message
    assert (room.base / "ensembles/pair.yaml").read_text() == PAIR
    assert len(list((room.base / "ensembles").iterdir())) == 1


async def test_a_fault_that_was_there_before_is_no_hindrance(room: Room) -> None:
    file = room.put(PAIR.replace("name: first, model_profile: fast", "name: first, model_profile: gone"))
    async with room.started() as client:
        found = await updated(client, changes={"update_model_profiles": {"second": "slow"}}, dry_run=False)
    assert [each["severity"] for each in found["findings"]] == ["error"]
    assert "gone" in found["findings"][0]["message"]
    assert "model_profile: slow" in file.read_text()


async def test_what_comes_along_is_never_changed(room: Room) -> None:
    given = {"ensemble_name": "shipped/text-statistics", "changes": {"remove_agents": ["statistics"]}}
    async with room.started() as client:
        shown = await client.call_tool("update_ensemble", given)
        failure = await refused(client, "update_ensemble", **given, dry_run=False)
    assert (shown.structured_content or {})["changed"] is True
    assert "copy it" in failure.message
