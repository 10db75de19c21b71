# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagnostics in output of any kind: paths, repetitions, limits, and output that means harm."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.workstation.ci.parsers import MAX_LINES, MAX_TEXT, parse

if TYPE_CHECKING:
    from mcpd.servers.workstation.ci.formats.findings import Diagnostic

DIRECTORY = "/home/user/shop"
LARGE = 4 * 1024 * 1024


def found(ecosystem: str, output: str, directory: str = DIRECTORY) -> list[Diagnostic]:
    return parse(ecosystem, output, directory).diagnostics


def files(output: str, ecosystem: str = "make", directory: str = DIRECTORY) -> list[str | None]:
    return [each.file for each in found(ecosystem, output, directory)]


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
    said = found("make", output)
    assert [(each.file, each.severity) for each in said] == [("b.c", "error"), ("a.c", "error"), ("b.c", "warning")]


def test_there_are_no_more_than_a_thousand_of_each_severity() -> None:
    output = "".join(f"a.c:{line}:1: {severity}: x\n" for severity in ("warning", "error") for line in range(1, 3000))
    parsed = parse("make", output, DIRECTORY)
    assert Counter(each.severity for each in parsed.diagnostics) == {"warning": 1000, "error": 1000}
    assert [each.line for each in parsed.diagnostics if each.severity == "error"] == list(range(1, 1001))
    assert parsed.truncated


def test_of_less_than_is_looked_at_nothing_is_missing() -> None:
    output = "a.c:1:1: error: x\n" + "nothing\n" * (MAX_LINES - 2)
    assert not parse("make", output, DIRECTORY).truncated


def test_whoever_waits_no_longer_ends_it() -> None:
    class Over(Exception):
        pass

    def check() -> None:
        raise Over

    with pytest.raises(Over):
        parse("make", "x\n", DIRECTORY, check=check)


def test_that_a_program_failed_is_said_only_if_nothing_else_is() -> None:
    failed = "make: *** [Makefile:2: all] Error 1\n"
    assert [each.message for each in found("make", failed)] == ["all: Error 1"]
    assert [each.message for each in found("make", "a.c:1:1: error: x\n" + failed)] == ["x"]


def test_a_warning_is_no_reason_for_a_failure() -> None:
    output = "a.c:1:1: warning: x\nmake: *** [Makefile:2: all] Error 1\n"
    assert [each.severity for each in found("make", output)] == ["warning", "error"]


def cargo_says(message: str, **more: Any) -> str:
    span = {"file_name": "src/lib.rs", "is_primary": True, "line_start": 3, "column_start": 1}
    said = {
        "message": message,
        "level": "error",
        "spans": [span],
        "rendered": "error: no\n --> src/lib.rs:9:9\n",
        **more,
    }
    return json.dumps({"reason": "compiler-message", "message": said}, separators=(",", ":"))


def test_what_cargo_says_for_programs_is_found_among_other_output() -> None:
    output = f"   Compiling shop\n{cargo_says('no')}\nb.c:1:1: error: x\n"
    assert [(each.file, each.line) for each in found("cargo", output)] == [("src/lib.rs", 3), ("b.c", 1)]


@pytest.mark.parametrize(
    "text",
    [
        '{"reason":"compiler-message"}',
        '{"reason":"compiler-message","message":{"message":3,"level":"error"}}',
        '{"reason":"compiler-message","message":{"message":"x","level":"error","spans":[{}]}}',
        '{"reason":"compiler-message","message":{"message":"\\ud800","level":"error"}}',
        '{"reason":"build-finished","success":false}',
        '{"reason":"',
        '{"reason":"compiler-message",' + '"a":[' * 20_000,
        cargo_says("cut")[:-1],
        "[\n  1,\n  2\n]",
        "[" * 5000 + "]" * 5000,
    ],
)  # fmt: skip
def test_other_documents_are_passed_over(text: str) -> None:
    assert files(f"{text}\na.c:1:1: error: x\n", "cargo") == ["a.c"]


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
    assert found("make", f"{line}\n") == []


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
    said = found("make", f"{line}{between}a.c:1:1: error: x\n")
    assert "a.c" in [each.file for each in said]


