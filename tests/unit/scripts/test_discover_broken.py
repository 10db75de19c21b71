# SPDX-License-Identifier: LGPL-2.1-or-later
"""Python files that are broken, odd or no Python at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.errors import InvalidManifest
from mcpd.servers.scripts.discover import python

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def refused(call: Callable[[], T]) -> T | None:
    """What *call* returns, or None if it refuses its input, naming the file and the line; all else is a failure."""
    try:
        return call()
    except InvalidManifest as error:
        message = str(error)
    assert re.match(r"x\.py:[1-9][0-9]*: \S", message)
    return None


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def f(:\n  pass", 1),
        ("x = 1\n\nif x\n", 3),
        ("x = 1\ny = '\0'", 2),
        ("x = 1\ny = '\ud800'", 2),
        ("  x\n", 1),
        ("def f():\n\treturn 1\n        return 2", 3),
        ("x = '''\n\n", 1),
        ("(" * 5000 + ")" * 5000, 1),
        ("-" * 2_000_000 + "1", 1),
        ("x" + ".y" * 900_000, 1),
        ("x = " + "1+" * 900_000 + "1", 1),
        ("def f(x: " + "list[" * 500 + "int" + "]" * 500 + "): ...", 1),
        ("#" * 3_000_000, 1),
        ("x = 1" + "0" * 5000, 1),
    ],
)
def test_what_python_cannot_read_is_reported_with_its_line(source: str, line: int) -> None:
    with pytest.raises(InvalidManifest, match=rf"^dir/x\.py:{line}: \S"):
        python.read(source, "dir/x.py")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1\ny = '\xff'\n", r"^x\.py:2: not utf-8: "),
        (b"# coding: klingon\n", r"^x\.py:1: .*klingon"),
        (b"\xef\xbb\xbf# coding: latin-1\n", r"^x\.py:1: "),
        (b"# coding: ascii\n\ny = '\xc3\xa4'\n", r"^x\.py:3: not ascii: "),
    ],
)
def test_a_wrong_encoding_is_reported_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(InvalidManifest, match=message):
        python.decode(data, "x.py")


def test_encodings_that_a_file_declares_are_read() -> None:
    assert python.decode(b"\xef\xbb\xbfx = '\xc3\xa4'\r\n", "x.py") == "x = 'ä'\n"
    assert python.decode(b"# coding: latin-1\nx = '\xe4'\n", "x.py") == "# coding: latin-1\nx = 'ä'\n"


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"# coding: utf-16\n\xff\xfe")
@example(b"# coding: rot13\nqrs s(): cnff\n")
@example(b"# coding: hex\n61\n")
@example(b"# coding: punycode\n\x80")
@example(b"# coding: idna\nx.\xff")
@example(b"# coding: undefined\n")
def test_any_bytes_are_text_or_refused(data: bytes) -> None:
    text = refused(lambda: python.decode(data, "x.py"))
    assert text is None or isinstance(text, str)


_WORDS = st.sampled_from(
    [
        *re.split(" ", "( ) : = ' [ ] @ * ** , -> | - . # { } \\ \t \r \f \n \0 ä \ud800 \ufeff"),
        " ",
        "    ",
        '"""',
        "f",
        "A",
        "int",
        "1",
        "...",
        "x:",
        "None",
        "Optional",
        "Literal",
        "else",
        "try",
        "def ",
        "class ",
        "lambda ",
        "async ",
        "if ",
        "import ",
        "from ",
        "type ",
        "match ",
        "case ",
        "in ",
        "for ",
        "Args:\n  x: ",
        ":param x: ",
    ]
)


@given(st.text() | st.lists(_WORDS, max_size=40).map("".join))
def test_any_text_is_tools_or_refused(source: str) -> None:
    for tool in (refused(lambda: python.read(source, "x.py")) or ([], ()))[0]:
        Draft202012Validator.check_schema(tool.input_schema)
