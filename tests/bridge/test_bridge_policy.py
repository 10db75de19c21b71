# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an entry of the mcps map changes of a server that the bridge serves (docs/mcps.md)."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bridge import jsonrpc
from mcpd.bridge.upstream.policy import Answered, load
from mcpd.errors import InvalidConfig
from tests.bridge.bridge_harness import call, eventually, initialize, text_of
from tests.bridge.bridge_machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")

SYSTEM = {
    "narrow": {
        "summary": "What is left of it",
        "disallowed_tools": ["crash", "h*"],
        "prompts": False,
        "tools": {
            "reflect": {
                "name": "mirror",
                "title": "Mirror",
                "description": "Shows its arguments",
                "arguments": {
                    "fixed": {"default": {"deep": [1, None]}, "hide": True},
                    "withheld": {"hide": True},
                    "usual": {"default": 7, "description": "mostly seven"},
                },
            },
            "echo": {"description": "Says it again"},
            "error": {"enabled": False},
        },
    },
    "off": {"enabled": False},
    "wrong": {"enabled": "false"},
}
USER = {
    "narrow": {
        "allowed_tools": ["mirror", "echo", "pid", "crash", "reflect"],
        "tools": {
            "mirror": {"name": "glass", "arguments": {"fixed": {"default": "mine", "hide": True}}},
            "crash": {"enabled": True},
            "pid": {"name": "echo"},
        },
    },
    "off": {"enabled": True},
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        for name in ("narrow", "off", "wrong", "later"):
            found.install(name, {})
        write(found.home / "system/etc/mcp/mcps.json", SYSTEM)
        write(found.home / ".config/mcp/mcps.json", USER)
        found.boot()
        yield found
    finally:
        found.close()


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def tools(answer: dict[str, Any]) -> dict[str, Any]:
    return {tool["name"]: tool for tool in answer["result"]["tools"]}


def ask_list(identity: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": "tools/list"}


@pytest.mark.parametrize("with_session", [True, False])
def test_tools_are_narrowed_renamed_and_described(machine: Machine, *, with_session: bool) -> None:
    client = machine.client("narrow")
    if with_session:
        client.open()
    found = tools(client.ask(ask_list()))
    # What the user calls echo is what the server calls pid, and the server's own echo has lost its name.
    assert set(found) == {"glass", "echo"}
    assert (found["glass"]["title"], found["glass"]["description"]) == ("Mirror", "Shows its arguments")
    assert text_of(client.ask(call("echo"))).isdigit()


@pytest.mark.parametrize("with_session", [True, False])
def test_what_is_pre_filled_a_client_cannot_set(machine: Machine, *, with_session: bool) -> None:
    client = machine.client("narrow")
    if with_session:
        client.open()
    given = {"fixed": "by the client", "withheld": 1, "free": 2}
    answer = client.ask(call("glass", **given))
    assert answer["result"]["structuredContent"] == {"fixed": {"deep": [1, None]}, "free": 2, "usual": 7}
    answer = client.ask(call("glass", usual=8))
    assert answer["result"]["structuredContent"] == {"fixed": {"deep": [1, None]}, "usual": 8}
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "glass", "arguments": None}}
    assert client.ask(bare)["result"]["structuredContent"] == {"fixed": {"deep": [1, None]}, "usual": 7}


@pytest.mark.parametrize("tool", ["crash", "hang", "error", "reflect", "mirror", "pid", "", "nothing"])
@pytest.mark.parametrize("with_session", [True, False])
def test_a_tool_that_was_taken_away_is_unknown(machine: Machine, tool: str, *, with_session: bool) -> None:
    client = machine.client("narrow")
    if with_session:
        client.open()
    reply = client.post(call(tool, "x"))
    assert reply.status_code == 200
    if tool:
        result = reply.json()["result"]
        assert (result["isError"], result["content"][0]["text"]) == (True, f"Unknown tool: {tool}")
    else:
        assert reply.json()["error"]["code"] == -32602
    assert reply.json()["id"] == "x"


@pytest.mark.parametrize(
    "params",
    [
        {"name": "echo", "Name": "crash", "arguments": {}},
        {"name": "echo", "arguments": {}, "Arguments": {}},
        {"name": "glass", "arguments": {"Fixed": 1}},
        {"name": "glass", "arguments": [1]},
        {"name": ["crash"], "arguments": {}},
    ],
)
def test_what_another_reader_could_read_otherwise_is_refused(machine: Machine, params: object) -> None:
    client = machine.client("narrow").open()
    answer = client.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    assert answer["error"]["code"] in {-32600, -32602}