def test_a_number_that_is_no_line_is_left_out() -> None:
    (said,) = found("make", "a.c:0:0: error: whole file\n")
    assert (said.file, said.line, said.column) == ("a.c", None, None)


def test_messages_are_not_longer_than_anyone_reads() -> None:
    (said,) = found("make", f"a.c:1:1: error: {'x' * 100_000}\n")
    assert len(said.message) == 1000
    assert said.message.endswith("…")


def test_half_characters_become_the_replacement_character() -> None:
    (said,) = found("make", "a\udcff.c:1:1: error: \ud800\n")
    assert (said.file, said.message) == ("a\ufffd.c", "\ufffd")
    said.model_dump_json()


@pytest.mark.parametrize(
    "filler", ["nothing\n" * MAX_LINES, ("x" * 1000 + "\n") * (MAX_TEXT // 1000 + 1)], ids=["lines", "text"]
)
def test_only_the_end_of_much_output_is_looked_at(filler: str) -> None:
    parsed = parse("make", f"first.c:1:1: error: x\n{filler}last.c:1:1: error: x\n", DIRECTORY)
    assert [each.file for each in parsed.diagnostics] == ["last.c"]
    assert parsed.truncated


def test_what_cargo_says_for_programs_does_not_count_as_text() -> None:
    output = "first.rs:1:1: error: x\n" + (cargo_says("no", rendered="x" * 10_000) + "\n") * (MAX_TEXT // 9_000)
    parsed = parse("cargo", output, DIRECTORY)
    assert [each.file for each in parsed.diagnostics] == ["first.rs", "src/lib.rs"]
    assert not parsed.truncated


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
    '{"reason":"\n',
    '{"reason":"compiler-message",',
    '{"reason":"compiler-message","message":{"message":"x","level":"note","spans":[{}]}}\n',
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
    "[ERROR] " + "x:[1," * 700 + "\n",
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
    assert len(found("cargo", output)) <= 3


def test_what_is_longer_than_cargo_writes_is_passed_over() -> None:
    many = cargo_says("x", spans=[{"file_name": "a.rs", "line_start": 1}] * (LARGE // 40))
    assert files(f"{many}\nb.rs:1:1: error: x\n", "cargo") == ["b.rs"]


WORDS = st.sampled_from(
    [*(unit.rstrip("\n")[:60] for unit in HOSTILE), "error", "warning: ", "a.py", ":", "3", "\n", " ", "\r", "\t", "…"]
)
NAMES = st.text(st.characters(categories=("L", "N"), include_characters="_-+"), min_size=1, max_size=20)
NUMBERS = st.integers(1, 10**9 - 1)


@given(st.one_of(st.text(), st.lists(WORDS, max_size=60).map("".join), st.lists(WORDS, max_size=60).map("\n".join)))
def test_any_output_gives_diagnostics_that_can_be_shown(output: str) -> None:
    said = found("python", output)
    again = Counter((each.file, each.line, each.column, each.severity, each.message) for each in said)
    assert all(count == 1 for count in again.values())
    for each in said:
        assert each.message.strip()
        each.model_dump_json()
    assert found("python", output) == said


@given(NAMES, NUMBERS, NUMBERS, st.sampled_from(["error", "warning", "note"]))
def test_a_compiler_is_understood_whatever_the_file_is_called(name: str, line: int, column: int, severity: str) -> None:
    (said,) = found("make", f"dir/{name}.c:{line}:{column}: {severity}: what is wrong\n")
    assert (said.file, said.line, said.column) == (f"dir/{name}.c", line, column)
    assert (said.severity, said.message) == (severity, "what is wrong")


@given(NAMES, NUMBERS, NUMBERS)
def test_typescript_is_understood_whatever_the_file_is_called(name: str, line: int, column: int) -> None:
    (said,) = found("node", f"app/({name})/[id]/page.ts({line},{column}): error TS2322: no\n")
    assert (said.file, said.line, said.column) == (f"app/({name})/[id]/page.ts", line, column)
