# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics in output of any kind: paths, repetitions, limits, and output that means harm."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.servers.workstation.ci.parsers import parse

DIRECTORY = "/home/user/shop"
LARGE = 4 * 1024 * 1024


def files(output: str, ecosystem: str = "make", directory: str = DIRECTORY) -> list[str | None]:
    return [each.file for each in parse(ecosystem, output, directory)]


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("src/a.c", "src/a.c"),
        ("./src/a.c", "src/a.c"),
        ("src/../a.c", "a.c"),
        (f"{DIRECTORY}/src/a.c", "src/a.c"),
        (f"{DIRECTORY}2/a.c", f"{DIRECTORY}2/a.c"),
        ("../other/a.c", "/home/user/other/a.c"),
        ("/usr/include/stdio.h", "/usr/include/stdio.h"),
        ("with a blank/and (brackets).c", "with a blank/and (brackets).c"),
        ("ünï.c", "ünï.c"),
    ],
)
def test_files_are_relative_to_the_directory_if_they_lie_there(printed: str, meant: str) -> None:
    assert files(f"{printed}:3:4: error: no\n") == [meant]


def test_the_root_can_be_the_directory() -> None:
    assert files("/src/a.c:3:4: error: no\n", directory="/") == ["src/a.c"]


def test_paths_are_meant_where_make_is() -> None:
    output = (
        "make[1]: Entering directory '/home/user/shop/lib'\n"
        "a.c:1:1: error: one\n"
        "make[2]: Entering directory '/home/user/shop/lib/deep'\n"
        "a.c:2:1: error: two\n"
        "make[2]: Leaving directory '/home/user/shop/lib/deep'\n"
        "../b.c:3:1: error: three\n"
        "make[1]: Leaving directory '/home/user/shop/lib'\n"
        "a.c:4:1: error: four\n"
    )
    assert files(output) == ["lib/a.c", "lib/deep/a.c", "b.c", "a.c"]


def test_each_is_said_once_and_in_order() -> None:
    output = "b.c:1:1: error: x\na.c:1:1: error: x\nb.c:1:1: error: x\nb.c:1:1: warning: x\n"
    found = parse("make", output, DIRECTORY)
    assert [(each.file, each.severity) for each in found] == [("b.c", "error"), ("a.c", "error"), ("b.c", "warning")]


def test_there_are_no_more_than_a_thousand() -> None:
    output = "".join(f"a.c:{line}:1: error: x\n" for line in range(1, 3000))
    found = parse("make", output, DIRECTORY)
    assert [each.line for each in found] == list(range(1, 1001))


def test_that_a_program_failed_is_said_only_if_nothing_else_is() -> None:
    failed = "make: *** [Makefile:2: all] Error 1\n"
    assert [each.message for each in parse("make", failed, DIRECTORY)] == ["all: Error 1"]
    assert [each.message for each in parse("make", "a.c:1:1: error: x\n" + failed, DIRECTORY)] == ["x"]


def test_a_warning_is_no_reason_for_a_failure() -> None:
    output = "a.c:1:1: warning: x\nmake: *** [Makefile:2: all] Error 1\n"
    assert [each.severity for each in parse("make", output, DIRECTORY)] == ["warning", "error"]


def test_a_document_is_found_among_other_output() -> None:
    entry = {"filePath": f"{DIRECTORY}/a.js", "messages": [{"ruleId": "x", "severity": 2, "message": "no", "line": 3}]}
    for text in (json.dumps([entry]), json.dumps([entry], indent=2)):
        output = f"> shop@1.0.0 lint\n> eslint -f json .\n\n{text}\nnpm ERR! code 1\nb.c:1:1: error: x\n"
        assert files(output, "node") == ["a.js", "b.c"]


