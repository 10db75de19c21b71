# SPDX-License-Identifier: LGPL-2.1-or-later
"""Resources that are what tools of other servers answer, called through the bridge."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from mcpd.errors import McpdError, NotAuthorized, ServiceUnavailable, TimedOut
from mcpd.servers.others import Others
from tests.unit.scripts.facility_parts import define, facility

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def test_another_server_is_called_with_the_query(tmp_path: Path) -> None:
    asked: list[object] = []

    async def other(server: str, tool: str, arguments: dict[str, Any], hops: int) -> dict[str, Any]:
        asked.append((server, tool, arguments, hops))
        return {"content": [{"type": "text", "text": "from far"}]}

    resources = {"far": {"uri": "server://com.example.far/look?at=x&at=y"}, "self": {"uri": "server://far"}}
    served = facility(define(tmp_path, resources=resources), other=other)
    for uri in ("server://com.example.far/look?at=x&at=y", "server://far"):
        (content,) = (await served.read_resource(uri, 3))["contents"]
        assert content == {"uri": uri, "mimeType": "text/plain", "text": "from far"}
    assert asked == [("com.example.far", "look", {"at": "y"}, 3), ("far", "far", {}, 3)]


async def test_without_the_permission_the_error_says_which_to_grant() -> None:
    with pytest.raises(NotAuthorized, match=r"permission mcp:far"):
        await Others("thing", 5, {})("far", "look", {}, 0)


async def test_a_bridge_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    environ = {"MCPD_SOCKET": str(tmp_path / "none.sock"), "MCPD_SOCKET_TOKEN": "token"}
    with pytest.raises(ServiceUnavailable, match="far"):
        await Others("thing", 5, environ)("far", "look", {}, 0)


def answering(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, kind: str) -> list[httpx2.Request]:
    """A bridge that always answers like that, and the requests that it gets."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", lambda **_: httpx2.MockTransport(answer))
    return seen


ENVIRON = {"MCPD_SOCKET": "/run/x.sock", "MCPD_SOCKET_TOKEN": "sesame"}


def response(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()


async def test_another_server_is_called_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = answering(monkeypatch, 200, response(result={"content": []}), "application/json")
    assert await Others("thing", 5, ENVIRON)("far", "look – at", {"a": 1}, 2) == {"content": []}
    (request,) = seen
    assert (request.method, request.url.path) == ("POST", "/mcp/far")
    assert request.headers["authorization"] == "Bearer sesame"
    assert request.headers["mcp-protocol-version"] == "2026-07-28"
    assert request.headers["mcp-name"] == f"=?base64?{base64.b64encode('look – at'.encode()).decode()}?="
    params = json.loads(request.content)["params"]
    assert (params["name"], params["arguments"]) == ("look – at", {"a": 1})
    assert params["_meta"]["org.mcpd/hops"] == 2


async def test_an_answer_may_come_as_events(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}).encode()
    body = b": hello\n\ndata: " + progress + b"\n\ndata: " + response(result={"content": [1]}) + b"\n\n"
    # What has several lines is several lines of data.
    split = body.replace(b'"result": ', b'"result":\ndata: ')
    assert split != body
    for sent in (body, split):
        answering(monkeypatch, 200, sent, "text/event-stream")
        assert await Others("thing", 5, ENVIRON)("far", "look", {}, 0) == {"content": [1]}


@pytest.mark.parametrize(("kind", "before"), [("application/json", b""), ("text/event-stream", b"data: ")])
async def test_an_answer_without_measure_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str, before: bytes) -> None:
    monkeypatch.setattr("mcpd.servers.others.MOST", 50)
    answering(monkeypatch, 200, before + response(result={"content": ["x" * 50]}) + b"\n\n", kind)
    with pytest.raises(McpdError, match="the answer has more than"):
        await Others("thing", 5, ENVIRON)("far", "look", {}, 0)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (403, response(error={"code": -32603, "message": "needs the permission mcp:far"}), "permission mcp:far"),
        (200, response(result={"isError": True, "content": [{"type": "text", "text": "no luck"}]}), "no luck"),
        (200, response(result={"resultType": "input_required"}), "asks"),
        (200, response(), "none"),
        (502, b"<html>", "HTTP 502"),
        (200, b"[]", "no answer"),
        (200, b"[" * 100_000, "HTTP 200"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, says: str
) -> None:
    answering(monkeypatch, status, body, "application/json")
    with pytest.raises(McpdError, match=says):
        await Others("thing", 5, ENVIRON)("far", "look", {}, 0)


async def test_a_bridge_that_never_ends_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield b": still there\n\n"

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Endless(), headers={"content-type": "text/event-stream"})

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", lambda **_: httpx2.MockTransport(answer))
    with pytest.raises(TimedOut, match=r"did not answer within 0\.2 s"):
        await Others("thing", 0.2, ENVIRON)("far", "look", {}, 0)
