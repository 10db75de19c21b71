# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl ensemble with the real mcpd, which runs the real server in its sandbox."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.ensemble_files import REVIEW, SCRIPTS, ensemble
from tests.rig import BIN, PATIENCE, Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARE = Path(__file__).parents[2] / "data/share"
SLOW = "#!/bin/sh\necho begun >begun\nexec sleep 600\n"


class Orchestra(Rig):
    """A machine with llm-orc, the ensembles that come along, and a project."""

    def __init__(self) -> None:
        super().__init__()
        self.work = self.home / "work"
        self.base = self.work / ".llm-orc"

    def boot(self) -> None:
        """Start mcpd; the project is there and configured."""
        vendor = self.home / "system/usr/share/mcp"
        shutil.copytree(SHARE / "servers", vendor / "servers")
        shutil.copytree(SHARE / "ensembles", vendor / "ensembles")
        ensemble(self.base, REVIEW)
        self.start_daemon()
        self.done("config", "set", "llm-orc", 'projects=["~/work"]')

    def done(self, *argv: str, stdin: str = "") -> str:
        """What a command prints that succeeds."""
        ended = self.mcpctl(*argv, stdin=stdin)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def json(self, *argv: str, stdin: str = "") -> Any:
        """The same as JSON."""
        return json.loads(self.done("ensemble", *argv, "--json", stdin=stdin))

    def slow(self) -> None:
        """Write an ensemble whose second agent does not end."""
        text = REVIEW.replace("review", "slow").replace("check.sh", "slow.sh")
        ensemble(self.base, text, "slow")
        (self.base / "scripts/slow.sh").write_text(SLOW)
        (self.base / "scripts/slow.sh").chmod(0o755)


@pytest.fixture(scope="module")
def rig() -> Iterator[Orchestra]:
    """That machine."""
    with Orchestra() as machine:
        machine.boot()
        yield machine


def test_a_run_is_kept_shown_and_continued(rig: Orchestra) -> None:
    found = rig.json("run", "review", stdin="some text")
    assert (found["status"], found["results"]["checker"]["response"]) == ("completed", "checked")
    assert rig.done("ensemble", "run", "work/review", "some text") == found["deliverable"] + "\n"
    listed = rig.json("runs", "review")["runs"]
    assert [each["status"] for each in listed] == ["completed"] * 2
    run = listed[1]["id"]
    assert run == found["artifact_id"]
    assert "critical path:" in rig.done("ensemble", "runs", run)
    resumed = rig.mcpctl("ensemble", "resume", run)
    assert "Nothing left to do: all responses were reused from the earlier run.\n" in resumed.stderr
    assert "3 agents (3 reused)" in resumed.stderr
    again = rig.json("resume", run)
    assert (again["deliverable"], again["artifact_id"] != run) == (found["deliverable"], True)
    assert again["results"]["reader"]["reused"]
    assert rig.json("runs", "review", "--metrics")["runs"] == 4


def test_what_fails_is_said(rig: Orchestra) -> None:
    base = rig.base
    ensemble(base, SCRIPTS.format(name="fails"), "fails")
    (base / "scripts/check.sh").write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    ended = rig.mcpctl("ensemble", "run", "fails")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "error: only: " in ended.stderr
    run = rig.json("runs", "fails")["runs"][0]
    assert (run["status"], run["errors"]) == ("failed", 1)
    assert "error: only: " in rig.done("ensemble", "runs", run["id"])


def test_an_interrupted_run_is_recorded_with_what_it_has_reached(rig: Orchestra) -> None:
    rig.slow()
    argv = [str(BIN / "mcpctl"), "--user", "ensemble", "run", "slow", "it"]
    with subprocess.Popen(argv, env=rig.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "reader: success" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, "cancelling" in err) == (130, True)
    _happens(lambda: rig.json("runs", "slow")["runs"][0]["status"] == "cancelled")
    run = rig.json("runs", "slow")["runs"][0]["id"]
    agents = {each["name"]: each["status"] for each in rig.json("graph", "slow", "--run", run)["agents"]}
    assert (agents["reader"], agents["checker"] in {"cancelled", "failed"}) == ("success", True)


def test_the_ensembles_that_come_along_are_right(rig: Orchestra) -> None:
    names = [each["qualified"] for each in rig.json("list")["ensembles"] if each["tier"] == "shipped"]
    assert names
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        rig.done("secret", "set", "llm-orc", key, stdin="a key")
    assert rig.json("validate", *names)["findings"] == []


def _happens(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
