# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocking work beside the event loop that survives cancellation cleanly."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run *function* in a thread and await its end, also when this task is cancelled meanwhile, however often.

    A cancelled task that walked away would leave a thread which still writes into a directory that is being removed,
    or reads from a descriptor that is closed and may stand for another file by then.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await ended(work)
        if not work.cancelled():
            work.exception()  # seen here; the cancellation is what goes on
        raise


async def ended(work: asyncio.Future[T]) -> None:
    """Await the end of *work*, whatever it is; a cancelled caller raises what it was cancelled with afterwards."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
