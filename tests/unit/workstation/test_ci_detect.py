# SPDX-License-Identifier: LGPL-2.1-or-later
"""ci_detect: what a directory's files say about how it is built."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound
from mcpd.servers.workstation.ci.ecosystems import ECOSYSTEMS
from mcpd.servers.workstation.ci.tools import DETECT
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.servers.workstation.ci.tools import DetectResult

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


async def detected(bench: Workbench, files: dict[str, str] | None = None, **arguments: Any) -> DetectResult:
    write(bench.root, files or {})
    answer = await bench.call(DETECT, **arguments)
    assert answer.content[0]["type"] == "text"
    result: DetectResult = answer.result
    return result


def commands(result: DetectResult, ecosystem: str) -> dict[str, list[str]]:
    found = next(each for each in result.ecosystems if each.name == ecosystem)
    return {each.kind: list(each.command) for each in found.commands}


async def test_an_empty_directory_is_no_project(bench: Workbench) -> None:
    result = await detected(bench)
    assert result.ecosystems == ()
    assert result.path == str(bench.root)


async def test_only_directories_of_the_roots_are_looked_at(bench: Workbench) -> None:
    write(bench.root, {"file": ""})
    write(bench.outside, {"Makefile": "all:"})
    (bench.root / "link").symlink_to(bench.outside)
    with pytest.raises(InvalidArgument, match="not a directory"):
        await detected(bench, path="file")
    with pytest.raises(NotFound):
        await detected(bench, path="absent")
    with pytest.raises(NotAuthorized):
        await detected(bench, path=str(bench.outside))
    with pytest.raises(NotAuthorized):
        await detected(bench, path="link")


async def test_every_ecosystem_is_told_by_each_of_its_markers(bench: Workbench) -> None:
    contents = {
        "tox.ini": "[tox]\n",
        "pyproject.toml": "[tool.tox]\n",
        "setup.cfg": "[tox:tox]\n[metadata]\n",
    }
    for ecosystem in ECOSYSTEMS:
        for marker in ecosystem.markers:
            name = marker.replace("*", "x")
            files = {name: contents.get(name, "{}" if ".json" in name else "")}
            if ecosystem.name in {"pnpm", "yarn", "bun"}:
                files[name] = json.dumps({"packageManager": f"{ecosystem.name}@1.2.3"})
            directory = f"{ecosystem.name}-{name.replace('/', '-')}"
            write(bench.root / directory, files)
            result = await detected(bench, path=directory)
            assert result.problems is None
            found = next(each for each in result.ecosystems if each.name == ecosystem.name)
            assert name in found.markers


async def test_projects_below_are_named(bench: Workbench) -> None:
    result = await detected(bench, {"Makefile": "all:\n", "a/Cargo.toml": "", "b/c/go.mod": "", "a b/x.sln": ""})
    assert result.projects_below == ("a", "a b")


async def test_a_directory_called_as_a_marker_tells_nothing(bench: Workbench) -> None:
    for name in ("WORKSPACE", "configure", "x.csproj", "go.mod"):
        (bench.root / name).mkdir()
    assert (await detected(bench)).ecosystems == ()


async def test_make(bench: Workbench) -> None:
    result = await detected(bench, {"Makefile": "all: lib ## Everything\nlib:\ncheck: all\nlint:\n"})
    assert commands(result, "make") == {"build": ["make", "all"], "test": ["make", "check"], "lint": ["make", "lint"]}
    assert [(task.name, task.description) for task in result.ecosystems[0].tasks][:2] == [
        ("all", "Everything"),
        ("lib", None),
    ]


async def test_make_alone_is_the_build_unless_it_shows_help(bench: Workbench) -> None:
    assert commands(await detected(bench, {"Makefile": "prog: x.c\n"}), "make") == {"build": ["make"]}
    assert commands(await detected(bench, {"Makefile": "help:\nprog: x.c\n"}), "make") == {}


async def test_makefiles_that_cmake_wrote_do_not_count(bench: Workbench) -> None:
    files = {"Makefile": "# CMAKE generated file: DO NOT EDIT!\nall:\n", "CMakeLists.txt": ""}
    assert [each.name for each in (await detected(bench, files)).ecosystems] == ["cmake"]


async def test_cmake_is_configured_once(bench: Workbench) -> None:
    result = await detected(bench, {"CMakeLists.txt": ""})
    build = result.ecosystems[0].commands[0]
    assert build.before is not None
    assert build.before[0][:5] == ("cmake", "-S", ".", "-B", "build")
    result = await detected(bench, {"out/CMakeCache.txt": ""})
    assert result.ecosystems[0].commands[0].before is None
    assert commands(result, "cmake")["build"] == ["cmake", "--build", "out"]


@pytest.mark.parametrize(
    ("files", "manager", "restore"),
    [
        ({}, "npm", ["npm", "install", "--no-fund", "--no-audit"]),
        ({"package-lock.json": "{}"}, "npm", ["npm", "ci", "--no-fund", "--no-audit"]),
        ({"pnpm-lock.yaml": ""}, "pnpm", ["pnpm", "install", "--frozen-lockfile"]),
        ({"yarn.lock": ""}, "yarn", ["yarn", "install", "--frozen-lockfile"]),
        ({"yarn.lock": "", ".yarnrc.yml": ""}, "yarn", ["yarn", "install", "--immutable"]),
        ({"bun.lock": ""}, "bun", ["bun", "install", "--frozen-lockfile"]),
        ({"bun.lockb": ""}, "bun", ["bun", "install", "--frozen-lockfile"]),
    ],
)
async def test_node_by_its_lock_file(bench: Workbench, files: dict[str, str], manager: str, restore: list[str]) -> None:
    result = await detected(bench, {"package.json": '{"scripts": {"build": "x"}}', **files})
    assert [each.name for each in result.ecosystems] == [manager]
    assert commands(result, manager) == {"build": [manager, "run", "build"], "restore": restore}


async def test_node_by_package_manager_before_its_lock_file(bench: Workbench) -> None:
    files = {"package.json": '{"packageManager": "pnpm@9.1.0+sha512.abc"}', "yarn.lock": ""}
    assert [each.name for each in (await detected(bench, files)).ecosystems] == ["pnpm"]


async def test_node_scripts_come_before_installed_tools(bench: Workbench) -> None:
    scripts = {"test": "jest", "type-check": "tsc", "lint": "eslint", "odd": "x", "-option": "y", "none": 1}
    result = await detected(
        bench,
        {
            "package.json": json.dumps({"scripts": scripts}),
            "tsconfig.json": "{}",
            "node_modules/.bin/tsc": "",
            "node_modules/.bin/eslint": "",
        },
    )
    found = commands(result, "npm")
    assert found["test"] == ["npm", "run", "test"]
    assert found["check"] == ["npm", "run", "type-check"]
    assert found["lint"] == ["npm", "run", "lint"]
    assert found["build"] == ["node_modules/.bin/tsc", "--build"]
    assert [task.name for task in result.ecosystems[0].tasks] == ["test", "type-check", "lint", "odd"]


async def test_node_tools_stand_in_for_scripts(bench: Workbench) -> None:
    no_test = 'echo "Error: no test specified" && exit 1'
    files = {"package.json": json.dumps({"scripts": {"test": no_test}}), "tsconfig.json": "{}"}
    files |= {f"node_modules/.bin/{name}": "" for name in ("tsc", "eslint", "vitest")}
    found = commands(await detected(bench, files), "npm")
    assert found["check"] == ["node_modules/.bin/tsc", "--noEmit"]
    assert found["lint"] == ["node_modules/.bin/eslint", "."]
    assert found["test"] == ["node_modules/.bin/vitest", "run"]


async def test_python_by_its_settings(bench: Workbench) -> None:
    pyproject = """\
