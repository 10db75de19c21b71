# SPDX-License-Identifier: LGPL-2.1-or-later
"""Nothing is started before it is known that the sandbox confines, and nothing at all if it does not (design §6)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mcpd.errors import McpdError, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcpd.runtime.launch import Launcher, LaunchSpec, Leash

log = logging.getLogger(__name__)


class GatedLauncher:
    """A launcher that is closed until :meth:`check` has found it safe."""

    def __init__(self, launcher: Launcher, verify: Callable[[Launcher], Awaitable[None]]) -> None:
        """*verify* raises what is wrong with a launcher."""
        self._launcher = launcher
        self._verify = verify
        self._check: asyncio.Task[None] | None = None
        self._fault: McpdError | None = None

    @property
    def problem(self) -> str:
        """What the last check found; empty if nothing, or before."""
        return self._fault.message if self._fault else ""

    @property
    def name(self) -> str:
        """The name of the launcher behind."""
        return self._launcher.name

    @property
    def checking(self) -> bool:
        """Whether a check is under way."""
        return self._check is not None and not self._check.done()

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`; waits for a check that is under way.

        Raises what the check raised, too, and :class:`~mcpd.errors.SandboxUnavailable` without one.
        """
        await self._checked()
        if self._check is None or self._check.cancelled():
            raise SandboxUnavailable(f"{spec.id} is not started: the sandbox was not checked")
        if self._fault is not None:
            raise type(self._fault)(f"{spec.id} is not started: {self._fault.message}")
        return await self._launcher.launch(spec, fds)

    def check(self, told: Callable[[], None]) -> None:
        """Look (again) whether the sandbox confines, and call *told* then."""
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.create_task(self._look(told), name=f"self-check of {self.name}")

    async def _checked(self) -> None:
        """Await the check under way, and one that has taken its place meanwhile."""
        while self._check is not None and not self._check.done():
            await asyncio.wait([self._check])

    async def close(self) -> None:
        """End the check."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    async def _look(self, told: Callable[[], None]) -> None:
        fault: McpdError | None = None
        try:
            await self._verify(self._launcher)
        except McpdError as error:
            fault = error
            log.error("No server is started with the launcher %s: %s", self.name, error.message)  # noqa: TRY400 -- expected
        except Exception:
            fault = SandboxUnavailable("the check of the sandbox met a fault of mcpd's own; see its log")
            log.exception("The check of the sandbox of the launcher %s failed", self.name)
        self._fault = fault
        told()
