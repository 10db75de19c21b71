# SPDX-License-Identifier: LGPL-2.1-or-later
"""What servers say by themselves: progress, log messages, changes, and requests that a client has to answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import COMMAND, call, descendants, events, eventually, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge, Client


def answer(client: Client, question: dict[str, Any], result: object) -> int:
    return client.post({"jsonrpc": "2.0", "id": question["id"], "result": result}).status_code


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
def test_a_servers_question_comes_on_the_calls_stream_and_its_answer_goes_back(bridge: Bridge, method: str) -> None:
    client = bridge.client().open(capabilities={"sampling": {}, "elicitation": {}, "roots": {}})
    with client.streaming(call("ask", "c", method=method, params={"x": [1, None]})) as stream:
        question = next(stream)
        assert (question["method"], question["params"]) == (method, {"x": [1, None]})
        assert answer(client, question, {"given": method}) == 202
        last = next(stream)
    assert last["id"] == "c"
    assert text_of(last) == f'{{"result": {{"given": "{method}"}}}}'


def test_questions_of_two_sessions_do_not_meet(bridge: Bridge) -> None:
    clients = [bridge.client().open(capabilities={"elicitation": {}}) for _ in range(2)]
    message = call("ask", 1, method="elicitation/create")
    with clients[0].streaming(message) as first, clients[1].streaming(message) as second:
        questions = [next(first), next(second)]
        assert answer(clients[1], questions[1], "second") == 202
        assert answer(clients[0], questions[0], "first") == 202
        assert ["first" in text_of(next(first)), "second" in text_of(next(second))] == [True, True]


def test_a_client_cannot_answer_for_another_session(bridge: Bridge) -> None:
    asker, other = (bridge.client().open(capabilities={"elicitation": {}}) for _ in range(2))
    with asker.streaming(call("ask", method="elicitation/create")) as stream:
        question = next(stream)
        assert answer(other, question, "forged") == 202
        assert answer(asker, question, "mine") == 202
        assert "mine" in text_of(next(stream))


def test_a_refused_question_is_an_error_for_the_server(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities={"elicitation": {}})
    with client.streaming(call("ask", method="elicitation/create")) as stream:
        refusal = {"jsonrpc": "2.0", "id": next(stream)["id"], "error": {"code": -1, "message": "no"}}
        assert client.post(refusal).status_code == 202
        assert text_of(next(stream)) == '{"error": {"code": -1, "message": "no"}}'


def test_a_question_reaches_the_sessions_stream_if_the_call_has_none(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities={"roots": {}})
    found: list[Any] = []
    with client.listen() as stream:
        caller = threading.Thread(
            target=lambda: found.append(client.ask(call("ask", method="roots/list"), Accept="application/json"))
        )
        caller.start()
        assert answer(client, next(stream), {"roots": []}) == 202
        caller.join(20)
    assert text_of(found[0]) == '{"result": {"roots": []}}'


def test_a_withdrawn_question_is_withdrawn_under_the_id_the_client_knows(bridge: Bridge) -> None:
    client = bridge.client().open(capabilities={"elicitation": {}})
    question, withdrawal, last = events(client.post(call("ask_and_withdraw")).text)
    assert withdrawal["method"] == "notifications/cancelled"
    assert withdrawal["params"]["requestId"] == question["id"]
    assert text_of(last) == "withdrawn"


def test_the_pool_declares_nothing_and_answers_for_itself(bridge: Bridge) -> None:
    client = bridge.client()
    assert '"code": -32601' in text_of(client.ask(call("ask", method="sampling/createMessage")))
    assert text_of(client.ask(call("ask", method="ping"))) == '{"result": {}}'


def test_a_server_that_pings_is_answered(bridge: Bridge) -> None:
    assert text_of(bridge.client().open().ask(call("ask", method="ping"))) == '{"result": {}}'


# ---------------------------------------------------------------------------------------- progress and streams


def test_progress_comes_before_the_answer_under_the_clients_token(bridge: Bridge) -> None:
    reply = bridge.client().open().post(call("progress", "p", {"progressToken": "mine", "kept": 1}, steps=3))
    assert reply.headers["content-type"] == "text/event-stream"
    *progress, last = events(reply.text)
    assert [(each["params"]["progressToken"], each["params"]["progress"]) for each in progress] == [
        ("mine", 0),
        ("mine", 1),
        ("mine", 2),
    ]
    assert (last["id"], text_of(last)) == ("p", "done")


@pytest.mark.parametrize("meta", [None, {}, {"progressToken": None}, {"other": 1}])
def test_progress_is_for_those_who_asked(bridge: Bridge, meta: object) -> None:
    reply = bridge.client().open().post(call("progress", 1, meta, steps=3))
    assert reply.headers["content-type"] == "application/json"
    assert text_of(reply.json()) == "done"


def test_the_server_sees_a_token_and_an_id_of_the_bridge(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    import json

    wire = tmp_path / "wire"
    client = alone("--server", f"wired={COMMAND} --wire {wire}").client("wired").open()
    secret = "chosen-by-the-client"
    client.ask(call("echo", secret, {"progressToken": secret, "x": 1}, text="x"))
    seen = [json.loads(line) for line in wire.read_text().splitlines()]
    assert secret not in wire.read_text()
    assert seen[-1]["params"]["_meta"] == {"progressToken": seen[-1]["id"], "x": 1}


def test_log_messages_of_a_call_come_on_its_stream(bridge: Bridge) -> None:
    first, last = events(bridge.client().open().post(call("log", text="hello")).text)
    assert (first["method"], first["params"]["data"]) == ("notifications/message", "hello")
    assert text_of(last) == "logged"


def test_changes_come_on_the_sessions_stream(bridge: Bridge) -> None:
    client = bridge.client().open()
    with client.listen() as stream:
        reply = client.post(call("change"))
        assert reply.headers["content-type"] == "application/json"
        assert next(stream)["method"] == "notifications/tools/list_changed"


def test_what_came_before_the_stream_is_kept_for_it(bridge: Bridge) -> None:
    client = bridge.client().open()
    client.post(call("change"), Accept="application/json")
    with client.listen() as stream:
        assert next(stream)["method"] == "notifications/tools/list_changed"


def test_a_new_stream_replaces_the_old_one(bridge: Bridge) -> None:
    client = bridge.client().open()
    with client.listen() as old, client.listen() as new:
        assert list(old) == []
        client.post(call("change"))
        assert next(new)["method"] == "notifications/tools/list_changed"


def test_get_without_event_stream_is_406(bridge: Bridge) -> None:
    client = bridge.client().open()
    assert client.http.get("/mcp/s", headers={**client.headers, "Accept": "application/json"}).status_code == 406


# ---------------------------------------------------------------------------------------- cancellation


def cancel(client: Client, identity: object) -> None:
    params = {"requestId": identity, "reason": "changed my mind"}
    assert client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).status_code == 202


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json"])
def test_a_cancelled_call_ends_and_the_server_is_told(
    alone: Callable[..., Bridge], tmp_path: Path, accept: str
) -> None:
    wire = tmp_path / "wire"
    client = alone("--server", f"wired={COMMAND} --wire {wire}").client("wired").open()
    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.append(client.post(call("hang", "h"), Accept=accept)))
    caller.start()
    eventually(lambda: '"hang"' in wire.read_text(), "the call arrives")
    cancel(client, "h")
    caller.join(20)
    assert found[0].status_code == 200
    if accept == "application/json":
        assert found[0].json()["error"]["code"] == -32603
    else:
        assert events(found[0].text) == []
    eventually(lambda: "changed my mind" in wire.read_text(), "the server is told")
    assert '"requestId":"h"' not in wire.read_text()
    assert text_of(client.ask(call("echo", text="alive"))) == "alive"


def test_cancelling_under_a_shared_id_ends_nobody_elses_call(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    client = alone("--server", f"wired={COMMAND} --wire {wire}").client("wired").open()
    found: list[Any] = []
    callers = [
        threading.Thread(target=lambda n=n: found.append(client.ask(call("meet", 1, room="c", count=3, text=str(n)))))
        for n in range(2)
    ]
    for caller in callers:
        caller.start()
    eventually(lambda: wire.read_text().count('"meet"') == 2, "the calls arrive")
    cancel(client, 1)
    client.ask(call("meet", 2, room="c", count=3, text="last"))
    for caller in callers:
        caller.join(20)
    assert sorted(map(text_of, found)) == ["0", "1"]


def test_a_call_without_a_session_ends_when_its_client_leaves(alone: Callable[..., Bridge], tmp_path: Path) -> None:
    import socket
    from urllib.parse import urlsplit

    wire = tmp_path / "wire"
    bridge = alone("--server", f"wired={COMMAND} --wire {wire}")
    address = urlsplit(bridge.url)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}'
    head = (
        b"POST /mcp/wired HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head % len(body) + body)
        eventually(lambda: wire.exists() and '"hang"' in wire.read_text(), "the call arrives")
    eventually(lambda: "notifications/cancelled" in wire.read_text(), "the server is told")
    assert len(descendants(bridge.pid)) == 1
