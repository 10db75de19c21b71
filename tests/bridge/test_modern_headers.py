# SPDX-License-Identifier: LGPL-2.1-or-later
"""How headers repeat what the body says, by the tables of revision 2026-07-28."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mcpd.bridge.jsonrpc import Raw
from mcpd.bridge.modern import envelope, headers
from mcpd.errors import HeaderMismatch, InvalidArgument, NotSupported


def encoded(text: str) -> bytes:
    return b"=?base64?" + base64.b64encode(text.encode()) + b"?="


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"us-west1", "us-west1"),
        (b"=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界"),
        (b"=?base64?IHBhZGRlZCA=?=", " padded "),
        (b"=?base64?bGluZTEKbGluZTI=?=", "line1\nline2"),
        (b"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
        (b"=?base64??=", ""),
        (b"=?BASE64?SGk=?=", "=?BASE64?SGk=?="),
        (b"=?base64?SGk", "=?base64?SGk"),
        (b"=?base64?SGl=?=", None),
        (b"=?base64?SGk?=", None),
        (b"=?base64?S Gk=?=", None),
        (b"=?base64?/w==?=", None),
        ("ä".encode(), None),
        (b"a\x00b", None),
    ],
)
def test_values_of_headers(header: bytes, text: str | None) -> None:
    assert headers.decode(header) == text


@pytest.mark.parametrize(
    ("found", "name"),
    [(b"echo", "echo"), (encoded("echo"), "echo"), (encoded("é"), "é"), (b'a"b', 'a"b'), (encoded("=?x"), "=?x")],
)
def test_names_that_agree(found: bytes, name: str) -> None:
    headers.check_name({b"mcp-name": found}, "tools/call", {"name": raw(name)})
    headers.check_name({b"mcp-name": found}, "resources/read", {"uri": raw(name)})


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({}, "echo"),
        ({b"mcp-name": b"Echo"}, "echo"),
        ({b"mcp-name": b""}, "echo"),
        ({b"mcp-name": b"=?base64?!!!?="}, "=?base64?!!!?="),
        ({b"mcp-name": encoded("echo")}, encoded("echo").decode()),
        ({b"mcp-name": b"\xc3\xa9"}, "é"),
        ({b"mcp-name": b"\\u0065cho"}, "echo"),
    ],
)
def test_names_that_do_not(found: dict[bytes, bytes], name: str) -> None:
    with pytest.raises(HeaderMismatch, match="Mcp-Name"):
        headers.check_name(found, "prompts/get", {"name": Raw(json.dumps(name, ensure_ascii=False).encode())})


@pytest.mark.parametrize("params", [{}, {"name": Raw(b"1")}, {"name": Raw(b"null")}])
def test_a_name_has_to_be_there(params: dict[str, Raw]) -> None:
    with pytest.raises(InvalidArgument, match='"name"'):
        headers.check_name({b"mcp-name": b"x"}, "tools/call", params)


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def headed(kind: object = "string", name: object = "Region") -> dict[str, Any]:
    return {"type": kind, "x-mcp-header": name}


def declared(tool_schema: object) -> tuple[headers.Param, ...]:
    return headers.Reading().params_of(raw({"name": "t", "inputSchema": tool_schema}))


def test_annotations_are_found_where_properties_alone_lead() -> None:
    found = declared(schema(a=headed(), b=schema(c=headed("integer", "Count")), d={"type": "string"}))
    assert set(found) == {
        (("a",), b"mcp-param-region", False),
        (("b", "c"), b"mcp-param-count", True),
    }


@pytest.mark.parametrize(
    "broken",
    [
        schema(a=headed(name="")),
        schema(a=headed(name="a b")),
        schema(a=headed(name="a\r\nb")),
        schema(a=headed(name=7)),
        schema(a=headed("number")),
        schema(a=headed(["string", "null"])),
        schema(a={"x-mcp-header": "A"}),
        schema(a=headed(name="Same"), b=headed(name="sAME")),
        schema(a=headed(), b={"type": "array", "items": headed(name="Other")}),
        schema(a=headed(), b={"anyOf": [headed(name="Other")]}),
        {**schema(a=headed()), "$defs": {"d": headed(name="Other")}},
        {**schema(a=headed()), "x-mcp-header": "Root"},
        {**schema(a=headed()), "if": schema(b=headed(name="Other"))},
    ],
)
def test_one_broken_annotation_voids_all(broken: dict[str, Any]) -> None:
    assert declared(broken) == ()


def test_data_is_no_schema() -> None:
    data = {"default": headed(), "examples": [headed()], "const": headed(), "enum": [headed()]}
    assert declared(schema(a={**headed(), **data})) == ((("a",), b"mcp-param-region", False),)


DECLARED = declared(schema(s=headed(), i=headed("integer", "I"), b=headed("boolean", "B")))


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ({}, {}),
        ({}, {"s": None, "other": 1}),
        ({b"mcp-param-region": b"x"}, {"s": "x"}),
        ({b"mcp-param-region": b"x", b"mcp-param-unknown": b"y"}, {"s": "x"}),
        ({b"mcp-param-region": encoded("世 ")}, {"s": "世 "}),
        ({b"mcp-param-i": b"42"}, {"i": 42}),
        ({b"mcp-param-i": b"42.0"}, {"i": 42}),
        ({b"mcp-param-i": b"42"}, {"i": 42.0}),
        ({b"mcp-param-i": b"9007199254740993"}, {"i": 9007199254740993}),
        ({b"mcp-param-b": b"true"}, {"b": True}),
        ({}, {"s": ["no", "header"]}),
    ],
)
def test_arguments_that_agree(sent: dict[bytes, bytes], arguments: object) -> None:
    headers.check_params(sent, DECLARED, raw(arguments))


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [
        ({}, {"s": "x"}),
        ({b"mcp-param-region": b"y"}, {"s": "x"}),
        ({b"mcp-param-region": b"x"}, {}),
        ({b"mcp-param-region": b"null"}, {"s": None}),
        ({b"mcp-param-region": b"x"}, {"s": ["x"]}),
        ({b"mcp-param-region": b"=?base64?eA?="}, {"s": "x"}),
        ({b"mcp-param-i": b"42.5"}, {"i": 42}),
        ({b"mcp-param-i": b"4_2"}, {"i": 42}),
        ({b"mcp-param-i": b"9007199254740992"}, {"i": 9007199254740993}),
        ({b"mcp-param-b": b"True"}, {"b": True}),
        ({b"mcp-param-b": b"1"}, {"b": True}),
    ],
)
def test_arguments_that_do_not(sent: dict[bytes, bytes], arguments: object) -> None:
    with pytest.raises(HeaderMismatch, match="Mcp-Param-"):
        headers.check_params(sent, DECLARED, raw(arguments))


def meta(capabilities: object, **more: object) -> Raw:
    return raw({envelope.VERSION: "2026-07-28", envelope.CAPABILITIES: capabilities, **more})


def test_capabilities_are_canonical() -> None:
    one = envelope.read(meta({"sampling": {}, "roots": {"listChanged": True}, "elicitation": {}, "tasks": {}}))
    other = envelope.read(meta({"elicitation": {"form": {}}, "roots": {}, "sampling": {}}, progressToken=1))
    assert one.capabilities == other.capabilities
    assert one.asks == {"roots", "sampling", "elicitation/form"}
    assert envelope.read(meta({"elicitation": {"url": {}}})).asks == {"elicitation/url"}
    assert envelope.read(meta({"sampling": {"tools": {}}})).asks == {"sampling", "sampling/tools"}


def test_what_is_no_envelope_stays() -> None:
    found = envelope.read(meta({}, progressToken=1, **{envelope.LOG_LEVEL: "error", "com.example/x": None}))
    assert (found.level, json.loads(found.rest)) == ("error", {"progressToken": 1, "com.example/x": None})
    assert envelope.read(meta({})).rest == b""


@pytest.mark.parametrize(
    "broken",
    [
        None,
        Raw(b"[]"),
        Raw(b"null"),
        raw({envelope.VERSION: "2026-07-28"}),
        raw({envelope.CAPABILITIES: {}}),
        raw({envelope.VERSION: 1, envelope.CAPABILITIES: {}}),
        meta([]),
        meta("x"),
        meta({"x": "y" * envelope.MAX_CAPABILITIES}),
        meta({}, **{envelope.LOG_LEVEL: "loud"}),
        meta({}, **{envelope.LOG_LEVEL: 7}),
    ],
)
def test_broken_envelopes(broken: Raw | None) -> None:
    with pytest.raises(InvalidArgument, match=r"_meta|capabilities|Capabilities|logLevel"):
        envelope.read(broken)


def page(*tools: object, **more: object) -> Raw:
    return raw({"tools": list(tools), **more})


def wide(count: int) -> dict[str, Any]:
    return schema(a=headed(), **{f"q{number}": {} for number in range(count)})


def deep(levels: int) -> dict[str, Any]:
    found = schema(a=headed())
    for _ in range(levels):
        found = schema(p=found)
    return found


@pytest.mark.parametrize(
    "tool",
    [
        wide(20_000),
        deep(40),
        {**schema(a=headed()), "anyOf": [{}] * 20_000},
        schema(a={**headed(), "x": "y" * 1_100_000}),
    ],
)
def test_a_tool_that_says_too_much_is_not_called_unchecked(tool: dict[str, Any]) -> None:
    found, _ = headers.tools_of(
        page({"name": "small", "inputSchema": schema(a=headed())}, {"name": "t", "inputSchema": tool})
    )
    assert found["small"] == ((("a",), b"mcp-param-region", False),)
    for sent, arguments in (({b"mcp-param-region": b"x"}, {"a": "x"}), ({}, {"a": "x"}), ({}, {})):
        with pytest.raises(NotSupported, match="x-mcp-header"):
            headers.check_params(sent, found["t"], raw(arguments))
    headers.check_params({}, found["t"], None)


def test_all_tools_of_a_page_share_the_room() -> None:
    tools = [{"name": f"t{number}", "inputSchema": wide(3_000)} for number in range(10)]
    found, _ = headers.tools_of(page(*tools))
    assert [known is headers.UNKNOWN for known in found.values()] == [False] * 3 + [True] * 7


def test_tools_without_annotations_are_not_read() -> None:
    plain = {"name": "plain", "inputSchema": {"properties": {f"q{number}": {} for number in range(100_000)}}}
    assert headers.tools_of(page(plain, nextCursor="c")) == ({}, "c")
    found, cursor = headers.tools_of(page(plain, {"name": "t", "inputSchema": schema(a=headed())}))
    assert (found, cursor) == ({"t": ((("a",), b"mcp-param-region", False),)}, "")


def test_a_page_that_cannot_be_read_declares_nobody_knows_what() -> None:
    with pytest.raises(NotSupported):
        headers.tools_of(raw({"tools": {"x-mcp-header": 1}}))
    assert headers.tools_of(raw({"tools": ["x-mcp-header", ["x-mcp-header"]]})) == ({"": ()}, "")
