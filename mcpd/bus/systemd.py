# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transient units of the user's service manager (see :class:`mcpd.runtime.systemd_user.UnitManager`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.connection import Match, Signal
from mcpd.bus.wire import Variant
from mcpd.errors import McpdError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.connection import Connection

SYSTEMD: Final = "org.freedesktop.systemd1"
MANAGER: Final = SYSTEMD + ".Manager"
MANAGER_PATH: Final = "/org/freedesktop/systemd1"
START_TIMEOUT: Final = 30.0
"""Seconds for the job that starts a unit."""


async def unit_manager(connection: Connection) -> TransientUnits | None:
    """The service manager on the bus of *connection*, ``None`` if there is none."""
    if not await connection.call_bus("NameHasOwner", "s", SYSTEMD):
        return None
    units = TransientUnits(connection)
    try:
        await units.watch()
    except McpdError:
        return None
    return units


class TransientUnits:
    """Starts units and waits for the jobs that do so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def watch(self) -> None:
        """Have the manager tell about its jobs."""
        await self._connection.subscribe(Match(SYSTEMD, MANAGER_PATH, MANAGER, "JobRemoved"), self._on_removed)
        await self._connection.call(SYSTEMD, MANAGER_PATH, MANAGER, "Subscribe")

    async def start_transient(self, name: str, properties: Mapping[str, tuple[str, Any]], fd: int) -> None:
        """Start the unit *name* with *fd*, which stays the caller's, as its stdin; return when it runs.

        Raises :class:`~mcpd.errors.McpdError` if the manager refuses, fails or does not answer.
        """
        described = [(key, Variant(signature, value)) for key, (signature, value) in properties.items()]
        described.append(("StandardInputFileDescriptor", Variant("h", 0)))
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[name] = done
        try:
            reply = await self._connection.call(
                SYSTEMD,
                MANAGER_PATH,
                MANAGER,
                "StartTransientUnit",
                "ssa(sv)a(sa(sv))",
                [name, "fail", described, []],
                fds=[fd],
            )
            reply.fds.close()
            async with asyncio.timeout(START_TIMEOUT):
                result = await done
        except TimeoutError:
            raise TimedOut(f"{name} did not start within {START_TIMEOUT:.0f} s") from None
        finally:
            del self._waiting[name]
        if result != "done":
            raise McpdError(f"its job ended as {result!r}; see: journalctl --user -u {name}")

    def _on_removed(self, signal: Signal) -> None:
        unit, result = signal.args[2], signal.args[3]
        waiting = self._waiting.get(unit)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)
