# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which sessions are told that the lists of their server changed, and what that costs those that are not."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge.exchange import EventQueue
from mcpd.errors import Disabled, ServiceUnavailable
from tests.bridge.bridge_harness import events, text_of
from tests.bridge.pool_world import ME, eventually, lists, send, world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.bridge.handshake.session import Session
    from tests.bridge.pool_world import World

CHANGED = "notifications/tools/list_changed"
CROWD = 300


def listening(session: Session) -> EventQueue:
    """What the session's own stream says from now on."""
    queue = EventQueue()
    session.streams.listen(queue)
    return queue


def heard(queue: EventQueue) -> list[str]:
    """What came since the last look; the event without data that a stream begins with is none of it."""
    text = queue.take().decode().replace("data:\n", "")
    return [message["method"] for message in events(text)]


def change(made: World, state: str) -> None:
    made.source.info = replace(made.source.info, state=state)
    made.source.listener()


@contextmanager
def starts(made: World) -> Iterator[asyncio.Event]:
    """Set when a process is there."""
    start, begun = made.source.start, asyncio.Event()

    async def start_and_tell(*arguments: Any) -> Any:
        started = await start(*arguments)
        begun.set()
        return started

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made.source, "start", start_and_tell)
        yield begun


async def settled(made: World) -> None:
    """Wait until all that a change is followed by has happened."""
    await eventually(lambda: not len(made.parts.tasks))