@pytest.mark.parametrize(
    "text",
    [
        '[{"filePath": 3, "messages": []}]',
        '[{"filePath": "a.js", "messages": [{}]}]',
        '{"reason": "compiler-message"}',
        '{"severity": "error"}',
        '{"Action": "output", "Output": 3}',
        "[\n  1,\n  2\n]",
        "{\n]",
        "[" * 5000 + "]" * 5000,
        '[{"a":' * 20_000 + "0" + "}]" * 20_000,
        '{"runs":' * 20_000 + "0" + "}" * 20_000,
    ],
)
def test_other_documents_are_passed_over(text: str) -> None:
    assert files(f"{text}\na.c:1:1: error: x\n") == ["a.c"]


@pytest.mark.parametrize(
    "line",
    [
        "12:30:15: error: it is late",
        "2024-03-01T12:30:15: error: a log",
        "http://localhost:8080: error: refused",
        "In file included from a.c:3:",
        "In file included from a.c:3: error:",
        "127.0.0.1:80: note: hello",
        "error",
        "warning: in passing",
        "0 errors, 0 warnings",
        "tests/test_a.py::test_x PASSED",
        "ERROR the server says so",
        "FAILED (failures=1, errors=1)",
        "ok 1 - not ok",
        "not ok 1 - later # TODO some day",
        "1) first do this",
        "  12:5  error  of nobody",
        "  --> nowhere.rs:1:2",
        "  File nowhere",
        "   3 | a.c:3:4: error: quoted",
        "  Failed to do a thing [12]",
        "  ● a list",
        "✖ not so (3ms)",
        "___ Building ___",
        "::set-output name=x::error",
    ],
)
def test_what_only_looks_alike_is_none(line: str) -> None:
    assert parse("make", f"{line}\n", DIRECTORY) == []


@pytest.mark.parametrize(
    "line",
    [
        "___ Building ___",
        "  ● a list",
        "✖ not so (3ms)",
        "  1) first do this",
        "  Failed to do a thing [12]",
        "Traceback (most recent call last):",
        '  File "a.py", line 3',
        "not ok 1 - later # TODO some day",
        "ERROR: test_x (tests.X)",
        "thread 'x' did something",
        "[",
        "{",
        "panic: at the disco",
        "The following tests FAILED:",
        "=== RUN   TestX",
        "app.js",
        "TypeError: to be continued",
        "make[1]: Leaving directory '/nowhere'",
    ],
)
@pytest.mark.parametrize("between", ["\n", "\n\n", "\n\n\n\n"], ids=["next", "blank", "blanks"])
def test_what_follows_a_line_that_only_looks_like_a_beginning_is_read(line: str, between: str) -> None:
    found = parse("make", f"{line}{between}a.c:1:1: error: x\n", DIRECTORY)
    assert "a.c" in [each.file for each in found]


def test_a_number_that_is_no_line_is_left_out() -> None:
    (found,) = parse("make", "a.c:0:0: error: whole file\n", DIRECTORY)
    assert (found.file, found.line, found.column) == ("a.c", None, None)


def test_messages_are_not_longer_than_anyone_reads() -> None:
    (found,) = parse("make", f"a.c:1:1: error: {'x' * 100_000}\n", DIRECTORY)
    assert len(found.message) == 1000
    assert found.message.endswith("…")


def test_half_characters_become_the_replacement_character() -> None:
    (found,) = parse("make", "a\udcff.c:1:1: error: \ud800\n", DIRECTORY)
    assert (found.file, found.message) == ("a\ufffd.c", "\ufffd")
    found.model_dump_json()


def test_only_the_last_of_very_many_lines_are_looked_at() -> None:
    output = "first.c:1:1: error: x\n" + "nothing\n" * 100_000 + "last.c:1:1: error: x\n"
    assert files(output) == ["last.c"]


def test_a_line_that_was_written_over_counts_as_it_stands() -> None:
    assert files("10%\r20%\ra.c:1:1: error: x\r\n") == ["a.c"]


