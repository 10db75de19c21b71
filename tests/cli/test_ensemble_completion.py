# SPDX-License-Identifier: LGPL-2.1-or-later
"""What shells offer for mcpctl ensemble, without mcpd."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

import pytest

from mcpd.cli import completion
from mcpd.cli.parser import build_parser
from tests.cli.ensemble_files import REVIEW, SCRIPTS, artifact, ensemble

if TYPE_CHECKING:
    from pathlib import Path

RUN = "20260131-120000-000"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the caller stands; there are ensembles of a project and of the user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_ROOT", str(tmp_path / "root"))
    work = tmp_path / "work"
    ensemble(work / ".llm-orc", REVIEW)
    ensemble(tmp_path / ".config/llm-orc", SCRIPTS.format(name="mine"), "mine")
    artifact(work / ".llm-orc/artifacts", RUN)
    artifact(tmp_path / ".local/share/llm-orc/artifacts", RUN, name="other")
    monkeypatch.chdir(work)
    return work


def test_ensembles_and_runs_are_offered(project: Path) -> None:
    args = Namespace(system=False, project=None)
    assert set(completion._ensembles(parsed_args=args)) == {"review", "mine"}
    assert set(completion._runs("", parsed_args=args)) == {"review/", "other/"}
    assert set(completion._runs("review/2", parsed_args=args)) == {f"review/{RUN}"}
    assert completion._runs("nope/", parsed_args=args) == {}


def test_every_name_and_run_of_the_commands_has_a_completer() -> None:
    offered = {
        (command, action.dest)
        for command, action in completion._arguments(build_parser(), ())
        if command.startswith("ensemble ") and ("", action.dest) in completion._LOCAL
    }
    assert {
        ("ensemble show", "ensemble"), ("ensemble run", "ensemble"), ("ensemble graph", "run_id"),
        ("ensemble validate", "ensembles"), ("ensemble runs", "runs"), ("ensemble resume", "run_id"),
    } <= offered  # fmt: skip
