# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sessions that share processes (``runtime.sharing``): each gets its own answers, and only those."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import call, descendants, events, eventually, initialize, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bridge.bridge_harness import Bridge, Client

SERVER = f"{sys.executable} {Path(__file__).parent / 'fixtures' / 'pool_server.py'}"
ASKING: dict[str, Any] = {"elicitation": {}}


def request(method: str, identity: object = 1, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


@pytest.fixture
def shared(start_bridge: Callable[..., Bridge]) -> Callable[..., Bridge]:
    """Start a bridge whose sessions share processes; *flags* are the server's."""

    def start(*arguments: str, flags: str = "") -> Bridge:
        server = f"p={SERVER} {flags}"
        common = ("--listen", "127.0.0.1:0", "--auth", "none", "--sharing", "caller")
        return start_bridge(*common, "--server", server, *arguments)

    return start


def opened(bridge: Bridge, count: int = 1, capabilities: object = None) -> list[Client]:
    return [bridge.client("p").open(capabilities=capabilities) for _ in range(count)]


def pid(client: Client) -> int:
    return int(text_of(client.ask(call("pid"))))


def test_sessions_share_a_process_and_keep_their_equal_ids_apart(shared: Callable[..., Bridge], tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    bridge = shared(flags=f"--starts {starts}")
    clients = opened(bridge, 4)
    assert len({client.headers["Mcp-Session-Id"] for client in clients}) == 4
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(client.ask, call("meet", 7, room="r", count=4, text=f"answer {number}"))
            for number, client in enumerate(clients)
        ]
        answers = [each.result() for each in calls]
    assert [text_of(answer) for answer in answers] == [f"answer {number}" for number in range(4)]
    assert {answer["id"] for answer in answers} == {7}
    assert len(starts.read_text().split()) == 1


def test_other_capabilities_or_revisions_make_another_process(shared: Callable[..., Bridge]) -> None:
    bridge = shared()
    plain, same = opened(bridge, 2)
    asking = bridge.client("p").open(capabilities={"elicitation": {}, "roots": {"listChanged": True}})
    alike = bridge.client("p").open(capabilities={"roots": {}, "elicitation": {"form": {}}})
    older = bridge.client("p").open(version="2025-03-26")
    assert pid(plain) == pid(same)
    assert pid(asking) == pid(alike)
    assert len({pid(plain), pid(asking), pid(older)}) == 3
    assert json.loads(asking.opened["result"]["instructions"]) == [{"elicitation": {}, "roots": {}}, "mcpd-bridge"]
    assert older.opened["result"]["protocolVersion"] == "2025-03-26"


def test_a_cancelled_call_is_the_sessions_own(shared: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    first, second = opened(shared(flags=f"--wire {wire}"), 2)
    cancellation = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}}
    found: list[Any] = []
    hanging = [
        threading.Thread(target=lambda client=client: found.append((client, client.post(call("hang", "h")))))
        for client in (first, second)
    ]
    for thread in hanging:
        thread.start()
    eventually(lambda: wire.read_text().count('"hang"') == 2, "both hang")
    assert first.post(cancellation).status_code == 202
    hanging[0].join(20)
    second.ask(call("echo", text="in between"))
    assert [client for client, _ in found] == [first]
    assert second.post(cancellation).status_code == 202
    hanging[1].join(20)
    assert len(found) == 2


def test_a_server_that_ignores_the_case_of_names_confuses_no_clients(
    shared: Callable[..., Bridge], tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    bridge = shared(flags=f"--lenient --wire {wire}")
    first, second = opened(bridge, 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.ask, call("meet", 1, room="r", count=2, text="own"))
        eventually(lambda: '"meet"' in wire.read_text(), "the first call is there")
        (own,) = (json.loads(line)["id"] for line in wire.read_text().splitlines() if '"meet"' in line)
        forged = {**call("echo", 2, text="forged"), "ID": own}
        cancellation = {"requestId": 2, "RequestID": own}
        for message in (forged, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancellation}):
            assert second.ask(message)["error"]["code"] == -32600
        assert text_of(second.ask(call("meet", 3, room="r", count=2, text="other"))) == "other"
        assert text_of(waiting.result()) == "own"
    assert "forged" not in wire.read_text()


