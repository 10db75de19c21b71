# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from mcpd.bus.client import Client
from mcpd.bus.connection import Connection
from mcpd.paths import Scope
from tests.bus.harness import Machine, PrivateBus, start_bus
from tests.bus.inside import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcpd.bus.core import Core


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="mcpd-bus-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def bus(short_tmp: Path) -> Iterator[PrivateBus]:
    running = start_bus(short_tmp)
    yield running
    running.stop()


@pytest_asyncio.fixture
async def machine(bus: PrivateBus, short_tmp: Path) -> AsyncIterator[Machine]:
    made = Machine(bus, short_tmp)
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def client(bus: PrivateBus) -> AsyncIterator[Client]:
    async with await Connection.open(bus.address) as connection:
        yield Client(connection, system=False)


PROPERTIES_OF_X = [
    {"key": "level", "type": "string", "default": "low"},
    {"key": "count", "type": "integer"},
    {"key": "list", "type": "list"},
    {"key": "token", "sensitive": True},
]


@pytest_asyncio.fixture
async def core(machine: Machine) -> AsyncIterator[Core]:
    machine.install(
        "x",
        where=machine.paths.user.installed,
        description="Repeats",
        license="MIT",
        categories=["tools"],
        permissions=["network"],
        configurableProperties=PROPERTIES_OF_X,
    )
    machine.install("b.broken", where=machine.paths.user.installed, transports="nonsense")
    async with served(machine, scope=Scope.USER, uids={}, only_uid=os.getuid()) as running:
        yield running
