# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls that change the same name at once: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Cancelled, McpdError
from mcpd.servers.workstation.filesystem import atomic
from mcpd.servers.workstation.filesystem.atomic import locked
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.filesystem.writing import EDIT, WRITE
from tests.unit.workstation.bench import Answer, Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        (made.root / "d").mkdir()
        (made.root / "way").symlink_to("d")
        yield made


def edit(old: str, new: str) -> list[dict[str, Any]]:
    return [{"old_text": old, "new_text": new}]


async def test_no_edit_is_lost_by_whatever_path(bench: Workbench) -> None:
    numbers = range(40)
    for _ in range(5):
        (bench.root / "d/f").write_text("".join(f"slot{number}\n" for number in numbers))
        await asyncio.gather(
            *(
                bench.call(EDIT, path=("d/f", "way/f")[number % 2], edits=edit(f"slot{number}\n", f"done{number}\n"))
                for number in numbers
            )
        )
        assert (bench.root / "d/f").read_text() == "".join(f"done{number}\n" for number in numbers)


async def test_neither_is_what_is_appended_meanwhile(bench: Workbench) -> None:
    for _ in range(10):
        (bench.root / "log").write_text("top\n" + "x" * 200_000 + "\n")
        await asyncio.gather(
            *(
                bench.call(WRITE, path="log", content=f"line{number}\n", append=True)
                if number % 2
                else bench.call(EDIT, path="log", edits=edit("top\n", f"top\nline{number}\n"))
                for number in range(12)
            )
        )
        lines = set((bench.root / "log").read_text().split("\n"))
        assert lines >= {f"line{number}" for number in range(12)}


async def test_what_is_moved_or_deleted_meanwhile_is_not_there_twice(bench: Workbench) -> None:
    for number in range(40):
        (bench.root / "a").write_text("old\n")
        cases: list[tuple[Tool, dict[str, Any]]] = [
            (MOVE, {"source": "a", "destination": "b", "overwrite": True}),
            (DELETE, {"path": "a"}),
            (DELETE, {"path": "a", "permanent": True}),
        ]
        tool, arguments = cases[number % 3]
        edited: Answer | BaseException
        gone: Answer | BaseException
        edited, gone = await asyncio.gather(
            bench.call(EDIT, path="a", edits=edit("old\n", "new\n")),
            bench.call(tool, **arguments),
            return_exceptions=True,
        )
        assert not isinstance(gone, BaseException)
        assert isinstance(edited, McpdError) or not isinstance(edited, BaseException)
        assert not (bench.root / "a").exists()
        if tool is MOVE and not isinstance(edited, BaseException):
            assert (bench.root / "b").read_text() == "new\n"


async def test_moves_both_ways_at_once_end(bench: Workbench) -> None:
    for name in ("a", "b"):
        (bench.root / name).write_text(name)
    answers = await asyncio.gather(
        *(
            bench.call(MOVE, source=source, destination=destination, overwrite=True)
            for source, destination in (("a", "b"), ("b", "a")) * 20
        ),
        return_exceptions=True,
    )
    assert all(isinstance(answer, McpdError) or not isinstance(answer, BaseException) for answer in answers)
    assert len([name for name in ("a", "b") if (bench.root / name).exists()]) == 1


async def test_who_is_not_waited_for_any_more_does_not_wait(bench: Workbench) -> None:
    holds, over = threading.Event(), threading.Event()
    holder, waiter = bench.new_call(), bench.new_call()
    fd = os.open(bench.root, os.O_PATH)

    def hold() -> None:
        with locked(holder, (fd, "A")):
            holds.set()
            over.wait()

    holding = asyncio.ensure_future(holder.in_thread(hold))
    try:
        await asyncio.to_thread(holds.wait)
        waiting = asyncio.ensure_future(bench.call(WRITE, call=waiter, path="a", content="x"))
        await bench.call(WRITE, path="other", content="x")
        waiter.end()
        with pytest.raises(Cancelled):
            await waiting
    finally:
        over.set()
        await holding
        os.close(fd)
    await bench.call(WRITE, path="a", content="x")


async def test_nothing_is_kept_of_names_that_nobody_changes(bench: Workbench) -> None:
    await asyncio.gather(*(bench.call(WRITE, path=f"{number % 7}", content="x") for number in range(50)))
    assert not atomic.HELD
