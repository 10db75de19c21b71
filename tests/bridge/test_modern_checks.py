# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a request of revision 2026-07-28 has to be, over real sockets: statuses and codes by the specification."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge import eras
from tests.bridge.bridge_harness import JSON, bridges, initialize
from tests.bridge.modern_client import (
    MODERN,
    PREFIX,
    ModernClient,
    call,
    client,
    command,
    envelope,
    headers_for,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bridge.bridge_harness import Bridge

ALL = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    servers = [f"{name}={command(*name.split('-'))}" for name in ("handshake", "modern")]
    arguments = [part for server in servers for part in ("--server", server)]
    with bridges(tmp_path_factory) as start:
        yield start("--listen", "127.0.0.1:0", "--auth", "none", *arguments)


@pytest.fixture(params=["handshake", "modern"])
def asker(bridge: Bridge, request: pytest.FixtureRequest) -> ModernClient:
    """A client of a server of each era: the rules are the same."""
    return client(bridge, request.param)


def expect(asker: ModernClient, message: Any, status: int, code: int, **changed: str | None) -> dict[str, Any]:
    reply = asker.post(message, **changed)
    assert reply.headers["content-type"] == "application/json"
    answer = reply.json()
    assert (reply.status_code, answer["error"]["code"]) == (status, code), answer
    assert answer["id"] == (message.get("id") if isinstance(message, dict) else None)
    return dict(answer["error"])


def test_a_request_needs_no_handshake(asker: ModernClient) -> None:
    reply = asker.post(call("echo", "my-id", text="hi"))
    assert reply.status_code == 200
    assert reply.json()["id"] == "my-id"
    assert reply.json()["result"]["content"] == [{"type": "text", "text": "hi"}]
    assert "mcp-session-id" not in reply.headers


def test_session_and_event_ids_are_ignored(asker: ModernClient) -> None:
    reply = asker.post(call("echo", text="hi"), Mcp_Session_Id="nonsense", Last_Event_ID="5")
    assert reply.status_code == 200
    assert "mcp-session-id" not in reply.headers


@pytest.mark.parametrize(
    "changed",
    [
        {"Mcp_Method": None},
        {"Mcp_Method": "tools/list"},
        {"Mcp_Method": "TOOLS/CALL"},
        {"Mcp_Method": ""},
        {"Mcp_Name": None},
        {"Mcp_Name": "other"},
        {"Mcp_Name": "Echo"},
        {"Mcp_Name": "=?base64?ZWNo?="},
        {"Mcp_Name": "=?base64?!?="},
        {"MCP_Protocol_Version": "2027-01-01"},
    ],
)
def test_a_header_has_to_say_what_the_body_says(asker: ModernClient, changed: dict[str, str | None]) -> None:
    error = expect(asker, call("echo", 7, text="hi"), 400, -32020, **changed)
    assert "header" in error["message"]


def test_every_body_is_held_up_to_its_headers(asker: ModernClient) -> None:
    """Also on a connection where another body with the same headers was let in before."""
    right = call("echo", text="hi")
    others = {
        "another tool": call("add", a=1, b=2),
        "another method": request("prompts/get", name="echo"),
        "another revision": call("echo", meta={**envelope(), PREFIX + "protocolVersion": "2025-11-25"}, text="hi"),
    }
    for wrong in others.values():
        assert asker.post(right).status_code == 200
        headers = {name.replace("-", "_"): value for name, value in headers_for(right).items()}
        expect(asker, wrong, 400, -32020, **headers)
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}
    expect(asker, bare, 400, -32602)
    assert asker.ask(call("echo", "next", text="other"))["result"]["content"][0]["text"] == "other"


def test_header_values_may_be_encoded(asker: ModernClient) -> None:
    name = "=?base64?" + base64.b64encode(b"echo").decode() + "?="
    assert asker.result(call("echo", text="hi"), Mcp_Name=name)["content"][0]["text"] == "hi"


@pytest.mark.parametrize(
    "meta",
    [{}, {PREFIX + "protocolVersion": MODERN}, {PREFIX + "clientCapabilities": {}}, [], 7],
)
def test_a_request_needs_its_envelope(asker: ModernClient, meta: object) -> None:
    error = expect(asker, call("echo", meta=meta, text="hi"), 400, -32602)
    assert "_meta" in error["message"]
    expect(asker, {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}, 400, -32602, Mcp_Method="tools/list")


def test_the_client_info_may_be_left_out(asker: ModernClient) -> None:
    meta = envelope()
    del meta[PREFIX + "clientInfo"]
    assert asker.result(call("echo", meta=meta, text="hi"))["content"][0]["text"] == "hi"