def test_a_session_that_ends_in_mid_call_gets_an_error_and_others_nothing(
    shared: Callable[..., Bridge], tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    first, second = opened(shared(flags=f"--wire {wire}"), 2)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(first.ask(call("hang", "h"))))
    thread.start()
    before = pid(second)
    eventually(lambda: '"hang"' in wire.read_text(), "the call arrives")
    assert first.delete().status_code == 204
    thread.join(20)
    assert found[0]["id"] == "h"
    assert "error" in found[0]
    assert pid(second) == before
    assert first.post(call("pid")).status_code == 404


def test_questions_go_to_the_client_in_whose_call_they_are_asked(shared: Callable[..., Bridge]) -> None:
    clients = opened(shared(), 2, ASKING)
    messages = [call("ask", 1, method="elicitation/create", text=f"of {number}") for number in range(2)]
    with clients[0].streaming(messages[0]) as first, clients[1].streaming(messages[1]) as second:
        questions = [next(first), next(second)]
        assert [question["params"]["message"] for question in questions] == ["of 0", "of 1"]
        for number in (1, 0):
            answer = {"jsonrpc": "2.0", "id": questions[number]["id"], "result": f"by {number}"}
            assert clients[number].post(answer).status_code == 202
        answers = [json.loads(text_of(next(stream))) for stream in (first, second)]
    assert [said for _, said in answers] == ["by 0", "by 1"]
    assert answers[0][0] != answers[1][0], "a process that may ask carries one call at a time"


def test_a_client_cannot_answer_what_another_was_asked(shared: Callable[..., Bridge]) -> None:
    asker, other = opened(shared(), 2, ASKING)
    with asker.streaming(call("ask", method="elicitation/create")) as stream:
        question = next(stream)
        for client, said in ((other, "forged"), (asker, "mine")):
            assert client.post({"jsonrpc": "2.0", "id": question["id"], "result": said}).status_code == 202
        assert json.loads(text_of(next(stream)))[1] == "mine"


def test_what_no_call_asked_for_is_refused(shared: Callable[..., Bridge]) -> None:
    (client,) = opened(shared())
    assert json.loads(text_of(client.ask(call("ask", method="roots/list"))))[1]["code"] == -32601


