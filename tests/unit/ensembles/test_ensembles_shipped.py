# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ensembles that come along are valid and do what they say: with real scripts and repositories, and mock models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.ensembles import drawing
from mcpd.servers.ensembles.engine.engine import Engine
from mcpd.servers.ensembles.engine.types import RunResult, Silent
from mcpd.servers.ensembles.format.loading import load_profiles
from mcpd.servers.ensembles.format.models import ScriptAgent
from mcpd.servers.ensembles.format.validation import validate
from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.providers.models import HttpModels
from mcpd.servers.ensembles.settings import Settings
from mcpd.servers.workstation.ci.tools import DETECT
from mcpd.servers.workstation.git.log import LOG
from mcpd.servers.workstation.git.status import STATUS
from tests.unit.ensembles.confined_parts import Den
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import AUTHOR, MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.process

SHIPPED = Path(__file__).parents[3] / "data/share/ensembles"
NAMES = {"text-statistics", "project-report", "code-review", "answer-and-check", "answer-round"}
PASSED, REFUSED = '{"passed": true, "remarks": ""}', '{"passed": false, "remarks": "too short"}'


class Workstation:
    """The tools of the server ``workstation`` that are called, without the server around them."""

    def __init__(self, bench: Workbench | None) -> None:
        self.bench = bench

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        assert server == "workstation"
        assert self.bench is not None
        made = {each.name: each for each in (STATUS, LOG, DETECT)}[tool]
        answer = await self.bench.call(made, **arguments)
        return json.dumps(answer.result.model_dump(mode="json", exclude_none=True))


class Stage:
    """The shipped tier, copied, with models that answer what a test says."""

    def __init__(self, directory: Path, bench: Workbench | None = None, **models: dict[str, Any]) -> None:
        self.den = Den(directory / "den")
        shutil.copytree(SHIPPED, self.den.shipped, dirs_exist_ok=True)
        if models:
            profiles = {
                name: {"provider": "mock", "model": name, "options": options} for name, options in models.items()
            }
            (self.den.shipped / "config.yaml").write_text(json.dumps({"model_profiles": profiles}))
        self.library = Library(self.den.settings)
        self._bench = bench

    async def run(self, name: str, text: str) -> RunResult:
        models = HttpModels({}, None)
        try:
            engine = Engine(self.library, models, self.den.agents, Workstation(self._bench))
            return await engine.run(self.library.find(name), text, observer=Silent(), journal=Silent())
        finally:
            await models.close()
            self.den.agents.close()


def shipped_library(directory: Path) -> Library:
    return Library(
        Settings(
            projects=(),
            user=directory / "user",
            data=directory / "data",
            shipped=SHIPPED,
            cache=directory / "cache",
            state=directory / "state",
            home=directory,
        )
    )


def delivered(result: RunResult) -> str:
    assert result.status == "completed", result
    assert result.deliverable is not None
    return result.deliverable


def test_all_that_comes_along_is_valid(tmp_path: Path) -> None:
    library = shipped_library(tmp_path)
    entries = library.entries()
    assert {entry.name for entry in entries} == NAMES
    used = set()
    for entry in entries:
        assert entry.problem is None
        assert entry.description
        assert entry.origin.file.stem == entry.name
        found, loaded, _ = library.loaded(entry.name)
        assert not validate(found, library, loaded, script_exists=library.script_problem, servers=["workstation"])
        assert max(map(len, drawing.terminal(found.ensemble, width=80).splitlines())) <= 80
        used |= {agent.script for agent in found.ensemble.agents if isinstance(agent, ScriptAgent)}
    assert used == {f"scripts/{path.name}" for path in (SHIPPED / "scripts").glob("*.py")}


def test_the_profiles_that_come_along_name_no_address_and_the_price_of_what_costs() -> None:
    profiles = load_profiles((SHIPPED / "config.yaml").read_text(), "config.yaml").model_profiles
    assert profiles.keys() == {"local", "fast", "strong", "gemini", "client"}
    for profile in profiles.values():
        assert profile.base_url is None
        costs = profile.provider not in {"ollama", "mcp-sampling"}
        assert (profile.cost_per_token > 0) == costs
        assert bool(profile.cost_per_output_token) == costs
        assert profile.provider != "mock"


