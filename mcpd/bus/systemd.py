# SPDX-License-Identifier: LGPL-2.1-or-later
"""systemd on D-Bus: transient units (:class:`mcpd.runtime.launchers.UnitManager`), and whether it restarts mcpd."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.codec import Variant
from mcpd.bus.connection import Match, Signal
from mcpd.bus.names import DBUS, DBUS_PATH, PROPERTIES
from mcpd.errors import McpdError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.connection import Connection

SYSTEMD: Final = "org.freedesktop.systemd1"
MANAGER: Final = SYSTEMD + ".Manager"
MANAGER_PATH: Final = "/org/freedesktop/systemd1"
APPEAR_TIMEOUT: Final = 5.0
"""Seconds for a running service manager to appear on the bus."""
START_TIMEOUT: Final = 30.0
"""Seconds for the job that starts a unit."""
QUERY_TIMEOUT: Final = 1.0
"""Seconds for a query that delays the exit of mcpd."""

log = logging.getLogger(__name__)


async def unit_manager(connection: Connection) -> TransientUnits | None:
    """Return the user's service manager on the bus of *connection*, ``None`` if there is none.

    On a bus that has just started, wait for it to appear.
    """
    if not await _is_on_bus(connection):
        return None
    units = TransientUnits(connection)
    try:
        await units.watch()
    except McpdError:
        return None
    return units


async def is_restarting(connection: Connection) -> bool:
    """Return whether the service manager is restarting this process, as upgrades do; False if that is unknown."""
    try:
        async with asyncio.timeout(QUERY_TIMEOUT):
            unit = await _call(connection, MANAGER_PATH, MANAGER, "GetUnitByPID", "u", os.getpid())
            number, job = await _property(connection, unit, "Unit", "Job")
            return bool(number) and await _property(connection, job, "Job", "JobType") in {"restart", "try-restart"}
    except (McpdError, TimeoutError) as error:
        log.debug("Cannot determine whether this is a restart: %s", error)
        return False


async def _property(connection: Connection, path: str, interface: str, name: str) -> Any:
    return await _call(connection, path, PROPERTIES, "Get", "ss", f"{SYSTEMD}.{interface}", name)


async def _call(connection: Connection, path: str, interface: str, member: str, signature: str, *args: object) -> Any:
    with (reply := await connection.call(SYSTEMD, path, interface, member, signature, args)).fds:
        return reply.values[0]


async def _is_on_bus(connection: Connection) -> bool:
    appeared = asyncio.Event()
    match = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", SYSTEMD)
    unsubscribe = await connection.subscribe(match, lambda _: appeared.set())
    try:
        if await connection.call_bus("NameHasOwner", "s", SYSTEMD):
            return True
        if not (Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere") / "systemd/private").is_socket():
            return False
        async with asyncio.timeout(APPEAR_TIMEOUT):
            await appeared.wait()
    except TimeoutError:
        log.warning("The user's service manager is not on this bus; servers are started as children of mcpd")
        return False
    finally:
        unsubscribe()
    return True


class TransientUnits:
    """Starts transient units and waits for their start jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def watch(self) -> None:
        """Subscribe to the manager's job signals."""
        await self._connection.subscribe(Match(SYSTEMD, MANAGER_PATH, MANAGER, "JobRemoved"), self._on_removed)
        await self._connection.call(SYSTEMD, MANAGER_PATH, MANAGER, "Subscribe")

    async def start_transient(self, name: str, properties: Mapping[str, tuple[str, Any]], fd: int) -> None:
        """Start the unit *name* with *fd* as its stdin, and wait until it runs. The caller keeps ownership of *fd*.

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
            raise McpdError(f"its start job finished with the result {result!r}; see: journalctl --user -u {name}")

    def _on_removed(self, signal: Signal) -> None:
        unit, result = signal.args[2], signal.args[3]
        waiting = self._waiting.get(unit)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)