@pytest.mark.parametrize("every", [1, 60])
async def test_of_a_crowd_only_those_who_listen_hear(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.bridge.handshake.session.TOLD_AT_ONCE", 2)
    async with world(sharing="caller") as made:
        sessions = [await made.initialize() for _ in range(CROWD)]
        streams = [listening(session) for session in sessions[::every]]
        idle = [session for session in sessions if not session.is_known]
        assert len(idle) == CROWD - len(streams)
        for state in ("second", "third"):
            change(made, state)
            await settled(made)
            assert [heard(stream) for stream in streams] == [[CHANGED]] * len(streams)
        made.source.fault = Disabled("server p is disabled")
        made.source.listener()
        await settled(made)
        assert not any(heard(stream) for stream in streams)
        made.source.fault = None
        made.source.listener()
        await settled(made)
        assert [heard(stream) for stream in streams] == [[CHANGED]] * len(streams)
        # The others have nothing of their own, as before, and no process was started for anybody.
        assert not any(session.is_known for session in idle)
        assert len({id(session.kind) for session in sessions}) == 1
        assert not len(made.parts.process_counts)
        answers = [send(session, "pid") for session in sessions]
        assert len({text_of(await answer.future) for answer in answers}) == 1
        assert not any(heard(stream) for stream in streams)


@pytest.mark.parametrize("sharing", ["session", "caller"])
async def test_who_asked_and_does_not_listen_hears_it_later(sharing: str) -> None:
    async with world(sharing=sharing) as made:
        session = await made.initialize()
        await lists(session)
        change(made, "second")
        await settled(made)
        assert heard(listening(session)) == [CHANGED]


async def test_who_hears_of_a_change_by_itself_is_told_once() -> None:
    async with world() as made:
        for _ in range(2):
            await lists(await made.initialize())
        session = await made.initialize()
        stream = listening(session)
        assert session.slot is None, "two have said the same before"
        # It asks before anybody has told the bridge to look.
        made.source.info = replace(made.source.info, state="second")
        await send(session, "pid").future
        assert heard(stream) == [CHANGED]
        made.source.listener()
        await settled(made)
        assert heard(stream) == []


async def test_a_session_that_goes_on_before_the_look_is_told_once() -> None:
    async with world(sharing="caller") as made:
        session = await made.initialize()
        stream = listening(session)
        change(made, "second")
        await settled(made)
        assert heard(stream) == [CHANGED]
        made.source.info = replace(made.source.info, state="third")
        await send(session, "pid").future
        assert heard(stream) == [CHANGED]
        made.source.listener()
        await settled(made)
        assert heard(stream) == []


@pytest.mark.parametrize("gone", [False, True])
async def test_a_session_that_opens_while_its_server_changes_has_no_process_of_before(gone: bool) -> None:
    async with world() as made:
        start, begun, go_on = made.source.start, asyncio.Event(), asyncio.Event()

        async def start_slowly(*arguments: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await start(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.source, "start", start_slowly)
            opening = asyncio.create_task(made.initialize())
            await begun.wait()
            (kind,) = {each.kind for each in made.sessions.of("p")}
            made.source.fault = Disabled("server p is disabled") if gone else None
            change(made, "second")
            await eventually(lambda: made.sessions.of("p")[0].kind != kind)
            go_on.set()
            session = await opening
        assert made.sessions.count("p", ME) == (1, 0)
        stream = listening(session)
        if gone:
            assert heard(stream) == []
            made.source.fault = None
            made.source.listener()
            await eventually(lambda: not made.sessions.of("p")[0].kind.is_gone)
        assert heard(stream) == [CHANGED]
        assert text_of(await send(session, "echo", text="x").future) == "x"


@pytest.mark.parametrize("opens", [True, False])
async def test_a_process_that_is_greeted_while_its_server_changes_makes_way_for_another(
    opens: bool, tmp_path: Path
) -> None:
    # Whoever answers writes into it first, and waits until somebody reads.
    wire = tmp_path / "wire"
    os.mkfifo(wire)
    async with world("--wire", str(wire)) as made:
        reader = os.open(wire, os.O_RDONLY | os.O_NONBLOCK)
        for _ in range(0 if opens else 2):
            await lists(await made.initialize())
        session = None if opens else await made.initialize()
        assert session is None or session.slot is None, "two have said the same before"
        os.close(reader)
        with starts(made) as begun:
            waiting = asyncio.create_task(made.initialize()) if session is None else send(session, "pid").future
            await begun.wait()
        change(made, "second")
        await eventually(lambda: {each.kind.info.state for each in made.sessions.of("p")} == {"second"})
        reader = os.open(wire, os.O_RDONLY | os.O_NONBLOCK)
        done = await waiting
        if session is None:
            session = done
            assert made.sessions.count("p", ME) == (1, 0)
            assert heard(listening(session)) == [CHANGED]
        assert text_of(await send(session, "echo", text="x").future) == "x"
        os.close(reader)


async def test_what_a_server_said_before_it_changed_is_said_to_nobody_after(tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    os.mkfifo(wire)
    async with world("--wire", str(wire)) as made:
        opening = [asyncio.create_task(made.initialize()) for _ in range(2)]
        await eventually(lambda: len(made.sessions.of("p")) == len(opening) == len(made.parts.process_counts))
        change(made, "second")
        await eventually(lambda: {each.kind.info.state for each in made.sessions.of("p")} == {"second"})
        reader = os.open(wire, os.O_RDONLY | os.O_NONBLOCK)
        first, _ = await asyncio.gather(*opening)
        assert made.sessions.ready("p", ME, first.kind.params, {}) is None
        os.close(reader)


async def test_a_client_of_a_pool_that_changes_while_it_starts_is_told_to_try_again(tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    os.mkfifo(wire)
    async with world("--wire", str(wire), sharing="caller") as made:
        with starts(made) as begun:
            opening = asyncio.create_task(made.initialize())
            await begun.wait()
        change(made, "second")
        await eventually(lambda: not made.pools.servers())
        reader = os.open(wire, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(ServiceUnavailable, match="has changed or is gone: try again"):
            await opening
        assert text_of(await send(await made.initialize(), "echo", text="x").future) == "x"
        os.close(reader)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_client_hears_that_its_server_is_again_as_it_was(gone: bool) -> None:
    async with world(sharing="caller") as made:
        session = await made.initialize()
        stream = listening(session)
        known = made.source.info
        if gone:
            made.source.fault = Disabled("server p is disabled")
        else:
            made.source.info = replace(known, state="broken", policy=None)
        made.source.listener()
        await settled(made)
        assert heard(stream) == ([] if gone else [CHANGED])
        assert not made.pools.servers()
        made.source.fault, made.source.info = None, known
        made.source.listener()
        await settled(made)
        assert heard(stream) == [CHANGED]
        assert made.sessions.count("p", ME) == (1, 0)
