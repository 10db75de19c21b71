# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of a run: what is on the disk while it goes on, after it, and after what was not its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ensembles.artifact_parts import STAMP, agent, artifacts, failed, run

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".llm-orc" / "artifacts"


@pytest.fixture(autouse=True)
def _project(root: Path) -> None:
    root.parent.parent.mkdir()


def document(directory: Path) -> dict[str, object]:
    made = json.loads((directory / "execution.json").read_bytes())
    assert isinstance(made, dict)
    return made


async def test_a_run_is_on_the_disk_from_its_beginning_to_its_end(root: Path) -> None:
    store = artifacts(root)
    recording = store.begin(root, "review", "read this", {"name": "review", "agents": []})
    assert recording.id == f"review/{STAMP}"
    assert recording.path == root / "review" / STAMP
    begun = document(recording.path)
    assert (begun["status"], begun["input"]) == ("running", "read this")
    assert (root / "review" / "latest").readlink() == Path(STAMP)
    assert store.read(recording.id)["status"] == "running"

    recording.finished(agent("reader"))
    recording.ended(run(agent("reader"), agent("writer", 1, 2)))
    await recording.close()

    assert recording.problem is None
    assert sorted(each.name for each in recording.path.iterdir()) == ["execution.json", "execution.md"]
    assert store.read(recording.id) == document(recording.path)
    kept = store.read(recording.id)
    assert kept["status"] == "completed"
    assert list(kept["results"]) == ["reader", "writer"]
    assert kept["metadata"]["duration"] == "2.00s"
    assert kept["definition"] == {"name": "review", "agents": []}


async def test_runs_of_one_millisecond_get_directories_of_their_own(root: Path) -> None:
    store = artifacts(root)
    recordings = [store.begin(root, "review", "", {}) for _ in range(3)]
    assert [each.id for each in recordings] == [f"review/20260528-202640-25{at}" for at in range(3)]
    assert (root / "review" / "latest").readlink() == Path("20260528-202640-252")
    for each in recordings:
        await each.close()


