# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of errors (T12), edge cases (T13) and security (T14), over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from bridge_harness import BOTH, PATIENCE, initialize, text_of
from facility import COMMAND, SERVER, request, tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bridge_harness import Bridge, Client

# ---------------------------------------------------------------------------------------- T12: errors


@pytest.mark.parametrize("body", [b"{", b"", b"not JSON", b'{"jsonrpc":"2.0","id":1,"method":"ping"'])
def test_T12_1_malformed_json_is_a_parse_error(client: Client, body: bytes) -> None:
    reply = client.post(body)
    assert (reply.status_code, reply.json()["error"]["code"], reply.json()["id"]) == (400, -32700, None)


def test_T12_2_an_unknown_method_is_not_found(client: Client) -> None:
    reply = client.post(request("tools/undefined"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("params", [[], "x", 5, None])
def test_T12_3_params_that_are_no_object_are_invalid(client: Client, params: object) -> None:
    reply = client.post({"jsonrpc": "2.0", "id": "p", "method": "tools/call", "params": params})
    assert (reply.status_code, reply.json()["error"]["code"], reply.json()["id"]) == (400, -32602, "p")


@pytest.mark.parametrize("params", [{"name": 7}, {"name": "echo", "arguments": "x"}, {"name": "echo", "arguments": []}])
def test_T12_3_C5_a_malformed_call_is_invalid(client: Client, params: dict[str, Any]) -> None:
    assert client.ask(request("tools/call", **params))["error"]["code"] == -32602


def test_T12_4_an_internal_error_of_the_server_is_told(client: Client) -> None:
    reply = client.post(tool("fault"))
    assert (reply.status_code, reply.json()["error"]) == (200, {"code": -32603, "message": "unhandled exception"})


def test_T12_4_C6_a_server_that_dies_is_an_internal_error(client: Client) -> None:
    error = client.ask(tool("crash"))["error"]
    assert error["code"] == -32603
    assert "server f ended before it answered" in error["message"]
    assert text_of(client.ask(tool("echo", message="there again"))) == "there again"


def test_T12_5_C7_a_server_that_does_not_answer_times_out(client: Client) -> None:
    reply = client.post(tool("wait", "w", seconds=600))
    assert (reply.status_code, reply.json()["id"]) == (200, "w")
    assert reply.json()["error"] == {"code": -32000, "message": "Tool execution timeout after 2 s"}


@pytest.mark.parametrize("message", [initialize(3), tool("echo", 3, message="x")])
def test_T12_6_a_server_that_is_not_there_is_404(facility_bridge: Bridge, message: dict[str, Any]) -> None:
    reply = facility_bridge.client("nowhere").post(message)
    assert (reply.status_code, reply.json()["id"]) == (404, 3)
    assert "nowhere" in reply.json()["error"]["message"]


# ---------------------------------------------------------------------------------------- T13: edge cases


def reflected(client: Client, value: object) -> Any:
    return client.ask(tool("reflect", value=value))["result"]["structuredContent"]["value"]


def test_T13_1_empty_arguments(client: Client) -> None:
    for message in (tool("picture"), request("tools/call", name="picture")):
        assert client.ask(message)["result"]["isError"] is False


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_T13_2_a_very_large_output_arrives_whole(client: Client, accept: str) -> None:
    size = 12 * 1024 * 1024
    body = client.post(tool("large", size=size), Accept=accept).text
    message = json.loads(body if accept == "application/json" else body.partition("data: ")[2])
    assert text_of(message) == "x" * size


def test_T13_2_V85_an_output_over_the_limit_is_an_error(start_bridge: Callable[..., Bridge]) -> None:
    bridge = start_bridge("--listen=127.0.0.1:0", "--auth=none", f"--server=f={COMMAND}", "--max-line=100000")
    client = bridge.client("f").open()
    error = client.ask(tool("large", "big", size=200_000))["error"]
    assert error["code"] == -32603
    assert "longer than bridge.max_line" in error["message"]
    assert text_of(client.ask(tool("echo", message="still served"))) == "still served"


@pytest.mark.parametrize(
    "text", ["žluťoučký kůň", "日本語 🐎 👩‍👩‍👧", '\u0000\u0007\u2028\u202e\\"/\r\n\t', "\ufeff\uffff\U0010ffff"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_T13_3_unicode_in_arguments(client: Client, text: str, ascii_only: bool) -> None:
    body = json.dumps(tool("echo", message=text), ensure_ascii=ascii_only).encode()
    assert text_of(client.ask(body)) == text


@pytest.mark.parametrize("with_session", [True, False])
async def test_T13_4_calls_at_once_complete_correctly(facility_bridge: Bridge, with_session: bool) -> None:
    limits = httpx2.Limits(max_connections=50)
    async with httpx2.AsyncClient(
        base_url=facility_bridge.url, timeout=PATIENCE, trust_env=False, limits=limits, headers=BOTH
    ) as http:
        if with_session:
            opened = await http.post("/mcp/f", json=initialize())
            http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        # The same id for all of them: nothing but the connection tells them apart.
        replies = await asyncio.gather(
            *(http.post("/mcp/f", json=tool("echo", 1, message=f"number {n}")) for n in range(50))
        )
        assert [text_of(reply.json()) for reply in replies] == [f"number {n}" for n in range(50)]


def test_T13_5_nested_arguments(client: Client) -> None:
    nested: Any = {"leaf": [1, {"two": [[], {}, [None]]}]}
    for _ in range(60):
        nested = {"a": [nested], "b": "c"}
    assert reflected(client, nested) == nested


def test_T13_6_array_arguments(client: Client) -> None:
    assert text_of(client.ask(tool("total", numbers=[1, 2.5, -4]))) == "-0.5"
    assert text_of(client.ask(tool("total", numbers=[]))) == "0"
    assert reflected(client, [[1], [], ["x"]]) == [[1], [], ["x"]]


def test_T13_7_null_arguments(client: Client) -> None:
    value = {"null": None, "list": [None, None]}
    assert reflected(client, value) == value
    assert client.ask(tool("reflect", value=None))["result"]["structuredContent"] == {"value": None}


# ---------------------------------------------------------------------------------------- T14: security


@pytest.mark.parametrize(
    "path",
    ["/mcp/../f", "/mcp/..", "/mcp/f/../../etc/passwd", "/mcp/%2e%2e/f", "/mcp/..%2ff", "/mcp/..%5cf", "/mcp/f%00",
     "/mcp/%252e%252e%252ff", "/mcp//f", "/mcp/./f", "/mcp/meta/../f", "/mcp/meta/..%2ff", "/mcp/f/sse/../../f"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_T14_1_no_path_leads_elsewhere(facility_bridge: Bridge, method: str, path: str) -> None:
    connection = http.client.HTTPConnection(facility_bridge.url.removeprefix("http://"), timeout=PATIENCE)
    body = json.dumps(tool("echo", message="reached")) if method == "POST" else None
    connection.request(method, path, body, BOTH if body else {"Accept": "text/html"})
    reply = connection.getresponse()
    assert reply.status == 404
    assert b"reached" not in reply.read()
    connection.close()


class Scripts(HTMLParser):
    """The scripts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        self.found += [str(value) for name, value in attrs if name.startswith("on") or "<" in str(value)]

    def handle_endtag(self, _tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)


SCRIPT = "<script>alert(1)</script>"


def test_T14_2_a_script_in_arguments_is_text_everywhere(client: Client) -> None:
    reply = client.post(tool("echo", message=SCRIPT))
    assert text_of(reply.json()) == SCRIPT
    assert reply.headers["content-type"] == "application/json"
    refused = client.post(tool("echo", message=SCRIPT), MCP_Protocol_Version=SCRIPT)
    assert refused.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/mcp/meta/f", "/mcp/f", "/mcp", "/mcp/meta/%3Cscript%3Ealert(1)%3C%2Fscript%3E"])
def test_T14_2_pages_hold_no_script_of_others(start_bridge: Callable[..., Bridge], tmp_path: Path, path: str) -> None:
    hostile = tmp_path / "server.py"
    hostile.write_text(SERVER.read_text().replace("The tool", SCRIPT))
    bridge = start_bridge("--listen=127.0.0.1:0", "--auth=none", f"--server=f={sys.executable} {hostile}")
    http = bridge.http()
    if path == "/mcp/meta/f":
        # Have it ask the server for its tools, as the page's button does.
        http.post(path, headers={"Content-Type": "application/x-www-form-urlencoded", "Origin": bridge.url})
    reply = http.get(path, headers={"Accept": "text/html"})
    assert reply.headers["content-type"].partition(";")[0] == "text/html"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert [each for each in Scripts(reply.text).found if "alert(1)" in each] == []
    if path == "/mcp/meta/f":
        assert "&lt;script&gt;alert(1)" in reply.text


def test_T14_4_a_foreign_origin_is_403(facility_bridge: Bridge) -> None:
    for origin in ("https://evil.example", "null", "http://localhost.evil.example"):
        client = facility_bridge.client("f")
        reply = client.post(tool("echo", message="x"), Origin=origin)
        assert reply.status_code == 403, origin
        assert "access-control-allow-origin" not in reply.headers
        assert client.http.options("/mcp/f", headers={"Origin": origin}).status_code == 403


def test_T14_4_a_request_of_no_page_needs_no_origin(fresh: Client) -> None:
    assert text_of(fresh.ask(tool("echo", message="x"))) == "x"


def test_T14_5_a_session_that_was_not_given_is_rejected(facility_bridge: Bridge, client: Client) -> None:
    session = client.headers["Mcp-Session-Id"]
    guesses = ["0" * len(session), session[:-1], session + "x", session.swapcase(), "../" + session]
    for guess in guesses:
        reply = facility_bridge.client("f").post(tool("echo", message="x"), Mcp_Session_Id=guess)
        assert reply.status_code == 404, guess
    assert text_of(client.ask(tool("echo", message="mine"))) == "mine"
