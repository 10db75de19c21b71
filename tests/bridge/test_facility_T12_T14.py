# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of errors (T12) and security (T14), over a real socket."""

from __future__ import annotations

import http.client
import json
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import BOTH, PATIENCE, initialize, text_of
from tests.bridge.facility import SERVER, request, tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge, Client

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
def test_T12_3_a_malformed_call_is_invalid(client: Client, params: dict[str, Any]) -> None:
    assert client.ask(request("tools/call", **params))["error"]["code"] == -32602


def test_T12_4_an_internal_error_of_the_server_is_told(client: Client) -> None:
    reply = client.post(tool("fault"))
    assert (reply.status_code, reply.json()["error"]) == (200, {"code": -32603, "message": "unhandled exception"})


def test_T12_4_a_server_that_dies_is_an_internal_error(client: Client) -> None:
    error = client.ask(tool("crash"))["error"]
    assert error["code"] == -32603
    assert "server f ended before it answered" in error["message"]
    assert text_of(client.ask(tool("echo", message="there again"))) == "there again"


def test_T12_5_a_server_that_does_not_answer_times_out(client: Client) -> None:
    reply = client.post(tool("wait", "w", seconds=600))
    assert (reply.status_code, reply.json()["id"]) == (200, "w")
    assert reply.json()["error"] == {"code": -32000, "message": "Tool execution timeout after 2 s"}


@pytest.mark.parametrize("message", [initialize(3), tool("echo", 3, message="x")])
def test_T12_6_a_server_that_is_not_there_is_404(facility_bridge: Bridge, message: dict[str, Any]) -> None:
    reply = facility_bridge.client("nowhere").post(message)
    assert (reply.status_code, reply.json()["id"]) == (404, 3)
    assert "nowhere" in reply.json()["error"]["message"]


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
