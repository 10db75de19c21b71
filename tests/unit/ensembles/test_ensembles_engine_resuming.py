# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run takes over from an earlier one, and what it does again as something is another by now."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError
from mcpd.servers.ensembles.engine import engine
from tests.unit.ensembles.engine_parts import Stage, script

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin, ScriptCall


async def reused(stage: Stage, later: Stage | None = None) -> list[bool]:
    """Which agents of a second run, of *later* if given, take over what the first one of *stage* had."""
    first = await stage.run()
    return [each.reused for each in (await (later or stage).run(earlier=first.results)).results.values()]


async def test_a_script_whose_file_has_changed_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one")
    stage = Stage({"it": {"agents": [script("a"), script("b", "a"), script("c")]}})
    stage.source.scripts["scripts/a.py"] = file
    assert await reused(stage) == [True, True, True]
    first = await stage.run()
    file.write_text("two")
    later = await stage.run(earlier=first.results)
    assert [each.reused for each in later.results.values()] == [False, False, True]


async def test_a_large_script_is_told_by_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_HASHED", 2)
    file = tmp_path / "a.py"
    file.write_text("one")
    stage = Stage({"it": {"agents": [script("a")]}})
    stage.source.scripts["scripts/a.py"] = file
    first = await stage.run()
    os.utime(file, ns=(1, 1))
    assert not (await stage.run(earlier=first.results)).results["a"].reused


async def test_what_cannot_be_read_as_a_script_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    stage = Stage({"it": {"agents": [script("a")]}})
    stage.source.scripts["scripts/a.py"] = tmp_path / "pipe"
    assert await reused(stage) == [True]


async def test_a_changed_script_of_an_ensemble_that_is_run_counts(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("one")
    stage = Stage({"it": {"agents": [{"name": "sub", "ensemble": "other"}]}, "other": {"agents": [script("x")]}})
    stage.source.scripts["scripts/x.py"] = file
    first = await stage.run()
    file.write_text("two")
    assert not (await stage.run(earlier=first.results)).results["sub"].reused


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"timeout_seconds": 9}, True),
        ({"retries": 3}, True),
        ({"on_failure": "stop"}, True),
        ({"when": "${input}"}, False),
    ],
)
async def test_more_time_and_more_attempts_make_no_other_agent(changed: dict[str, Any], same: bool) -> None:
    later = Stage({"it": {"agents": [script("a", **changed)]}})
    assert await reused(Stage({"it": {"agents": [script("a")]}}), later) == [same]


async def test_a_profile_with_another_prompt_is_another_and_with_more_time_is_not() -> None:
    ensemble = {"it": {"agents": [{"name": "a", "model_profile": "p"}]}}
    profile = {"model": "m", "provider": "mock"}
    for changed, same in (({"timeout_seconds": 9}, True), ({"system_prompt": "be brief"}, False)):
        later = Stage(ensemble, {"p": {**profile, **changed}})
        assert await reused(Stage(ensemble, {"p": profile}), later) == [same]


async def test_what_an_agent_once_had_and_now_has_not_makes_it_run_again() -> None:
    agents = [script("z"), script("y"), script("a", "z", "y"), script("b"), script("c", "a", "b")]
    stage = Stage({"it": {"agents": agents}})
    broken = "z"

    async def run(call: ScriptCall) -> str:
        if call.agent == broken:
            raise McpdError(f"{broken} broke")
        return call.input

    stage.script = run
    first = await stage.run()
    again = await stage.run(earlier=first.results)
    # What was done without z then, and is without it now, is the same.
    assert [each.reused for each in again.results.values()] == [False, True, True, True, True]
    broken = "a"
    later = await stage.run(earlier=first.results)
    assert [(each.status, each.reused) for each in later.results.values()] == [
        ("success", False),
        ("success", True),
        ("failed", False),
        ("success", True),
        ("success", False),
    ]


async def test_ensembles_that_name_one_another_without_end_are_looked_at_once() -> None:
    agents = [{"name": f"a{n}", "ensemble": "it", "when": "${input.no}"} for n in range(60)]
    result = await Stage({"it": {"agents": agents}}).run(text="{}")
    assert result.status == "completed"


async def test_a_run_that_is_cancelled_before_its_first_agent_has_an_end() -> None:
    stage = Stage({"it": {"agents": [script("a")]}})
    asked, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(origin: Origin, script: str) -> Path:
        loop.call_soon_threadsafe(asked.set)
        going_on.wait()
        raise McpdError("gone")

    stage.source.script = slow  # type: ignore[method-assign]
    running = asyncio.create_task(stage.run())
    await asked.wait()
    running.cancel()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    (result,) = stage.ends
    assert (result.status, result.results["a"].status) == ("cancelled", "cancelled")
