# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ids never meet: every caller gets the answer to its own request, with its own id byte for byte."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bridge.bridge_harness import BOTH, call, initialize, text_of

if TYPE_CHECKING:
    from tests.bridge.bridge_harness import Bridge


async def post(http: httpx2.AsyncClient, message: Any, session: str = "") -> httpx2.Response:
    headers = {**BOTH, **({"Mcp-Session-Id": session} if session else {})}
    return await http.post("/mcp/s", json=message, headers=headers)


def connect(bridge: Bridge) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=100)
    return httpx2.AsyncClient(base_url=bridge.url, timeout=30, trust_env=False, limits=limits)


async def test_T13_4_one_session_four_calls_at_once_under_one_id(bridge: Bridge) -> None:
    async with connect(bridge) as http:
        session = (await post(http, initialize())).headers["mcp-session-id"]
        for round_number in range(10):
            room = uuid.uuid4().hex
            texts = [f"{round_number}.{n}" for n in range(4)]
            calls = [call("meet", 1, room=room, count=4, text=text) for text in texts]
            replies = await asyncio.gather(*(post(http, message, session) for message in calls))
            assert [text_of(reply.json()) for reply in replies] == texts
            assert {reply.json()["id"] for reply in replies} == {1}


@pytest.mark.parametrize("with_session", [True, False])
async def test_T13_4_eight_clients_count_from_the_same_number(bridge: Bridge, with_session: bool) -> None:
    async def client(name: str) -> None:
        async with connect(bridge) as http:
            session = (await post(http, initialize())).headers["mcp-session-id"] if with_session else ""
            for number in range(30):
                delay = 0.002 * (hash((name, number)) % 4)
                reply = await post(http, call("echo", number, text=f"{name}-{number}", delay=delay), session)
                assert (reply.json()["id"], text_of(reply.json())) == (number, f"{name}-{number}")

    await asyncio.gather(*(client(f"c{n}") for n in range(8)))


async def test_equal_progress_tokens_do_not_meet(bridge: Bridge) -> None:
    async def one(http: httpx2.AsyncClient, session: str, text: str) -> None:
        message = call("progress", 1, {"progressToken": "same"}, steps=5, text=text, delay=0.01)
        reply = await post(http, message, session)
        lines = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
        assert {line["params"]["message"] for line in lines[:-1]} == {text}
        assert {line["params"]["progressToken"] for line in lines[:-1]} == {"same"}
        assert [line["params"]["progress"] for line in lines[:-1]] == list(range(5))
        assert text_of(lines[-1]) == "done"

    async with connect(bridge) as http:
        session = (await post(http, initialize())).headers["mcp-session-id"]
        await asyncio.gather(
            *(one(http, session, f"s{n}") for n in range(4)), *(one(http, "", f"p{n}") for n in range(4))
        )


async def test_a_client_cannot_choose_the_id_upstream(bridge: Bridge) -> None:
    # The last of two equal members counts for every reader, so neither can name another's call.
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}},"id":"mine"}'
    )
    async with connect(bridge) as http:
        reply = await http.post("/mcp/s", content=body, headers=BOTH)
    assert reply.json()["id"] == "mine"


IDS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.text(max_size=40).map(json.dumps),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.sampled_from(["1e2", "1.50", "-0", "1E+2", '"\\u0041"', '"\\/"', "123456789012345678901234567890"]),
)


@given(identity=IDS)
def test_ids_come_back_byte_for_byte(bridge: Bridge, identity: str) -> None:
    try:
        raw = identity.encode()
    except UnicodeEncodeError:
        return
    client = shared_client(bridge)
    body = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % raw
    reply = client.post("/mcp/s", content=body, headers=BOTH)
    if b"\\ud" in raw.lower() and reply.status_code == 400:
        # Half a surrogate pair stands for no text at all.
        return
    assert reply.content == b'{"jsonrpc":"2.0","id":%b,"result":{}}' % raw


_clients: dict[str, httpx2.Client] = {}


def shared_client(bridge: Bridge) -> httpx2.Client:
    if bridge.url not in _clients:
        _clients[bridge.url] = bridge.http()
    return _clients[bridge.url]
