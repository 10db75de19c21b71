# SPDX-License-Identifier: LGPL-2.1-or-later
"""ci_detect in directories that nobody made with good will, or with care."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.workstation.ci.ecosystems import NAMES
from mcpd.servers.workstation.ci.projects import MAX_FILE, MAX_SETTINGS
from mcpd.servers.workstation.ci.running import detect
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


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("package.json", "{", "package.json cannot be parsed"),
        ("package.json", "[" * 100_000, "package.json cannot be parsed"),
        ("package.json", "[]", "package.json cannot be parsed: it is not an object"),
        ("pyproject.toml", "a = ", "pyproject.toml cannot be parsed"),
        ("pyproject.toml", "a." * 100_000 + "a = 1", "pyproject.toml cannot be parsed: a key of more than"),
        ("pyproject.toml", "x = " + "[" * 100_000, "pyproject.toml cannot be parsed"),
        ("tox.ini", "envlist = a", "tox.ini cannot be parsed"),
        ("Makefile", " " * (MAX_FILE + 1), "Makefile was not read: it has more than"),
        ("package.json", " " * MAX_SETTINGS + "{}", "package.json was not read: it has more than"),
    ],
    ids=["json", "deep-json", "no-object", "toml", "long-key", "deep-toml", "ini", "large", "large-json"],
)
async def test_a_file_that_cannot_be_read_is_a_problem_that_is_told(
    bench: Workbench, name: str, text: str, problem: str
) -> None:
    result = await detected(bench, {name: text})
    assert result.problems is not None
    assert len([each for each in result.problems if problem in each]) == 1


async def test_files_are_read_through_the_jail(bench: Workbench) -> None:
    write(bench.outside, {"Makefile": "secret-target:\n", "package.json": '{"scripts": {"secret": "x"}}'})
    (bench.root / "Makefile").symlink_to(bench.outside / "Makefile")
    os.link(bench.outside / "package.json", bench.root / "package.json")
    os.mkfifo(bench.root / "justfile")
    result = await detected(bench)
    assert "secret" not in result.model_dump_json()
    assert result.problems is not None
    assert len(result.problems) == 3


async def test_a_symlinked_file_of_the_roots_is_read(bench: Workbench) -> None:
    write(bench.root, {"shared/mk": "all:\n", "p/x": ""})
    (bench.root / "p/Makefile").symlink_to("../shared/mk")
    assert (await detected(bench, path="p")).ecosystems[0].commands[0].command == ("make", "all")


async def test_names_that_are_no_text_do_no_harm(bench: Workbench) -> None:
    (bench.root / os.fsdecode(b"\xff.sln")).touch()
    assert (await detected(bench)).ecosystems == ()
    (bench.root / "a\n.sln").touch()
    assert (await detected(bench)).ecosystems[0].commands[0].command[2] == "./a\n.sln"


TEXT = st.text(alphabet="ab={}[]\"':,.\n\t #@$()-/\\0" + "é\x00\x1b", max_size=200)
FILES = (
    "Makefile", "package.json", "pyproject.toml", "justfile", "tox.ini", "setup.cfg", "Rakefile", "deno.jsonc",
    "noxfile.py", ".cargo/config.toml", "composer.json", "build.gradle", "Cargo.toml", "requirements.txt",
    "pubspec.yaml",
)  # fmt: skip
WORDS = (
    "tool", "tox", "env_list", "scripts", "tasks", "a", "poetry", "group", "project", "dependencies", "alias",
    "packageManager", "scripts-descriptions",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FILES), TEXT | VALUES.map(json.dumps), max_size=4))
async def test_no_content_is_a_fault(bench: Workbench, files: dict[str, str]) -> None:
    for name in FILES:
        (bench.root / name).unlink(missing_ok=True)
    write(bench.root, files)
    found = detect(bench.new_call(), ".").found
    assert {each.ecosystem.name for each in found} <= set(NAMES)
    assert all(not task.name.startswith("-") for each in found for task, _ in each.tasks)


VALUE = st.recursive(
    st.booleans() | st.integers(0, 9) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
KEYS = (
    "tool.tox", "tool.tox.env_list", "tool.tox.env", "project", "project.dependencies", "dependency-groups",
    "project.optional-dependencies", "tool.poetry.group", "tool.poetry", "tool.hatch.envs", "tool.mypy",
    "tool.hatch.envs.default", "tool.hatch.envs.default.scripts", "tool.pdm.scripts", "tool.poe.tasks",
    "tool.uv.dev-dependencies", "tool.poetry.group.dev.dependencies", "build-system",
)  # fmt: skip


def as_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)


@given(st.sampled_from(KEYS), VALUE)
async def test_no_setting_of_another_type_is_a_fault(bench: Workbench, key: str, value: object) -> None:
    write(bench.root, {"pyproject.toml": f"{key} = {as_toml(value)}\n"})
    detection = detect(bench.new_call(), ".")
    assert detection.problems == ()
    assert detection.found[0].ecosystem.name == "python"