[build-system]
requires = ["hatchling"]
[project]
optional-dependencies.dev = ["PyTest>=8", "Flake8"]
[tool.mypy]
packages = ["x"]
"""
    found = commands(await detected(bench, {"pyproject.toml": pyproject}), "python")
    assert found["test"] == ["pytest"]
    assert found["lint"] == ["flake8"]
    assert found["check"] == ["mypy"]
    assert found["build"] == ["pyproject-build", "--no-isolation"]
    assert found["restore"][:2] == [".venv/bin/python", "-m"]


async def test_python_tools_of_the_project_come_first(bench: Workbench) -> None:
    files = {
        "requirements-dev.txt": "# all\npytest==8\nmypy\n-r other.txt\n",
        ".venv/bin/python": "",
        ".venv/bin/pytest": "",
        ".venv/bin/mypy": "",
    }
    found = commands(await detected(bench, files), "python")
    assert found["test"] == [".venv/bin/pytest"]
    assert found["check"] == [".venv/bin/mypy", "."]
    assert found["restore"] == [".venv/bin/python", "-m", "pip", "install", "-r", "requirements-dev.txt"]


async def test_python_without_pytest_has_unittest(bench: Workbench) -> None:
    found = commands(await detected(bench, {"setup.py": "", "tests/test_a.py": ""}), "python")
    assert found["test"] == ["python3", "-m", "unittest", "discover", "-s", "tests"]
    found = commands(await detected(bench, {"tests/__init__.py": ""}), "python")
    assert found["test"] == ["python3", "-m", "unittest"]
    assert found["build"] == ["python3", "setup.py", "build"]


@pytest.mark.parametrize(
    ("manager", "files"),
    [
        ("uv", {"uv.lock": ""}),
        ("poetry", {"pyproject.toml": "[tool.poetry.group.dev.dependencies]\npytest = '*'\n"}),
        ("pdm", {"pdm.lock": "", "pyproject.toml": ""}),
        ("pipenv", {"Pipfile": ""}),
    ],
)
async def test_python_managers(bench: Workbench, manager: str, files: dict[str, str]) -> None:
    result = await detected(bench, {"pytest.ini": "", "setup.py": "", **files})
    assert commands(result, "python")["restore"] == [manager, "sync" if manager == "uv" else "install"]
    assert commands(result, "python")["test"][0] in {manager, "pytest"}


async def test_python_tasks(bench: Workbench) -> None:
    pyproject = """\
