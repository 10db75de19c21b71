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


class ClientRoots:
    """The roots of one client."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._jail: Jail | None = None
        self._lock = asyncio.Lock()
        self._changes = 0

    def changed(self) -> None:
        """The client has other roots from now on."""
        self._changes += 1
        self._jail = None

    async def jail(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Jail:
        """What may be touched; *ask* asks the client for the URIs of its roots.

        Raises :class:`~mcpd.errors.NotAuthorized` if it does not say.
        """
        async with self._lock:
            while self._jail is None:
                changes = self._changes
                uris = await self._asked(ask)
                if changes == self._changes:
                    self._jail = self._roots.narrowed(uris)
            return self._jail

    async def _asked(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
        try:
            async with asyncio.timeout(PATIENCE):
                return await ask()
        except TimeoutError:
            raise NotAuthorized(
                f"the client has roots of its own, but has not said within {PATIENCE:g} s which; nothing may be touched"
            ) from None