def test_of_equal_members_the_server_sees_the_last_only(machine: Machine) -> None:
    client = machine.client("narrow").open()
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"crash","name":"echo","arguments":{}}}'
    assert text_of(client.ask(body)).isdigit()


def test_a_call_without_an_id_does_not_reach_the_server(machine: Machine) -> None:
    client = machine.client("narrow").open()
    before = text_of(client.ask(call("echo")))
    message = call("crash")
    del message["id"]
    assert client.post(message).status_code == 202
    assert text_of(client.ask(call("echo"))) == before


def test_a_facility_that_was_taken_away_is_not_there(machine: Machine) -> None:
    client = machine.client("narrow").open()
    assert "prompts" not in client.opened["result"]["capabilities"]
    assert client.ask({"jsonrpc": "2.0", "id": 1, "method": "prompts/list"})["error"]["code"] == -32601
    whole = machine.client("fix").open()
    assert set(whole.opened["result"]["capabilities"]) >= set(client.opened["result"]["capabilities"])


@pytest.mark.parametrize("server", ["off", "wrong"])
def test_T5_6_a_disabled_server_is_403_whatever_the_user_says(machine: Machine, server: str) -> None:
    for message in (initialize("i"), call("echo", "i", text="x"), ask_list("i")):
        reply = machine.client(server).post(message)
        assert (reply.status_code, reply.json()["id"]) == (403, "i")
        assert reply.json()["error"]["code"] == -32603


@pytest.mark.parametrize("with_session", [True, False])
def test_a_server_is_disabled_and_narrowed_while_everything_runs(machine: Machine, *, with_session: bool) -> None:
    entries = machine.home / f".config/mcp/mcps.d/{with_session}.json"
    client = machine.client("later")
    if with_session:
        client.open()

    def echo() -> Any:
        return client.ask(call("echo", text="x"))

    try:
        assert text_of(echo()) == "x"
        write(entries, {"later": {"disallowed_tools": ["echo"]}})
        eventually(lambda: echo()["result"].get("isError"), "the tool is gone")
        write(entries, {"later": {"enabled": False}})
        eventually(lambda: "error" in echo(), "the server is disabled")
        assert machine.client("later").post(initialize()).status_code == 403
    finally:
        entries.unlink()
    eventually(lambda: text_of(machine.client("later").open().ask(call("echo", text="x"))) == "x", "it is back")


# ---------------------------------------------------------------------------------------- the rules alone


def listed(policy: list[Any], *tools: dict[str, Any]) -> list[Any]:
    found = load(json.dumps(policy))
    assert found is not None
    request = {key: json_raw(value) for key, value in ask_list().items()}
    _, shape = found.apply("tools/list", request)
    assert shape is not None
    response = {"result": json_raw({"tools": list(tools), "nextCursor": "c", "kept": None})}
    shape(response)
    result = json.loads(bytes(response["result"]))
    assert (result["nextCursor"], result["kept"]) == ("c", None)
    return list(result["tools"])


def json_raw(value: object) -> Any:
    import msgspec

    return msgspec.Raw(json.dumps(value).encode())


def test_what_is_pre_filled_is_not_in_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "x": 1}, "c": {}},
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
    arguments = {"a": {"default": 1, "hide": True}, "b": {"default": 2, "description": "two"}, "z": {"hide": True}}
    (tool,) = listed([{"tools": {"t": {"arguments": arguments}}}], {"name": "t", "inputSchema": schema, "odd": [None]})
    assert tool == {
        "name": "t",
        "odd": [None],
        "inputSchema": {
            "type": "object",
            "properties": {"b": {"type": "integer", "x": 1, "default": 2, "description": "two"}, "c": {}},
            "required": ["c"],
            "additionalProperties": False,
        },
    }


def test_a_tool_that_is_not_mentioned_stays_as_the_server_wrote_it() -> None:
    odd = {"name": "o", "inputSchema": {"b": 1, "a": 1.50, "ü": None}}
    assert listed([{"tools": {"t": {"title": "x"}}}], odd, {"name": 7}, {}) == [odd]


def test_a_schema_of_the_entry_replaces_the_servers() -> None:
    (tool,) = listed([{"tools": {"t": {"inputSchema": {"type": "object"}}}}], {"name": "t", "inputSchema": {"x": 1}})
    assert tool["inputSchema"] == {"type": "object"}


