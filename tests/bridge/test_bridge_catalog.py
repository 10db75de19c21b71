# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is known of servers: when it changes, what is answered without a process, and which eras they speak."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.handshake.greeting import POOL_GREETING
from mcpd.bridge.handshake.session import Session, version_of
from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.upstream import pool
from mcpd.bridge.upstream.commands import Command
from mcpd.errors import Disabled, SpawnFailed, UnsupportedRevision
from tests.bridge.bridge_harness import text_of
from tests.bridge.pool_world import ME, PROGRAM, Sink, World, asked, eventually, lists, send, world

if TYPE_CHECKING:
    from pathlib import Path


# ---------------------------------------------------------------------------------------- what changes


async def test_a_changed_server_gets_a_new_process_after_its_calls() -> None:
    async with world() as made:
        pool = await made.open()
        before = text_of(await send(pool, "pid").future)
        slow = send(pool, "echo", text="was in flight", delay=0.5)
        made.source.info = replace(made.source.info, state="another")
        made.source.listener()
        await eventually(lambda: pool.closed)
        assert made.pools.find("p", ME, POOL_GREETING) is None
        assert text_of(await send(await made.open(), "pid").future) != before
        assert text_of(await slow.future) == "was in flight"
        await eventually(lambda: len(made.parts.process_counts) == 1)


@pytest.mark.parametrize("sharing", ["session", "caller"])
async def test_a_session_goes_on_with_a_process_of_the_changed_server(sharing: str) -> None:
    async with world(sharing=sharing) as made:
        session = await made.initialize()
        before = text_of(await send(session, "pid").future)
        slow = send(session, "echo", text="was in flight", delay=0.5)
        made.source.info = replace(made.source.info, state="another")
        made.source.listener()
        await eventually(lambda: not made.sessions.count("p", ME)[1])
        assert text_of(await send(session, "pid").future) != before
        assert text_of(await slow.future) == "was in flight"
        await eventually(lambda: len(made.parts.process_counts) == 1)


@pytest.mark.parametrize("asked_for", ["é" * 60, "\ud83d" * 9, 7])
async def test_an_odd_revision_is_named_in_its_refusal(asked_for: object) -> None:
    async with world("--modern-only") as made:
        made.source.info = replace(made.source.info, handshake=False, modern=True)
        with pytest.raises(UnsupportedRevision) as refused:
            await made.sessions.open("p", ME, json.dumps({"protocolVersion": asked_for}).encode(), {})
        assert refused.value.data is not None
        assert refused.value.data["requested"] == (asked_for[:40] if asked_for == "é" * 60 else "")


@pytest.mark.parametrize("sharing", ["session", "caller"])
async def test_what_a_changed_server_asked_before_can_still_be_answered(sharing: str) -> None:
    async with world(sharing=sharing) as made:
        session = await made.initialize(capabilities={"elicitation": {}})
        sink = send(session, "ask", method="elicitation/create")
        await eventually(lambda: sink.pushed)
        made.source.info = replace(made.source.info, state="another")
        made.source.listener()
        await eventually(lambda: not made.sessions.count("p", ME)[1])
        answer = {"jsonrpc": Raw(b'"2.0"'), "result": Raw(b'"late"')}
        session.reply(jsonrpc.encode(sink.pushed[0]["id"]), answer)
        assert asked(await sink.future)[1] == "late"
        await eventually(lambda: not len(made.parts.process_counts))


@pytest.mark.parametrize("sharing", ["session", "caller"])
async def test_the_processes_of_a_disabled_server_end(sharing: str) -> None:
    async with world(sharing=sharing) as made:
        session = await made.initialize()
        await send(session, "pid").future
        made.source.fault = Disabled("server p is disabled")
        made.source.listener()
        await eventually(lambda: not len(made.parts.process_counts))


# ---------------------------------------------------------------------------------------- the catalog


