# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles on a booted system, from the packages: those that come along, and what a project's scripts can do."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import CompletedProcess

    from tests.system.machine import Machine

pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")

HOME: Final = "/home/alice"
PROJECT: Final = f"{HOME}/project"
SPY: Final = f"""\
import errno, json, os, pathlib, socket, sys

def tried(what):
    try:
        return what()
    except OSError as error:
        return errno.errorcode[error.errno]

given = json.load(sys.stdin)
network = tried(lambda: socket.create_connection(("127.0.0.1", 22), 1))
found = {{
    "input": given["input"],
    "secret": tried(lambda: pathlib.Path("{HOME}/secret").read_text()),
    "outside": tried(lambda: pathlib.Path("{HOME}/.profile").write_text("x")),
    "hook": tried(lambda: pathlib.Path(".git/hooks/post-index-change").write_text("x")),
    "network": network if isinstance(network, str) else "reached",
    "environment": sorted(os.environ),
}}
pathlib.Path("made").write_text("by the script")
json.dump({{"success": True, "data": found}}, sys.stdout)
"""
ENSEMBLE: Final = """\
name: spying
agents:
  - {name: spy, script: scripts/spy.py}
"""


def ensemble(machine: Machine, *arguments: str, check: bool = True) -> CompletedProcess[str]:
    return machine.mcpctl("ensemble", *arguments, user="alice", check=check)


@pytest.fixture
def project(machine: Machine) -> Iterator[str]:
    """A project of alice's that is configured, beside a file that is not."""
    machine.write(f"{PROJECT}/.llm-orc/ensembles/spying.yaml", ENSEMBLE, owner="alice")
    machine.write(f"{PROJECT}/.llm-orc/scripts/spy.py", SPY, owner="alice")
    machine.run("chown", "-R", "alice:", PROJECT)
    machine.run("git", "init", "-q", PROJECT, user="alice")
    machine.write(f"{HOME}/secret", "nobody's business\n", 0o600, "alice")
    machine.mcpctl("config", "set", "llm-orc", 'projects=["~/project"]', user="alice")
    yield PROJECT
    machine.mcpctl("config", "unset", "llm-orc", "projects", user="alice")
    machine.run("rm", "-rf", PROJECT, f"{HOME}/secret")


def test_what_comes_with_it_runs_without_a_model(machine: Machine) -> None:
    listed = json.loads(ensemble(machine, "list", "--json").stdout)
    assert "text-statistics" in json.dumps(listed)
    done = ensemble(machine, "run", "text-statistics", "One line.\n\nAnother one, a little longer.", "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["status"] == "completed", result
    runs = ensemble(machine, "runs", "text-statistics")
    assert "completed" in runs.stdout


def test_the_program_is_there_with_its_page_and_tells_how_it_is(machine: Machine) -> None:
    done = machine.run("llm-orc", "mcp", "status", user="alice", check=False)
    assert "ensemble" in done.stdout, (done.stdout, done.stderr)
    assert machine.run("test", "-e", "/usr/share/man/man1/llm-orc.1", check=False).returncode == 0 or (
        machine.run("test", "-e", "/usr/share/man/man1/llm-orc.1.gz", check=False).returncode == 0
    )


def test_a_script_sees_its_project_and_nothing_else(machine: Machine, project: str) -> None:
    done = ensemble(machine, "run", "spying", "look", "--json")
    result: dict[str, Any] = json.loads(done.stdout)
    found = json.loads(result["results"]["spy"]["response"])
    assert found["input"] == "look"
    assert found["secret"] in {"EACCES", "ENOENT"}
    assert found["outside"] in {"EACCES", "ENOENT", "EROFS"}
    assert machine.read(f"{HOME}/.profile") != "x"
    assert found["hook"] == "EROFS"
    assert found["network"] in {"EACCES", "EPERM"}
    assert not {"MCPD_SOCKET_TOKEN", "OPENAI_API_KEY"} & set(found["environment"])
    assert machine.read(f"{project}/made") == "by the script"
    ensemble_name, timestamp = result["artifact_id"].split("/")
    kept = json.loads(machine.read(f"{project}/.llm-orc/artifacts/{ensemble_name}/{timestamp}/execution.json"))
    assert kept["status"] == "completed"


def test_what_is_wrong_with_an_ensemble_is_told_with_its_line(machine: Machine, project: str) -> None:
    machine.write(f"{project}/.llm-orc/ensembles/broken.yaml", "name: broken\nagents:\n  - {name: a, scirpt: x}\n")
    done = ensemble(machine, "validate", "broken", check=False)
    assert done.returncode == 1
    assert "broken.yaml:3" in done.stdout + done.stderr
