# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server of the handshake era asks in the course of a call, and a client of 2026-07-28 answers by coming back."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.bridge_harness import BOTH, bridges, eventually, is_alive
from tests.bridge.modern_client import (
    ALL,
    FORMS,
    PREFIX,
    ModernClient,
    call,
    client,
    command,
    envelope,
    headers_for,
    request,
)
from tests.bridge.test_bridge_service import SHARED, Program, ask_as, needs_root, start  # noqa: F401 -- fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bridge.bridge_harness import Bridge

FORM = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {"answer": {"type": "integer"}}}}
ANSWER = {"action": "accept", "content": {"answer": 42}}


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    servers = ("--server", f"s={command('handshake')}", "--server", f"t={command('handshake')}")
    with bridges(tmp_path_factory) as run:
        yield run("--listen", "127.0.0.1:0", "--auth", "none", *servers)


@pytest.fixture
def asker(bridge: Bridge) -> ModernClient:
    return client(bridge)


def asking(identity: object = 1, more: Any = None, capabilities: Any = None, **arguments: Any) -> dict[str, Any]:
    arguments = arguments or {"method": "elicitation/create"}
    return call("ask", identity, envelope(FORMS if capabilities is None else capabilities), more, **arguments)


def answers_to(result: Any, *values: Any) -> dict[str, Any]:
    """The parameters with which to come back after the input_required *result*."""
    keys = result["inputRequests"]
    return {"requestState": result["requestState"], "inputResponses": dict(zip(keys, values, strict=False))}


def text(result: Any) -> Any:
    return json.loads(result["content"][0]["text"])


def refused(asker: ModernClient, message: Any) -> str:
    reply = asker.post(message)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, -32602), reply.text
    assert "requestState" in error["message"]
    return str(error["message"])


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("elicitation/create", {"mode": "form", **FORM}, ANSWER),
        ("elicitation/create", {"mode": "url", "message": "open", "url": "https://example.org/"}, {"action": "accept"}),
        (
            "sampling/createMessage",
            {"messages": [], "maxTokens": 1},
            {"role": "assistant", "model": "m", "content": {}},
        ),
        ("sampling/createMessage", {"messages": [], "maxTokens": 1, "tools": []}, {"role": "assistant"}),
        ("roots/list", {}, {"roots": [{"uri": "file:///x"}]}),
    ],
)
def test_a_question_goes_to_the_client_and_its_answer_back(
    asker: ModernClient, method: str, params: Any, answer: Any
) -> None:
    noise = {"_meta": {"progressToken": 3}, "elicitationId": "e"}
    first = asker.result(asking(1, None, ALL, method=method, params={**params, **noise}))
    assert first["resultType"] == "input_required"
    assert first["_meta"][PREFIX + "serverInfo"]["name"] == "modern-fixture"
    (asked,) = first["inputRequests"].values()
    assert asked == ({"method": method, "params": params} if params else {"method": method})
    reply = asker.post(asking("two", answers_to(first, answer), ALL, method=method, params={**params, **noise}))
    assert reply.json()["id"] == "two"
    assert reply.json()["result"]["resultType"] == "complete"
    assert text(reply.json()["result"]) == {"result": answer}


def test_questions_in_turn_and_at_once(asker: ModernClient) -> None:
    meta = envelope(FORMS)
    result = asker.result(call("ask_in_turn", 1, meta, count=3))
    for number in range(3):
        (asked,) = result["inputRequests"].values()
        assert asked["params"]["message"] == str(number)
        answer = {"action": "accept", "content": {"n": number}}
        result = asker.result(call("ask_in_turn", number + 2, meta, answers_to(result, answer), count=3))
    assert [each["result"]["content"]["n"] for each in text(result)] == [0, 1, 2]
    result = asker.result(call("ask_together", 1, meta, count=3))
    assert [asked["params"]["message"] for asked in result["inputRequests"].values()] == ["0", "1", "2"]
    # What was not answered is asked again, what was is not.
    keys = list(result["inputRequests"])
    answers = {keys[1]: {"action": "decline"}, "unknown": {"action": "accept"}}
    more = {"requestState": result["requestState"], "inputResponses": answers}
    again = asker.result(call("ask_together", 2, meta, more, count=3))
    assert list(again["inputRequests"]) == [keys[0], keys[2]]
    assert again["requestState"] != result["requestState"]
    again = asker.result(call("ask_together", 3, meta, {"requestState": again["requestState"]}, count=3))
    assert list(again["inputRequests"]) == [keys[0], keys[2]]
    last = asker.result(call("ask_together", 4, meta, answers_to(again, ANSWER, {"action": "cancel"}), count=3))
    assert [each["result"]["action"] for each in text(last)] == ["accept", "decline", "cancel"]