[tool.hatch.envs.default.scripts]
cov = ["pytest --cov", "report"]
[tool.hatch.envs.docs.scripts]
build = "mkdocs build"
[tool.pdm.scripts]
serve = {cmd = "x", help = "Serve it"}
[tool.poe.tasks]
fmt = "ruff format"
"""
    result = await detected(bench, {"pyproject.toml": pyproject})
    assert {task.name: (task.command, task.description) for task in result.ecosystems[0].tasks} == {
        "serve": (("pdm", "run", "serve"), "Serve it"),
        "fmt": (("poe", "fmt"), "ruff format"),
        "cov": (("hatch", "run", "cov"), "pytest --cov && report"),
        "docs:build": (("hatch", "run", "docs:build"), "mkdocs build"),
    }


async def test_tox_and_nox_come_after_python_itself(bench: Workbench) -> None:
    files = {
        "pyproject.toml": "[tool.tox]\nenv_list = ['3.12', 'lint']\n[tool.tox.env.docs]\n",
        "noxfile.py": "@nox.session\ndef tests(session): ...\n",
    }
    result = await detected(bench, files)
    assert [each.name for each in result.ecosystems] == ["python", "tox", "nox"]
    assert [task.name for task in result.ecosystems[1].tasks] == ["3.12", "lint", "docs"]
    assert commands(result, "tox")["lint"] == ["tox", "run", "-e", "lint"]
    assert commands(result, "nox")["test"] == ["nox", "-s", "tests"]


async def test_cargo_aliases_are_tasks(bench: Workbench) -> None:
    files = {"Cargo.toml": "", ".cargo/config.toml": "[alias]\nxtask = ['run', '-p', 'xtask']\nb2 = 'build'\n"}
    result = await detected(bench, files)
    assert [(task.name, task.description) for task in result.ecosystems[0].tasks] == [
        ("xtask", "run -p xtask"),
        ("b2", "build"),
    ]


async def test_dotnet_is_told_which_of_several(bench: Workbench) -> None:
    files = {"b.csproj": "", "a.csproj": "", "-x.sln": ""}
    found = commands(await detected(bench, files), "dotnet")
    assert found["build"] == ["dotnet", "build", "./-x.sln", "--nologo"]
    assert found["lint"][:3] == ["dotnet", "format", "./-x.sln"]


async def test_what_is_not_installed_is_told(bench: Workbench) -> None:
    result = await detected(bench, {"build.sbt": "", "Makefile": "all:\n"})
    build = {each.name: each.commands[0] for each in result.ecosystems}
    assert (build["make"].available, build["make"].missing) == (True, None)
    assert (build["sbt"].available, build["sbt"].missing) == (False, ("sbt",))


async def test_task_runners_count_first(bench: Workbench) -> None:
    files = {"package.json": "{}", "Cargo.toml": "", "Makefile": "all:\n", "justfile": "build:\n", "go.mod": ""}
    assert [each.name for each in (await detected(bench, files)).ecosystems] == ["just", "make", "npm", "cargo", "go"]
