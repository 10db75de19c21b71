# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that die, hang, babble or are never used, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.bridge.bridge_harness import COMMAND, call, descendants, events, eventually, initialize, is_alive, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge


@pytest.mark.parametrize("session", [True, False])
def test_T12_4_a_server_that_dies_fails_its_calls_at_once_and_comes_back(
    alone: Callable[..., Bridge], tmp_path: Path, session: bool
) -> None:
    wire = tmp_path / "wire"
    client = alone("--server", f"wired={COMMAND} --wire {wire}").client("wired")
    if session:
        client.open()
    before = text_of(client.ask(call("pid")))
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.ask, call("hang", n)) for n in range(3)]
        eventually(lambda: wire.read_text().count('"hang"') == 3, "the calls arrive")
        answers = [client.ask(call("crash", "c")), *(each.result(20) for each in waiting)]
    assert [(each["id"], each["error"]["code"]) for each in answers] == [(n, -32603) for n in ("c", 0, 1, 2)]
    assert all("server wired" in each["error"]["message"] for each in answers)
    after = text_of(client.ask(call("pid")))
    assert after != before
    assert client.opened is None or client.post(initialize()).json()["result"] == client.opened["result"]


def test_a_server_killed_from_outside_is_there_again(alone: Callable[..., Bridge]) -> None:
    bridge = alone()
    client = bridge.client().open(capabilities={"roots": {"listChanged": True}})
    pid = int(text_of(client.ask(call("pid"))))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), "the server is dead")
    assert text_of(client.ask(call("echo", text="back"))) == "back"


def test_a_server_that_cannot_start_says_so(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", "none=/nonexistent/program", "--server", f"broken={COMMAND} --broken")
    for name, hint in (("none", "/nonexistent/program"), ("broken", "ended while it started")):
        for message in (initialize("i"), call("echo", "i", text="x")):
            reply = bridge.client(name).post(message)
            assert (reply.status_code, reply.json()["id"], reply.json()["error"]["code"]) == (502, "i", -32603)
            assert hint in reply.json()["error"]["message"]
    assert text_of(bridge.client().ask(call("echo", text="x"))) == "x"


def test_a_server_that_keeps_crashing_is_held_back(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"broken={COMMAND} --broken")
    client = bridge.client("broken")
    statuses = [client.post(initialize()).status_code for _ in range(6)]
    reply = client.post(initialize())
    assert statuses[:4] == [502] * 4
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, -32603)
    assert int(reply.headers["retry-after"]) > 0


def test_garbage_costs_only_itself(alone: Callable[..., Bridge]) -> None:
    bridge = alone()
    client = bridge.client().open()
    for number in range(20):
        assert text_of(client.ask(call("garbage", number, text=str(number)))) == str(number)
    assert 0 < bridge.said().count("is not JSON") < 20


@pytest.mark.parametrize("body", ['{"x":NaN}', '{"content":', '"\xff"', "{}{}"])
def test_an_answer_that_is_not_json_fails_its_call_at_once(bridge: Bridge, body: str) -> None:
    client = bridge.client().open()
    answer = client.ask(call("raw", "r", body=body))
    assert (answer["id"], answer["error"]["code"]) == ("r", -32603)
    assert text_of(client.ask(call("echo", text="alive"))) == "alive"


def test_half_a_surrogate_pair_is_passed_on(bridge: Bridge) -> None:
    reply = bridge.client().post(call("raw", "r", body='{"content":[{"type":"text","text":"cut \\ud83d"}]}'))
    assert text_of(json.loads(reply.content)) == "cut \ud83d"


def test_a_flood_is_bounded_and_the_answer_still_comes(bridge: Bridge) -> None:
    client = bridge.client().open()
    other = bridge.client()
    with ThreadPoolExecutor() as pool:
        flooded = pool.submit(client.post, call("flood", "f", lines=20_000))
        assert text_of(other.ask(call("echo", text="undisturbed"))) == "undisturbed"
        last = events(flooded.result(60).text)[-1]
    assert (last["id"], text_of(last)) == ("f", "flooded")


