# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of revision 2026-07-28 on servers of that revision, or of both eras."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.bridge.bridge_harness import BOTH, bridges, eventually
from tests.bridge.bridge_harness import call as handshake_call
from tests.bridge.modern_client import (
    FORMS,
    MODERN,
    PREFIX,
    SUBSCRIPTION,
    ModernClient,
    call,
    client,
    command,
    envelope,
    headers_for,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge

SERVERS = {"modern": ("modern",), "dual": ("handshake", "modern")}


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("wire")
    return {name: place / name for name in SERVERS}


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory, wires: dict[str, Path]) -> Iterator[Bridge]:
    servers = [f"{name}={command(*eras, wire=wires[name])}" for name, eras in SERVERS.items()]
    arguments = [part for server in servers for part in ("--server", server)]
    with bridges(tmp_path_factory) as start:
        yield start("--listen", "127.0.0.1:0", "--auth", "none", *arguments)


@pytest.fixture(params=list(SERVERS))
def asker(bridge: Bridge, request: pytest.FixtureRequest) -> ModernClient:
    return client(bridge, request.param)


@pytest.fixture
def wire(asker: ModernClient, wires: dict[str, Path]) -> Path:
    return wires[asker.path.rpartition("/")[2]]


def received(wire: Path, method: str) -> list[Any]:
    lines = [json.loads(line) for line in wire.read_bytes().splitlines()]
    return [line for line in lines if line.get("method") == method]


def test_what_the_server_says_of_itself_stays(asker: ModernClient) -> None:
    result = asker.result(request("server/discover", "d"))
    assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (5000, "public", "complete")
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "modern-fixture"
    # It is what the bridge serves of it that a client can choose from.
    expected = [MODERN] if asker.path.endswith("modern") else [MODERN, "2025-11-25"]
    assert result["supportedVersions"][: len(expected)] == expected
    assert len(result["supportedVersions"]) == (1 if asker.path.endswith("modern") else 5)


def test_request_and_result_stay_as_they_are(asker: ModernClient) -> None:
    meta = envelope(FORMS, **{"com.example/own": [1, None]})
    result = asker.result(call("seen", "same", meta, a={"b": None}))
    token = result["structuredContent"]["_meta"].pop("progressToken")
    assert isinstance(token, int)
    assert result["structuredContent"] == {"name": "seen", "arguments": {"a": {"b": None}}, "_meta": meta}
    assert result["content"] == [{"type": "text", "text": "seen"}]
    assert "_meta" not in result


