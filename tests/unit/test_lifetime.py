# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service manager hears of a running mcpd, and what mcpd stays for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.lifetime import DaemonWork, StatusLine, feed_watchdog
from tests.fd_keeper import FdKeeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 120.0


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FdKeeper]:
    with FdKeeper(tmp_path / "notify") as made:
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        yield made


def listing(*items: Any, **more: Any) -> Any:
    return SimpleNamespace(list=lambda: list(items), **more)


def job(*, finished: bool) -> Any:
    return SimpleNamespace(state=SimpleNamespace(finished=finished))


@pytest.mark.parametrize("usec", ["100000", None])
async def test_the_watchdog_is_fed_if_there_is_one(
    keeper: FdKeeper, monkeypatch: pytest.MonkeyPatch, usec: str | None
) -> None:
    if usec is None:
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        await feed_watchdog()
        keeper.read()
        assert keeper.said == []
        return
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    feeding = asyncio.create_task(feed_watchdog())
    async with asyncio.timeout(PATIENCE):
        while len(keeper.said) < 3:
            await asyncio.sleep(0.02)
            keeper.read()
    assert keeper.said[:3] == [{"WATCHDOG": "1"}] * 3
    feeding.cancel()


async def test_the_status_says_what_there_is_and_what_is_wrong(keeper: FdKeeper) -> None:
    jobs = listing(job(finished=True), job(finished=False))
    core: Any = SimpleNamespace(
        sessions=listing(1, 2), installer=SimpleNamespace(jobs=jobs), sandbox_problem="bwrap is missing"
    )
    status = StatusLine(core, lambda: 1)
    status.problem = "Keeping the previous settings"
    text = "Keeping the previous settings; bwrap is missing; 1 server installed, 2 sessions, 1 job"
    assert status.text() == text
    for _ in range(100):
        status.changed()
    async with asyncio.timeout(PATIENCE):
        while not keeper.said:
            await asyncio.sleep(0.02)
            keeper.read()
    assert keeper.said == [{"STATUS": text}]
    status.changed()
    status.close()


@pytest.mark.parametrize(
    ("sessions", "starting", "jobs", "checking", "busy", "unfinished"),
    [
        ([], 0, [], False, False, False),
        ([1], 0, [], False, True, False),
        ([], 1, [], False, True, True),
        ([], 0, [1], False, True, True),
        ([], 0, [], True, True, False),
    ],
)
def test_what_mcpd_stays_for(
    monkeypatch: pytest.MonkeyPatch,
    sessions: list[int],
    starting: int,
    jobs: list[int],
    checking: bool,
    busy: bool,
    unfinished: bool,
) -> None:
    monkeypatch.setenv("FDSTORE", "10")
    leashes: Any = SimpleNamespace(keeps=lambda _: True)
    gates: Any = [SimpleNamespace(checking=checking)]
    work = DaemonWork(listing(*sessions, starting=starting), listing(*jobs), leashes, gates)
    assert (work.busy(), work.unfinished()) == (busy, unfinished)


@pytest.mark.parametrize(
    ("room", "kept", "lost"),
    [
        ("2", [1, 2], False),
        ("1", [1, 2], True),
        ("", [1, 2], True),
        ("many", [1, 2], True),
        ("2", [1], True),
    ],
)
def test_a_server_that_the_next_mcpd_could_not_take_over_is_not_left(
    monkeypatch: pytest.MonkeyPatch, room: str, kept: list[int], lost: bool
) -> None:
    monkeypatch.setenv("FDSTORE", room)
    leashes: Any = SimpleNamespace(keeps=kept.__contains__)
    work = DaemonWork(listing(1, 2, starting=0), listing(), leashes, [])
    assert work.unfinished() == lost
