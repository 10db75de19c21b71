# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of edge cases (T13), over a real socket, of both kinds of server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import BOTH, initialize, text_of
from tests.bridge.facility import COMMAND, on_both, on_script, request, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bridge.bridge_harness import Bridge, Client
    from tests.bridge.facility import Target


def reflected(client: Client, value: object) -> Any:
    return client.ask(tool("reflect", value=value))["result"]["structuredContent"]["value"]


@on_both
def test_T13_1_empty_arguments(client: Client) -> None:
    for message in (tool("picture"), request("tools/call", name="picture")):
        assert client.ask(message)["result"]["isError"] is False


@on_both
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_T13_2_a_very_large_output_arrives_whole(client: Client, accept: str) -> None:
    size = 12 * 1024 * 1024
    body = client.post(tool("large", size=size), Accept=accept).text
    message = json.loads(body if accept == "application/json" else body.partition("data: ")[2])
    assert text_of(message) == "x" * size


@on_both
@pytest.mark.parametrize(
    "text", ["žluťoučký kůň", "日本語 🐎 👩‍👩‍👧", '\u0000\u0007\u2028\u202e\\"/\r\n\t', "\ufeff\uffff\U0010ffff"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_T13_3_unicode_in_arguments(client: Client, text: str, ascii_only: bool) -> None:
    body = json.dumps(tool("echo", message=text), ensure_ascii=ascii_only).encode()
    assert text_of(client.ask(body)) == text


@on_both
@pytest.mark.parametrize("with_session", [True, False])
async def test_T13_4_calls_at_once_complete_correctly(target: Target, with_session: bool) -> None:
    async with target.many(50) as http:
        http.headers.update(BOTH)
        if with_session:
            opened = await http.post("/mcp/f", json=initialize())
            http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        # The same id for all of them: nothing but the connection tells them apart.
        replies = await asyncio.gather(
            *(http.post("/mcp/f", json=tool("echo", 1, message=f"number {n}")) for n in range(50))
        )
        assert [text_of(reply.json()) for reply in replies] == [f"number {n}" for n in range(50)]


@on_both
def test_T13_5_nested_arguments(client: Client) -> None:
    nested: Any = {"leaf": [1, {"two": [[], {}, [None]]}]}
    for _ in range(60):
        nested = {"a": [nested], "b": "c"}
    assert reflected(client, nested) == nested


@on_both
def test_T13_6_array_arguments(client: Client) -> None:
    assert text_of(client.ask(tool("total", numbers=[1, 2.5, -4]))) == "-0.5"
    assert text_of(client.ask(tool("total", numbers=[]))) == "0"
    assert reflected(client, [[1], [], ["x"]]) == [[1], [], ["x"]]


@on_both
def test_T13_7_null_arguments(client: Client) -> None:
    value = {"null": None, "list": [None, None]}
    assert reflected(client, value) == value
    assert client.ask(tool("reflect", value=None))["result"]["structuredContent"] == {"value": None}


def test_T13_2_an_output_over_the_limit_is_an_error(start_bridge: Callable[..., Bridge]) -> None:
    bridge = start_bridge("--listen=127.0.0.1:0", "--auth=none", f"--server=f={COMMAND}", "--max-line=100000")
    client = bridge.client("f").open()
    error = client.ask(tool("large", "big", size=200_000))["error"]
    assert error["code"] == -32603
    assert "longer than bridge.max_line" in error["message"]
    assert text_of(client.ask(tool("echo", message="still served"))) == "still served"


@on_script
def test_T13_2_an_output_over_the_limit_of_a_script_is_a_tool_error(client: Client) -> None:
    found = client.ask(tool("large", size=24 * 1024 * 1024))["result"]
    assert found["isError"] is True
    assert found["content"][0]["text"] == "The call wrote more than 20971520 bytes and was stopped."
    assert text_of(client.ask(tool("echo", message="still served"))) == "still served"