@pytest.mark.parametrize("broken", [[], "x", {"ask-1": 7}, {"ask-1": None}])
def test_nonsense_as_answers_leaves_the_state_alone(asker: ModernClient, broken: Any) -> None:
    first = asker.result(asking())
    more = {"requestState": first["requestState"], "inputResponses": broken}
    reply = asker.post(asking(2, more))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32602)
    assert "inputResponses" in reply.json()["error"]["message"]
    assert text(asker.result(asking(3, answers_to(first, ANSWER)))) == {"result": ANSWER}


@pytest.mark.parametrize(("first_token", "token"), [("one", "two"), (None, 7), (7, None)])
def test_progress_has_the_token_of_the_request_that_waits(asker: ModernClient, first_token: Any, token: Any) -> None:
    def told(identity: int, own: Any, more: Any = None) -> list[Any]:
        meta = envelope(FORMS) if own is None else envelope(FORMS, progressToken=own)
        message = call("ask_and_progress", identity, meta, more)
        if own is None:
            return [asker.ask(message)]
        with asker.streaming(message) as stream:
            return list(stream)

    *progress, first = told(1, first_token)
    assert [each["params"] for each in progress] == [
        {"progressToken": own, "progress": 1} for own in [first_token] if own
    ]
    *progress, last = told(2, token, answers_to(first["result"], ANSWER))
    assert [each["params"] for each in progress] == [{"progressToken": own, "progress": 2} for own in [token] if own]
    assert last["result"]["content"][0]["text"] == "done"


# ---------------------------------------------------------------------------------------- the state


def test_a_state_is_good_once(asker: ModernClient) -> None:
    first = asker.result(asking())
    back = answers_to(first, ANSWER)
    assert text(asker.result(asking(2, back))) == {"result": ANSWER}
    refused(asker, asking(3, back))


def test_a_state_cannot_be_changed_or_made(asker: ModernClient) -> None:
    first = asker.result(asking())
    state = first["requestState"]
    texts = set()
    for position in range(0, len(state), 5):
        other = "A" if state[position] != "A" else "B"
        changed = {**answers_to(first, ANSWER), "requestState": state[:position] + other + state[position + 1 :]}
        texts.add(refused(asker, asking(2, changed)))
    body = base64.urlsafe_b64encode(bytes(32) + b"\xff" * 26).decode()
    for made in ("x", "mcpd1.", "mcpd1.!!!", "mcpd1." + body, state + "AAAA", state[:-4], "mcpd1.é", state * 2):
        texts.add(refused(asker, asking(2, {**answers_to(first, ANSWER), "requestState": made})))
    assert len(texts) == 1
    reply = asker.post(asking(2, {"requestState": 7}))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32602)
    # All that did not harm it.
    assert text(asker.result(asking(3, answers_to(first, ANSWER)))) == {"result": ANSWER}


def test_a_state_belongs_to_its_request(bridge: Bridge, asker: ModernClient) -> None:
    first = asker.result(asking())
    back = answers_to(first, ANSWER)
    meta = envelope(FORMS)
    refused(asker, call("ask", 2, meta, back, method="elicitation/create", params=FORM))
    refused(asker, call("echo", 2, meta, back, method="elicitation/create"))
    refused(asker, request("prompts/get", 2, meta, name="ask", **back))
    refused(client(bridge, "t"), asking(2, back))
    # The order of members and the envelope make no other request of it.
    message = asking(3, back)
    message["params"] = dict(reversed(message["params"].items()))
    message["params"]["_meta"]["com.example/other"] = 1
    assert text(asker.result(message)) == {"result": ANSWER}


@needs_root
@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_a_state_belongs_to_its_caller(start: Callable[..., Program], era: str) -> None:  # noqa: F811
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "bridge.sock"
        start(*SHARED, str(path), f"{place}/tokens", command(era)).hear("READY=1")

        def ask(uid: int, message: Any) -> Any:
            headers = {**BOTH, **headers_for(message)}
            ((status, answer, _),) = ask_as(uid, path, ("POST", "/mcp/s", message, headers))
            return status, answer

        first = ask(2001, asking())[1]["result"]
        status, answer = ask(2002, asking(2, answers_to(first, ANSWER)))
        assert (status, answer["error"]["code"]) == (400, -32602)
        status, answer = ask(2001, asking(2, answers_to(first, ANSWER)))
        assert (status, answer["result"]["resultType"] if era == "handshake" else "complete") == (200, "complete")


