# SPDX-License-Identifier: LGPL-2.1-or-later
"""polkitd played by python-dbusmock, and people to ask it about."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.bus.authorization import AUTHORITY, AUTHORITY_PATH, POLKIT
from mcpd.bus.client import Client
from mcpd.bus.connection import Connection, Match
from mcpd.bus.names import DBUS, DBUS_PATH
from tests.bus.harness import PATIENCE, Machine, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOCK = "org.freedesktop.DBus.Mock"
SOMEBODY = 4711
TEMPLATE = str(Path(__file__).with_name("polkit_template.py"))


class Mock:
    """The python-dbusmock that plays polkitd."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def call(self, member: str, signature: str = "", *args: object) -> Any:
        reply = await self._connection.call(POLKIT, AUTHORITY_PATH, MOCK, member, signature, args)
        return reply.values[0] if reply.values else None

    async def answer(self, action: str, answer: str, subject: str = "") -> None:
        await self.call("Answer", "sss", subject, action, answer)

    async def calls(self, member: str = "CheckAuthorization") -> list[Any]:
        return [args for _, args in await self.call("GetMethodCalls", "s", member)]

    async def waiting(self, count: int) -> None:
        """Return once *count* checks are unanswered."""
        changed = asyncio.Event()
        match = Match(path=AUTHORITY_PATH, interface=AUTHORITY, member="Changed")
        unsubscribe = await self._connection.subscribe(match, lambda _: changed.set())
        async with asyncio.timeout(PATIENCE):
            while await self.call("Waiting") != count:
                await changed.wait()
                changed.clear()
        unsubscribe()


@asynccontextmanager
async def polkitd(machine: Machine, connection: Connection, template: str) -> AsyncIterator[Mock]:
    owned = asyncio.Event()
    match = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", POLKIT)
    await connection.subscribe(match, lambda signal: owned.set() if signal.args[2] else None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dbusmock", "--template", template, env=machine.environ, stdout=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await owned.wait()
        yield Mock(connection)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def people(machine: Machine) -> AsyncIterator[tuple[Client, Client, dict[str, int], Connection]]:
    """Two clients that are not root, and who they are."""
    async with connected(machine.bus) as one, connected(machine.bus) as two, connected(machine.bus) as third:
        uids = {one.unique_name: SOMEBODY, two.unique_name: SOMEBODY + 1}
        yield Client(one, system=True), Client(two, system=True), uids, third
