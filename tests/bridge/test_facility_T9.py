# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of the HTTP transport (T9), over a real socket."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.bridge.bridge_harness import BOTH, initialize, text_of
from tests.bridge.facility import COMMAND, request, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from tests.bridge.bridge_harness import Bridge, Client


def test_T9_1_a_post_gets_a_json_rpc_response(client: Client) -> None:
    reply = client.post(tool("echo", "one", message="x"))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert (reply.json()["jsonrpc"], reply.json()["id"], text_of(reply.json())) == ("2.0", "one", "x")


class Words(HTMLParser):
    """The text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("accept", ["text/html,application/xhtml+xml,*/*;q=0.8", "*/*", ""])
def test_T9_2_a_get_shows_a_page_about_the_server(facility_bridge: Bridge, accept: str) -> None:
    http = facility_bridge.http()
    http.headers.pop("accept")
    reply = http.get("/mcp/f", headers={"Accept": accept} if accept else {})
    assert reply.status_code == 200
    assert reply.headers["content-type"].partition(";")[0] == "text/html"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "/mcp/f" in Words(reply.text).text


def test_T9_2_a_get_that_takes_events_is_the_stream(client: Client) -> None:
    with client.http.stream("GET", client.path, headers={**client.headers, "Accept": "text/event-stream"}) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"


def test_T9_3_who_takes_json_alone_gets_json(client: Client) -> None:
    reply = client.post(tool("echo", message="x"), Accept="application/json")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert text_of(reply.json()) == "x"


def test_T9_3_who_takes_neither_gets_406(client: Client) -> None:
    assert client.post(tool("echo", message="x"), Accept="image/png").status_code == 406


def fields(reply: httpx2.Response) -> Iterator[tuple[str, str]]:
    """The events of *reply* as pairs of type and data, as they come."""
    kind = data = ""
    for line in reply.iter_lines():
        name, _, value = line.partition(":")
        if not line:
            yield kind, data
            kind = data = ""
        elif name == "event":
            kind = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")


def test_T9_4_sse_tells_where_to_post_and_brings_the_answers(facility_bridge: Bridge) -> None:
    http = facility_bridge.http()
    with http.stream("GET", "/mcp/f/sse", headers={"Accept": "text/event-stream"}) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert "no-cache" in reply.headers["cache-control"]
        events = fields(reply)
        kind, target = next(events)
        assert kind == "endpoint"
        assert target.startswith("/mcp/f?")
        assert urlsplit(target).query
        for message in (initialize("i", "2024-11-05"), tool("echo", "t", message="over SSE")):
            posted = facility_bridge.http().post(target, json=message)
            assert posted.status_code == 202
            kind, data = next(events)
            assert (kind, json.loads(data)["id"]) == ("message", message["id"])
        assert text_of(json.loads(data)) == "over SSE"


def test_T9_5_the_session_id_is_there_and_stays(client: Client) -> None:
    session = client.headers["Mcp-Session-Id"]
    assert session.isascii()
    assert session.isprintable()
    messages = (tool("echo", message="x"), request("tools/list"), {"jsonrpc": "2.0", "method": "notifications/x"})
    assert {client.post(message).headers["mcp-session-id"] for message in messages} == {session}


def test_T9_6_cors_for_the_origins_that_are_allowed(start_bridge: Callable[..., Bridge]) -> None:
    bridge = start_bridge(
        "--listen=127.0.0.1:0", "--auth=none", f"--server=f={COMMAND}", "--allow-origin=https://app.example"
    )
    origin = {"Origin": "https://app.example"}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "mcp-session-id"}
    preflight = bridge.http().options("/mcp/f", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "mcp-session-id" in preflight.headers["access-control-allow-headers"].lower()
    reply = bridge.client("f").post(tool("echo", message="x"), **origin)
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert "mcp-session-id" in reply.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-origin" not in bridge.client("f").post(tool("echo", message="x")).headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/html", ""])
def test_T9_7_another_content_type_is_415(facility_bridge: Bridge, kind: str) -> None:
    headers = {**BOTH, "Content-Type": kind}
    reply = facility_bridge.http().post("/mcp/f", content=json.dumps(request("ping")), headers=headers)
    assert reply.status_code == 415
