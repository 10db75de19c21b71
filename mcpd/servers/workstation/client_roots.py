# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the client's own roots leave of the configured ones: asked for when they are needed, and again when they change.

They are the client's word on what it works with, and never open anything that is not configured.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotAuthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.roots import Roots

PATIENCE: Final = 10.0
"""Seconds that the client has to answer."""
ROUNDS: Final = 5
"""How often it is asked if its roots change while it answers."""


class ClientRoots:
    """The roots of one client."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._uris: Sequence[str] = ()
        self._jail: Jail | None = None
        self._asking: asyncio.Task[Jail] | None = None
        self._changes = 0

    def changed(self) -> None:
        """The client has other roots from now on."""
        self._changes += 1
        self._jail = None

    async def jail(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Jail:
        """What may be touched; *ask* asks the client for the URIs of its roots, once for all that wait for them.

        Raises :class:`~mcpd.errors.NotAuthorized` if it does not say.
        """
        if self._jail is not None:
            if any(root.moved for root in self._jail.roots):
                self._jail = self._roots.narrowed(self._uris)
            return self._jail
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked(ask))
            self._asking.add_done_callback(self._answered)
        # Who gives up waiting does not take the answer away from the others.
        return await asyncio.shield(self._asking)

    async def _asked(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Jail:
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in range(ROUNDS):
                    changes = self._changes
                    self._uris = await ask()
                    if changes == self._changes:
                        self._jail = self._roots.narrowed(self._uris)
                        return self._jail
        except TimeoutError:
            raise NotAuthorized(
                f"the client has roots of its own, but has not said within {PATIENCE:g} s which; nothing may be touched"
            ) from None
        raise NotAuthorized("the client's roots change faster than it says which they are; nothing may be touched")

    def _answered(self, task: asyncio.Task[Jail]) -> None:
        self._asking = None
        if not task.cancelled():
            # Nobody may be left who waits for a fault.
            task.exception()
