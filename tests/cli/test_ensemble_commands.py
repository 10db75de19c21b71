# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl ensemble: what there is, what is wrong with it and what its runs were like, without mcpd and any bus."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.ensembles.directories import nearest_project
from tests.cli.client_machine import REPOSITORY, Ended, Machine
from tests.cli.ensemble_files import INSTANCE, REVIEW, SCRIPTS, agent, artifact, ensemble, used
from tests.cli.test_cli_client_runtime import WITHOUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Orchestra(Machine):
    """A machine with the server llm-orc, and a project that the caller stands in."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.mine, self.work = self.home / ".llm-orc", self.home / "work"
        self.own = self.home / ".config/llm-orc"
        self.shipped = self.root / "usr/share/mcp/ensembles"
        manifest = self.root / "usr/share/mcp/servers/llm-orc"
        manifest.mkdir(parents=True)
        given = json.loads((REPOSITORY / "data/share/servers/llm-orc/manifest.json").read_text())
        (manifest / "manifest.json").write_text(json.dumps(given))
        self.shipped.mkdir()

    def __call__(self, *argv: str, stdin: str = "", environ: Mapping[str, str] | None = None, **_: Any) -> Ended:
        """``mcpctl ensemble`` with *argv*."""
        return self.mcpctl("--user", "ensemble", *argv, stdin=stdin, environ=environ)

    def refused(self, *argv: str, code: int, **_: Any) -> str:
        """The one line that a command says which fails with *code*."""
        ended = self(*argv)
        assert (ended.code, ended.out) == (code, ""), ended
        assert ended.err.startswith("mcpctl: ")
        assert ended.err.count("\n") == 1
        return ended.err

    def json_of(self, *argv: str, code: int) -> Any:
        """What a command prints that ends with *code*."""
        ended = self(*argv, "--json")
        assert ended.code == code, ended.err
        return ended.json

    def configure(self, *projects: str) -> None:
        """Let the server use *projects*, as ``mcpctl config set`` does."""
        overlay = self.home / ".local/share/mcp/overlay/llm-orc.json"
        overlay.parent.mkdir(parents=True, exist_ok=True)
        overlay.write_text(json.dumps({"projects": list(projects)}))


@pytest.fixture
def machine(tmp_path: Path) -> Orchestra:
    return Orchestra(tmp_path)


def test_all_tiers_are_listed_and_the_nearest_project_comes_first(machine: Orchestra) -> None:
    machine.configure("~/work")
    for base in (machine.mine, machine.work / ".llm-orc", machine.own):
        ensemble(base, REVIEW)
    (machine.shipped / "other.yaml").write_text(SCRIPTS.format(name="other"))
    listed = machine("list")
    assert listed.code == 0
    rows = [line.split()[:4] for line in listed.out.splitlines()]
    assert rows == [
        ["ENSEMBLE", "STATE", "AGENTS", "FROM"],
        ["review", "disabled", "3", "home"],
        ["review", "hidden", "3", "work"],
        ["review", "hidden", "3", "user"],
        ["other", "ok", "1", "shipped"],
    ]
    assert f'mcpctl {INSTANCE}config set llm-orc \'projects=["~/work", "~"]\'' in listed.err
    found = {each["qualified"]: each for each in machine.json("list")["ensembles"]}
    assert found["work/review"]["project"] == str(machine.work)
    assert [each["state"] for each in found.values()] == ["disabled", "hidden", "hidden", "ok"]
    assert found["shipped/other"]["kinds"] == ["script"]


def test_a_broken_file_hides_no_other(machine: Orchestra) -> None:
    ensemble(machine.own, REVIEW)
    ensemble(machine.own, "name: [\n", "broken")
    listed = machine("list")
    assert {tuple(line.split()[:2]) for line in listed.out.splitlines()[1:]} == {("review", "ok"), ("broken", "broken")}
    assert str(machine.own / "ensembles/broken.yaml") in listed.err


def test_without_ensembles_there_is_a_note(machine: Orchestra) -> None:
    assert machine("list").err.startswith("There are no ensembles")
    assert machine.json("list") == {"ensembles": []}


def test_an_ensemble_is_shown_with_its_agents(machine: Orchestra) -> None:
    file = ensemble(machine.own, REVIEW)
    shown = machine("show", "review")
    assert "file:        ~/.config/llm-orc/ensembles/review.yaml" in shown.out
    assert "summary  model   reader checker  mock: mock" in shown.out
    found = machine.json("show", "user/review")
    assert (found["file"], found["tier"], found["configured"]) == (str(file), "user", True)
    assert found["ensemble"]["agents"][1] == {
        "name": "checker", "depends_on": ["reader"], "script": "scripts/check.sh"
    }  # fmt: skip
    (machine.own / "config.yaml").write_text("model_profiles:\n  fast: {provider: ollama, model: small}\n")
    file.write_text(REVIEW.replace("    model: mock\n    provider: mock\n", "    model_profile: fast\n", 1))
    assert machine.json("show", "review")["agents"][0]["runs"] == "fast (ollama: small)"
    unknown = machine.refused("show", "revue", code=4)
    assert "review" in unknown
    assert "'mcpctl ensemble list' lists" in unknown


def test_another_project_can_be_named(machine: Orchestra) -> None:
    ensemble(machine.work / ".llm-orc", REVIEW)
    assert machine("show", "review").code == 4
    assert machine.json("show", "review", "--project", "work")["project"] == str(machine.work)
    assert "there is no directory .llm-orc in it" in machine.refused("list", "--project", "nowhere", code=4)


def test_a_graph_is_drawn_with_what_became_of_the_agents(machine: Orchestra) -> None:
    ensemble(machine.own, REVIEW)
    run = artifact(machine.home / ".local/share/llm-orc/artifacts", "20260131-120000-000", "completed_with_errors")
    drawn = machine("graph", "review")
    assert "← reader" in drawn.out
    assert "+--" in machine("graph", "review", environ={"PYTHONIOENCODING": "latin-1"}).out
    assert "✘ checker" in machine("graph", "review", "--run", run).out
    assert machine("graph", "review", "--mermaid").out.startswith("flowchart TD\n")
    found = machine.json("graph", "review", "--run", run.partition("/")[2])
    assert {each["name"]: each["status"] for each in found["agents"]} == {
        "reader": "success", "checker": "failed", "summary": "success"
    }  # fmt: skip
    assert "classDef failed" in found["mermaid"]
    assert "is not a run of review" in machine.refused("graph", "review", "--run", f"x{run}", code=2)


def test_faults_are_said_as_compilers_say_them(machine: Orchestra) -> None:
    assert machine("validate").err == "0 ensembles, 0 errors, 0 warnings\n"
    file = ensemble(machine.own, REVIEW)
    assert (machine("validate").code, machine("validate", "review").out) == (0, "")
    file.write_text(REVIEW.replace("[reader]", "[redaer]").replace("check.sh", "gone.sh"))
    for argv in ((), ("review",), (str(file),)):
        ended = machine("validate", *argv)
        assert ended.code == 1
        assert f"{file}:9: error: agent checker:" in ended.out
        assert "gone.sh" in ended.out
    found = machine.json_of("validate", "review", code=1)
    assert (found["valid"], found["checked"]) == (False, 1)
    assert {each["line"] for each in found["findings"]} >= {9}
    assert "'mcpctl ensemble list' lists the ensembles" in machine.refused("validate", "nope", code=4)


def test_a_file_that_cannot_be_loaded_has_all_its_faults(machine: Orchestra) -> None:
    file = machine.home / "draft.yaml"
    file.write_text("name: draft\nagents:\n  - {name: a}\n  - {name: b, model: x}\n")
    ended = machine("validate", "draft.yaml")
    assert ended.code == 1
    assert [line.partition(" ")[0] for line in ended.out.splitlines()] == ["draft.yaml:3:", "draft.yaml:4:"]
    file.write_text("name: \x1b[31m\n")
    assert "\x1b" not in machine("validate", "draft.yaml").out
    assert "there is no file gone.yaml" in machine.refused("validate", "gone.yaml", code=4)
    os.mkfifo(machine.home / "pipe.yaml")
    assert machine("validate", "pipe.yaml").code == 2


def test_the_list_names_the_package_without_which_nothing_runs(machine: Orchestra) -> None:
    said = "llm-orc, which runs ensembles, is not installed; install the package mcpd-servers.\n"
    assert said not in machine("list").err
    (machine.root / "usr/share/mcp/servers/llm-orc/manifest.json").unlink()
    assert machine("list").err.endswith(said)
    assert machine("list", "--json").err == ""


def test_runs_are_listed_newest_first(machine: Orchestra) -> None:
    machine.configure("~/work")
    ensemble(machine.own, REVIEW)
    assert machine("runs").err == "No ensemble has been run yet.\n"
    assert machine("runs", "review").err == "review has not been run yet.\n"
    assert "'mcpctl ensemble list' lists" in machine.refused("runs", "nope", code=4)
    data = machine.home / ".local/share/llm-orc/artifacts"
    ensemble(machine.work / ".llm-orc", REVIEW)
    old = f"user/{artifact(data, '20260131-120000-000', 'failed')}"
    new = artifact(machine.work / ".llm-orc/artifacts", "20260201-120000-000")
    other = artifact(data, "20260131-130000-000", name="other")
    listed = machine("runs", environ={"TZ": "UTC"})
    rows = [line.split() for line in listed.out.splitlines()]
    assert [row[0] for row in rows] == ["RUN", new, other, old]
    assert rows[1][1:] == ["completed", "1970-01-01", "00:01:40", "2.5", "s", "3", "1010", "$0.0021"]
    assert "3 (1 failed)" in listed.out
    assert [each["id"] for each in machine.json("runs", "review")["runs"]] == [new]
    assert [each["id"] for each in machine.json("runs", "user/review")["runs"]] == [old]
    assert f"run:           {old}\n" in machine("runs", old).out
    statuses = {each: machine.json("graph", f"{each}/review", "--run", "latest")["agents"] for each in ("work", "user")}
    assert {each: agents[1]["status"] for each, agents in statuses.items()} == {"work": "success", "user": "failed"}
    assert machine.json("graph", "user/review", "--run", old)["agents"] == statuses["user"]
    assert [each["id"] for each in machine.json("runs", "--limit", "1")["runs"]] == [new]


def test_one_run_is_taken_apart(machine: Orchestra) -> None:
    run = artifact(machine.home / ".local/share/llm-orc/artifacts", "20260131-120000-000", "completed_with_errors")
    shown = machine("runs", run)
    assert "critical path: reader (1.5 s, 60%) → checker" in shown.out
    assert "error: checker: it �[31mbroke" in shown.out
    assert machine("runs", "review/latest").out == shown.out
    found = machine.json("runs", run)
    assert (found["artifact_id"], found["status"]) == (run, "completed_with_errors")
    assert [each["agent"] for each in found["analysis"]["cost"]["agents"]] == ["reader", "summary"]
    way_out = "'mcpctl ensemble runs review' lists the runs"
    assert way_out in machine.refused("runs", "review/20260131-120000-001", code=4)
    ensemble(machine.own, REVIEW)
    assert way_out in machine.refused("graph", "review", "--run", "20260131-120000-001", code=4)
    assert machine("runs", "user/review").out == machine("runs", "review").out
    machine.refused("runs", "nope/latest", code=4)


def test_metrics_are_those_of_all_runs(machine: Orchestra) -> None:
    data = machine.home / ".local/share/llm-orc/artifacts"
    for stamp, status in (("20260131-120000-000", "completed"), ("20260131-120000-001", "failed")):
        artifact(data, stamp, status)
    shown = machine("runs", "review", "--metrics")
    assert "success rate: 50.0%" in shown.out
    assert ["checker", "2", "1"] in [line.split()[:3] for line in shown.out.splitlines()]
    found = machine.json("runs", "--metrics", "review")
    assert (found["ensemble"], found["success_rate"]) == ("review", 0.5)
    assert "costs:        mean $0.0021, median $0.0021, 95th percentile $0.0021" in shown.out
    assert "needs the name" in machine.refused("runs", "--metrics", code=2)


def test_no_figure_of_a_spread_is_blank(machine: Orchestra) -> None:
    data = machine.home / ".local/share/llm-orc/artifacts"
    for number, dollars in enumerate((0.0, 0.0, 0.0, 1e-7, 0.02)):
        agents = {"reader": agent("r", 100.0, 101.0, usage=used(1, dollars), model="m")}
        totals = {"total_tokens": 1, "total_cost_usd": dollars}
        about = {"started_at": 100.0, "completed_at": 101.0, "usage": {"agents": {}, "totals": totals}}
        artifact(data, f"20260131-120000-00{number}", results=agents, metadata=about)
    shown = machine("runs", "review", "--metrics").out
    (costs,) = [line for line in shown.splitlines() if line.startswith("costs:")]
    assert costs.split(":")[1].strip() == "mean $0.004, median $0, 95th percentile $0.016"
    assert "< $0.000001" in machine("runs", "review").out


def test_nothing_from_files_steers_the_terminal(machine: Orchestra) -> None:
    hostile = REVIEW.replace("Two readers", "\\e[2J").replace("Two readers, then a summary", "x")
    ensemble(machine.own, hostile.replace("description: ", 'description: "').replace(", then a summary", '"'))
    for argv in (("list",), ("show", "review"), ("graph", "review"), ("validate",)):
        ended = machine(*argv)
        assert ended.code == 0, ended
        assert "\x1b" not in ended.out + ended.err


def test_wrong_projects_are_a_warning(machine: Orchestra) -> None:
    machine.configure("relative")
    ensemble(machine.own, REVIEW)
    listed = machine("list")
    assert (listed.code, "review" in listed.out) == (0, True)
    assert "warning: could not read which projects llm-orc may use: relative" in listed.err


def test_without_libraries_the_interpreter_of_mcpd_servers_is_run_instead(machine: Orchestra, tmp_path: Path) -> None:
    python, program = tmp_path / "python", tmp_path / "mcpctl.py"
    python.write_text('#!/bin/sh\necho "$@"; exit 7\n')
    python.chmod(0o755)
    program.write_text(WITHOUT.format(repository=str(REPOSITORY), missing=("ruamel",), system=True, python=str(python)))
    ended = machine.run([sys.executable, str(program), "--user", "ensemble", "list"])
    assert (ended.code, ended.out) == (7, "-I -m mcpd.cli.main --user ensemble list\n")
    python.unlink()
    ended = machine.run([sys.executable, str(program), "--user", "ensemble", "list"])
    assert ended.code == 1
    assert "'mcpctl ensemble' needs the Python package ruamel.yaml, which is not installed" in ended.err


def test_validate_warns_of_missing_keys_and_of_addresses_that_are_refused(machine: Orchestra) -> None:
    machine.configure("~/work")
    project = machine.work / ".llm-orc"
    ensemble(project, "name: asks\nagents:\n- {name: a, model_profile: paid}\n- {name: b, model_profile: far}\n")
    (project / "config.yaml").write_text(
        "model_profiles:\n  paid: {provider: openai, model: m}\n"
        "  far: {provider: openai, model: m, base_url: https://models.example.com/v1}\n"
    )
    ended = machine("validate", "asks")
    assert ended.code == 0
    assert 'warning: agent a: with the profile "paid", there is no key for https://api.openai.com/v1' in ended.out
    assert "names the base_url https://models.example.com/v1, which you have not allowed" in ended.out
    secrets = machine.home / ".local/share/mcp/secrets/llm-orc.json"
    secrets.parent.mkdir(mode=0o700, parents=True)
    secrets.write_text('{"OPENAI_API_KEY": "k"}')
    secrets.chmod(0o600)
    assert "agent a" not in machine("validate", "asks").out


@pytest.mark.parametrize("argv", ["list", "show review", "validate", "runs", "graph review --mermaid", "graph review"])
def test_what_mcpd_servers_has_is_enough(machine: Orchestra, tmp_path: Path, argv: str) -> None:
    ensemble(machine.own, REVIEW)
    program, absent = tmp_path / "mcpctl.py", ("rich", "dbus_next", "msgspec", "uvicorn", "uvloop", "prometheus_client")
    program.write_text(WITHOUT.format(repository=str(REPOSITORY), missing=absent, system=True, python="/nowhere"))
    ended = machine.run([sys.executable, str(program), "--user", "ensemble", *argv.split()])
    assert ended.code == 0, ended.err


def test_the_nearest_project_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    assert nearest_project(inner) != tmp_path
    (tmp_path / ".llm-orc").mkdir()
    assert nearest_project(inner) == tmp_path
    (tmp_path / "a/.llm-orc").write_text("no directory")
    assert nearest_project(inner) == tmp_path
    (tmp_path / "a/b/.llm-orc").mkdir()
    assert nearest_project(inner) == inner
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert nearest_project(inner) is None
