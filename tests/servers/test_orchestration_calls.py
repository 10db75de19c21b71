# SPDX-License-Identifier: LGPL-2.1-or-later
"""The thread that calls the service."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from mcpd.errors import NotFound
from mcpd.servers.orchestration.server import BATCH, SerialCalls


async def test_calls_run_in_order_in_one_thread() -> None:
    calls = SerialCalls()
    made: list[int] = []

    def call(number: int) -> tuple[int, int]:
        made.append(number)
        if number % 7 == 3:
            raise NotFound(str(number))
        return number, threading.get_ident()

    asked = [calls.run(partial(call, number)) for number in range(3 * BATCH + 1)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert made == list(range(3 * BATCH + 1))
    threads = set()
    for number, answer in enumerate(answers):
        if number % 7 == 3:
            assert isinstance(answer, NotFound)
            assert answer.message == str(number)
        else:
            assert not isinstance(answer, BaseException)
            assert answer[0] == number
            threads.add(answer[1])
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


async def test_a_cancelled_call_does_not_delay_the_others() -> None:
    calls, gate, begun = SerialCalls(), threading.Event(), threading.Event()
    made: list[str] = []

    def held() -> None:
        begun.set()
        gate.wait(60)

    first = asyncio.create_task(calls.run(held))
    await asyncio.to_thread(begun.wait, 60)
    gone = asyncio.create_task(calls.run(lambda: made.append("gone")))
    last = asyncio.create_task(calls.run(lambda: made.append("last")))
    await asyncio.sleep(0)
    gone.cancel()
    first.cancel()
    gate.set()
    await last
    assert made == ["last"]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await calls.run(lambda: "again") == "again"
