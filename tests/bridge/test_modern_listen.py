# SPDX-License-Identifier: LGPL-2.1-or-later
"""``subscriptions/listen`` on a server of the handshake era."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge.modern.listen import MOST_LISTENING, MOST_URIS
from tests.bridge.bridge_harness import BOTH, bridges, eventually
from tests.bridge.modern_client import SUBSCRIPTION, ModernClient, call, client, command, headers_for, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    with bridges(tmp_path_factory) as start:
        yield start("--listen", "127.0.0.1:0", "--auth", "none", "--server", f"s={command('handshake')}")


@pytest.fixture
def asker(bridge: Bridge) -> ModernClient:
    return client(bridge)


def listen(identity: object = 1, **wanted: object) -> dict[str, Any]:
    return request("subscriptions/listen", identity, notifications=wanted)


def subscribed(asker: ModernClient) -> list[str]:
    """To what the server says it is subscribed."""
    return list(json.loads(asker.result(call("update", uri="test://nothing"))["content"][0]["text"]))


def test_what_is_acknowledged_comes_and_nothing_else(asker: ModernClient) -> None:
    with asker.streaming(listen("mine", toolsListChanged=True, promptsListChanged=True)) as stream:
        # The server has prompts, but does not tell when they change.
        meta = {"_meta": {SUBSCRIPTION: "mine"}}
        params = {**meta, "notifications": {"toolsListChanged": True}}
        assert next(stream) == {"jsonrpc": "2.0", "method": ACKNOWLEDGED, "params": params}
        asker.result(call("update", uri="test://a"))
        asker.result(call("change"))
        assert next(stream) == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}


def test_updates_of_resources_go_to_those_who_listen_for_them(asker: ModernClient) -> None:
    one, other = (
        listen(1, resourceSubscriptions=["test://a", "test://b"]),
        listen(2, resourceSubscriptions=["test://b"]),
    )
    with asker.streaming(one) as first, asker.streaming(other) as second:
        assert next(first)["params"]["notifications"] == {"resourceSubscriptions": ["test://a", "test://b"]}
        assert next(second)["params"]["notifications"] == {"resourceSubscriptions": ["test://b"]}
        assert subscribed(asker) == ["test://a", "test://b"]
        asker.result(call("change"))
        for uri in ("test://a", "test://b"):
            asker.result(call("update", uri=uri))
        told = [next(first), next(first), next(second)]
        assert [(each["params"]["uri"], each["params"]["_meta"][SUBSCRIPTION]) for each in told] == [
            ("test://a", 1),
            ("test://b", 1),
            ("test://b", 2),
        ]
    eventually(lambda: subscribed(asker) == [], "the server is told that nobody listens")


def test_nothing_comes_before_the_acknowledgement(asker: ModernClient) -> None:
    with asker.streaming(listen(4, toolsListChanged=True, resourceSubscriptions=["test://eager"])) as stream:
        told = [next(stream), next(stream)]
    assert [each["method"] for each in told] == [ACKNOWLEDGED, "notifications/tools/list_changed"]
    eventually(lambda: subscribed(asker) == [], "the server is told that nobody listens")


def test_who_listens_for_nothing_is_told_so(asker: ModernClient) -> None:
    for message in (listen(3), request("subscriptions/listen", 3), listen(3, toolsListChanged=False, unknown=True)):
        with asker.streaming(message) as stream:
            assert next(stream)["params"]["notifications"] == {}


def test_streams_are_bounded(asker: ModernClient) -> None:
    reply = asker.post(listen(7, resourceSubscriptions=[f"test://{n}" for n in range(MOST_URIS + 1)]))
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, -32005)


def test_streams_of_one_caller_are_bounded(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"m={command('handshake')}")
    asker = client(bridge, "m")
    headers = {**BOTH, **headers_for(listen())}
    http = bridge.http()
    streams = [http.stream("POST", asker.path, json=listen(n), headers=headers) for n in range(MOST_LISTENING)]
    replies = [stream.__enter__() for stream in streams]
    try:
        assert {reply.status_code for reply in replies} == {200}
        pieces = [reply.iter_bytes() for reply in replies]
        assert all(b"acknowledged" in next(each) for each in pieces)
        assert asker.post(listen(7)).status_code == 429
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)

    def is_room() -> bool:
        with http.stream("POST", asker.path, json=listen(8), headers=headers) as reply:
            return reply.status_code == 200 and b"acknowledged" in next(reply.iter_bytes())

    # The bridge learns on each connection by itself that it was closed.
    eventually(is_room, "there is room again")


def test_a_stream_goes_on_when_the_server_has_died(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    asker = client(alone("--server", f"m={command('handshake', wire=wire)}"), "m")
    with asker.streaming(listen(1, resourceSubscriptions=["test://a"])) as stream:
        next(stream)
        assert "ended" in asker.ask(call("die"))["error"]["message"]
        asker.result(call("update", uri="test://a"))
        assert next(stream)["params"]["uri"] == "test://a"


def test_streams_end_with_the_bridge(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"m={command('handshake')}")
    with client(bridge, "m").streaming(listen(9, toolsListChanged=True)) as stream:
        next(stream)
        bridge.process.terminate()
        last = list(stream)
    assert last == [{"jsonrpc": "2.0", "id": 9, "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: 9}}}]
    assert bridge.stop() == 0
