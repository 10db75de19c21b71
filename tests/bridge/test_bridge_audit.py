# SPDX-License-Identifier: LGPL-2.1-or-later
"""The audit trail: every call of a tool leaves a record, and none waits for it."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.bridge.bridge_harness import FIXTURE, Bridge, call, eventually, records, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def recorded(path: Path, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(records(path)) >= count, f"{count} calls are recorded")
    return records(path)


# ---------------------------------------------------------------------------------------- a bridge that records


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@pytest.fixture
def audited(alone: Callable[..., Bridge], trail: Path) -> Bridge:
    return alone("--audit", str(trail), "--call-timeout", "2")


def test_every_call_of_a_tool_is_recorded(audited: Bridge, trail: Path) -> None:
    client = audited.client().open()
    before = time.time()
    body = b'{"jsonrpc":"2.0","id":"a-1","method":"tools/call","params":{"name":"echo","arguments":{ "text": "hi" }}}'
    answer = client.post(body, X_Request_Id="from-the-client")
    client.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    (record,) = recorded(trail, 1)
    assert record["server"] == "s"
    assert record["tool"] == "echo"
    assert record["uid"] == os.getuid()
    assert record["outcome"] == "result"
    # The digest is that of the bytes as they were sent.
    assert record["arguments_sha256"] == sha256(b'{ "text": "hi" }').hexdigest()
    assert record["arguments_size"] == 16
    assert record["response_size"] == len(answer.content)
    assert record["id"] == '"a-1"'
    assert record["request"] == answer.headers["x-request-id"] == "from-the-client"
    assert 0 < record["seconds"] < 2
    assert record["time"].endswith("Z")
    assert abs(time.mktime(time.strptime(record["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone - before) < 60
    assert "via" not in record
    assert "hi" not in trail.read_text()
    assert stat.S_IMODE(trail.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("tool", "outcome"),
    [("echo", "result"), ("no such tool", "tool-error"), ("error", "error"), ("crash", "broken"), ("hang", "timeout")],
)
def test_a_record_says_how_the_call_ended(audited: Bridge, trail: Path, tool: str, outcome: str) -> None:
    audited.client().open().ask(call(tool))
    (record,) = recorded(trail, 1)
    assert (record["tool"], record["outcome"]) == (tool, outcome)


def test_a_call_whose_client_goes_away_is_recorded(audited: Bridge, trail: Path) -> None:
    client = audited.client()
    with pytest.raises(httpx2.ReadTimeout):
        client.http.post(client.path, json=call("hang"), headers=client.headers, timeout=0.5)
    (record,) = recorded(trail, 1)
    assert record["outcome"] in {"cancelled", "timeout"}


def test_a_call_that_no_server_sees_is_recorded(alone: Callable[..., Bridge], trail: Path) -> None:
    bridge = alone("--server", f"b={sys.executable} {FIXTURE} --broken", "--audit", str(trail))
    reply = bridge.client("b").post(call("echo", text="x"))
    assert reply.status_code >= 500
    (record,) = recorded(trail, 1)
    assert record["outcome"].startswith("refused:")
    assert record["tool"] == "echo"
    assert record["arguments_sha256"] == sha256(b'{"text": "x"}').hexdigest()
    assert record["request"] == reply.headers["x-request-id"]


def test_a_limited_call_is_recorded(alone: Callable[..., Bridge], trail: Path) -> None:
    client = alone("--audit", str(trail), "--rate", "0.01", "--burst", "1").client()
    assert [client.post(call("echo", text=text)).status_code for text in "ab"] == [200, 429]
    assert [record["outcome"] for record in recorded(trail, 2)] == ["result", "refused:rate"]


def test_a_call_to_what_is_no_server_is_recorded(audited: Bridge, trail: Path) -> None:
    assert audited.client("nothing").post(call("echo")).status_code == 404
    (record,) = recorded(trail, 1)
    assert (record["server"], record["tool"], record["outcome"]) == ("nothing", "echo", "refused:NotFound")


MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def modern(**more: Any) -> dict[str, Any]:
    """A call of ``echo`` of revision 2026-07-28, with *more* in its parameters."""
    params = {"_meta": META, "name": "echo", "arguments": {"text": "x"}, **more}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"Mcp-Session-Id": "gone"}, call("echo"), "NotFound"),
        ({"MCP-Protocol-Version": "1999-01-01"}, call("echo"), "UnsupportedRevision"),
        ({"MCP-Protocol-Version": "2025-11-25"}, [call("echo")], "InvalidRequest"),
        ({"MCP-Protocol-Version": MODERN}, [call("echo")], "InvalidRequest"),
        ({"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list", "Mcp-Name": "echo"}, modern(), "HeaderMismatch"),
        ({"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}, call("echo"), "InvalidArgs"),
        (
            {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"},
            modern(requestState="made-up"),
            "InvalidArgs",
        ),
    ],
    ids=["session", "revision", "batch", "modern batch", "header", "meta", "state"],
)
def test_a_call_that_is_refused_for_its_form_is_recorded_once(
    audited: Bridge, trail: Path, headers: dict[str, str], body: Any, reason: str
) -> None:
    client = audited.client()
    assert client.http.post(client.path, json=body, headers={**client.headers, **headers}).status_code >= 400
    assert audited.stop() == 0
    assert [(line["server"], line["tool"], line["outcome"]) for line in records(trail)] == [
        ("s", "echo", f"refused:{reason}")
    ]


def test_every_call_of_a_batch_that_came_too_fast_is_recorded(alone: Callable[..., Bridge], trail: Path) -> None:
    bridge = alone("--audit", str(trail), "--rate", "0.01", "--burst", "1")
    client = bridge.client()
    headers = {**client.headers, "MCP-Protocol-Version": "2025-03-26"}
    batch = [{**call("echo", text=str(number)), "id": number} for number in range(101)]
    assert client.post(call("echo")).status_code == 200
    assert client.http.post(client.path, json=batch, headers=headers).status_code == 429
    assert bridge.stop() == 0
    assert [line["outcome"] for line in records(trail)] == ["result", *["refused:rate"] * 100]


def test_large_arguments_are_digested_as_a_whole(audited: Bridge, trail: Path) -> None:
    text = "x" * 1_000_000
    answer = audited.client().open().ask(call("echo", text=text))
    assert text_of(answer) == text
    (record,) = recorded(trail, 1)
    assert record["arguments_sha256"] == sha256(json.dumps({"text": text}).encode()).hexdigest()


def test_what_was_recorded_last_is_there_when_the_bridge_has_ended(audited: Bridge, trail: Path) -> None:
    client = audited.client().open()
    for _ in range(40):
        client.ask(call("echo"))
    assert audited.stop() == 0
    assert len(records(trail)) == 40


def test_a_record_is_one_line_whatever_the_tool_is_called(audited: Bridge, trail: Path) -> None:
    name = 'x"\n{"outcome":"result"}\r\u2028' + "y" * 5000
    audited.client().open().ask(call(name))
    (record,) = recorded(trail, 1)
    assert record["tool"] == name[:128]


def test_a_bridge_on_its_own_records_nothing_unless_asked(alone: Callable[..., Bridge]) -> None:
    bridge = alone()
    bridge.client().open().ask(call("echo"))
    bridge.stop()
    assert "tools" not in bridge.said()
    assert "echo" not in bridge.said()


def test_a_file_that_cannot_be_written_stops_the_start(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    bridge = alone("--audit", str(tmp_path / "no-directory" / "file"))
    bridge.process.wait(20)
    assert bridge.process.returncode != 0
    assert "no-directory/file" in bridge.said()
    assert "audit" in bridge.said()


def test_sighup_lets_the_file_be_rotated(tmp_path: Path) -> None:
    from tests.bridge.test_bridge_service import BRIDGE, Program

    for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
    path = tmp_path / "calls"
    program = Program(tmp_path, BRIDGE, MCPD_BRIDGE_AUDIT=str(path))
    try:
        program.hear("READY=1")
        path.rename(tmp_path / "calls.1")
        program.process.send_signal(signal.SIGHUP)
        program.hear("READY=1")
        eventually(path.exists, "the file is there again")
    finally:
        program.end()
        program.manager.close()