@pytest.mark.parametrize(
    "rules",
    [
        {"disallowed_tools": ["filesystem/delete"]},
        {"disallowed_tools": ["*.delete"]},
        {"tools": {"filesystem_delete": {"enabled": False}}},
        {"tools": {"filesystem/delete": {"arguments": {"permanent": {"default": False, "hide": True}}}}},
        {"tools": {"filesystem/delete": {"name": "trash"}}},
    ],
)
def test_another_spelling_of_a_name_gets_around_no_rule(rules: dict[str, Any]) -> None:
    policy = load(json.dumps([rules]))
    assert policy is not None
    spellings = {"filesystem/delete", "filesystem.delete", "filesystem_delete"} - set(rules.get("tools", ()))
    for name in spellings:
        with pytest.raises(Answered):
            policy.apply("tools/call", message(name))
    policy.apply("tools/call", message("filesystem_read"))


def message(name: str) -> dict[str, Any]:
    """The call of the tool *name*."""
    params = {"name": name, "arguments": {}}
    return {
        "id": jsonrpc.Raw(b"1"),
        "method": jsonrpc.Raw(b'"tools/call"'),
        "params": jsonrpc.Raw(jsonrpc.encode(params)),
    }


def test_a_description_alone_takes_no_name_away() -> None:
    policy = load('[{"tools": {"filesystem/read": {"description": "Reads"}}}]')
    assert policy is not None
    policy.apply("tools/call", message("filesystem_read"))


def test_a_policy_that_is_not_understood_keeps_the_server_from_being_used() -> None:
    assert load("") is None
    for text in ("{}", "[7]", '[{"tools": 7}]', '[{"allowed_tools": [7]}]', "[" * 10_000):
        with pytest.raises(InvalidConfig):
            load(text)


def seen(rules: dict[str, Any], method: str, params: str) -> Any:
    """The parameters that the server gets, ``None`` if it does not see the request."""
    policy = load(json.dumps([rules]))
    assert policy is not None
    message = jsonrpc.parse_body(f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}'.encode())
    assert isinstance(message, dict)
    try:
        passed = policy.apply(method, message)[0]
    except Answered:
        return None
    return json.loads(bytes(passed["params"]), object_pairs_hook=lambda pairs: [list(each) for each in pairs])


@pytest.mark.parametrize(
    "params",
    [
        '{"ref":{"type":"ref/prompt","name":"p"}}',
        '{"ref":{"type":"x","Type":"ref/prompt","name":"p"}}',
        '{"ref":{"type":"ref/resource","_type":"ref/prompt","name":"p"}}',
        '{"ref":{"type":"ref/prompt","type":"x","name":"p"}}',
        '{"ref":{"type":"ref/prompt ","name":"p"}}',
        '{"ref":{"type":"ref/prompt","name":"p"},"ref":{}}',
        '{"ref":{"type":"ref/resource"},"Ref":{"type":"ref/prompt"}}',
        '{"Ref":{"type":"ref/prompt"}}',
        "[]",
    ],
)
def test_what_was_taken_away_is_not_completed(params: str) -> None:
    assert seen({"prompts": False}, "completion/complete", params) is None


def test_what_is_left_is_completed_and_written_anew() -> None:
    params = '{"ref":{"type":"ref/prompt","type":"ref/resource","uri":"u"},"argument":{"name":"a","value":""}}'
    found = seen({"prompts": False}, "completion/complete", params)
    assert found == [["ref", [["type", "ref/resource"], ["uri", "u"]]], ["argument", [["name", "a"], ["value", ""]]]]


def test_nobody_listens_to_what_was_taken_away() -> None:
    asked = (
        '{"resourceSubscriptions":["u"],"resourcesListChanged":true,"promptsListChanged":true,"toolsListChanged":true}'
    )
    params = f'{{"notifications":{asked},"notifications":{asked}}}'
    left = [["promptsListChanged", True], ["toolsListChanged", True]]
    assert seen({"resources": False}, "subscriptions/listen", params) == [["notifications", left]]
    for twin in ("ResourceSubscriptions", "resource_subscriptions"):
        assert seen({"resources": False}, "subscriptions/listen", f'{{"notifications":{{"{twin}":["u"]}}}}') is None
    assert (
        seen({"resources": False}, "subscriptions/listen", f'{{"notifications":{{}},"Notifications":{asked}}}') is None
    )


def test_a_server_cannot_tell_of_what_was_taken_away() -> None:
    policy = load('[{"resources": false}]')
    assert policy is not None
    assert not policy.lets_out("notifications/resources/updated")
    assert policy.lets_out("notifications/prompts/list_changed")