async def first_two(made: World) -> None:
    """Have two processes say the same of themselves, and list their tools."""
    for _ in range(2):
        session = await made.initialize()
        page = await lists(session)
        await lists(session, page["nextCursor"])
        made.sessions.end(session, "seen")
    await eventually(lambda: not len(made.parts.process_counts))


async def test_what_two_processes_said_is_said_without_a_third(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with world("--starts", str(starts)) as made:
        await first_two(made)
        session = await made.initialize()
        assert json.loads(session.result)["serverInfo"] == {"name": "pool", "version": "1"}
        page = await lists(session)
        assert [tool["name"] for tool in page["tools"]] == ["pid", "echo", "ask", "meet", "hang", "crash"]
        assert len((await lists(session, page["nextCursor"]))["tools"]) == 4
        assert len(starts.read_text().split()) == 2
        assert int(text_of(await send(session, "pid").future)) == int(starts.read_text().split()[2])


async def test_a_changed_list_is_asked_for_again() -> None:
    async with world() as made:
        await first_two(made)
        session = await made.initialize()
        await send(session, "grow", name="new").future
        made.sessions.end(session, "seen")
        await eventually(lambda: not len(made.parts.process_counts))
        session = await made.initialize()
        assert not len(made.parts.process_counts)
        await lists(session)
        assert len(made.parts.process_counts) == 1


async def test_lists_after_a_call_are_not_kept() -> None:
    async with world() as made:
        for _ in range(2):
            session = await made.initialize()
            await send(session, "pid").future
            await lists(session, (await lists(session))["nextCursor"])
            made.sessions.end(session, "seen")
        await eventually(lambda: not len(made.parts.process_counts))
        await lists(await made.initialize())
        assert len(made.parts.process_counts) == 1


async def test_another_state_forgets_what_was_said() -> None:
    async with world() as made:
        await first_two(made)
        made.source.info = replace(made.source.info, state="another")
        await made.initialize()
        assert len(made.parts.process_counts) == 1


async def test_a_process_that_says_something_else_is_believed(tmp_path: Path) -> None:
    async with world() as made:
        await first_two(made)
        session = await made.initialize()
        made.source._commands["p"].command = Command((sys.executable, str(PROGRAM), "--version", "2"))
        await send(session, "pid").future
        other = await made.initialize()
        assert json.loads(other.result)["serverInfo"]["version"] == "2"
        assert len(made.parts.process_counts) == 2


# ---------------------------------------------------------------------------------------- eras


@pytest.mark.parametrize(
    ("flags", "speaks"),
    [((), (True, False)), (("--both",), (True, True)), (("--modern-only",), (False, True))],
)
async def test_which_eras_a_server_speaks_is_found_out_once(
    flags: tuple[str, ...], speaks: tuple[bool, bool], tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    async with world("--starts", str(starts), *flags) as made:
        found = await asyncio.gather(*(made.pools.eras(made.source.info, ME) for _ in range(3)))
        assert found == [speaks] * 3
        assert (made.pools.find("p", ME, b"") is not None) == speaks[1]
        assert await made.pools.eras(made.source.info, ME) == speaks
        assert len(starts.read_text().split()) == 2


async def test_a_server_that_did_not_say_what_it_speaks_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROBE_TIMEOUT", 0.3)
    said = tmp_path / "said"
    async with world("--both", "--silent-until", str(said)) as made:
        assert await made.pools.eras(made.source.info, ME) == (True, False)
        said.touch()
        assert await made.pools.eras(made.source.info, ME) == (True, True)


async def test_what_is_known_of_the_eras_is_not_probed() -> None:
    async with world() as made:
        known = replace(made.source.info, handshake=True, modern=True)
        assert await made.pools.eras(known, ME) == (True, True)
        assert not len(made.parts.process_counts)


async def test_a_server_that_does_not_start_speaks_nothing() -> None:
    async with world("--no-such-option") as made:
        with pytest.raises(SpawnFailed):
            await made.pools.eras(made.source.info, ME)


async def test_a_client_of_the_handshake_learns_that_its_server_has_none() -> None:
    async with world("--modern-only") as made:
        made.source.info = replace(made.source.info, handshake=False, modern=True)
        with pytest.raises(UnsupportedRevision) as refused:
            await made.initialize()
        assert refused.value.data == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        assert not len(made.parts.process_counts)


# ---------------------------------------------------------------------------------------- what is one client's own

LOCAL = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    meta = message.get("params", {}).get("_meta", {})
    said = meta.get("example.com/locale", "en")
    if message["method"] == "initialize":
        greeted = json.dumps(meta, sort_keys=True)
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "l", "version": "1"}, "instructions": said}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "t", "description": said, "inputSchema": {}}]}
    else:
        result = {"content": [{"type": "text", "text": greeted}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
FOREIGN = '{"example.com/locale":"FOREIGN"}'


async def opened(made: World, meta: str) -> Session:
    said = f'{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"c","version":"1"}}{meta}}}'
    found = made.sessions.ready("p", ME, said.encode(), {}) or await made.sessions.open("p", ME, said.encode(), {})
    assert isinstance(found, Session)
    return found


async def described(session: Session, meta: str) -> str:
    sink = Sink()
    session.request(sink, b"1", "tools/list", jsonrpc.request(b"1", "tools/list", f"{{{meta.lstrip(',')}}}".encode()))
    return str((await sink.future)["result"]["tools"][0]["description"])


@pytest.mark.parametrize(
    "meta",
    [
        f',"_meta":{FOREIGN}',
        f',"\\u005fmeta":{FOREIGN}',
        f',"_meta":{{}},"_meta":{FOREIGN}',
        ',"_meta":{"progressToken":1,"example.com/locale":"FOREIGN"}',
    ],
)
async def test_what_a_client_said_in_its_meta_shapes_nothing_for_others(meta: str) -> None:
    async with world() as made:
        made.source._commands["p"].command = Command((sys.executable, "-c", LOCAL))
        for _ in range(3):
            session = await opened(made, meta)
            assert json.loads(session.result)["instructions"] == "FOREIGN"
            assert await described(session, meta) == "FOREIGN"
            made.sessions.end(session, "seen")
        for _ in range(3):
            other = await opened(made, "")
            assert json.loads(other.result)["instructions"] == "en"
            await described(other, meta)
            assert await described(other, "") == "en"
            assert text_of(await send(other, "x").future) == "{}"
            made.sessions.end(other, "seen")
        fresh = await opened(made, "")
        assert await described(fresh, "") == "en"


async def test_the_process_of_a_session_is_greeted_with_its_own_meta() -> None:
    def traced(number: int) -> str:
        return f',"_meta":{{"traceparent":"00-{number:032x}-{number:016x}-01"}}'

    async with world() as made:
        made.source._commands["p"].command = Command((sys.executable, "-c", LOCAL))
        for number in (1, 2):
            made.sessions.end(await opened(made, traced(number)), "seen")
        for own in (traced(3), ""):
            session = await opened(made, own)
            assert session.slot is None
            greeted = json.loads(text_of(await send(session, "x").future))
            greeted.pop("progressToken", None)
            assert greeted == (json.loads(f"{{{own[1:]}}}")["_meta"] if own else {})


async def test_a_list_after_a_client_told_its_process_something_is_not_kept(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with world("--starts", str(starts)) as made:
        for _ in range(2):
            session = await made.initialize()
            session.notify("notifications/x", jsonrpc.notification("notifications/x"), lambda: None)
            page = await lists(session)
            await lists(session, page["nextCursor"])
            made.sessions.end(session, "seen")
        await lists(await made.initialize())
        assert len(starts.read_text().split()) == 3


def test_large_results_of_initialize_do_not_stay_in_memory() -> None:
    result = b'{"protocolVersion":"2025-11-25","instructions":"%b"}' % (b"x" * (1 << 20))
    before = sys.getrefcount(result)
    assert version_of(result) == "2025-11-25"
    assert sys.getrefcount(result) == before