# ---------------------------------------------------------------------------------------- what the client declared


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "needed"),
    [
        ({}, "elicitation/create", FORM, {"elicitation": {"form": {}}}),
        (FORMS, "elicitation/create", {"mode": "url", "message": "m", "url": "u"}, {"elicitation": {"url": {}}}),
        (FORMS, "sampling/createMessage", {"messages": []}, {"sampling": {}}),
        ({"sampling": {}}, "sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}),
        (FORMS, "roots/list", {}, {"roots": {}}),
    ],
)
def test_a_client_is_asked_only_what_it_declared(
    asker: ModernClient, capabilities: Any, method: str, params: Any, needed: Any
) -> None:
    reply = asker.post(asking(1, None, capabilities, method=method, params=params))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, -32021), reply.text
    assert error["data"] == {"requiredCapabilities": needed}


def test_a_url_that_2025_11_25_wants_opened_first(asker: ModernClient) -> None:
    result = asker.result(call("url", 1, envelope(ALL)))
    assert result["resultType"] == "input_required"
    (asked,) = result["inputRequests"].values()
    assert asked["params"] == {"mode": "url", "url": "https://example.org/", "message": "open"}
    assert "requestState" not in result
    error = asker.ask(call("url", 1, envelope(FORMS)))["error"]
    assert (error["code"], error["data"]["requiredCapabilities"]) == (-32021, {"elicitation": {"url": {}}})


# ---------------------------------------------------------------------------------------- ends


def test_the_server_goes_on_alone(asker: ModernClient, tmp_path: Path) -> None:
    meta = envelope(FORMS)
    sign = tmp_path / "sign"
    first = asker.result(call("ask_and_go_on", 1, meta, sign=str(sign)))
    assert first["resultType"] == "input_required"
    eventually(sign.exists, "the server has answered")
    reply = asker.post(call("ask_and_go_on", "two", meta, answers_to(first, ANSWER), sign=str(sign))).json()
    assert (reply["id"], reply["result"]["resultType"]) == ("two", "complete")
    assert reply["result"]["content"][0]["text"] == "went on alone"


def test_the_server_dies_while_the_client_is_asked(asker: ModernClient) -> None:
    meta = envelope(FORMS)
    first = asker.result(call("ask_and_die", 1, meta))
    (asked,) = first["inputRequests"].values()
    eventually(lambda: not is_alive(int(asked["params"]["message"])), "the server has died")
    reply = asker.post(call("ask_and_die", 2, meta, answers_to(first, ANSWER))).json()
    assert (reply["id"], reply["error"]["code"]) == (2, -32603)
    assert "ended before it answered" in reply["error"]["message"]
    assert asker.result(call("echo", 3, meta, text="x"))["content"][0]["text"] == "x"


def test_the_call_goes_on_when_its_client_comes_back_and_can_be_cancelled_then(asker: ModernClient) -> None:
    first = asker.result(asking())
    token = envelope(FORMS, progressToken="p")
    message = call("ask", 2, token, answers_to(first, ANSWER), method="elicitation/create")
    assert text(asker.result(message)) == {"result": ANSWER}


def test_other_calls_go_on_meanwhile(asker: ModernClient) -> None:
    states = [asker.result(asking(number)) for number in range(3)]
    meta = envelope(FORMS)
    assert asker.result(call("echo", 9, meta, text="x"))["content"][0]["text"] == "x"
    for number, first in enumerate(states):
        answer = {"action": "accept", "content": {"n": number}}
        assert text(asker.result(asking(10 + number, answers_to(first, answer)))) == {"result": answer}


def test_calls_that_wait_end_with_the_bridge(alone: Callable[..., Bridge]) -> None:
    bridge = alone("--server", f"m={command('handshake')}")
    first = client(bridge, "m").result(asking())
    assert first["resultType"] == "input_required"
    assert bridge.stop() == 0
    eventually(lambda: bridge.process.poll() is not None, "the bridge has ended")
    assert "Traceback" not in bridge.said()
