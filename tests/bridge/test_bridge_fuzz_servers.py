# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever a server writes: its callers get their own answer or an error, and neighbours are served."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.bridge.bridge_harness import BOTH, COMMAND, FIXTURE, call, events, text_of
from tests.bridge.fuzzing import Neighbour, is_response, nonce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bridge.bridge_harness import Bridge, Client

BABBLING = f"{sys.executable} {FIXTURE.with_name('babbling_server.py')}"
WRONG = "the answer of nobody"


@pytest.fixture(scope="module")
def neighbour(fuzzed_bridge: Callable[..., Bridge]) -> Iterator[Neighbour]:
    found = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}", f"--server=b={BABBLING}"))
    yield found
    found.check_the_rest()


@pytest.fixture(scope="module")
def babbling(neighbour: Neighbour) -> Client:
    """A client of the server that babbles; it stays, and so does what the first call without a session starts."""
    found = neighbour.bridge.client("b").open(capabilities={"sampling": {}, "elicitation": {}, "roots": {}})
    assert text_of(neighbour.bridge.client("b").ask(call("echo", text="here"))) == "here"
    neighbour.remember()
    return found


# ---------------------------------------------------------------------------------------- lines

FOREIGN = st.sampled_from(
    ['"@ID@"', "@ID@.0", "@ID@e0", "-@ID@", "@ID@0", "0@ID@", "null", "true", "{}", "[@ID@]", '""', "9" * 20, "1e400",
     '"\\u0000"', "0.5", '{"id":@ID@}', " ", '"' + "9" * 2000 + '"']
)  # fmt: skip
"""What is not the id of the call, though it may look like it."""
RESULT = '"result":{"content":[{"type":"text","text":"' + WRONG + '"}]}'
WRONG_ANSWERS = st.builds(
    lambda identity, form: form.replace("#", identity),
    FOREIGN,
    st.sampled_from([
        '{"jsonrpc":"2.0","id":#,' + RESULT + "}",
        "{" + RESULT + ',"id":#,"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":@ID@,"id":#,' + RESULT + "}",
        '[{"jsonrpc":"2.0","id":#,' + RESULT + "}]",
        '{"jsonrpc":"2.0","id":#,"error":{"code":1,"message":"' + WRONG + '"}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":#,"progress":1}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":#}}',
        '{"jsonrpc":"2.0","id":#,"method":"ping"}',
        '{"jsonrpc":"2.0","id":#,"method":"sampling/createMessage","params":{}}',
    ]),
)  # fmt: skip
ANY = st.binary(max_size=80).map(lambda line: line.replace(b"\n", b" ").decode("latin-1"))
DEEP = st.builds(lambda mark, depth: mark * depth, st.sampled_from(["[", '{"a":', "[{}", "]"]), st.integers(1, 200_000))
ODD = st.sampled_from(
    ["", " ", "\r", "{}", "[]", "[[]]", "null", "0", '"x"', "\x00", "\xff\xfe", "\xef\xbb\xbf{}", "\xed\xa0\x80",
     '{"jsonrpc":"2.0"}', '{"jsonrpc":"1.0","id":1,"result":{}}', '{"jsonrpc":"2.0","method":1}',
     '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\\ud83d"}}',
     '{"jsonrpc":"2.0","method":"notifications/message","params":[1,2]}', '{"jsonrpc":"2.0","method":"x","params":NaN}',
     '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}', "id: 1", "data: {}", "event: message"]
)  # fmt: skip
LINES = st.lists(WRONG_ANSWERS | ANY | DEEP | ODD, max_size=6)


def with_events(client: Client, message: object, identity: str) -> list[object]:
    """All responses to *message* that reach a client who takes events too."""
    reply = client.post(message)
    found = events(reply.text) if reply.headers["content-type"] == "text/event-stream" else [reply.json()]
    return [each for each in found if "method" not in each]


@given(before=LINES, after=LINES, json_only=st.booleans())
@example(before=['{"jsonrpc":"2.0","id":@ID@,"id":0@ID@,' + RESULT + "}"], after=[], json_only=True)
def test_an_answer_is_the_right_one_or_an_error(
    neighbour: Neighbour, babbling: Client, before: list[str], after: list[str], json_only: bool
) -> None:
    for _ in range(2):
        # The second time, what came after the first answer is there before the second.
        identity, text = nonce(), nonce()
        message = call("babble", identity, before=before, after=after, text=text)
        if json_only:
            found = [babbling.ask(message, Accept="application/json")]
        else:
            found = with_events(babbling, message, identity)
        assert len(found) == 1
        assert is_response(found[0], identity)
        if "result" in found[0]:
            assert text_of(found[0]) == text
        else:
            # Only where the server wrote something under this id that cannot be read.
            assert found[0]["error"]["code"] == -32603
            assert any("@ID@" in line for line in before), found
        assert WRONG not in json.dumps(found)
    neighbour.check()


