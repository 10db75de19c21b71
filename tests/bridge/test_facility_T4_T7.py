# SPDX-License-Identifier: LGPL-2.1-or-later
"""Seed 004's tests of tools (T4, T5), resources (T6) and prompts (T7), over a real socket, of both kinds of server.

What a tool answers is the server's; the bridge has to bring it through with HTTP 200 and unchanged.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.bridge.bridge_harness import text_of
from tests.bridge.facility import PICTURE, on_both, request, tool

if TYPE_CHECKING:
    from tests.bridge.bridge_harness import Client

pytestmark = on_both
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
"""What RFC 3986 allows in a URI."""


def result(client: Client, message: dict[str, Any]) -> Any:
    """The result of *message*, which is no error of the protocol."""
    reply = client.post(message)
    assert reply.status_code == 200
    assert "error" not in reply.json(), reply.text
    return reply.json()["result"]


def tools(client: Client) -> list[Any]:
    """All pages of the list of tools."""
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = result(client, request("tools/list", **cursor))
        found += page["tools"]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


# ---------------------------------------------------------------------------------------- T4: the list of tools


def test_T4_1_the_tools_of_a_server_are_listed(client: Client) -> None:
    found = {each["name"]: each for each in tools(client)}
    assert {"echo", "greet", "fail", "picture", "large", "reflect", "total", "wait"} <= set(found)
    assert found["echo"]["description"] == "The tool echo"
    assert found["echo"]["inputSchema"]["properties"]["message"]["description"] == "The message to echo"


def test_T4_5_the_list_comes_in_pages(client: Client) -> None:
    first = result(client, request("tools/list"))
    second = result(client, request("tools/list", cursor=first["nextCursor"]))
    names = [{each["name"] for each in page["tools"]} for page in (first, second)]
    assert all(names)
    assert not names[0] & names[1]
    assert client.ask(request("tools/list", cursor="nowhere"))["error"]["code"] == -32602


def test_T4_6_every_input_schema_is_a_json_schema(client: Client) -> None:
    for each in tools(client):
        Draft202012Validator.check_schema(each["inputSchema"])
        assert each["inputSchema"]["type"] == "object"


# ---------------------------------------------------------------------------------------- T5: calls


def test_T5_1_a_simple_tool_answers(client: Client) -> None:
    assert result(client, tool("echo", message="hello")) == {
        "content": [{"type": "text", "text": "hello"}],
        "isError": False,
    }


def test_T5_2_missing_required_argument_is_a_tool_error(client: Client) -> None:
    found = result(client, tool("echo"))
    assert found["isError"] is True
    assert "$.message" in found["content"][0]["text"]


def test_T5_3_an_optional_argument_has_its_default(client: Client) -> None:
    assert text_of(client.ask(tool("greet", name="Ada"))) == "Hello, Ada!"
    assert text_of(client.ask(tool("greet", name="Ada", greeting="Good morning"))) == "Good morning, Ada!"


def test_T5_4_an_unknown_tool_is_a_tool_error(client: Client) -> None:
    found = result(client, tool("nothing"))
    assert found["isError"] is True
    assert "nothing" in found["content"][0]["text"]


def test_T5_5_what_a_tool_raises_is_a_tool_error_with_its_message(client: Client) -> None:
    found = result(client, tool("fail", reason="the disk is full"))
    assert (found["isError"], found["content"][0]["text"]) == (True, "the disk is full")


def test_T5_7_text_is_of_type_text(client: Client) -> None:
    assert [each["type"] for each in result(client, tool("echo", message="x"))["content"]] == ["text"]


def test_T5_8_bytes_are_base64(client: Client) -> None:
    (content,) = result(client, tool("picture"))["content"]
    assert (content["type"], content["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(content["data"], validate=True) == PICTURE


# ---------------------------------------------------------------------------------------- T6: resources


def test_T6_1_the_resources_are_listed(client: Client) -> None:
    found = result(client, request("resources/list"))["resources"]
    assert {each["uri"]: each["mimeType"] for each in found} == {
        "echo://last": "text/plain",
        "file:///srv/a%20picture.png": "image/png",
    }


def test_T6_2_a_text_is_read_as_text(client: Client) -> None:
    (content,) = result(client, request("resources/read", uri="echo://last"))["contents"]
    assert (content["uri"], content["mimeType"]) == ("echo://last", "text/plain")
    assert content["text"] == "The last echo: žluťoučký <b>kůň</b>"


def test_T6_3_bytes_are_read_as_a_base64_blob(client: Client) -> None:
    (content,) = result(client, request("resources/read", uri="file:///srv/a%20picture.png"))["contents"]
    assert "text" not in content
    assert base64.b64decode(content["blob"], validate=True) == PICTURE


def test_T6_5_a_resource_that_is_not_there_is_an_error(client: Client) -> None:
    reply = client.post(request("resources/read", uri="echo://never"))
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["data"]) == (200, -32002, {"uri": "echo://never"})


def test_T6_6_uris_are_valid(client: Client) -> None:
    uris = [each["uri"] for each in result(client, request("resources/list"))["resources"]]
    assert uris
    assert [uri for uri in uris if not URI.fullmatch(uri)] == []


# ---------------------------------------------------------------------------------------- T7: prompts


def said(client: Client, name: str, **arguments: object) -> str:
    (message,) = result(client, request("prompts/get", name=name, arguments=arguments))["messages"]
    assert message["role"] == "user"
    return str(message["content"]["text"])


def test_T7_1_the_prompts_are_listed(client: Client) -> None:
    found = {each["name"]: each for each in result(client, request("prompts/list"))["prompts"]}
    assert set(found) == {"plain", "about"}
    assert [each["name"] for each in found["about"]["arguments"]] == ["topic", "tone"]


def test_T7_2_a_prompt_without_arguments(client: Client) -> None:
    assert said(client, "plain") == "Say something."


def test_T7_3_a_prompt_with_arguments(client: Client) -> None:
    assert said(client, "about", topic="ships") == "Say something formal about ships."
    assert said(client, "about", topic="ships", tone="casual") == "Say something casual about ships."


def test_T7_4_an_unknown_prompt_is_an_error(client: Client) -> None:
    reply = client.post(request("prompts/get", name="never"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (200, -32602)


@pytest.mark.parametrize("arguments", [{}, {"topic": 7}, {"topic": "ships", "tone": "rude"}])
def test_T7_5_an_argument_of_the_wrong_kind_is_an_error(client: Client, arguments: dict[str, Any]) -> None:
    error = client.ask(request("prompts/get", name="about", arguments=arguments))["error"]
    assert error["code"] == -32602
    assert "topic" in error["message"]
