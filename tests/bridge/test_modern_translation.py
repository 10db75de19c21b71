# SPDX-License-Identifier: LGPL-2.1-or-later
"""Clients of revision 2026-07-28 on a server of the handshake era."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.bridge.bridge_harness import BOTH, bridges, eventually
from tests.bridge.modern_client import (
    ALL,
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
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server received."""
    return tmp_path_factory.mktemp("wire") / "lines"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory, wire: Path) -> Iterator[Bridge]:
    with bridges(tmp_path_factory) as start:
        server = f"s={command('handshake', wire=wire)}"
        yield start("--listen", "127.0.0.1:0", "--auth", "none", "--server", server)


@pytest.fixture
def asker(bridge: Bridge) -> ModernClient:
    return client(bridge)


def received(wire: Path, method: str) -> list[Any]:
    lines = [json.loads(line) for line in wire.read_bytes().splitlines()]
    return [line for line in lines if line.get("method") == method]


def test_discover_says_what_initialize_said(asker: ModernClient) -> None:
    reply = asker.post(request("server/discover", "d"))
    result = reply.json()["result"]
    assert reply.json()["id"] == "d"
    assert result["resultType"] == "complete"
    assert result["supportedVersions"][0] == MODERN
    assert "2025-11-25" in result["supportedVersions"]
    assert set(result["capabilities"]) == {"tools", "resources", "prompts", "logging"}
    assert result["instructions"] == "{}"
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "modern-fixture"
    assert asker.result(request("server/discover", 2)) == result


def test_the_server_sees_nothing_of_the_envelope(asker: ModernClient, wire: Path) -> None:
    meta = envelope(**{"com.example/own": [1, None], "traceparent": "00-1-2-03"})
    more = {"inputResponses": {"x": {}}, "unknown": {"kept": None}}
    asker.result(call("seen", 1, meta, more, a={"b": None}))
    seen = next(line for line in received(wire, "tools/call") if line["params"]["name"] == "seen")["params"]
    token = seen["_meta"].pop("progressToken")
    assert isinstance(token, int)
    assert seen["_meta"] == {"com.example/own": [1, None], "traceparent": "00-1-2-03"}
    assert seen["arguments"] == {"a": {"b": None}}
    assert seen["unknown"] == {"kept": None}
    assert set(seen) == {"_meta", "name", "arguments", "unknown"}


def test_results_say_what_they_are(asker: ModernClient) -> None:
    result = asker.result(call("echo", text="x"))
    assert result["resultType"] == "complete"
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "modern-fixture"
    assert "ttlMs" not in result
    result = asker.result(call("meta"))
    assert result["resultType"] == "complete"
    assert result["_meta"]["own"] == 1
    assert PREFIX + "serverInfo" in result["_meta"]


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/read"])
def test_results_that_may_be_kept_say_for_how_long(asker: ModernClient, method: str) -> None:
    result = asker.result(request(method, **({"uri": "test://there"} if method == "resources/read" else {})))
    assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (0, "private", "complete")


def test_a_large_result_comes_whole(asker: ModernClient) -> None:
    result = asker.result(call("big", size=2_000_000))
    assert result["content"][0]["text"] == "y" * 2_000_000
    assert result["resultType"] == "complete"


def test_a_missing_resource_has_the_code_of_this_revision(asker: ModernClient) -> None:
    reply = asker.post(request("resources/read", 6, uri="test://nowhere"))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["message"]) == (-32602, "no such resource")
    assert error["data"] == {"uri": "test://nowhere"}


@pytest.mark.parametrize(("code", "status"), [(-32601, 404), (-32602, 400), (-32600, 400), (-32603, 200), (-1, 200)])
def test_other_errors_of_the_server_stay(asker: ModernClient, code: int, status: int) -> None:
    reply = asker.post(call("error", 6, code=code))
    assert reply.status_code == status
    assert reply.json() == {
        "jsonrpc": "2.0",
        "id": 6,
        "error": {"code": code, "message": "odd", "data": {"kept": [1, None]}},
    }


def test_progress_comes_with_the_clients_token(asker: ModernClient) -> None:
    with asker.streaming(call("progress", 1, envelope(progressToken="mine"), steps=3)) as stream:
        told = list(stream)
    assert [each["params"] for each in told[:3]] == [{"progressToken": "mine", "progress": step} for step in range(3)]
    assert told[3]["result"]["resultType"] == "complete"
    # Who has not asked for it gets none.
    assert asker.post(call("progress", steps=3)).headers["content-type"] == "application/json"


def test_log_messages_come_if_asked_for_from_that_level_on(asker: ModernClient, wire: Path) -> None:
    with asker.streaming(call("log", 1, envelope(**{PREFIX + "logLevel": "warning"}))) as stream:
        told = list(stream)
    assert [each["params"]["data"] for each in told[:-1]] == ["warning", "error"]
    assert received(wire, "logging/setLevel")[0]["params"] == {"level": "warning"}
    reply = asker.post(call("log", 1))
    assert reply.headers["content-type"] == "application/json"


def test_who_closes_the_stream_cancels_the_call(asker: ModernClient, wire: Path) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        asker.http.post(asker.path, json=call("hang"), headers={**BOTH, **headers_for(call("hang"))}, timeout=1)
    eventually(lambda: received(wire, "notifications/cancelled"), "the server is told")
    hanging = [line["id"] for line in received(wire, "tools/call") if line["params"]["name"] == "hang"]
    assert received(wire, "notifications/cancelled")[-1]["params"]["requestId"] == hanging[-1]


def test_clients_with_other_capabilities_get_a_process_of_their_own(asker: ModernClient) -> None:
    told = {
        name: json.loads(asker.result(request("server/discover", meta=envelope(declared)))["instructions"])
        for name, declared in {"none": {}, "all": ALL, "experimental": {"experimental": {"x": {}}}}.items()
    }
    assert told == {"none": {}, "all": ALL, "experimental": {"experimental": {"x": {}}}}
    pids = [asker.result(call("pid", meta=envelope(declared))) for declared in ({}, {}, ALL, ALL)]
    texts = [result["content"][0]["text"] for result in pids]
    assert texts[0] == texts[1] != texts[2]


def test_what_only_2025_11_25_had_is_not_there(asker: ModernClient) -> None:
    assert asker.post(request("tasks/list")).status_code == 404