def test_changes_are_heard_by_all_and_updates_by_those_who_subscribed(
    shared: Callable[..., Bridge], tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    first, second, third = opened(shared(flags=f"--wire {wire}"), 3)

    def sent(method: str) -> int:
        return wire.read_text().count(f'"{method}"')

    for client in (first, second):
        for _ in range(2):
            assert client.ask(request("resources/subscribe", uri="file:///x"))["result"] == {}
    assert sent("resources/subscribe") == 1
    with first.listen() as one, second.listen() as two, third.listen() as three:
        third.ask(call("update", uri="file:///x"))
        third.ask(call("grow", name="new"))
        assert [next(one)["method"], next(two)["method"]] == ["notifications/resources/updated"] * 2
        heard = [next(stream)["method"] for stream in (one, two, three)]
        assert heard == ["notifications/tools/list_changed"] * 3
    assert first.ask(request("resources/unsubscribe", uri="file:///x"))["result"] == {}
    assert sent("resources/unsubscribe") == 0
    second.delete()
    eventually(lambda: sent("resources/unsubscribe") == 1, "the last subscription ends with its session")
    assert text_of(third.ask(call("update", uri="file:///x"))) == "[]"


def test_an_error_of_a_subscription_is_the_servers_own(shared: Callable[..., Bridge]) -> None:
    (client,) = opened(shared())
    answer = client.ask(request("resources/subscribe", "s", uri="bad:"))
    assert answer["id"] == "s"
    assert answer["error"] == {"code": -32601, "message": "no resources/subscribe", "data": {"kept": 1}}
    assert client.ask(request("resources/subscribe", uri=[]))["error"]["code"] == -32602


def test_each_session_hears_the_log_from_its_own_level_on(shared: Callable[..., Bridge]) -> None:
    quiet, loud, unasked = opened(shared(), 3)
    assert quiet.ask(request("logging/setLevel", level="error"))["result"] == {}
    assert loud.ask(request("logging/setLevel", level="debug"))["result"] == {}
    assert text_of(quiet.ask(call("level"))) == "debug", "the most verbose wins"

    def heard(client: Client, level: str) -> list[str]:
        reply = client.post(call("log", level=level, text="t"))
        if reply.headers["content-type"] == "application/json":
            return []
        return [message["params"]["level"] for message in events(reply.text) if "method" in message]

    assert [heard(quiet, "warning"), heard(quiet, "error")] == [[], ["error"]]
    assert [heard(loud, "debug")] == [["debug"]]
    assert [heard(unasked, "debug"), heard(unasked, "info")] == [[], ["info"]]
    assert quiet.ask(request("logging/setLevel", level="shouting"))["error"]["code"] == -32602
    loud.delete()
    eventually(lambda: text_of(quiet.ask(call("level"))) == "error", "the level falls with who asked for it")


def test_a_shared_process_that_died_is_there_again_and_told_what_the_one_before_knew(
    shared: Callable[..., Bridge], tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    first, second = opened(shared(flags=f"--wire {wire}"), 2)
    first.ask(request("resources/subscribe", uri="file:///x"))
    first.ask(request("logging/setLevel", level="debug"))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(first.ask(call("hang"))))
    thread.start()
    before = pid(second)
    eventually(lambda: '"hang"' in wire.read_text(), "the call arrives")
    assert "error" in second.ask(call("crash"))
    thread.join(20)
    assert "ended before it answered" in found[0]["error"]["message"]
    assert pid(second) != before
    assert text_of(second.ask(call("update", uri="file:///y"))) == '["file:///x"]'
    assert text_of(second.ask(call("level"))) == "debug"


def test_initialize_needs_no_process_where_its_answer_is_known(shared: Callable[..., Bridge], tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    bridge = shared("--idle-timeout", "0.5", flags=f"--starts {starts}")
    first = bridge.client("p").open()
    first.ask(call("pid"))
    with first.listen():
        eventually(lambda: not descendants(bridge.pid), "the unused process ends, not the session that listens")
        second = bridge.client("p").open()
        assert second.opened == first.opened
        assert len(starts.read_text().split()) == 1
        assert {pid(first), pid(second)} == {int(starts.read_text().split()[1])}


def test_600_dropped_sessions_leave_nothing(shared: Callable[..., Bridge], tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    bridge = shared("--idle-timeout", "10", flags=f"--starts {starts}")
    http = bridge.http()
    body = json.dumps(initialize()).encode()
    headers = {"Content-Type": "application/json"}
    before = bridge.fds()

    def open_session(_number: int) -> int:
        return http.post("/mcp/p", content=body, headers=headers).status_code

    def open_sessions() -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("mcpd_bridge_sessions{"))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(open_session, range(600))) == {200}
    assert len(starts.read_text().split()) == 1
    assert open_sessions() > 256, "the limit on sessions with a process does not count them"
    eventually(lambda: not open_sessions(), "they expire")
    eventually(lambda: not descendants(bridge.pid), "and so does their process")
    http.close()
    eventually(lambda: bridge.fds() <= before, "nothing is left open")


def test_a_session_without_process_expires_and_one_that_is_used_does_not(shared: Callable[..., Bridge]) -> None:
    bridge = shared("--idle-timeout", "1.5")
    used, unused = opened(bridge, 2)
    for _ in range(6):
        assert text_of(used.ask(call("echo", text="still here", delay=0.4)))
    assert unused.post(call("pid")).status_code == 404
    assert pid(used)


def test_a_long_call_keeps_its_session(shared: Callable[..., Bridge]) -> None:
    (client,) = opened(shared("--idle-timeout", "0.5"))
    assert text_of(client.ask(call("echo", text="late", delay=1.5))) == "late"
    assert pid(client)


def test_a_session_whose_process_cannot_start_again_says_when_to_come_back(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--max-children", "1")
    first = bridge.client().open()
    assert "error" in first.ask(call("crash"))
    second = bridge.client()
    eventually(lambda: second.post(initialize()).status_code == 200, "the place of the dead process is free")
    reply = first.post(call("pid"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, -32005)
    assert int(reply.headers["retry-after"]) > 0