RESULTS = st.sampled_from(
    ["5", "null", '"x"', "[]", "{}", '{"tools":5}', '{"tools":[1,null,{"name":5},{"inputSchema":[]}]}', '{"_meta":3}',
     '{"_meta":null}', '{"resultType":7}', '{"resultType":"input_required"}', '{"resultType":"odd","content":[]}',
     '{"resultType":"input_required","inputRequests":5,"requestState":5}', '{"ttlMs":-1,"cacheScope":5}',
     '{"nextCursor":{}}', '{"contents":5}', '{"_meta":{"io.modelcontextprotocol/serverInfo":5}}', '{"a":1,"a":2}']
)  # fmt: skip
FAULTS = st.sampled_from(
    ["5", "null", "[]", "{}", '{"code":"x","message":5}', '{"code":-32002,"message":"m","data":5}', '{"code":1e99}',
     '{"code":-32002,"message":"m"}', '{"code":-32601,"message":"m","data":{}}', '{"code":-32042,"message":"\\ud83d"}']
)  # fmt: skip
ANSWERS = st.one_of(
    RESULTS.map(lambda value: f'"result":{value}'),
    FAULTS.map(lambda value: f'"error":{value}'),
    st.builds(lambda result, fault: f'"result":{result},"error":{fault}', RESULTS, FAULTS),
    st.builds(lambda first, second: f'"result":{first},"result":{second}', RESULTS, RESULTS),
)
MODERN = {"MCP-Protocol-Version": "2026-07-28"}
ENVELOPE = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}}}  # fmt: skip
METHODS: dict[str, dict[str, str]] = {
    "tools/call": {"name": "x"},
    "prompts/get": {"name": "x"},
    "resources/read": {"uri": "x:x"},
    **{key: {} for key in ("tools/list", "prompts/list", "resources/templates/list", "completion/complete")},
}


@given(odd=ANSWERS, method=st.sampled_from(sorted(METHODS)), modern=st.booleans())
def test_an_answer_of_any_shape_comes_under_the_id_of_its_request(
    neighbour: Neighbour, babbling: Client, odd: str, method: str, modern: bool
) -> None:
    params = {**METHODS[method], "odd": '{"jsonrpc":"2.0","id":@ID@,' + odd + "}"}
    message = {"jsonrpc": "2.0", "id": nonce(), "method": method, "params": params}
    if modern:
        message["params"] = {**params, **ENVELOPE}
        headers = {**BOTH, **MODERN, "Mcp-Method": method}
        if {"name", "uri"} & set(params):
            headers["Mcp-Name"] = params.get("name") or params["uri"]
        reply = babbling.http.post(babbling.path, json=message, headers=headers)
    else:
        reply = babbling.post(message, Accept="application/json")
    answer = reply.json()
    assert answer["id"] == message["id"]
    assert "result" in answer or "error" in answer
    assert reply.status_code < 500 or answer["error"]["code"] == -32603
    neighbour.check()


@pytest.mark.parametrize("again", ["@ID@", ' @ID@ ,"x":1'])
def test_a_second_answer_to_a_call_is_nobodys(babbling: Client, again: str) -> None:
    second = '{"jsonrpc":"2.0","id":' + again + "," + RESULT + "}"
    for _ in range(3):
        text = nonce()
        assert text_of(babbling.ask(call("babble", 1, before=[], after=[second] * 20, text=text))) == text


@pytest.mark.usefixtures("babbling")
def test_answers_of_calls_at_once_do_not_meet(neighbour: Neighbour) -> None:
    client = neighbour.bridge.client("b")

    def one(number: int) -> None:
        text = nonce()
        junk = ["\xff" * (number % 50), "[" * number, '{"jsonrpc":"2.0","id":"@ID@",' + RESULT + "}"]
        answer = client.ask(call("babble", 7, before=junk, after=junk, text=text), Accept="application/json")
        assert (answer["id"], text_of(answer)) == (7, text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(200)))
    client.http.close()
    neighbour.check()


def test_a_line_of_100_mb_costs_its_call_alone(neighbour: Neighbour, babbling: Client) -> None:
    with ThreadPoolExecutor() as pool:
        guilty = pool.submit(babbling.ask, call("huge", "h", size=100_000_000))
        while not guilty.done():
            neighbour.check()
    answer = guilty.result()
    assert (answer["id"], answer["error"]["code"]) == ("h", -32603)
    assert "bridge.max_line" in answer["error"]["message"]
    assert text_of(babbling.ask(call("echo", text="the same process goes on"))) == "the same process goes on"
    neighbour.check_the_rest()
