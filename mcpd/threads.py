# SPDX-License-Identifier: LGPL-2.1-or-later
"""Blocking work in threads, with clean cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run *function* in a thread and wait until it has ended, even if this task is cancelled.

    If a cancelled task did not wait, the thread could still write into a directory that is being removed, or read from
    a descriptor that is closed and reused.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await ended(work)
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio does not log it; the cancellation is raised
        raise


async def ended(work: asyncio.Future[T]) -> None:
    """Wait until *work* is done; cancellations of the calling task are ignored in the meantime."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
