# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sessions that outlive mcpd: their leashes are with the service manager, their records in a directory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.runtime.fdstore import LeashStore, SessionRecord
from mcpd.runtime.sessions import Owner, SessionEvent
from tests.fd_keeper import FdKeeper
from tests.sandbox.world import Client, open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.runtime.sessions import Session, Sessions
    from tests.sandbox.world import World

pytestmark = pytest.mark.process

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.exit(7)"
BUS = "5f0c"


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FdKeeper]:
    with FdKeeper(tmp_path / "notify") as made:
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        yield made


class Mcpd:
    """The part of one mcpd process that is looked at here."""

    def __init__(self, world: World, bus: str = BUS, *, outlive: bool = True) -> None:
        self.directory = world.root / "run/mcp/sessions"
        self.sessions: Sessions = world.sessions()
        self.leashes = LeashStore(self.directory, bus, outlive=outlive)
        self.ended: list[tuple[int, int]] = []
        self.sessions.subscribe(self.leashes.on_session)
        self.sessions.subscribe(self._on_session)

    def _on_session(self, event: SessionEvent) -> None:
        if event.kind == "exited" and event.session.exit is not None:
            self.ended.append((event.session.number, event.session.exit.code))

    async def spawn(self, client: Client, name: str = ":1.1") -> Session:
        return await self.sessions.spawn("server", client.fds, owner=Owner(1000, name))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []

    async def adopt(self, keeper: FdKeeper) -> list[Session]:
        await self.leashes.adopt(self.sessions, keeper.passed())
        keeper.read()
        return self.sessions.list()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


async def says(client: Client, word: bytes) -> bytes:
    os.write(client.write_end, word)
    return await asyncio.to_thread(os.read, client.read_end, 100)


async def test_a_leash_is_kept_from_start_to_end(world: World, keeper: FdKeeper, client: Client) -> None:
    world.install("server", ECHO)
    mcpd = Mcpd(world)
    session = await mcpd.spawn(client)
    assert keeper.names() == ["session-1"]
    (file,) = mcpd.directory.iterdir()
    assert (file.name, file.stat().st_mode & 0o777, mcpd.directory.stat().st_mode & 0o777) == ("1.json", 0o600, 0o700)
    assert json.loads(file.read_text()) == {
        "number": 1,
        "server-id": "server",
        "generation": session.generation,
        "pid": session.pid,
        "unit": session.unit,
        "owner-uid": 1000,
        "owner-name": ":1.1",
        "owner-bus": BUS,
        "started": session.started,
    }
    assert mcpd.leashes.keeps(session)
    await mcpd.sessions.stop(1)
    await mcpd.sessions.close()
    assert (keeper.names(), mcpd.files()) == ([], [])


