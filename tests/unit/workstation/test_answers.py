# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory of answers that are being made, or that nobody reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError, TimedOut
from mcpd.servers.workstation import workstation as module
from mcpd.servers.workstation.tool import MOST, Answer, Answers, Arguments, Result, Tool
from mcpd.servers.workstation.workstation import Workstation
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.servers.workstation.call import Call

pytestmark = pytest.mark.process


class Nothing(Arguments):
    """No arguments."""


class Said(Result):
    """Some words."""

    words: str


async def much(_call: Call, _arguments: Nothing) -> Answer:
    """As much as there may be."""
    return Answer(Said(words="x" * MOST))


async def fail(_call: Call, _arguments: Nothing) -> Answer:
    """Nothing."""
    raise McpdError("it failed")


async def waits(answers: Answers, *, small: bool) -> bool:
    """Whether a call would wait for room; it takes none."""
    task = asyncio.create_task(answers.share(small=small))
    await asyncio.sleep(0)
    if task.done():
        task.result().is_now(0)
        return False
    task.cancel()
    await asyncio.wait({task})
    return True


async def test_a_call_waits_while_answers_that_nobody_reads_take_too_much() -> None:
    answers = Answers(most=100, each=30)
    shares = [await answers.share() for _ in range(3)]
    assert await waits(answers, small=False)
    assert not await waits(answers, small=True)
    shares[0].is_now(90)
    assert await waits(answers, small=True)
    shares[0].is_now(0)
    shares[1].is_now(10)
    assert not await waits(answers, small=False)


async def test_an_answer_of_any_size_can_be_given() -> None:
    answers = Answers(most=100, each=300)
    (await answers.share()).is_now(0)
    assert not await waits(answers, small=False)


async def test_a_call_behind_an_answer_that_was_not_sent_waits_for_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"title": "", "description": "", "arguments": Nothing, "result": Said, "read_only": True}
    sent: list[Callable[[], None]] = []
    with Workbench(tmp_path) as bench:
        station = Workstation(
            bench.settings, [Tool("test/much", run=much, **about), Tool("test/fail", run=fail, **about)]
        )

        async def jail() -> Any:
            return station.roots.jail

        for _ in range(40):
            with pytest.raises(McpdError, match="it failed"):
                await station.call("test/fail", {}, jail, when_sent=sent.append)
        assert not sent
        await station.call("test/much", {}, jail, when_sent=sent.append)
        monkeypatch.setattr(module, "SECONDS", 0.05)
        with pytest.raises(TimedOut):
            await station.call("test/fail", {}, jail)
        monkeypatch.undo()
        waiting = asyncio.create_task(station.call("test/much", {}, jail))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        sent.pop()()
        assert len((await waiting)["structuredContent"]["words"]) == MOST
        await station.close()
