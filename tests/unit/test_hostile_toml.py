# SPDX-License-Identifier: LGPL-2.1-or-later
"""TOML that somebody wrote to keep the parser busy, and TOML that only looks like it."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.toml import MAX_FAULT, MAX_PARTS, parse_toml

PARTS = [".", " . ", "\t.", '."".', ".'a.b'.", '."\\"".', '."#".']
LONG = "a." * MAX_PARTS + "a"
STRINGS = ['"%s"', "'%s'", '"""%s"""', "'''%s'''", '"""\n%s"""""', "'''\"%s''''", '"\\"%s"', '"""\\"""%s"""']
BEFORE = [
    "",
    "# '''\n",
    'x = "#"\n',
    "x = '\\'\n",
    'x = """\n#""""\n',
    "x = ''''''\n",
    'x = "\\\\"\n',
    "x = [1, # \"\n'[']\n",
]
"""What a key may follow, made to have the key taken for a part of a string or of a comment."""
TOKENS = [*"\"'.=[]{}#\\\n \ta1", '"""', "'''", "a.b", "x = ", "\r\n"]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("between", PARTS)
@pytest.mark.parametrize(
    "made", ["%s = 1", "[%s]", "[[%s]]", "y = { %s = 1 }", "y = [{ z = 1, %s = 1 }]", "\r\n%s = 1"]
)
def test_a_key_of_too_many_parts_is_refused_wherever_it_stands(before: str, between: str, made: str) -> None:
    key = between.join(["a"] * (MAX_PARTS + 1))
    with pytest.raises(ValueError, match=rf"^a key of more than {MAX_PARTS} parts \(at line \d+, column \d+\)$"):
        parse_toml(before + made % key + "\n")


def test_the_place_of_the_key_is_told() -> None:
    with pytest.raises(ValueError, match=r"\(at line 3, column 5\)$"):
        parse_toml(f"x = 1\n\n[[  {LONG}]]\n")


@pytest.mark.parametrize("string", STRINGS)
def test_what_looks_like_such_a_key_in_a_string_or_comment_is_text(string: str) -> None:
    text = f"x = {string % LONG} # {LONG} = 1\n# {LONG}\n[{'a.' * (MAX_PARTS - 1)}a]\n"
    assert parse_toml(text) == tomllib.loads(text)


@given(st.lists(st.sampled_from(TOKENS), max_size=60).map("".join))
def test_everything_else_means_what_it_means_to_the_parser(text: str) -> None:
    try:
        meant = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(ValueError, match="at "):
            parse_toml(text)
    else:
        assert parse_toml(text.encode()) == meant


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"a = " + b"9" * 5000, "a number with thousands of digits"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = '\xff'", "not UTF-8 text (byte 5)"),
        (b"a = \n", "Invalid value (at line 1, column 5)"),
        (b'a = "' + b'\\"' * 500_000, "Unterminated string (at end of document)"),
        (b'"' + b'\\"' * 500_000 + b"\\\n", "Unescaped '\\' in a string (at end of document)"),
    ],
    ids=["digits", "deep", "bytes", "nothing", "unended", "unended-line"],
)
def test_what_is_wrong_is_said(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(fault)}$"):
        parse_toml(data)


def test_a_key_is_not_repeated_at_any_length() -> None:
    header = f"[{'a' * 100_000}]\n"
    with pytest.raises(ValueError, match=r"^Cannot declare .*\(at line 2, column \d+\)$") as caught:
        parse_toml(header * 2)
    assert len(str(caught.value)) < 2 * MAX_FAULT
