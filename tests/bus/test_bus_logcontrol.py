# SPDX-License-Identifier: LGPL-2.1-or-later
"""``org.freedesktop.LogControl1`` on a bus, called as systemctl calls it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from mcpd import journal
from mcpd.bus.authorization import OwnUser
from mcpd.bus.caller import Callers, Credentials, query_bus
from mcpd.bus.codec import Variant
from mcpd.bus.connection import Connection
from mcpd.bus.dispatcher import Dispatcher
from mcpd.bus.log_control import LogControl
from mcpd.bus.names import BUS_NAME, LOG_CONTROL, LOG_CONTROL_PATH, PROPERTIES
from mcpd.bus.object_manager import Objects
from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, PropertyReadOnly, UnknownProperty

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.bus.harness import PrivateBus

OTHER_UID = 4242


@pytest.fixture
def settings() -> Iterator[journal.LogSettings]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield journal.LogSettings("info", "console", "mcpd")
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


@pytest_asyncio.fixture
async def uids(bus: PrivateBus, settings: journal.LogSettings) -> AsyncIterator[dict[str, int]]:
    """The object on the bus, of a service that runs as the user of this test; the uids that the bus tells of."""
    told: dict[str, int] = {}

    async def lookup(connection: Connection, sender: str) -> Credentials:
        known = await query_bus(connection, sender)
        return known._replace(uid=told.get(sender, known.uid))

    async with await Connection.open(bus.address) as connection:
        objects = Objects(connection, lambda _uid: ())
        objects.start_signals()
        objects.add(LOG_CONTROL_PATH, LogControl(settings, own_uid=1000))
        callers = Callers(connection, lookup)
        await callers.start()
        dispatcher = Dispatcher(connection, objects, callers, OwnUser())
        dispatcher.start()
        assert await connection.request_name(BUS_NAME)
        yield told
        await dispatcher.close()
        await callers.close()


@pytest_asyncio.fixture
async def caller(bus: PrivateBus, uids: dict[str, int]) -> AsyncIterator[Connection]:
    async with await Connection.open(bus.address) as connection:
        uids[connection.unique_name] = 0
        yield connection


async def set_property(caller: Connection, name: str, value: object) -> None:
    reply = await caller.call(BUS_NAME, LOG_CONTROL_PATH, PROPERTIES, "Set", "ssv", [LOG_CONTROL, name, value])
    reply.fds.close()


async def get_all(caller: Connection) -> dict[str, object]:
    reply = await caller.call(BUS_NAME, LOG_CONTROL_PATH, PROPERTIES, "GetAll", "s", [LOG_CONTROL])
    values: dict[str, object] = reply.values[0]
    return values


async def test_level_and_target_are_read_and_set(caller: Connection, settings: journal.LogSettings) -> None:
    assert await get_all(caller) == {"LogLevel": "info", "LogTarget": "console", "SyslogIdentifier": "mcpd"}
    await set_property(caller, "LogLevel", "debug")
    await set_property(caller, "LogTarget", "journal")
    assert await get_all(caller) == {"LogLevel": "debug", "LogTarget": "journal", "SyslogIdentifier": "mcpd"}
    assert logging.getLogger().level == logging.DEBUG
    assert settings.target == "journal"


@pytest.mark.parametrize("uid", [0, 1000])
async def test_root_and_the_services_user_set_it(caller: Connection, uids: dict[str, int], uid: int) -> None:
    uids[caller.unique_name] = uid
    await set_property(caller, "LogLevel", "err")
    assert (await get_all(caller))["LogLevel"] == "err"


async def test_others_only_read_it(caller: Connection, uids: dict[str, int], settings: journal.LogSettings) -> None:
    uids[caller.unique_name] = OTHER_UID
    for name, value in (("LogLevel", "debug"), ("LogTarget", "journal"), ("LogLevel", "nonsense")):
        with pytest.raises(NotAuthorized):
            await set_property(caller, name, value)
    assert (await get_all(caller))["LogLevel"] == "info"
    assert (settings.level, settings.target) == ("info", "console")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("LogLevel", "loud", InvalidArgument),
        ("LogLevel", Variant("u", 7), InvalidArgument),
        ("LogTarget", "kmsg", InvalidArgument),
        ("SyslogIdentifier", "other", PropertyReadOnly),
        ("Nonsense", "x", UnknownProperty),
    ],
)
async def test_what_there_is_not_is_refused(
    caller: Connection, settings: journal.LogSettings, name: str, value: object, error: type[McpdError]
) -> None:
    with pytest.raises(error):
        await set_property(caller, name, value)
    assert (settings.level, settings.target, settings.identifier) == ("info", "console", "mcpd")


@pytest.mark.usefixtures("uids")
async def test_it_is_introspected_as_systemd_documents_it(bus: PrivateBus) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        ["busctl", f"--address={bus.address}", "introspect", BUS_NAME, LOG_CONTROL_PATH, LOG_CONTROL, "--list"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"SYSTEMD_COLORS": "0"},
    )
    rows = {tuple(line.split(maxsplit=4)) for line in done.stdout.splitlines() if line.startswith(".")}
    assert rows == {
        (".LogLevel", "property", "s", '"info"', "writable"),
        (".LogTarget", "property", "s", '"console"', "writable"),
        (".SyslogIdentifier", "property", "s", '"mcpd"', "const"),
    }
