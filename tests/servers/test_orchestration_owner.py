# SPDX-License-Identifier: LGPL-2.1-or-later
"""The thread that asks the service."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from mcpd.errors import NotFound
from mcpd.servers.orchestration.owner import MOST, Owner


async def test_calls_are_made_in_their_order_in_one_thread_and_each_gets_its_own_answer() -> None:
    owner = Owner()
    made: list[int] = []

    def call(number: int) -> tuple[int, int]:
        made.append(number)
        if number % 7 == 3:
            raise NotFound(str(number))
        return number, threading.get_ident()

    asked = [owner.ask(partial(call, number)) for number in range(3 * MOST + 1)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert made == list(range(3 * MOST + 1))
    threads = set()
    for number, answer in enumerate(answers):
        if number % 7 == 3:
            assert isinstance(answer, NotFound)
            assert answer.message == str(number)
        else:
            assert answer[0] == number
            threads.add(answer[1])
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


async def test_who_does_not_wait_any_more_keeps_nobody_else_from_the_answer() -> None:
    owner, gate, begun = Owner(), threading.Event(), threading.Event()
    made: list[str] = []

    def held() -> None:
        begun.set()
        gate.wait(60)

    first = asyncio.create_task(owner.ask(held))
    await asyncio.to_thread(begun.wait, 60)
    gone = asyncio.create_task(owner.ask(lambda: made.append("gone")))
    last = asyncio.create_task(owner.ask(lambda: made.append("last")))
    await asyncio.sleep(0)
    gone.cancel()
    first.cancel()
    gate.set()
    await last
    assert made == ["last"]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await owner.ask(lambda: "again") == "again"