def test_an_oversized_line_costs_only_its_call(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--max-line", "100000")
    client = bridge.client().open()
    answer = client.ask(call("big", "b", size=5_000_000))
    assert (answer["id"], answer["error"]["code"]) == ("b", -32603)
    assert "max_line" in answer["error"]["message"]
    assert len(text_of(client.ask(call("big", size=90_000)))) == 90_000


# ---------------------------------------------------------------------------------------- time-outs


def test_T12_5_a_call_times_out_and_the_server_is_told(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    bridge = alone("--server", f"wired={COMMAND} --wire {wire}", "--call-timeout", "2")
    client = bridge.client("wired").open()
    before = text_of(client.ask(call("pid")))
    answer = client.ask(call("hang", "h"))
    assert answer == {
        "jsonrpc": "2.0",
        "id": "h",
        "error": {"code": -32000, "message": "Tool execution timeout after 2 s"},
    }
    eventually(lambda: "notifications/cancelled" in wire.read_text(), "the server is told")
    assert text_of(client.ask(call("pid"))) != before
    eventually(lambda: not is_alive(int(before)), "the server that hung is stopped")


def test_T12_5_a_call_that_drains_is_not_idleness(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    server = f"wired={COMMAND} --wire {wire}"
    client = alone("--server", server, "--call-timeout", "1", "--idle-timeout", "1").client("wired").open()
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(client.ask, call("progress", "p", steps=40, delay=0.1))
        eventually(lambda: '"progress"' in wire.read_text(), "the call arrives")
        assert client.ask(call("hang", "h"))["error"]["code"] == -32000
        assert text_of(busy.result(20)) == "done"


def test_a_server_that_drains_is_stopped_with_its_session(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    bridge = alone("--server", f"wired={COMMAND} --wire {wire}", "--call-timeout", "2")
    client = bridge.client("wired").open()
    before = int(text_of(client.ask(call("pid"))))
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(client.post, call("progress", "p", steps=600, delay=0.05))
        hung = pool.submit(client.ask, call("hang", "h"))
        eventually(lambda: '"hang"' in wire.read_text() and '"progress"' in wire.read_text(), "the calls arrive")
        client.ask(call("deaf"))
        assert hung.result(20)["error"]["code"] == -32000
        assert int(text_of(client.ask(call("pid")))) != before, "another process serves the session"
        assert is_alive(before), "it still answers a call"
        assert client.delete().status_code == 204
        assert busy.result(20).json()["error"]["code"] == -32603
    eventually(lambda: not is_alive(before), "nothing of the session is left")


def test_progress_keeps_a_call_alive(alone: Callable[..., Bridge]) -> None:
    client = alone("--call-timeout", "2").client().open()
    assert text_of(client.ask(call("progress", steps=8, delay=0.4))) == "done"


def test_a_question_to_the_user_stops_the_clock(alone: Callable[..., Bridge]) -> None:
    client = alone("--call-timeout", "1").client().open(capabilities={"elicitation": {}})
    late = threading.Event()
    with client.streaming(call("ask", method="elicitation/create")) as stream:
        question = next(stream)
        late.wait(2.5)
        client.post({"jsonrpc": "2.0", "id": question["id"], "result": "late"})
        assert "late" in text_of(next(stream))


def test_other_calls_of_a_server_that_timed_out_may_end(alone: Callable[..., Bridge]) -> None:
    client = alone("--call-timeout", "2").client().open()
    with ThreadPoolExecutor() as pool:
        other = pool.submit(client.ask, call("progress", steps=10, delay=0.4))
        assert client.ask(call("hang"))["error"]["code"] == -32000
        assert text_of(other.result(20)) == "done"


def test_an_unused_session_ends_with_its_server_but_never_during_a_call(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--idle-timeout", "1")
    client = bridge.client().open()
    assert text_of(client.ask(call("echo", text="slow", delay=2.5))) == "slow"
    with client.listen() as stream:
        assert list(stream) == []
    eventually(lambda: not descendants(bridge.pid), "the idle server is stopped")
    assert client.post(call("echo", text="x")).status_code == 404
    assert text_of(bridge.client().ask(call("echo", text="pool"))) == "pool"
    eventually(lambda: not descendants(bridge.pid), "the idle pool is stopped")
    assert text_of(bridge.client().ask(call("echo", text="again"))) == "again"


# ---------------------------------------------------------------------------------------- what is left


def test_200_dropped_sessions_leave_nothing(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--idle-timeout", "1", "--max-children", "200")
    http = bridge.http()
    http.get("/health")
    before = bridge.fds()

    def session(_number: int) -> int:
        return bridge_post(bridge, json.dumps(initialize()).encode())

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(session, range(200))) == {200}
    eventually(lambda: not descendants(bridge.pid), "all servers are stopped")
    eventually(lambda: bridge.fds() <= before, "all descriptors are closed")


def bridge_post(bridge: Bridge, body: bytes) -> int:
    """POST over a connection of its own, which is then cut."""
    address = urlsplit(bridge.url)
    head = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), 30) as client:
        client.sendall(head % len(body) + body)
        return int(client.recv(4096).split()[1])


def test_children_of_a_server_end_with_it(alone: Callable[..., Bridge]) -> None:
    bridge = alone()
    client = bridge.client().open()
    grandchild = int(text_of(client.ask(call("leave_child"))))
    client.ask(call("crash"))
    eventually(lambda: not is_alive(grandchild), "what the server left behind is killed")
    grandchild = int(text_of(client.ask(call("leave_child"))))
    client.delete()
    eventually(lambda: not is_alive(grandchild), "what the session's server started is killed")


def test_sigterm_ends_everything(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    bridge = alone("--server", f"wired={COMMAND} --wire {wire}")
    client = bridge.client("wired").open()
    pids = {int(text_of(client.ask(call("pid")))), int(text_of(bridge.client().ask(call("leave_child"))))}
    pids |= descendants(bridge.pid)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.ask, call("hang", "h"))
        eventually(lambda: '"hang"' in wire.read_text(), "the call arrives")
        assert bridge.stop() == 0
        answer = waiting.result(20)
    assert answer["error"]["code"] == -32603
    eventually(lambda: not any(map(is_alive, pids)), "all processes are gone")


def test_sessions_of_a_caller_are_limited(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--max-sessions", "3")
    clients = [bridge.client().open() for _ in range(3)]
    reply = bridge.client().post(initialize("x"))
    assert (reply.status_code, reply.json()["error"]["code"], reply.json()["id"]) == (429, -32005, "x")
    assert int(reply.headers["retry-after"]) > 0
    clients[0].delete()
    bridge.client().open()


def test_a_server_that_does_not_read_costs_only_its_callers(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--call-timeout", "2")
    client = bridge.client().open()
    client.ask(call("deaf"))
    large = call("echo", "l", text="x" * 3_000_000)
    assert client.ask(large)["error"]["code"] in {-32000, -32603}
    assert text_of(bridge.client().ask(call("echo", text="other"))) == "other"


def test_50_configured_servers_start_on_demand(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    program, *args = COMMAND.split()
    entry = {"command": program, "args": args, "env": {"FROM_FILE": "1"}, "cwd": str(tmp_path)}
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {f"n{number}": entry for number in range(50)}}))
    bridge = alone("--config", str(file))
    assert bridge.http().get("/health").status_code == 200
    assert not descendants(bridge.pid)
    pid = text_of(bridge.client("n49").ask(call("pid")))
    assert len(descendants(bridge.pid)) == 1
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)  # noqa: PTH115
