# SPDX-License-Identifier: LGPL-2.1-or-later
"""What HTTP and JSON-RPC demand of the endpoint (T3, T9, T12, T14)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import BOTH, JSON, call, events, initialize, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bridge.bridge_harness import Bridge

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def request(method: str, identity: object = 1, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


# ---------------------------------------------------------------------------------------- T2: messages


def test_T2_1_and_T9_1_a_request_is_answered(bridge: Bridge) -> None:
    reply = bridge.client().post(request("ping"))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"id": 1, "method": "ping"},
        {"jsonrpc": 2.0, "id": 1, "method": "ping"},
    ],
)
def test_T2_2_another_jsonrpc_version_is_refused(bridge: Bridge, message: object) -> None:
    reply = bridge.client().post(message)
    assert reply.status_code == 400
    assert (reply.json()["error"]["code"], reply.json()["id"]) == (-32600, 1)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "method": 5},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": {}, "method": "ping"},
        {"jsonrpc": "2.0", "id": True, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}},
        {},
        "text",
        42,
        None,
    ],
)
def test_T2_3_what_is_no_request_is_refused(bridge: Bridge, message: object) -> None:
    reply = bridge.client().post(message)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == -32600


def test_T2_4_a_notification_is_accepted_without_a_response(bridge: Bridge) -> None:
    client = bridge.client().open()
    reply = client.post({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    assert (reply.status_code, reply.content) == (202, b"")


@pytest.mark.parametrize("version", ["", "2024-11-05", "2025-03-26"])
def test_T2_5_a_batch_gets_an_array_of_responses(bridge: Bridge, version: str) -> None:
    client = bridge.client()
    batch = [call("echo", 1, text="a"), call("echo", "1", text="b"), call("echo", 1, text="c"), {"jsonrpc": "2.0"}]
    reply = client.post(batch, MCP_Protocol_Version=version)
    found = reply.json()
    assert sorted(text_of(each) for each in found if "result" in each) == ["a", "b", "c"]
    assert [each["error"]["code"] for each in found if "error" in each] == [-32600]
    assert {repr(each["id"]): text_of(each) for each in found if each["id"] == "1"} == {"'1'": "b"}


def test_T2_5_a_batch_of_notifications_is_accepted(bridge: Bridge) -> None:
    client = bridge.client().open("2025-03-26")
    reply = client.post([{"jsonrpc": "2.0", "method": "notifications/x"}] * 3)
    assert (reply.status_code, reply.content) == (202, b"")


def test_T2_5_an_empty_batch_is_invalid(bridge: Bridge) -> None:
    reply = bridge.client().post([])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)


def test_no_batches_since_2025_06_18(bridge: Bridge) -> None:
    reply = bridge.client().open("2025-06-18").post([call("echo", text="a")])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32600)


def test_initialize_cannot_hide_in_a_batch(bridge: Bridge) -> None:
    reply = bridge.client().post([initialize(7)])
    assert [(each["id"], each["error"]["code"]) for each in reply.json()] == [(7, -32600)]
    assert "mcp-session-id" not in reply.headers


# ---------------------------------------------------------------------------------------- T3: initialize


def test_T3_1_T3_3_initialize_opens_a_session(bridge: Bridge) -> None:
    reply = bridge.client().post(initialize("first"))
    result = reply.json()["result"]
    assert reply.json()["id"] == "first"
    assert result["serverInfo"]["name"] == "fixture"
    assert {"tools", "resources", "prompts"} <= set(result["capabilities"])
    assert len(reply.headers["mcp-session-id"]) >= 32


@pytest.mark.parametrize(("wanted", "given"), [*zip(VERSIONS, VERSIONS, strict=True), ("1.0", "2025-11-25")])
def test_T3_2_the_server_chooses_the_revision(bridge: Bridge, wanted: str, given: str) -> None:
    client = bridge.client().open(wanted)
    assert client.opened["result"]["protocolVersion"] == given
    assert text_of(client.ask(call("echo", text="x"))) == "x"


def test_T3_4_a_second_initialize_repeats_the_state(bridge: Bridge) -> None:
    client = bridge.client().open()
    again = client.post(initialize("again", "2024-11-05"))
    assert again.json()["result"] == client.opened["result"]
    assert again.json()["id"] == "again"
    assert again.headers["mcp-session-id"] == client.headers["Mcp-Session-Id"]


def test_a_handshake_the_server_refuses_opens_no_session(alone: Callable[..., Bridge]) -> None:
    from tests.bridge.bridge_harness import COMMAND, descendants, eventually

    bridge = alone("--server", f"refusing={COMMAND} --refuse")
    reply = bridge.client("refusing").post(initialize("i"))
    assert reply.json() == {"jsonrpc": "2.0", "id": "i", "error": {"code": -32602, "message": "not today"}}
    assert "mcp-session-id" not in reply.headers
    eventually(lambda: not descendants(bridge.pid), "the refusing server is stopped")


# ---------------------------------------------------------------------------------------- T9: headers


@pytest.mark.parametrize("accept", ["application/json", "application/json;q=0.5", "application/*", "*/*"])
def test_T9_3_json_alone_gets_json(bridge: Bridge, accept: str) -> None:
    reply = bridge.client().post(call("progress", steps=3, meta={"progressToken": "t"}), Accept=accept)
    assert reply.headers["content-type"] == "application/json"
    assert text_of(reply.json()) == "done"


def test_a_stream_for_who_takes_nothing_else(bridge: Bridge) -> None:
    reply = bridge.client().post(call("echo", text="x"), Accept="text/event-stream")
    assert reply.headers["content-type"] == "text/event-stream"
    assert [text_of(each) for each in events(reply.text)] == ["x"]


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0, text/event-stream;q=0.0", "image/*"])
def test_nothing_acceptable_is_406(bridge: Bridge, accept: str) -> None:
    assert bridge.client().post(call("echo", text="x"), Accept=accept).status_code == 406


def test_T9_5_the_session_id_is_on_every_reply(bridge: Bridge) -> None:
    client = bridge.client().open()
    replies = [
        client.post(call("echo", text="x")),
        client.post({"jsonrpc": "2.0", "method": "notifications/x"}),
        client.post(call("progress", steps=1, meta={"progressToken": 1})),
    ]
    assert {reply.headers["mcp-session-id"] for reply in replies} == {client.headers["Mcp-Session-Id"]}


@pytest.mark.parametrize("kind", ["text/plain", "application/json-rpc", "", "multipart/form-data"])
def test_T9_7_another_content_type_is_415(bridge: Bridge, kind: str) -> None:
    assert bridge.client().post(request("ping"), Content_Type=kind).status_code == 415


def test_T9_7_parameters_of_the_content_type_do_not_matter(bridge: Bridge) -> None:
    assert bridge.client().post(request("ping"), Content_Type="Application/JSON; charset=utf-8").status_code == 200


def test_an_unknown_revision_is_refused_as_the_newest_revision_says(bridge: Bridge) -> None:
    reply = bridge.client().post(request("server/discover", "d"), MCP_Protocol_Version="2099-01-01")
    error = reply.json()["error"]
    assert (reply.status_code, reply.json()["id"], error["code"]) == (400, "d", -32022)
    assert error["data"]["requested"] == "2099-01-01"
    assert set(VERSIONS) <= set(error["data"]["supported"])


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_other_methods_are_405(bridge: Bridge, method: str) -> None:
    reply = bridge.http().request(method, "/mcp/s", headers=JSON)
    assert reply.status_code == 405
    assert "POST" in reply.headers["allow"]


def test_health_is_open(bridge: Bridge) -> None:
    assert bridge.http().get("/health").json() == {"status": "ok"}


# ---------------------------------------------------------------------------------------- T12, T14: errors


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"jsonrpc"', b"{'a':1}", b'{"a":NaN}', b'\xff\xfe{"a":1}', b'{"jsonrpc":"2.0","id":1,"x":"\xff"}',
     b"[" * 100_000, b'{"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":"\n"}'],
)  # fmt: skip
def test_T12_1_what_is_not_json_is_a_parse_error(bridge: Bridge, body: bytes) -> None:
    reply = bridge.client().post(body)
    assert reply.status_code == 400
    assert (reply.json()["error"]["code"], reply.json()["id"]) == (-32700, None)


def test_T12_2_an_unknown_method_is_the_servers_to_refuse(bridge: Bridge) -> None:
    reply = bridge.client().open().post(request("no/such"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("params", [[], "x", 7, True, None])
def test_T12_3_params_have_to_be_an_object(bridge: Bridge, params: object) -> None:
    reply = bridge.client().post({"jsonrpc": "2.0", "id": "p", "method": "ping", "params": params})
    assert (reply.json()["error"]["code"], reply.json()["id"]) == (-32602, "p")


@pytest.mark.parametrize("message", [initialize(3), call("echo", 3, text="x")])
def test_T12_6_an_unknown_server_is_404(bridge: Bridge, message: object) -> None:
    reply = bridge.client("nobody").post(message)
    assert (reply.status_code, reply.json()["id"]) == (404, 3)
    assert "nobody" in reply.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(("server", "status"), [("nobody", 404), ("s", 400)])
def test_T12_6_an_unknown_server_has_no_streams_either(bridge: Bridge, method: str, server: str, status: int) -> None:
    headers = {"Accept": "text/event-stream"}
    reply = bridge.http().request(method, f"/mcp/{server}", headers=headers)
    assert reply.status_code == status
    assert ("nobody" in reply.text) == (server == "nobody")


@pytest.mark.parametrize(
    "path",
    ["/mcp/..", "/mcp/../s", "/mcp/%2e%2e%2fs", "/mcp/..%2f..%2fetc%2fpasswd", "/mcp/.s", "/mcp/s/x", "/mcp/meta",
     "/mcp/sse", "/mcp//s", "/mcp/%00", "/mcp/s%0a", "/mcp/" + "x" * 129, "/.well-known/oauth-protected-resource"],
)  # fmt: skip
def test_T14_1_no_path_leads_out(bridge: Bridge, path: str) -> None:
    import http.client  # a client that sends paths as they are

    connection = http.client.HTTPConnection(bridge.url.removeprefix("http://"), timeout=20)
    connection.request("POST", path, json.dumps(request("ping")), BOTH)
    assert connection.getresponse().status == 404
    connection.close()


def test_T14_5_an_unknown_session_is_404(bridge: Bridge) -> None:
    client = bridge.client()
    for method in ("POST", "GET", "DELETE"):
        headers = {**BOTH, "Mcp-Session-Id": "0" * 32}
        content = json.dumps(request("ping")) if method == "POST" else None
        reply = client.http.request(method, "/mcp/s", headers=headers, content=content)
        assert reply.status_code == 404, method


def test_T14_5_a_session_belongs_to_one_server(alone: Callable[..., Bridge]) -> None:
    from tests.bridge.bridge_harness import COMMAND

    bridge = alone("--server", f"other={COMMAND}")
    session = bridge.client().open().headers["Mcp-Session-Id"]
    assert bridge.client("other").post(request("ping"), Mcp_Session_Id=session).status_code == 404


def test_a_request_without_a_session_is_served(bridge: Bridge) -> None:
    first, second = (bridge.client().ask(call("pid")) for _ in range(2))
    assert text_of(first) == text_of(second)
    assert text_of(bridge.client().open().ask(call("pid"))) != text_of(first)


def test_strict_sessions_refuse_what_has_none(alone: Callable[..., Bridge]) -> None:
    from tests.bridge.bridge_harness import descendants

    bridge = alone("--strict-sessions")
    assert bridge.client().post(call("echo", text="x")).status_code == 400
    assert not descendants(bridge.pid)
    assert text_of(bridge.client().open().ask(call("echo", text="x"))) == "x"


def test_get_and_delete_need_a_session(bridge: Bridge) -> None:
    http = bridge.http()
    assert http.get("/mcp/s", headers={"Accept": "text/event-stream"}).status_code == 400
    assert http.delete("/mcp/s").status_code == 400


def test_a_deleted_session_is_gone(bridge: Bridge) -> None:
    client = bridge.client().open()
    assert client.delete().status_code == 204
    assert client.post(request("ping")).status_code == 404
    assert client.delete().status_code == 404


def test_a_body_over_the_limit_is_413(bridge: Bridge) -> None:
    client = bridge.client()
    assert client.post(b" " * (4 * 1024 * 1024 + 1)).status_code == 413

    def pieces() -> Any:
        for _ in range(80):
            yield b" " * 65536

    assert client.http.post("/mcp/s", content=pieces(), headers=BOTH).status_code == 413
    assert client.ask(request("ping"))["result"] == {}


def test_pretty_printed_requests_reach_the_server_as_one_line(bridge: Bridge) -> None:
    message = json.dumps(call("echo", text="two\nlines"), indent=4).replace("\n", "\r\n").encode()
    assert text_of(bridge.client().ask(message)) == "two\nlines"


def test_T13_arguments_travel_unchanged(bridge: Bridge) -> None:
    arguments: dict[str, Any] = {
        "unicode": "žluťoučký 🐎 \u2028 \x00",
        "nested": {"a": [{"b": {"c": [[], {}]}}]},
        "null": None,
        "numbers": [1e300, -0.0, 12345678901234567890, 0.1],
        "_meta": {"progressToken": "mine"},
    }
    answer = bridge.client().ask(call("reflect", **arguments))
    assert answer["result"]["structuredContent"] == arguments


def test_a_result_is_not_rewritten(bridge: Bridge) -> None:
    body = '{"content":[],"odd":1.0,"big":123456789012345678901234567890,"null":null, "spaced" : [ 1 ]}'
    reply = bridge.client().post(call("raw", body=body))
    assert body in reply.text


def test_an_error_of_the_server_travels_with_200(bridge: Bridge) -> None:
    reply = bridge.client().open().post(call("error", "e"))
    expected = {"code": -32042, "message": "odd", "data": {"kept": [1, None]}}
    assert (reply.status_code, reply.json()) == (200, {"jsonrpc": "2.0", "id": "e", "error": expected})


def test_T13_2_a_large_result_arrives_whole(bridge: Bridge) -> None:
    assert len(text_of(bridge.client().ask(call("big", size=8 * 1024 * 1024)))) == 8 * 1024 * 1024
