# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is done in a thread, and has to be waited for whoever gives it up meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def to_its_end(function: Callable[..., T], *arguments: object) -> tuple[T, asyncio.CancelledError | None]:
    """What *function* returns, called with *arguments* in a thread, however often this task is cancelled meanwhile.

    The second is the last such error, which the caller raises as soon as it has let go of the first. Raises what
    *function* does, or that error if there is one.
    """
    # No task, which the end of the loop would cancel.
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