async def test_text_statistics_counts_in_parts(tmp_path: Path) -> None:
    text = "".join(f"line {number}: a word’s worth\n" for number in range(1201))
    result = await Stage(tmp_path).run("text-statistics", text)
    assert json.loads(delivered(result)) == {
        "lines": 1201,
        "words": 1201 * 5,
        "characters": len(text),
        "different_words": 4 + 1201,
        "commonest": {
            "a": 1201, "line": 1201, "worth": 1201, "word’s": 1201,
            "0": 1, "1": 1, "10": 1, "100": 1, "1000": 1, "1001": 1,
        },
        "parts": 3,
        "complete": True,
    }  # fmt: skip
    assert [each.name for each in result.results["count"].instances] == ["count[0]", "count[1]", "count[2]"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 13), (" \n", 0), ('{"a": [1, 2]}', 3), ("42", 1)],
    ids=["default", "blank", "json", "number"],
)
async def test_text_statistics_takes_any_text(tmp_path: Path, text: str, words: int) -> None:
    found = json.loads(delivered(await Stage(tmp_path).run("text-statistics", text)))
    assert found["words"] == words
    if text:
        assert found["characters"] == len(text)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


async def test_project_report_says_where_a_repository_stands(bench: Workbench, tmp_path: Path) -> None:
    repository = MadeRepository.make(bench.root)
    (bench.root / "Makefile").write_text("all:\n\ttrue\ntest:\n\ttrue\n")
    repository.git("add", ".")
    repository.git("commit", "--quiet", "--message=Begin <b>here</b> [x](y)")
    (bench.root / "new_file.txt").write_text("x\n")
    report = delivered(await Stage(tmp_path, bench).run("project-report", str(bench.root)))
    assert "\n## Work tree\n\nBranch main.\n\nUntracked:\n\n- new\\_file.txt\n" in report
    assert rf"Begin \<b\>here\</b\> \[x\](y) ({AUTHOR})" in report
    assert "\n## Builds\n\n" in report
    assert "- test: make test" in report
    assert "Not known" not in report


async def test_project_report_of_no_repository_is_shorter(bench: Workbench, tmp_path: Path) -> None:
    result = await Stage(tmp_path, bench).run("project-report", "")
    assert result.status == "completed_with_errors"
    report = result.deliverable
    assert report is not None
    assert report.count("Not known: ") == 2
    assert report.endswith("## Builds\n\nNothing that is known.\n")


async def test_code_review_gives_the_summary_of_three(tmp_path: Path) -> None:
    result = await Stage(tmp_path, fast={"response": "a point"}, strong={"echo": True}).run("code-review", "x = 1")
    assert delivered(result).startswith("x = 1")
    assert delivered(result).count("a point") == 3
    assert result.results["summary"].profile == "strong"


async def test_code_review_falls_back_to_the_model_of_the_machine(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fast={"fail": "refused"}, local={"response": "from here"}, strong={"echo": True})
    result = await stage.run("code-review", "x = 1")
    assert delivered(result).count("from here") == 3
    assert result.results["security"].fallback


async def test_an_answer_that_passes_is_given_at_once(tmp_path: Path) -> None:
    result = await Stage(tmp_path, fast={"response": "42"}, strong={"response": PASSED}).run(
        "answer-and-check", "6 * 7?"
    )
    assert delivered(result) == "42"
    assert result.results["rounds"].iterations == 1


async def test_an_answer_is_written_anew_with_the_remarks_on_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fast={"echo": True}, strong={"response": REFUSED})
    result = await stage.run("answer-and-check", "6 * 7?")
    said = delivered(result)
    assert result.results["rounds"].iterations == 3
    assert said.endswith("\n\n(Not passed after 3 rounds: too short)")
    assert '"remarks": "too short"' in said
    assert '"question": "6 * 7?"' in said


async def test_an_answer_that_nobody_could_check_has_not_passed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fast={"response": "42"}, strong={"response": "It looks fine."})
    said = delivered(await stage.run("answer-and-check", "6 * 7?"))
    assert said == "42\n\n(Not passed after 3 rounds: The answer could not be checked.)"


async def test_without_any_model_there_is_no_answer(tmp_path: Path) -> None:
    broken = {"fail": "refused"}
    result = await Stage(tmp_path, fast=broken, local=broken, strong=broken).run("answer-and-check", "6 * 7?")
    assert result.status == "failed"
    assert result.results["rounds"].fault is not None
