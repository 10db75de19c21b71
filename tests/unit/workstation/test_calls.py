# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every call goes through: the rate, the record, the time it may take."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Cancelled, InvalidArgument, LimitExceeded, McpdError, TimedOut
from mcpd.servers.workstation import audit as audits
from mcpd.servers.workstation import workstation as module
from mcpd.servers.workstation.audit import Audit
from mcpd.servers.workstation.bucket import Bucket
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool
from mcpd.servers.workstation.workstation import Workstation
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcpd.servers.workstation.call import Call


class Nothing(Arguments):
    """No arguments."""


class Timed(Arguments):
    """What a build takes."""

    timeout_seconds: float = 30


class Said(Result):
    """One word."""

    word: str


class Bodies:
    """What the tools of these tests do."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.ended = threading.Event()

    def wait(self, call: Call, _arguments: Nothing) -> Answer:
        """Look whether anybody waits still, until nobody does."""
        try:
            while not self.let_go.wait(0.01):
                call.check()
        finally:
            self.ended.set()
        return Answer(Said(word="waited"))

    def hang(self, _call: Call, _arguments: Nothing) -> Answer:
        """Wait for a disk that does not answer."""
        self.let_go.wait()
        return Answer(Said(word="hung"))

    async def sleep(self, _call: Call, _arguments: Timed) -> Answer:
        """Take long."""
        await asyncio.sleep(600)
        return Answer(Said(word="slept"))

    async def say(self, call: Call, _arguments: Nothing) -> Answer:
        """Say something at once."""
        call.report(1, 2, "half")
        return Answer(Said(word="said"))


@pytest.fixture
def bodies() -> Bodies:
    """What the tools do."""
    return Bodies()


@pytest.fixture
async def station(tmp_path: Path, bodies: Bodies) -> AsyncIterator[Workstation]:
    """A workstation with tools of its own."""
    about = {"title": "", "description": "", "result": Said}
    tools = [
        Tool("test/wait", arguments=Nothing, run=in_thread(bodies.wait), **about),
        Tool("test/hang", arguments=Nothing, run=in_thread(bodies.hang), **about),
        Tool("test/sleep", arguments=Timed, run=bodies.sleep, **about),
        Tool("test/say", arguments=Nothing, run=bodies.say, read_only=True, **about),
    ]
    with Workbench(tmp_path) as bench:
        made = Workstation(bench.settings, tools)
        yield made
        bodies.let_go.set()
        await made.close()


async def call(station: Workstation, name: str, **options: Any) -> dict[str, Any]:
    """Call a tool with all the roots."""

    async def jail() -> Any:
        return station.roots.jail

    return await station.call(name, options.pop("arguments", {}), jail, **options)


def recorded(tmp_path: Path) -> list[dict[str, Any]]:
    """The audit trail."""
    return [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]


async def test_A_6_A_28_a_thread_that_looks_ends(
    station: Workstation, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)
    with pytest.raises(TimedOut, match=r"^Tool execution timeout after 0\.05 s$"):
        await call(station, "test/wait")
    assert bodies.ended.wait(10)


async def test_A_6_A_28_one_that_hangs_holds_up_nobody(
    station: Workstation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)
    with pytest.raises(TimedOut):
        await call(station, "test/hang")
    assert (await call(station, "test/say"))["structuredContent"] == {"word": "said"}
    assert [line.get("error") for line in recorded(tmp_path)] == [None, "Timeout", None]


async def test_A_6_timeout_seconds_counts(station: Workstation) -> None:
    with pytest.raises(TimedOut, match=r"after 0\.05 s"):
        await call(station, "test/sleep", arguments={"timeout_seconds": 0.05})
    with pytest.raises(InvalidArgument, match="1800 at most"):
        await call(station, "test/sleep", arguments={"timeout_seconds": 1801})


async def test_A_15_a_cancelled_thread_ends(station: Workstation, bodies: Bodies, tmp_path: Path) -> None:
    task = asyncio.create_task(call(station, "test/wait"))
    while not (tmp_path / "state" / "audit.jsonl").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bodies.ended.wait(10)
    assert [line.get("error") for line in recorded(tmp_path)] == [None, "Cancelled"]


async def test_A_15_at_the_end_calls_are_cancelled(station: Workstation, bodies: Bodies) -> None:
    task = asyncio.create_task(call(station, "test/sleep"))
    waiting = asyncio.create_task(call(station, "test/wait"))
    await asyncio.sleep(0.05)
    await station.close()
    results = await asyncio.gather(task, waiting, return_exceptions=True)
    assert all(isinstance(each, (asyncio.CancelledError, Cancelled)) for each in results)
    assert bodies.ended.wait(10)


async def test_progress_is_reported(station: Workstation) -> None:
    told: list[tuple[float, float | None, str]] = []
    await call(station, "test/say", progress=lambda *said: told.append(said))
    await asyncio.sleep(0)
    assert told == [(1, 2, "half")]


def test_A_19_the_bucket() -> None:
    now = 100.0
    bucket = Bucket(2, 3, lambda: now)
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]
    now += 0.25
    assert bucket.take() == pytest.approx(0.25)
    now += 0.25
    assert [bucket.take(), bucket.take()] == [0, 0.5]
    now += 1000
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]


async def test_A_19_what_comes_too_fast_is_not_run_and_counted(tmp_path: Path, bodies: Bodies) -> None:
    with Workbench(tmp_path, rate=0.001, burst=1) as bench:
        tool = Tool("test/say", "", "", Nothing, Said, bodies.say, read_only=True)
        station = Workstation(bench.settings, [tool])
        await call(station, "test/say")
        for name in ("test/say", "test/none"):
            with pytest.raises(LimitExceeded, match=r"more than 0\.001 calls a second") as caught:
                await call(station, name)
            assert caught.value.data is not None
            assert 0 < caught.value.data["retry_after"] <= 1000
        await station.close()
    assert len(recorded(tmp_path)) == 1


async def test_A_20_the_record_begins_anew_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "MAX_LOG", 1000)
    trail = Audit(tmp_path)
    for number in range(20):
        await trail.record({"event": "end", "call": number}, {"path": "x"})
    trail.close()
    texts = [(tmp_path / name).read_text() for name in ("audit.jsonl.1", "audit.jsonl")]
    assert all(len(text) <= 1000 for text in texts)
    numbers = [json.loads(line)["call"] for text in texts for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 20))


async def test_A_20_what_is_in_its_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "audit.jsonl").symlink_to("elsewhere")
    trail = Audit(tmp_path)
    with pytest.raises(McpdError, match="recording the call in"):
        await trail.record({"event": "end"}, {})
    trail.close()
    assert (tmp_path / "elsewhere").read_text() == "mine\n"


async def test_A_20_a_digest_says_whether_arguments_were_the_same(tmp_path: Path) -> None:
    trail = Audit(tmp_path / "made")
    for arguments in ({"a": 1, "b": "\ud800"}, {"b": "\ud800", "a": 1}, {"a": 2}):
        await trail.record({"event": "end"}, arguments)
    trail.close()
    first, second, third = (
        json.loads(line)["arguments_sha256"] for line in (tmp_path / "made" / "audit.jsonl").read_text().splitlines()
    )
    assert first == second != third
