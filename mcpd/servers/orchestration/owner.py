# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one thread that asks the service: what that holds has one owner, and a slow disk holds up no message."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST: Final = 16
"""Calls that are made at once: going to the thread and back takes longer than most of them."""


class Owner:
    """Makes calls one after the other, those that wait already without coming back between them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "orchestration")
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def ask(self, call: Callable[[], Any]) -> Any:
        """What *call* returns in the thread; raises what it raises there."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                asked = [each for each in self._waiting[:MOST] if not each[1].cancelled()]
                del self._waiting[:MOST]
                answers = await loop.run_in_executor(self._thread, _made, [call for call, _ in asked])
                for (_, answer), (value, fault) in zip(asked, answers, strict=True):
                    if answer.cancelled():
                        continue
                    if fault is not None:
                        answer.set_exception(fault)
                    else:
                        answer.set_result(value)
        finally:
            self._runner = None


def _made(calls: Sequence[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
    answers: list[tuple[Any, Exception | None]] = []
    for call in calls:
        try:
            answers.append((call(), None))
        except Exception as fault:  # noqa: BLE001 - whoever asked is told
            answers.append((None, fault))
    return answers
