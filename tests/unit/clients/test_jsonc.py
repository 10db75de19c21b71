# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers in JSON files with comments: changed in place, all else byte for byte as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from mcpd.clients.editing import edit, read
from mcpd.errors import InvalidConfig
from tests.unit.clients.made import CHANGES, Made, json_files

KEY = ("a", "servers")
RUN: dict[str, Any] = {"command": "mcpctl", "args": ["run", "x"]}


def change(text: str, changes: dict[str, Any], *key: str) -> str:
    data = text.encode()
    result = edit(data, "jsonc", key or ("s",), "map", changes, "f.json")
    assert edit(result, "jsonc", key or ("s",), "map", changes, "f.json") == result
    return result.decode()


@given(json_files(comments=False), CHANGES)
def test_strict_json_stays_strict(made: Made, changes: dict[str, Any]) -> None:
    result = json.loads(edit(made.data, "json", KEY, "map", changes, "f").decode("utf-8-sig"))
    before = json.loads(made.text)
    before["a"]["servers"] = made.after(changes)
    assert result == before


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("unit", ["  ", "    ", "\t"], ids=["two", "four", "tab"])
def test_new_servers_are_laid_out_like_the_file(unit: str, newline: str) -> None:
    before = json.dumps({"t": 1, "s": {"a": {"command": "x"}}}, indent=unit).replace("\n", newline)
    after = json.dumps({"t": 1, "s": {"a": {"command": "x"}, "n": RUN}}, indent=unit).replace("\n", newline)
    assert change(before, {"n": RUN}) == after
    assert change(after, {"n": None}) == before
    empty = json.dumps({"t": 1, "s": {}}, indent=unit).replace("\n", newline)
    assert change(before, {"a": None}) == empty
    assert change(empty, {"a": {"command": "x"}}) == before


def test_settings_of_zed_keep_comments_and_trailing_commas() -> None:
    before = """// Zed settings
{
  "theme": "One", // light
  "context_servers": {
    /* by hand */
    "docs": {
      "command": "npx", // inner
    }, // docs
    // "off": {},
  },
  "vim_mode": true,
}
"""
    after = before.replace(
        '    // "off": {},\n',
        '    // "off": {},\n    "n": {\n      "command": "mcpctl",\n'
        '      "args": [\n        "run",\n        "x"\n      ]\n    },\n',
    )
    assert change(before, {"n": RUN}, "context_servers") == after
    assert change(after, {"n": None}, "context_servers") == before
    removed = change(before, {"docs": None}, "context_servers")
    assert removed == before.replace('"docs": {\n      "command": "npx", // inner\n    }, // docs', "// docs")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "s": {\n    "n": {}\n  }\n}\n'),
        (" \n", '{\n  "s": {\n    "n": {}\n  }\n}\n'),
        ("// c\n", '// c\n{\n  "s": {\n    "n": {}\n  }\n}\n'),
        ("// c", '// c\n{\n  "s": {\n    "n": {}\n  }\n}'),
        ("{}", '{\n  "s": {\n    "n": {}\n  }\n}'),
        ('{"a":1}', '{"a":1,"s":{"n":{}}}'),
        ('{"a": 1}', '{"a": 1, "s": {"n": {}}}'),
        ('{"s":{}}', '{"s":{"n":{}}}'),
        ('{"s": null, "b": 2}', '{"s": {"n": {}}, "b": 2}'),
        ('{"s": {"a": 1 // c\n}}', '{"s": {"a": 1, // c\n  "n": {}\n}}'),
        ('{"s": {"a": 1, "b": 2,}}', '{"s": {"a": 1, "b": 2, "n": {},}}'),
        ('{"s": {"a": 1 // c \n}}', '{"s": {"a": 1, // c \n  "n": {}\n}}'),
        ('{"s": {\n  // c \t\n}}', '{"s": {\n  // c \t\n  "n": {}\n}}'),
        ('{"s": {\n  "a": 1, \n}}', '{"s": {\n  "a": 1, \n  "n": {},\n}}'),
    ],
    ids=[
        "empty",
        "blank",
        "comment",
        "no-line-break",
        "object",
        "minified",
        "spaced",
        "map",
        "null",
        "note",
        "comma",
        "blank-note",
        "note-alone",
        "blank-comma",
    ],
)
def test_new_servers_where_there_was_none(before: str, after: str) -> None:
    assert change(before, {"n": {}}) == after


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        ('{"s": {"a": 1, "b": 2, "c": 3}}', ["b"], '{"s": {"a": 1, "c": 3}}'),
        ('{"s": {"a": 1, "b": 2, "c": 3}}', ["b", "c"], '{"s": {"a": 1}}'),
        ('{"s": { "a": 1, "b": 2 }}', ["a", "b"], '{"s": {}}'),
        ('{"s": {"a": 1 /* x */, "b": 2}}', ["a"], '{"s": {/* x */ "b": 2}}'),
        ('{"s": {"a": 1, // x\n"b": 2}}', ["b"], '{"s": {"a": 1 // x\n}}'),
        ('{"s": {\r\n"a": 1,\r\n"b": 2\r\n}}', ["b"], '{"s": {\r\n"a": 1\r\n}}'),
    ],
    ids=["middle", "last-two", "all", "comment", "last-after-comment", "crlf"],
)
def test_removed_servers_leave_no_comma(before: str, gone: list[str], after: str) -> None:
    assert change(before, dict.fromkeys(gone)) == after