def test_equal_ids_do_not_meet(asker: ModernClient) -> None:
    found: dict[str, str] = {}

    def one(name: str) -> None:
        delay = 0.3 if name == "a" else 0
        found[name] = asker.result(call("echo", "same", text=name, delay=delay))["content"][0]["text"]

    threads = [threading.Thread(target=one, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {name: name for name in "abc"}


def test_progress_comes_with_the_clients_token(asker: ModernClient) -> None:
    with asker.streaming(call("progress", 1, envelope(progressToken="mine"), steps=2)) as stream:
        told = list(stream)
    assert [each["params"]["progressToken"] for each in told[:-1]] == ["mine", "mine"]
    assert asker.post(call("progress", steps=2)).headers["content-type"] == "application/json"


def test_the_state_of_the_server_comes_back_whole_and_only_where_it_belongs(asker: ModernClient) -> None:
    arguments = {"method": "elicitation/create"}
    meta = envelope(FORMS)
    first = asker.result(call("ask", 1, meta, **arguments))
    assert first["resultType"] == "input_required"
    state = first["requestState"]
    assert "kept" not in state
    answers = {"q": {"action": "accept"}}
    more = {"requestState": state, "inputResponses": answers}
    back = json.loads(asker.result(call("ask", 2, meta, more, **arguments))["content"][0]["text"])
    assert back == {"state": json.dumps({"kept": "é\n"}), "answers": answers}
    for message in (
        call(
            "ask", 3, meta, {**more, "requestState": state[:-2] + ("AA" if state[-2:] != "AA" else "BB")}, **arguments
        ),
        call("ask", 3, meta, {**more, "requestState": json.dumps({"kept": "é\n"})}, **arguments),
        call("ask", 3, meta, more, method="roots/list"),
        call("seen", 3, meta, more, **arguments),
    ):
        reply = asker.post(message)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32602), reply.text
        assert "requestState" in reply.json()["error"]["message"]


def test_who_goes_away_cancels_the_call(asker: ModernClient, wire: Path) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        asker.http.post(asker.path, json=call("hang"), headers={**BOTH, **headers_for(call("hang"))}, timeout=1)
    eventually(lambda: received(wire, "notifications/cancelled"), "the server is told")
    hanging = [line["id"] for line in received(wire, "tools/call") if line["params"]["name"] == "hang"]
    assert received(wire, "notifications/cancelled")[-1]["params"]["requestId"] == hanging[-1]


def test_streams_of_the_server_are_the_clients_own(asker: ModernClient, wire: Path) -> None:
    wanted = {"toolsListChanged": True}
    listen = [request("subscriptions/listen", "same", notifications={**wanted, **more}) for more in ({}, {"x": 1})]
    with asker.streaming(listen[0]) as first, asker.streaming(listen[1]) as second:
        acknowledged = [next(first), next(second)]
        assert [each["method"] for each in acknowledged] == ["notifications/subscriptions/acknowledged"] * 2
        assert [each["params"]["notifications"] for each in acknowledged] == [wanted, {**wanted, "x": 1}]
        asker.result(call("change"))
        told = [*acknowledged, next(first), next(second)]
        assert [each["params"]["_meta"] for each in told] == [{SUBSCRIPTION: "same"}] * 4
        assert [each["method"] for each in told[2:]] == ["notifications/tools/list_changed"] * 2
        ids = [line["id"] for line in received(wire, "subscriptions/listen")]
        assert len(set(ids)) == len(ids) >= 2
    eventually(
        lambda: {line["params"]["requestId"] for line in received(wire, "notifications/cancelled")} >= set(ids[-2:]),
        "the server is told that nobody listens",
    )


def test_a_stream_that_the_server_ends(asker: ModernClient) -> None:
    with asker.streaming(request("subscriptions/listen", 5, notifications={"toolsListChanged": True})) as stream:
        next(stream)
        asker.result(call("hang_up"))
        last = list(stream)
    assert last == [{"jsonrpc": "2.0", "id": 5, "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: 5}}}]


def test_both_eras_of_a_server_at_once(bridge: Bridge) -> None:
    old = bridge.client("dual").open()
    assert old.opened["result"]["protocolVersion"] == "2025-11-25"
    new = client(bridge, "dual")
    pids = {old.ask(handshake_call("pid"))["result"]["content"][0]["text"]}
    pids |= {new.result(call("pid"))["content"][0]["text"]}
    assert len(pids) == 2


def test_a_handshake_client_is_told_that_a_server_is_modern_only(bridge: Bridge) -> None:
    from tests.bridge.bridge_harness import initialize

    error = bridge.client("modern").ask(initialize(4))["error"]
    assert error["code"] == -32022
    assert error["data"]["supported"] == [MODERN]


def test_what_is_kept_for_all_is_not_asked_in_the_words_of_one(asker: ModernClient, wire: Path) -> None:
    capabilities: dict[str, Any] = {"experimental": {"of-this-test": {}}}
    mine = {**envelope(capabilities), "org.example/tenant": "mine"}
    asker.ask(call("echo", meta=mine, text="x"))
    lists = [line for line in map(json.loads, wire.read_text().splitlines()) if line.get("method") == "tools/list"]
    last = lists[-1]["params"]["_meta"]
    assert last[PREFIX + "clientCapabilities"] == capabilities
    assert last[PREFIX + "clientInfo"]["name"] == "mcpd-bridge"
    assert "org.example/tenant" not in last