def test_an_unknown_revision_is_told_what_there_is(asker: ModernClient) -> None:
    message = call("echo", 3, meta={**envelope(), PREFIX + "protocolVersion": "1900-01-01"}, text="hi")
    error = expect(asker, message, 400, -32022, MCP_Protocol_Version="1900-01-01")
    assert error["data"] == {"supported": ALL, "requested": "1900-01-01"}
    assert list(eras.SUPPORTED) == ALL
    # Also without the envelope, which that revision may not have.
    error = expect(asker, initialize(5), 400, -32022, MCP_Protocol_Version="1900-01-01")
    assert error["data"]["requested"] == "1900-01-01"


@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "no/such"],
)
def test_methods_that_there_are_not(asker: ModernClient, method: str) -> None:
    expect(asker, request(method, 9, uri="test://x", level="info"), 404, -32601)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list","params":{}}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tools/list","params":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}', -32602),
    ],
)
def test_bodies_that_are_no_request(asker: ModernClient, body: bytes, code: int) -> None:
    reply = asker.post(body, Mcp_Method="tools/list")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_there_are_no_batches(asker: ModernClient) -> None:
    message = call("echo", text="hi")
    reply = asker.post(
        json.dumps([message]).encode(), **{k.replace("-", "_"): v for k, v in headers_for(message).items()}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)


def test_notifications_are_taken_and_dropped(asker: ModernClient) -> None:
    message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    reply = asker.post(message)
    assert (reply.status_code, reply.content) == (202, b"")
    reply = asker.post(message, MCP_Protocol_Version="1900-01-01")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_nothing_but_post(asker: ModernClient, method: str) -> None:
    headers = {"MCP-Protocol-Version": MODERN, "Accept": "text/event-stream"}
    reply = asker.http.request(method, asker.path, headers=headers)
    assert reply.status_code == 405
    assert "POST" in reply.headers["allow"]


def test_names_and_levels_have_to_be_right(asker: ModernClient) -> None:
    expect(asker, request("tools/call", 2, arguments={}), 400, -32602)
    expect(asker, request("resources/read", 2, uri=7), 400, -32602, Mcp_Name="7")
    meta = envelope(**{PREFIX + "logLevel": "loud"})
    expect(asker, call("echo", 2, meta=meta, text="hi"), 400, -32602)


# ---------------------------------------------------------------------------------------- headers of tools


def test_arguments_in_headers(asker: ModernClient) -> None:
    arguments = {"region": "Hello, 世界", "count": 42, "deep": {"sure": True}}
    right = {
        "Mcp_Param_Region": "=?base64?SGVsbG8sIOS4lueVjA==?=",
        "Mcp_Param_Count": "42.0",
        "mcp_param_sure": "true",
    }
    assert asker.result(call("headed", **arguments), **right)["structuredContent"]["arguments"] == arguments
    for name in right:
        expect(asker, call("headed", 8, **arguments), 400, -32020, **{**right, name: None})
        expect(asker, call("headed", 8, **arguments), 400, -32020, **{**right, name: "7"})
    expect(asker, call("headed", 8), 400, -32020, Mcp_Param_Region="x")
    assert asker.post(call("headed", region=None)).status_code == 200


def test_headers_that_no_tool_declares_are_ignored(asker: ModernClient) -> None:
    assert asker.post(call("echo", text="x"), Mcp_Param_Text="other").status_code == 200
    assert asker.post(call("headed"), Mcp_Param_Other="other").status_code == 200
    # Clients do not show a tool whose annotations break the rules.
    assert asker.post(call("twice", a="x", b="y")).status_code == 200


def test_only_json_is_taken_and_events_are_needed_to_listen(asker: ModernClient) -> None:
    message = request("subscriptions/listen", 5, notifications={})
    reply = asker.post(message, Accept="application/json")
    assert (reply.status_code, reply.json()["id"]) == (406, 5)
    assert asker.post(call("echo", text="x"), Content_Type="text/plain").status_code == 415
    assert asker.post(call("echo", text="x"), Accept="image/png").status_code == 406


def test_an_unknown_server_and_one_that_does_not_start(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", "broken=/bin/false")
    reply = client(bridge, "nobody").post(call("echo", 3))
    assert (reply.status_code, reply.json()["id"]) == (404, 3)
    reply = client(bridge, "broken").post(call("echo", 3))
    assert reply.status_code in {502, 503}
    assert (reply.json()["error"]["code"], reply.json()["id"]) == (-32603, 3)
    assert "broken" in reply.json()["error"]["message"]


def test_a_client_without_the_header_is_of_another_era(bridge: Bridge) -> None:
    reply = bridge.http().post("/mcp/handshake", json=initialize(), headers={**JSON, "Accept": "application/json"})
    assert reply.status_code == 200