@pytest.mark.parametrize("mask", [0o022, 0o077])
async def test_the_umask_says_who_may_read(root: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        async with artifacts(root).recording(root, "review", "", {}) as recording:
            recording.ended(run(agent("reader")))
    finally:
        os.umask(before)
    assert recording.path is not None
    for each in (recording.path, *recording.path.iterdir()):
        assert stat.S_IMODE(each.stat().st_mode) == (0o777 if each.is_dir() else 0o666) & ~mask


async def test_what_agents_came_to_can_be_read_while_the_run_goes_on(root: Path) -> None:
    store = artifacts(root)
    async with store.recording(root, "review", "read this", {"name": "review"}) as recording:
        assert recording.path is not None
        recording.finished(agent("reader"))
        recording.finished(failed("checker"))
        await _until(lambda: len(_lines(recording.path)) == 2)
        [listed] = store.listing("review")
        assert (listed.status, listed.errors, [each.name for each in listed.agents]) == (
            "running", 1, ["reader", "checker"],
        )  # fmt: skip
        recording.ended(run(agent("reader"), status="failed"))
    assert [each.status for each in store.listing("review")] == ["failed"]


async def test_a_run_without_an_end_is_interrupted_and_can_be_gone_on_from(root: Path) -> None:
    store = artifacts(root)
    async with store.recording(root, "review", "read this", {"name": "review"}) as recording:
        recording.finished(agent("reader", response="a\u2028b\n\ud800\0"))
        recording.finished(failed("checker"))
    assert recording.path is not None
    with (recording.path / "agents.jsonl").open("ab") as file:
        file.write(b'{"name": "torn", "status": "succ')

    assert store.read(f"review/{STAMP}")["status"] == "interrupted"
    earlier = store.earlier(f"review/{STAMP}")
    assert (earlier.ensemble, earlier.input, earlier.definition) == ("review", "read this", {"name": "review"})
    assert list(earlier.results) == ["reader"]
    reader = earlier.results["reader"]
    assert (reader.definition, reader.status, reader.response) == ("hash of reader", "success", "a\u2028b\n?\0")


async def test_successes_of_a_run_that_has_ended_can_be_used_again(root: Path) -> None:
    inner = run(agent("deep"), ensemble="inner")
    fan = agent("each", instances=[agent("each[0]"), failed("each[1]")], attempts=3)
    given = run(agent("reader"), fan, agent("sub", child=inner), failed("checker"), status="completed_with_errors")
    async with artifacts(root).recording(root, "review", "read this", {}) as recording:
        recording.ended(given)
    results = artifacts(root).earlier(f"review/{STAMP}").results
    assert results == {name: each for name, each in given.results.items() if name != "checker"}


async def test_a_closing_that_is_cancelled_is_done_before_that_goes_on(root: Path) -> None:
    recording = artifacts(root).begin(root, "review", "", {})
    recording.ended(run(agent("reader"), status="cancelled"))
    closing = asyncio.create_task(recording.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert artifacts(root).read(f"review/{STAMP}")["status"] == "cancelled"
    await recording.close()


async def test_a_block_that_is_cancelled_is_closed(root: Path) -> None:
    entered = asyncio.Event()

    async def go() -> None:
        async with artifacts(root).recording(root, "review", "", {}) as recording:
            try:
                entered.set()
                await asyncio.Event().wait()
            finally:
                recording.ended(run(status="cancelled"))

    task = asyncio.create_task(go())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert artifacts(root).read(f"review/{STAMP}")["status"] == "cancelled"


async def test_a_block_that_is_cancelled_before_it_begins_leaves_no_run_going_on(root: Path) -> None:
    async def go() -> None:
        async with artifacts(root).recording(root, "review", "", {}):
            await asyncio.Event().wait()

    task = asyncio.create_task(go())
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert artifacts(root).read(f"review/{STAMP}")["status"] == "interrupted"


def test_a_run_whose_process_was_killed_is_interrupted(root: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.unit.ensembles.artifact_parts import agent, artifacts\n"
        "root = Path(sys.argv[1])\n"
        "recording = artifacts(root).begin(root, 'review', '', {})\n"
        "recording.finished(agent('reader'))\n"
        "while not (recording.path / 'agents.jsonl').exists() or not (recording.path / 'agents.jsonl').read_bytes():\n"
        "    time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    store = artifacts(root)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert [each.status for each in store.listing("review")] == ["running"]
        finally:
            process.send_signal(signal.SIGKILL)
    assert [each.status for each in store.listing("review")] == ["interrupted"]
    assert list(store.earlier(f"review/{STAMP}").results) == ["reader"]


async def test_a_place_that_cannot_be_written_does_not_end_the_run(root: Path) -> None:
    root.parent.write_bytes(b"a file")
    async with artifacts(root).recording(root, "review", "", {}) as recording:
        recording.finished(agent("reader"))
        recording.ended(run(agent("reader")))
    assert (recording.id, recording.path) == (None, None)
    assert recording.problem is not None
    assert str(root / "review") in recording.problem


async def test_a_directory_that_is_taken_away_is_a_problem_and_nothing_else(root: Path) -> None:
    async with artifacts(root).recording(root, "review", "", {}) as recording:
        assert recording.path is not None
        shutil.rmtree(recording.path)
        recording.ended(run(agent("reader")))
    assert recording.problem is not None
    assert str(recording.path) in recording.problem


def test_a_full_disk_takes_no_result_that_it_had_room_for(root: Path) -> None:
    # A limit on files stops a write in its middle, as a full disk does.
    program = (
        "import asyncio, resource, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.ensembles.artifact_parts import agent, artifacts, run\n"
        "async def main():\n"
        "    root = Path(sys.argv[1])\n"
        "    async with artifacts(root).recording(root, 'review', '', {}) as recording:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "        small, large = agent('small'), agent('large', response='x' * 9000)\n"
        "        for each in (small, large, agent('after')):\n"
        "            recording.finished(each)\n"
        "        recording.ended(run(small, large))\n"
        "    print(recording.problem)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)], cwd=REPOSITORY, capture_output=True, check=True, timeout=60
    )
    assert str(root / "review" / STAMP).encode() in done.stdout
    store = artifacts(root)
    assert store.read(f"review/{STAMP}")["status"] == "interrupted"
    assert list(store.earlier(f"review/{STAMP}").results) == ["small", "after"]
    assert not [each for each in (root / "review" / STAMP).iterdir() if "tmp" in each.name]


async def test_a_symlink_that_leads_out_of_the_project_is_not_written_through(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root.parent.symlink_to(outside)
    async with artifacts(root).recording(root, "review", "", {}) as recording:
        recording.ended(run())
    assert recording.problem is not None
    assert not list(outside.iterdir())


async def test_a_run_that_is_too_large_has_its_responses_cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.servers.ensembles.artifacts.execution.encoded.__defaults__", (200_000,))
    async with artifacts(root).recording(root, "review", "", {}) as recording:
        recording.ended(run(agent("large", response="x" * 300_000), agent("small")))
    assert recording.problem is None
    kept = artifacts(root).read(f"review/{STAMP}")["results"]
    assert (len(kept["large"]["response"]), kept["large"]["cut"]) == (64 * 1024 + 1, True)
    assert "cut" not in kept["small"]
    assert list(artifacts(root).earlier(f"review/{STAMP}").results) == ["small"]


def _lines(directory: Path | None) -> list[bytes]:
    path = (directory or Path()) / "agents.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


async def _until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)