HOSTILE = [
    "a\n",
    "\n",
    ":1:1:1",
    "((((1",
    " ",
    " (1,1): ",
    " at ",
    "[\n",
    "{\n",
    "[{}]\n",
    '{"severity":}\n',
    '[{"a":',
    "a.c:3:4: errr x\n",
    "Traceback (most recent call last):\n",
    '  File "a.py", line 3, in f\n',
    "E   x\n",
    "___ x ___\n",
    "error: x\n --> x:1\n",
    " FAIL  x > y\n",
    "  ● x\n",
    "not ok 1 - x\n  ---\n  error: x\n",
    "  1) x\n",
    "    a.go:3: x\n",
    "=== RUN  x\n    a.go:3: x\n",
    "CMake Error at x:3 (m):\n",
    "make: Entering directory '/a'\n",
    "    at " + "(" * 2000 + "\n",
    "    at x (" + "a:1" * 1300 + "\n",
    "A" * 4000 + "\n",
    "Error" * 800 + "\n",
    "w" * 4000 + ": \n",
    "FAIL: x (\n",
    " at x.pl line " * 290 + "\n",
    "Warning:  x in x on line " * 160 + "\n",
    "[ERROR] " + "x:[1," * 700 + "\n",
    "::error file=" + "," * 4000 + "::\n",
    "foo: " * 800 + "\n",
    "✖ " * 1000 + "\n",
    "  Failed " + "[" * 4000 + "\n",
    "Diff in " + ":1" * 2000 + "\n",
    "/" + ":1" * 2000 + "\n",
    "a.java:" * 600 + "\n",
]


@pytest.mark.parametrize("unit", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_output_that_almost_says_something_takes_no_longer(unit: str) -> None:
    output = (unit * (LARGE // len(unit) + 1))[:LARGE]
    assert len(parse("cargo", output, DIRECTORY)) <= 3


def test_very_many_things_are_read_no_longer_than_they_are_taken() -> None:
    one = '{"message":"x"}'
    output = '[{"filePath":"a","messages":[' + f"{one}," * (LARGE // len(one) - 10) + one + "]}]\n"
    assert len(parse("node", output, DIRECTORY)) == 1


WORDS = st.sampled_from(
    [*(unit.rstrip("\n")[:60] for unit in HOSTILE), "error", "warning: ", "a.py", ":", "3", "\n", " ", "\r", "\t", "…"]
)
NAMES = st.text(st.characters(categories=("L", "N"), include_characters="_-+"), min_size=1, max_size=20)
NUMBERS = st.integers(1, 10**9 - 1)


@settings(deadline=None, max_examples=100)
@given(st.one_of(st.text(), st.lists(WORDS, max_size=60).map("".join), st.lists(WORDS, max_size=60).map("\n".join)))
def test_any_output_gives_diagnostics_that_can_be_shown(output: str) -> None:
    found = parse("python", output, DIRECTORY)
    again = Counter((each.file, each.line, each.column, each.severity, each.message) for each in found)
    assert all(count == 1 for count in again.values())
    for each in found:
        assert each.message.strip()
        each.model_dump_json()
    assert parse("python", output, DIRECTORY) == found


@settings(deadline=None, max_examples=100)
@given(NAMES, NUMBERS, NUMBERS, st.sampled_from(["error", "warning", "note"]))
def test_a_compiler_is_understood_whatever_the_file_is_called(name: str, line: int, column: int, severity: str) -> None:
    (found,) = parse("make", f"dir/{name}.c:{line}:{column}: {severity}: what is wrong\n", DIRECTORY)
    assert (found.file, found.line, found.column) == (f"dir/{name}.c", line, column)
    assert (found.severity, found.message) == (severity, "what is wrong")


@settings(deadline=None, max_examples=100)
@given(NAMES, NUMBERS, NUMBERS)
def test_typescript_is_understood_whatever_the_file_is_called(name: str, line: int, column: int) -> None:
    (found,) = parse("node", f"app/({name})/[id]/page.ts({line},{column}): error TS2322: no\n", DIRECTORY)
    assert (found.file, found.line, found.column) == (f"app/({name})/[id]/page.ts", line, column)
