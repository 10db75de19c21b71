# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls in a thread that are always waited for, even on cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def to_its_end(function: Callable[..., T], *arguments: object) -> tuple[T, asyncio.CancelledError | None]:
    """Return the result of *function*, called with *arguments* in a thread, even if this task is cancelled meanwhile.

    The second item is the last such error, which the caller has to raise after releasing the first. Raises the error of
    *function*, or the cancellation if there is one.
    """
    # Not a task, which the end of the loop would cancel.
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (fault := future.exception()) is not None:
        raise cancelled from fault
    return future.result(), cancelled
