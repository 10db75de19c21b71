# SPDX-License-Identifier: LGPL-2.1-or-later
"""ci_build, ci_test, ci_lint, ci_restore and ci_task: a project's own commands, run in the jail."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound
from mcpd.servers.workstation.ci.running import run_kind
from mcpd.servers.workstation.ci.tools import BUILD, DETECT, LINT, RESTORE, TASK, TEST
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.ci.running import Run
    from mcpd.servers.workstation.ci.tools import RunResult
    from mcpd.servers.workstation.tool import Tool

pytestmark = pytest.mark.process

ECHO = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'
"""Says how it was called, a line for each argument."""
ALL = (BUILD, TEST, LINT, RESTORE, TASK)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def with_programs(directory: Path, *names: str, text: str = ECHO) -> Path:
    """A toolchain of programs called *names*."""
    (directory / "tools/bin").mkdir(parents=True)
    for name in names:
        (directory / "tools/bin" / name).write_text(text)
        (directory / "tools/bin" / name).chmod(0o755)
    return directory / "tools"


def makefile(bench: Workbench, text: str) -> None:
    (bench.root / "Makefile").write_text(text)


async def ran(bench: Workbench, tool: Tool, **arguments: Any) -> RunResult:
    answer = await bench.call(tool, **arguments)
    result: RunResult = answer.result
    return result


async def of_kind(bench: Workbench, kind: Any, **more: Any) -> Run:
    return await run_kind(bench.new_call(), ".", kind, **{"ecosystem": None, "arguments": (), "most": 10_000, **more})


async def test_a_build_that_succeeds(bench: Workbench) -> None:
    makefile(bench, "build:\n\t@echo made > out\n\t@echo done; echo warned >&2\n")
    answer = await bench.call(BUILD)
    result: RunResult = answer.result
    assert (result.success, result.exit_code, result.output) == (True, 0, "done\nwarned\n")
    assert (result.ecosystem, result.command, result.directory) == ("make", ("make", "build"), str(bench.root))
    assert (bench.root / "out").read_text() == "made\n"
    first, _, rest = answer.content[0]["text"].partition("\n")
    assert first.startswith("make build succeeded after ")
    assert rest == "done\nwarned\n"


async def test_a_build_that_fails_is_a_result(bench: Workbench) -> None:
    makefile(bench, "build:\n\texit 7\n")
    answer = await bench.call(BUILD)
    result: RunResult = answer.result
    assert (result.success, result.exit_code) == (False, 2)
    assert "Error 7" in result.output
    assert "make build failed with exit status 2" in answer.content[0]["text"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="takes a C compiler")
async def test_errors_and_warnings_are_found_in_the_output(bench: Workbench) -> None:
    makefile(bench, "build:\n\tcc -Wall -fsyntax-only a.c\n")
    (bench.root / "a.c").write_text("int f(void) {\n    return oops;\n}\n")
    result = await ran(bench, BUILD)
    assert not result.success
    assert [(each.file, each.line, each.severity) for each in result.diagnostics if each.severity == "error"] == [
        ("a.c", 2, "error")
    ]
    assert not result.diagnostics_truncated


async def test_each_tool_runs_its_own_command(bench: Workbench) -> None:
    makefile(bench, "all: ; @echo built\ntest: ; @echo tested\nlint: ; @echo linted\nother: ; @echo other\n")
    assert (await ran(bench, BUILD)).output == "built\n"
    assert (await ran(bench, TEST)).output == "tested\n"
    assert (await ran(bench, LINT)).output == "linted\n"
    assert (await ran(bench, TASK, name="other")).output == "other\n"


async def test_arguments_are_read_by_no_shell(bench: Workbench) -> None:
    makefile(bench, "test:\n\t@printf '%s\\n' '$(value X)'\n")
    marked = bench.root / "marked"
    result = await ran(bench, TEST, arguments=[f"X=`touch {marked}`; touch {marked} && $(touch {marked}) | x"])
    assert result.output == f"`touch {marked}`; touch {marked} && $(touch {marked}) | x\n"
    assert not marked.exists()
    assert result.command[2] == f"X=`touch {marked}`; touch {marked} && $(touch {marked}) | x"


async def test_arguments_hold_no_nul(bench: Workbench) -> None:
    makefile(bench, "test:\n")
    with pytest.raises(InvalidArgument):
        await ran(bench, TEST, arguments=["a\0b"])


@pytest.mark.parametrize(
    ("files", "program", "expected"),
    [
        ({"package.json": '{"scripts": {"test": "x"}}'}, "npm", ["run", "test", "--", "-v", "a b"]),
        ({"package.json": '{"scripts": {"test": "x"}}', "yarn.lock": ""}, "yarn", ["run", "test", "-v", "a b"]),
        ({"Cargo.toml": ""}, "cargo", ["test", "-v", "a b"]),
        ({"composer.json": '{"scripts": {"test": "x"}}'}, "composer", ["run-script", "test", "--", "-v", "a b"]),
        ({"Taskfile.yml": "tasks:\n  test: x\n"}, "task", ["test", "--", "-v", "a b"]),
        ({"tox.ini": "[tox]\n"}, "tox", ["run", "--", "-v", "a b"]),
        ({"a.sln": ""}, "dotnet", ["test", "./a.sln", "--nologo", "-v", "a b"]),
        ({"pom.xml": ""}, "mvn", ["-B", "-ntp", "-o", "test", "-v", "a b"]),
    ],
    ids=["npm", "yarn", "cargo", "composer", "task", "tox", "dotnet", "maven"],
)
async def test_arguments_reach_whom_they_are_for(
    tmp_path: Path, files: dict[str, str], program: str, expected: list[str]
) -> None:
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, program),)) as bench:
        for name, text in files.items():
            (bench.root / name).write_text(text)
        assert (await ran(bench, TEST, arguments=["-v", "a b"])).output.splitlines() == [program, *expected]


@pytest.mark.parametrize(
    ("marker", "program", "variable", "expected"),
    [
        ("Cargo.toml", "cargo", "CARGO_NET_OFFLINE", "true"),
        ("go.mod", "go", "GOPROXY", "off"),
        ("pom.xml", "mvn", "MAVEN_OPTS", "-Duser.home=$HOME"),
        ("build.gradle", "gradle", "GRADLE_USER_HOME", "$HOME/.gradle"),
    ],
    ids=["cargo", "go", "maven", "gradle"],
)
async def test_what_is_not_told_by_home_or_arguments_is_told_by_variables(
    tmp_path: Path, marker: str, program: str, variable: str, expected: str
) -> None:
    """Java takes its home from the password database."""
    says = f'#!/bin/sh\n[ "${variable}" = "{expected}" ] && [ -w "$HOME" ] && echo so\n'
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, program, text=says),)) as bench:
        (bench.root / marker).touch()
        assert (await ran(bench, TEST)).output == "so\n"


async def test_programs_of_the_project_are_run_from_there(bench: Workbench) -> None:
    (bench.root / "p/node_modules/.bin").mkdir(parents=True)
    (bench.root / "p/package.json").write_text("{}")
    (bench.root / "p/node_modules/.bin/eslint").write_text(ECHO)
    (bench.root / "p/node_modules/.bin/eslint").chmod(0o755)
    result = await ran(bench, LINT, path="p")
    assert result.output == "eslint\n.\n"
    assert result.directory == str(bench.root / "p")
    assert result.command == ("node_modules/.bin/eslint", ".")


async def test_the_format_for_programs_is_asked_for_only_if_wanted(tmp_path: Path) -> None:
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, "cargo"),)) as bench:
        (bench.root / "Cargo.toml").touch()
        assert (await of_kind(bench, "check")).output.split() == ["cargo", "check", "--all-targets"]
        run = await of_kind(bench, "check", machine=True, arguments=("--locked",))
        assert run.output.split() == ["cargo", "check", "--all-targets", "--message-format=json", "--locked"]


async def test_check_is_what_comes_nearest(bench: Workbench) -> None:
    makefile(bench, "all: ; @echo built\n")
    assert (await of_kind(bench, "check")).output == "built\n"
    makefile(bench, "all: ; @echo built\nlint: ; @echo linted\n")
    assert (await of_kind(bench, "check")).output == "linted\n"


async def test_the_first_ecosystem_that_has_the_command_and_its_program_is_taken(tmp_path: Path) -> None:
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, "go", "swift"),)) as bench:
        makefile(bench, "all: ; @echo built\n")
        for name in ("go.mod", "build.sbt", "Package.swift"):
            (bench.root / name).touch()
        assert (await ran(bench, BUILD)).ecosystem == "make"
        assert (await ran(bench, TEST)).ecosystem == "go"
        assert (await ran(bench, TEST, ecosystem="swift")).ecosystem == "swift"
        with pytest.raises(NotFound, match="sbt is not installed"):
            await ran(bench, TEST, ecosystem="sbt")


async def test_commands_that_come_before_are_run_first_and_may_end_it(tmp_path: Path) -> None:
    program = '#!/bin/sh\necho "${0##*/} $1"\n[ ! -e "fail-${0##*/}$1" ]\n'
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, "cmake", "ctest", text=program),)) as bench:
        (bench.root / "CMakeLists.txt").touch()
        result = await ran(bench, TEST)
        assert result.output == "cmake -S\ncmake --build\nctest --test-dir\n"
        (bench.root / "fail-cmake--build").touch()
        result = await ran(bench, TEST)
        assert (result.output, result.success) == ("cmake -S\ncmake --build\n", False)
        assert result.command == ("cmake", "--build", "build")


@pytest.mark.parametrize("tool", [each for each in ALL if each is not RESTORE], ids=lambda tool: tool.name)
async def test_nothing_to_run_says_what_was_looked_for(bench: Workbench, tool: Tool) -> None:
    arguments = {"name": "x"} if tool is TASK else {}
    with pytest.raises(
        NotFound, match=r"no project that is known.*Cargo\.toml.*package\.json|package\.json.*Cargo\.toml"
    ):
        await ran(bench, tool, **arguments)
    with pytest.raises(InvalidArgument, match="nope"):
        await ran(bench, tool, ecosystem="nope", **arguments)
    makefile(bench, "help:\n")
    with pytest.raises(NotFound, match=r"cargo.*make"):
        await ran(bench, tool, ecosystem="cargo", **arguments)
    with pytest.raises(NotFound, match=r"there are help$|no command to \w+ with for make, nor a task called"):
        await ran(bench, tool, **arguments)


async def test_a_file_that_cannot_be_read_is_told_where_it_may_be_the_reason(bench: Workbench) -> None:
    (bench.root / "Makefile").symlink_to(bench.outside / "secret")
    with pytest.raises(NotFound, match="Makefile was not read"):
        await ran(bench, BUILD)


async def test_projects_in_directories_below_are_named_where_there_is_none(bench: Workbench) -> None:
    for name in ("api", "web", "node_modules", ".hidden", "none"):
        (bench.root / name).mkdir()
    (bench.root / "api/go.mod").touch()
    (bench.root / "web/x.csproj").touch()
    (bench.root / "node_modules/package.json").touch()
    (bench.root / ".hidden/Makefile").touch()
    (bench.outside / "Makefile").touch()
    (bench.root / "link").symlink_to(bench.outside)
    with pytest.raises(NotFound, match=r"no project that is known, but these in it do: api, web$"):
        await ran(bench, BUILD)


async def test_restore_takes_the_network(bench: Workbench) -> None:
    makefile(bench, "deps: ; touch fetched\n")
    with pytest.raises(NotAuthorized, match="allow_network"):
        await ran(bench, RESTORE)
    with pytest.raises(NotAuthorized, match="allow_network"):
        await of_kind(bench, "restore")
    assert not (bench.root / "fetched").exists()


async def test_restore_with_the_network_allowed(tmp_path: Path) -> None:
    with Workbench(tmp_path, allow_network=True) as bench:
        makefile(bench, "deps: ; touch fetched\n")
        assert (await ran(bench, RESTORE)).success
        assert (bench.root / "fetched").exists()


async def test_only_tasks_of_the_project_are_run(bench: Workbench) -> None:
    makefile(bench, "build-all: ; @echo one\nbuild-docs: ; @echo two\n-x: ; @echo no\n")
    assert (await ran(bench, TASK, name="build-docs")).output == "two\n"
    with pytest.raises(NotFound, match="the nearest are build-docs"):
        await ran(bench, TASK, name="build-dcs")
    with pytest.raises(NotFound, match="there are build-all, build-docs"):
        await ran(bench, TASK, name="zzz")
    for name in ("-x", "--eval=x:", "Makefile", "build-all build-docs", "X=1"):
        with pytest.raises(NotFound):
            await ran(bench, TASK, name=name)


async def test_a_task_that_several_define_is_the_firsts_unless_told(tmp_path: Path) -> None:
    with Workbench(tmp_path, toolchains=(with_programs(tmp_path, "npm"),)) as bench:
        makefile(bench, "docs: ; @echo by make\n")
        (bench.root / "package.json").write_text(json.dumps({"scripts": {"docs": "x"}}))
        assert (await ran(bench, TASK, name="docs")).output == "by make\n"
        assert (await ran(bench, TASK, name="docs", ecosystem="npm")).output == "npm\nrun\ndocs\n"


async def test_a_task_whose_program_is_missing(bench: Workbench) -> None:
    (bench.root / "build.zig").write_text('b.step("run", "Run it")')
    with pytest.raises(NotFound, match=r"zig is not installed.*toolchains"):
        await ran(bench, TASK, name="run")


async def test_commands_write_nothing_outside_of_the_roots(bench: Workbench) -> None:
    makefile(bench, f"build:\n\ttouch {bench.outside}/x; cat {bench.outside}/secret; touch in\n")
    before = bench.fingerprint()
    result = await ran(bench, BUILD)
    assert bench.fingerprint() == before
    assert "business" not in result.output
    assert (bench.root / "in").exists()


def test_the_tools_say_what_they_do() -> None:
    assert DETECT.read_only
    assert DETECT.idempotent
    for tool in ALL:
        assert not tool.read_only
        assert tool.open_world is (tool is RESTORE)
        assert {"path", "ecosystem", "arguments", "timeout_seconds", "max_output_bytes"} <= set(
            tool.input_schema["properties"]
        )
    assert TASK.input_schema["required"] == ["name"]