async def test_without_a_service_manager_nothing_is_written(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    world.install("server", ECHO)
    mcpd = Mcpd(world)
    session = await mcpd.spawn(client)
    assert (mcpd.leashes.keeps(session), mcpd.files()) == (False, [])
    await mcpd.sessions.close()


async def test_the_leash_of_a_server_that_cannot_outlive_mcpd_is_not_kept(
    world: World, keeper: FdKeeper, client: Client
) -> None:
    world.install("server", ECHO)
    mcpd = Mcpd(world, outlive=False)
    session = await mcpd.spawn(client)
    assert (keeper.names(), mcpd.leashes.keeps(session), mcpd.files()) == ([], False, [])
    await mcpd.sessions.close()


async def test_the_next_mcpd_takes_a_session_over(world: World, keeper: FdKeeper, client: Client) -> None:
    world.install("server", ECHO)
    first = Mcpd(world)
    before = await first.spawn(client)
    keeper.read()
    await first.sessions.detach()
    assert first.ended == []
    assert await says(client, b"still there\n") == b"still there\n"
    second = Mcpd(world)
    (after,) = await second.adopt(keeper)
    assert (after.number, after.server_id, after.pid, after.owner) == (1, "server", before.pid, before.owner)
    assert (after.generation, after.started, after.state) == (before.generation, before.started, "running")
    assert keeper.names() == ["session-1"]
    assert await says(client, b"and now\n") == b"and now\n"
    other = Client()
    assert (await second.spawn(other)).number == 2
    other.close()
    assert (await second.sessions.stop(1)).code == 143
    await second.sessions.close()
    assert (keeper.names(), second.files()) == ([], [])


async def test_an_end_that_nobody_heard_is_heard_later(world: World, keeper: FdKeeper, client: Client) -> None:
    world.install("server", ECHO)
    first = Mcpd(world)
    await first.spawn(client)
    client.started()
    keeper.read()
    await first.sessions.detach()
    os.close(client.write_end)
    client.write_end = -1
    assert await asyncio.to_thread(os.read, client.read_end, 1) == b""
    second = Mcpd(world)
    for session in await second.adopt(keeper):
        await session.wait()
    await second.sessions.close()
    assert second.ended == [(1, 7)]
    assert (keeper.names(), second.files()) == ([], [])


async def test_a_name_on_another_bus_is_not_the_owner(world: World, keeper: FdKeeper, client: Client) -> None:
    world.install("server", ECHO)
    first = Mcpd(world)
    await first.spawn(client)
    keeper.read()
    await first.sessions.detach()
    second = Mcpd(world, bus="another")
    (session,) = await second.adopt(keeper)
    assert (session.owner.uid, session.owner.name) == (1000, ":1.1 of an earlier bus")
    await second.sessions.close()


def record(**changes: Any) -> dict[str, Any]:
    return {
        "number": 5,
        "server-id": "server",
        "generation": "/somewhere",
        "pid": 4711,
        "unit": "mcpd-spawn@0.service",
        "owner-uid": 1000,
        "owner-name": ":1.1",
        "owner-bus": BUS,
        "started": 12.5,
        **changes,
    }


async def test_a_record_without_a_leash_is_removed(world: World, keeper: FdKeeper) -> None:
    mcpd = Mcpd(world)
    mcpd.directory.mkdir(parents=True)
    (mcpd.directory / "5.json").write_text(json.dumps(record()))
    assert await mcpd.adopt(keeper) == []
    assert mcpd.files() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "\0\xff",
        '{"number":5}',
        json.dumps(record(number=6)),
        json.dumps(record(number=-5)),
        json.dumps(record(number="5")),
        json.dumps(record(number=True)),
        json.dumps(record(**{"server-id": "../../etc"})),
        json.dumps(record(**{"server-id": ["server"]})),
        json.dumps(record(generation="somewhere")),
        json.dumps(record(generation="/a\0b")),
        json.dumps(record(pid=0)),
        json.dumps(record(pid=2**40)),
        json.dumps(record(unit="a b\n")),
        json.dumps(record(unit="x" * 300)),
        json.dumps(record(**{"owner-uid": 2**32 - 1})),
        json.dumps(record(**{"owner-uid": -1})),
        json.dumps(record(**{"owner-name": "a\nMESSAGE=b"})),
        json.dumps(record(started="now")),
        json.dumps(record()).replace("12.5", "NaN"),
        json.dumps(record()).replace("12.5", "1e999"),
        json.dumps(record(more=1)),
        json.dumps(record()) + " " * 70_000,
    ],
)
async def test_a_record_that_is_none_ends_its_server(world: World, keeper: FdKeeper, text: str) -> None:
    mcpd = Mcpd(world)
    mcpd.directory.mkdir(parents=True)
    (mcpd.directory / "5.json").write_text(text)
    ours, theirs = socket.socketpair()
    keeper.kept["session-5"] = [ours.detach()]
    assert await mcpd.adopt(keeper) == []
    assert (keeper.names(), mcpd.files()) == ([], [])
    theirs.settimeout(120)
    with theirs:
        assert theirs.recv(1) == b""


async def test_only_regular_files_with_our_names_are_records(world: World, keeper: FdKeeper) -> None:
    mcpd = Mcpd(world)
    mcpd.directory.mkdir(parents=True)
    os.mkfifo(mcpd.directory / "5.json")
    (mcpd.directory / ".5.json.0123456789ab~tmp").write_text("half")
    (mcpd.directory / "05.json").write_text(json.dumps(record()))
    (mcpd.directory / "6.json").symlink_to("/dev/zero")
    assert await mcpd.adopt(keeper) == []
    assert mcpd.files() == []


async def test_what_is_no_leash_is_let_go(world: World, keeper: FdKeeper) -> None:
    mcpd = Mcpd(world)
    mcpd.directory.mkdir(parents=True)
    for number in (5, 6, 7):
        (mcpd.directory / f"{number}.json").write_text(json.dumps(record(number=number)))
    (pipe, write), (one, other) = os.pipe(), socket.socketpair()
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    keeper.kept |= {
        "session-5": [pipe],
        "session-6": [one.detach(), other.detach()],
        "session-7": [datagram.detach()],
        "session-0": [os.dup(write)],
        "session-99999999999": [os.dup(write)],
        "else": [os.dup(write)],
    }
    before = open_descriptors()
    assert await mcpd.adopt(keeper) == []
    os.close(write)
    assert (keeper.names(), mcpd.files()) == ([], [])
    assert open_descriptors() == before - 8


async def test_a_record_survives_being_written_and_read(world: World, keeper: FdKeeper, client: Client) -> None:
    world.install("server", ECHO)
    mcpd = Mcpd(world)
    session = await mcpd.spawn(client)
    session.owner = replace(session.owner, is_shared=True)
    made = SessionRecord.of(session, BUS)
    assert made.owner(BUS) == session.owner
    assert SessionRecord.model_validate_json(made.model_dump_json(by_alias=True)) == made
    await mcpd.sessions.close()
