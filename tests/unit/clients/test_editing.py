# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading and changing the servers in clients' files, in JSON with comments above all."""

from __future__ import annotations

import json
import tomllib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from mcpd.clients.editing import MAX_BYTES, Splice, apply, edit, names, read, same
from mcpd.errors import InvalidConfig
from tests.unit.clients.made import CHANGES, ENTRIES, NAMES, Made, json_files, toml_files, yaml_files

FORMATS: list[Any] = ["json", "jsonc", "toml", "yaml"]
every_format = pytest.mark.parametrize("form", FORMATS)

KINDS: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "jsonc": (json_files(), ("a", "servers"), "map"),
    "toml": (toml_files(), ("mcp_servers",), "map"),
    "yaml": (yaml_files(), ("servers",), "map"),
    "yaml list": (yaml_files(listed=True), ("servers",), "list"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class File:
    """A file that *data* draws, of the *kind*."""

    def __init__(self, kind: str, data: st.DataObject) -> None:
        files, self.key, self.shape = KINDS[kind]
        self.form: Any = kind.partition(" ")[0]
        self.made: Made = data.draw(files)

    def edit(self, data: bytes, changes: dict[str, Any]) -> bytes:
        result = edit(data, self.form, self.key, self.shape, changes, "f")
        assert edit(result, self.form, self.key, self.shape, changes, "f") == result
        return result

    def read(self, data: bytes) -> dict[str, Any]:
        return read(data, self.form, self.key, self.shape, "f")

    def entry(self, name: str, entry: Any) -> Any:
        return entry if entry is None or self.shape == "map" else {"name": name, **entry}

    def foreign(self, data: bytes) -> Any:
        """What others make of all but the servers."""
        text = data.decode("utf-8-sig")
        if self.form == "jsonc":
            return None
        model: Any = tomllib.loads(text) if self.form == "toml" else YAML(typ="safe", pure=True).load(text) or {}
        servers = model.pop(self.key[0], None) or ()
        return model, [each for each in servers if self.shape == "list" and "name" not in each]


@every_kind
@given(st.data(), CHANGES)
def test_a_file_holds_what_was_meant_and_else_what_it_held(
    kind: str, data: st.DataObject, changes: dict[str, Any]
) -> None:
    file = File(kind, data)
    before = file.made.data
    assert file.read(before) == file.made.servers
    result = file.edit(before, changes)
    meant = file.made.after({name: file.entry(name, entry) for name, entry in changes.items()})
    assert list(file.read(result).items()) == list(meant.items())
    assert file.foreign(result) == file.foreign(before)
    file.made.assert_kept(result, changes)
    assert result.count(b"\r\n") == result.count(b"\n") or b"\r\n" not in before.strip()


@every_kind
@given(st.data(), ENTRIES)
def test_a_replaced_entry_changes_its_own_bytes_only(kind: str, data: st.DataObject, entry: dict[str, Any]) -> None:
    file = File(kind, data)
    name = data.draw(st.sampled_from(list(file.made.servers) or ["new"]))
    result = file.edit(file.made.data, {name: entry})
    assert file.read(result)[name] == file.entry(name, entry)
    if name in file.made.servers:
        head, tail = file.made.around(name)
        assert result.startswith(head)
        assert result.endswith(tail)
        if kind == "jsonc":
            assert json.loads(result[len(head) : len(result) - len(tail)]) == entry


@every_kind
@given(st.data(), st.sampled_from(NAMES))
def test_what_is_so_already_changes_nothing(kind: str, data: st.DataObject, name: str) -> None:
    file = File(kind, data)
    assert file.edit(file.made.data, {name: file.made.servers.get(name)}) == file.made.data


@every_kind
@given(st.data(), ENTRIES)
def test_adding_and_removing_a_server_restores_the_file(kind: str, data: st.DataObject, entry: dict[str, Any]) -> None:
    file = File(kind, data)
    before = file.made.data
    removed = file.edit(file.edit(before, {"new": entry}), {"new": None})
    assert file.read(removed) == file.made.servers
    if kind == "jsonc":
        assert b"".join(removed.split()) == b"".join(before.split())
    elif kind == "toml" or file.made.servers:
        assert removed == before


FRAGMENTS = {
    "jsonc": """{ } [ ] " : , // /* */ \\ "s" "a" 1 - null é""",
    "toml": """[ ] { } " ' \"\"\" ''' = . , # \\ s a 1""",
    "yaml": """{ } [ ] " ' : , -\u00a0 ?\u00a0 # | >- &a *a ! % --- s: a:\u00a0 1""",
}


@pytest.mark.parametrize("form", FRAGMENTS)
@given(st.data())
def test_hostile_bytes_are_refused_or_edited(form: Any, data: st.DataObject) -> None:
    words = [word.replace("\u00a0", " ") for word in FRAGMENTS[form].split(" ")]
    parts = st.lists(st.sampled_from([*words, "\n", "\r\n", "\r", " ", "  "]), max_size=30)
    hostile = data.draw(st.one_of(st.binary(max_size=60), parts.map(lambda parts: "".join(parts).encode())))
    entry: Any = {"command": "mcpctl", "args": ["run", "x"], "env": {"A": "1"}}
    try:
        result = edit(hostile, form, ("s",), "map", {"n": entry}, "f")
    except InvalidConfig:
        return  # any other error fails the test
    assert read(result, form, ("s",), "map", "f")["n"] == entry


@every_format
def test_an_empty_file_holds_no_servers_and_becomes_a_whole_one(form: Any) -> None:
    assert read(b"", form, ("s",), "map", "f") == {}
    made = edit(b"", form, ("s",), "map", {"a": {"x": "é"}}, "f")
    assert read(made, form, ("s",), "map", "f") == {"a": {"x": "é"}}
    assert made.endswith(b"\n")
    assert edit(b"", form, ("s",), "map", {"a": None}, "f") == b""


@every_format
def test_a_byte_order_mark_stays(form: Any) -> None:
    made = edit(b"\xef\xbb\xbf", form, ("s",), "map", {"a": {"x": 1}}, "f")
    assert made.startswith(b"\xef\xbb\xbf")
    assert read(made, form, ("s",), "map", "f") == {"a": {"x": 1}}


@every_format
@pytest.mark.parametrize("data", [b"\n\n\xff", b"\n\n# \0"], ids=["not-utf8", "nul"])
def test_what_is_not_text_is_refused_by_line(form: Any, data: bytes) -> None:
    with pytest.raises(InvalidConfig, match=r"^f:3: not "):
        read(data, form, ("s",), "map", "f")


@every_format
def test_a_file_of_more_than_the_limit_is_refused(form: Any) -> None:
    with pytest.raises(InvalidConfig, match="larger than"):
        read(b" " * (MAX_BYTES[form] + 1), form, ("s",), "map", "f")
    with pytest.raises(InvalidConfig, match="would become larger"):
        edit(b"", form, ("s",), "map", {"a": {"x": "y" * MAX_BYTES[form]}}, "f")


@every_format
@pytest.mark.parametrize("value", ["\0", "\ud800", float("inf")], ids=["nul", "half", "infinite"])
def test_an_entry_that_cannot_be_written_is_refused(form: Any, value: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^f: a: "):
        edit(b"", form, ("s",), "map", {"a": {"x": value}}, "f")


SECRET = "hunter2-of-mine"
BROKEN = {
    "json-nul": ("json", '{"s": {"a": {"key": "SECRET\\u0000"}}}'),
    "json-half": ("json", '{"s": {"a": {"key": "SECRET\\ud800"}}}'),
    "json-bare": ("jsonc", '{"s": {"a": {"key": SECRET}}}'),
    "toml-nul": ("toml", '[s.a]\nkey = "SECRET\\u0000"\n'),
    "toml-bare": ("toml", "[s.a]\nkey = SECRET\n"),
    "yaml-nul": ("yaml", 's:\n  a:\n    key: "SECRET\\0"\n'),
    "yaml-alias": ("yaml", "s:\n  a:\n    key: *SECRET\n"),
    "yaml-tag": ("yaml", "s:\n  a:\n    key: !SECRET!x y\n"),
    "yaml-tags": ("yaml", "%TAG !SECRET! x\n%TAG !SECRET! x\n---\ns: {}\n"),
    "yaml-digits": ("yaml", "s:\n  a:\n    key: " + "1029384756" * 500),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_said_of_a_file_that_cannot_be_used_holds_no_secret(name: str) -> None:
    form, text = BROKEN[name]
    with pytest.raises(InvalidConfig, match=r"^f:") as caught:
        read(text.replace("SECRET", SECRET).encode(), cast("Any", form), ("s",), "map", "f")
    assert "hunter2" not in caught.value.message
    assert "1029384756" not in caught.value.message


@pytest.mark.parametrize(
    ("form", "text"),
    [("json", '{"b": {"c": [{"d": 1}]}, "s": {"a": {}}}'), ("yaml", "b: &x {c: [{d: 1}]}\ns: {a: {}}\ne: *x\n")],
)
def test_all_names_of_settings_are_known(form: Any, text: str) -> None:
    assert names(text.encode(), form, ("s",), "map", "f") >= {"b", "c", "d", "s", "a"}
    assert names(b"", form, ("s",), "map", "f") == set()


@every_format
def test_what_differs_in_type_alone_is_written(form: Any) -> None:
    before = edit(b"", form, ("s",), "map", {"a": {"x": 1}}, "f")
    for value in (True, "1", 1.0):
        after = edit(before, form, ("s",), "map", {"a": {"x": value}}, "f")
        found: Any = read(after, form, ("s",), "map", "f")
        assert same(found["a"]["x"], value)
        assert after != before


def test_splices_may_overlap_and_come_in_any_order() -> None:
    assert apply("abcdef", [Splice(4, 5, "X"), Splice(1, 3), Splice(2, 4), Splice(4, 4, "-")]) == "a-Xf"


def test_values_are_the_same_only_if_their_types_are() -> None:
    nested: Any = []
    other: Any = []
    for _ in range(100_000):
        nested, other = [nested], [other]
    assert same(nested, other)
    assert not same(nested, [other])
    assert not same({"a": 1}, {"b": 1})
    assert not same([1], [1, 1])
    assert not same(1, True)


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
    with pytest.raises(InvalidConfig, match="different name"):
        edit(before, "json", ("s",), "list", {"n": {"name": "m"}}, "f")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[]", "f:1: the document is not an object"),
        ('{"s": []}', "f:1: s is not an object"),
        ('{\n"s": {},\n"s": {}}', "f:3: s occurs twice"),
        ('{"s": {\n"a": 1,\n"\\u0061": 2}}', "f:3: two servers are named a"),
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
        ('{\n"s": "\0"}', "f:2: not a text file"),
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
