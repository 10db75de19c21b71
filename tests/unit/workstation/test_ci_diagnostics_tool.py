# SPDX-License-Identifier: LGPL-2.1-or-later
"""ci_diagnostics: a project's own command is run, and what it finds is returned as a list."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, NotFound, TimedOut
from mcpd.servers.workstation.ci.tools import DIAGNOSTICS, line_of
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.ci.tools import DiagnosticsResult

pytestmark = pytest.mark.process

SAYS = """\
#!/bin/sh
echo "lib/a.c:1:1: note: by the way"
echo "lib/a.c:2:1: warning: careful [-Wcare]" >&2
echo "$PWD/lib/a.c:3:7: error: no"
echo "lib/a.c:4:1: warning: careful [-Wcare]"
exit 3
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def project(bench: Workbench, text: str, *, name: str = "") -> None:
    """A project whose build, test and check run the script *text*."""
    directory = bench.root / name
    directory.mkdir(exist_ok=True)
    (directory / "Makefile").write_text("build check test lint:\n\t@sh ./say\n")
    (directory / "say").write_text(text)


async def found(bench: Workbench, **arguments: Any) -> DiagnosticsResult:
    answer = await bench.call(DIAGNOSTICS, **arguments)
    result: DiagnosticsResult = answer.result
    return result


async def test_lists_what_the_command_says(bench: Workbench) -> None:
    project(bench, SAYS)
    result = await found(bench)
    assert [line_of(each) for each in result.diagnostics] == [
        "lib/a.c:1:1: note: by the way",
        "lib/a.c:2:1: warning: careful [-Wcare]",
        "lib/a.c:3:7: error: no",
        "lib/a.c:4:1: warning: careful [-Wcare]",
    ]
    assert (result.counts.error, result.counts.warning, result.counts.note) == (1, 2, 1)
    assert (result.success, result.truncated, result.ecosystem) == (False, False, "make")
    assert result.command[0] == "make"
    assert result.directory == str(bench.root)
    assert result.exit_code != 0
    assert result.output is None


async def test_the_text_is_for_people(bench: Workbench) -> None:
    project(bench, SAYS)
    (block,) = (await bench.call(DIAGNOSTICS)).content
    summary, *lines = block["text"].splitlines()
    assert "1 errors, 2 warnings, 1 notes" in summary
    assert "lib/a.c:3:7: error: no" in lines


@pytest.mark.parametrize(("severity", "lines"), [("note", [1, 2, 3, 4]), ("warning", [2, 3, 4]), ("error", [3])])
async def test_lists_only_what_is_bad_enough(bench: Workbench, severity: str, lines: list[int]) -> None:
    project(bench, SAYS)
    result = await found(bench, severity=severity)
    assert [each.line for each in result.diagnostics] == lines
    assert result.counts.note == 1
    assert not result.truncated


@pytest.mark.parametrize(("limit", "lines"), [(1, [3]), (2, [2, 3]), (3, [2, 3, 4])])
async def test_a_limit_keeps_the_worst_in_their_order(bench: Workbench, limit: int, lines: list[int]) -> None:
    project(bench, SAYS)
    result = await found(bench, limit=limit)
    assert [each.line for each in result.diagnostics] == lines
    assert result.truncated


@pytest.mark.parametrize(
    ("kind", "target"), [("check", "lint"), ("build", "build"), ("test", "test"), ("lint", "lint")]
)
async def test_runs_the_command_of_a_kind(bench: Workbench, kind: str, target: str) -> None:
    """What "make check" runs is tests; so to look at the code is "make lint"."""
    project(bench, SAYS)
    result = await found(bench, kind=kind)
    assert result.command == ("make", target)
    assert result.counts.error == 1


async def test_a_project_below_is_the_directory_that_files_are_relative_to(bench: Workbench) -> None:
    project(bench, SAYS, name="below")
    result = await found(bench, path="below")
    assert {each.file for each in result.diagnostics} == {"lib/a.c"}
    assert result.directory == str(bench.root / "below")


async def test_success_without_findings_says_just_that(bench: Workbench) -> None:
    project(bench, "echo all is well\n")
    result = await found(bench)
    assert (result.success, result.diagnostics, result.output) == (True, (), None)


async def test_a_failure_that_nothing_explains_shows_the_end_of_the_output(bench: Workbench) -> None:
    script = bench.root / "package.json"
    script.write_text('{"scripts": {"build": "node fail.js"}}')
    (bench.root / "fail.js").write_text("console.log('mysterious'); process.exitCode = 7;\n")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    result = await found(bench, kind="build", timeout_seconds=60)
    assert not result.success
    assert result.diagnostics == ()
    assert "mysterious" in (result.output or "")


async def test_names_and_messages_that_are_no_text_are_shown(bench: Workbench) -> None:
    project(bench, "printf 'a\\377.c:1:2: error: \\033[31mred\\033[0m \\376\\n'; exit 1\n")
    (first, *_) = (await found(bench)).diagnostics
    assert (first.file, first.message) == ("a\ufffd.c", "red \ufffd")


async def test_finds_what_gcc_says(bench: Workbench) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (bench.root / "lib").mkdir()
    (bench.root / "lib/a.c").write_text("int f(void)\n{\n    return missing;\n}\n")
    (bench.root / "Makefile").write_text("build:\n\t@$(MAKE) -C lib -f ../Makefile inner\ninner:\n\t@gcc -c a.c\n")
    result = await found(bench, kind="build")
    assert [(each.file, each.line, each.column) for each in result.diagnostics if each.severity == "error"] == [
        ("lib/a.c", 3, 12)
    ]


async def test_nothing_to_run_is_an_error(bench: Workbench) -> None:
    with pytest.raises(NotFound):
        await found(bench)


@pytest.mark.parametrize(
    "arguments",
    [{"kind": "restore"}, {"severity": "fatal"}, {"limit": 0}, {"limit": 1001}, {"ecosystem": "x"}, {"arguments": []}],
)
async def test_other_arguments_are_refused(bench: Workbench, arguments: dict[str, Any]) -> None:
    project(bench, SAYS)
    with pytest.raises(InvalidArgument):
        await found(bench, **arguments)


async def test_a_command_that_takes_too_long_is_ended(bench: Workbench) -> None:
    project(bench, "sleep 600\n")
    with pytest.raises(TimedOut):
        await bench.call(DIAGNOSTICS, call=bench.new_call(seconds=0.5))


def test_it_is_announced_as_what_may_change_files() -> None:
    offered = DIAGNOSTICS.offered("ci_diagnostics", results=True)
    assert offered["annotations"]["readOnlyHint"] is False
    assert offered["inputSchema"]["properties"]["kind"]["enum"] == ["check", "build", "test", "lint"]
