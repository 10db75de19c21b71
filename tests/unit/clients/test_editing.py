# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for client files of every format."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mcpd.cli.clients.editing import MAX_BYTES, edit, names, read
from mcpd.cli.clients.texts import Splice, apply, same
from mcpd.errors import InvalidConfig

FORMATS: list[Any] = ["json", "jsonc", "toml", "yaml"]
every_format = pytest.mark.parametrize("form", FORMATS)


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