def test_the_path_is_made_as_far_as_it_is_missing() -> None:
    assert change('{"a": {"x": 1}}', {"n": {}}, "a", "b", "c") == '{"a": {"x": 1, "b": {"c": {"n": {}}}}}'
    assert read(b'{"a": {"x": 1}}', "json", ("a", "b", "c"), "map", "f") == {}
    assert change('{"x": 1}', {"n": {}}, "s") == '{"x": 1, "s": {"n": {}}}'


def test_the_whole_document_may_be_the_map() -> None:
    assert edit(b'{"a": {}}', "json", (), "map", {"n": {}}, "f") == b'{"a": {}, "n": {}}'


def test_lists_hold_servers_with_names() -> None:
    before = b'{"s": [{"name": "a", "x": 1}, {"uses": "b"}, 3]}'
    assert read(before, "json", ("s",), "list", "f") == {"a": {"name": "a", "x": 1}}
    after = edit(before, "json", ("s",), "list", {"a": None, "n": RUN}, "f")
    assert json.loads(after) == {"s": [{"uses": "b"}, 3, {"name": "n", **RUN}]}
    with pytest.raises(InvalidConfig, match="another name"):
        edit(before, "json", ("s",), "list", {"n": {"name": "m"}}, "f")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "f:1: the document is not an object"),
        ('{"s": []}', "f:1: s is not an object"),
        ('{\n"s": {},\n"s": {}}', "f:3: s is there twice"),
        ('{"s": {\n"a": 1,\n"\\u0061": 2}}', "f:3: two servers are called a"),
        ('{"s": {"a": 1,, "b": 2}}', "f:1: not JSON"),
        ('{"s": [,]}', "f:1: not JSON"),
        ("{,}", "f:1: not JSON"),
        ("{'s': 1}", "f:1: not JSON"),
        ('{"s": NaN}', "f:1: not JSON: NaN"),
        ('{"s": 1}\n{}', "f:2: not JSON: Extra data"),
        ('{"s": {}\n/* ', "f:2: a comment is not closed"),
        ('{"s": "//', "f:1: a string is not closed"),
        ('{"s": {"a": "\\ud800"}}', "cannot be used"),
        ('{"s": {"a": 1e999}}', "cannot be used"),
        ('{"s": ' + "1" * 5000 + "}", "f:1: not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"s": {"a": ' + "[" * 80 + "]" * 80 + "}}", "nested deeper"),
        ('{\n"s": "\0"}', "f:2: not text"),
        ('{"s": {}} // \u2028 "x"', None),
    ],
    ids=range(19),
)
def test_what_cannot_be_read_is_refused_by_line(text: str, fault: str | None) -> None:
    if fault is None:
        assert read(text.encode(), "json", ("s",), "map", "f") == {}
        return
    for work in (
        lambda: read(text.encode(), "jsonc", ("s",), "map", "f"),
        lambda: edit(text.encode(), "jsonc", ("s",), "map", {"n": {}}, "f"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            work()
        assert fault in caught.value.message
