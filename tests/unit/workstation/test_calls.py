# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every call goes through: the rate, the record, the time it may take."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Cancelled, InvalidArgument, LimitExceeded, NotFound, TimedOut, UnknownMethod
from mcpd.servers.workstation import workstation as module
from mcpd.servers.workstation.bucket import Bucket
from mcpd.servers.workstation.call import in_thread
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool
from mcpd.servers.workstation.tools import TOOLS
from mcpd.servers.workstation.workstation import Workstation
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcpd.servers.workstation.call import Call

pytestmark = pytest.mark.process


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
    about: dict[str, Any] = {"title": "", "description": "", "result": Said}
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


async def test_a_thread_that_looks_ends(station: Workstation, bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)
    with pytest.raises(TimedOut, match=r"^Tool execution timeout after 0\.05 s$"):
        await call(station, "test/wait")
    assert bodies.ended.wait(10)


async def test_one_that_hangs_holds_up_nobody(
    station: Workstation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)
    with pytest.raises(TimedOut):
        await call(station, "test/hang")
    assert (await call(station, "test/say"))["structuredContent"] == {"word": "said"}
    assert [line.get("error") for line in recorded(tmp_path)] == [None, "Timeout", None]


async def test_timeout_seconds_counts(station: Workstation) -> None:
    with pytest.raises(TimedOut, match=r"after 0\.05 s"):
        await call(station, "test/sleep", arguments={"timeout_seconds": 0.05})
    with pytest.raises(InvalidArgument, match="1800 at most"):
        await call(station, "test/sleep", arguments={"timeout_seconds": 1801})


async def test_a_cancelled_thread_ends(station: Workstation, bodies: Bodies, tmp_path: Path) -> None:
    task = asyncio.create_task(call(station, "test/wait"))
    while not (tmp_path / "state" / "audit.jsonl").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bodies.ended.wait(10)
    assert [line.get("error") for line in recorded(tmp_path)] == [None, "Cancelled"]


async def test_at_the_end_calls_are_cancelled(station: Workstation, bodies: Bodies) -> None:
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


def test_a_bucket_refills_with_time_up_to_its_burst() -> None:
    now = 100.0
    bucket = Bucket(2, 3, lambda: now)
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]
    now += 0.25
    assert bucket.take() == pytest.approx(0.25)
    now += 0.25
    assert [bucket.take(), bucket.take()] == [0, 0.5]
    now += 1000
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]


async def test_what_comes_too_fast_is_not_run_and_counted(tmp_path: Path, bodies: Bodies) -> None:
    with Workbench(tmp_path, rate=0.001, burst=1) as bench:
        tool = Tool("test/say", "", "", Nothing, Said, bodies.say, read_only=True)
        station = Workstation(bench.settings, [tool])
        await call(station, "test/say")
        for name in ("test/say", "test/none"):
            with pytest.raises(LimitExceeded, match=r"more than 0\.001 calls a second") as caught:
                await call(station, name)
            assert caught.value.data is not None
            retry_after: Any = caught.value.data["retry_after"]
            assert 0 < retry_after <= 1000
        await station.close()
    assert [(line["event"], line.get("calls")) for line in recorded(tmp_path)] == [("end", None), ("held_back", 2)]


async def test_the_time_of_a_call_begins_before_the_client_is_asked_for_its_roots(
    station: Workstation, tmp_path: Path
) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(TimedOut, match=r"after 0\.05 s"):
        await station.call("test/sleep", {"timeout_seconds": 0.05}, never)
    assert [line["event"] for line in recorded(tmp_path)] == ["end"]


async def test_a_call_that_waits_for_roots_ends_with_the_server(station: Workstation, tmp_path: Path) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    task = asyncio.create_task(station.call("test/sleep", {"timeout_seconds": 600}, never))
    await asyncio.sleep(0)
    await station.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [line["error"] for line in recorded(tmp_path)] == ["Cancelled"]


async def test_what_is_only_looked_at_neither_counts_nor_is_recorded(tmp_path: Path, bodies: Bodies) -> None:
    with Workbench(tmp_path, rate=0.001, burst=2) as bench:
        station = Workstation(bench.settings, [Tool("test/say", "", "", Nothing, Said, bodies.say, read_only=True)])
        for _ in range(5):
            await station.check("test/say", {})
        for name, arguments, fault in (("test/none", {}, UnknownMethod), ("test/say", {"x": 1}, InvalidArgument)):
            with pytest.raises(fault):
                await station.check(name, arguments)
        with pytest.raises(LimitExceeded):
            await station.check("test/say", {})
        await station.close()
    assert [(line.get("tool"), line.get("error")) for line in recorded(tmp_path) if line["event"] != "held_back"] == [
        ("test/none", "UnknownMethod"), ("test/say", "InvalidArgs")
    ]  # fmt: skip


async def test_a_call_in_a_root_that_was_made_again_says_so(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        station = Workstation(bench.settings, TOOLS)
        bench.root.rename(tmp_path / "elsewhere")
        bench.root.mkdir()
        for name, arguments in (
            ("filesystem_list", {}), ("filesystem_write", {"path": "x", "content": ""}), ("git_status", {})
        ):  # fmt: skip
            with pytest.raises(NotFound, match="was moved or deleted since the server started"):
                await call(station, name, arguments=arguments)
        await station.close()
    assert not any((tmp_path / "elsewhere").iterdir())
