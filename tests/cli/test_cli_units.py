# SPDX-License-Identifier: LGPL-2.1-or-later
"""What mcpctl makes of systemd's answers and of the journal's files, with a systemctl that says what the test says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.cli import agent, checks
from mcpd.cli.units import figures

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what ``systemctl`` prints."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def write(text: str) -> None:
        (tmp_path / "said").write_text(text)
        program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexec cat {tmp_path}/said\n')
        program.chmod(0o755)

    return write


def test_figures_of_units(says: Callable[[str], None], tmp_path: Path) -> None:
    says(
        "Id=a.service\nMemoryCurrent=2097152\nCPUUsageNSec=1500000000\nTasksCurrent=3\n\n"
        "Id=b.service\nMemoryCurrent=[not set]\nCPUUsageNSec=18446744073709551615\nTasksCurrent=[not set]\n"
    )
    sessions = [{"unit": "b.service"}, {"unit": "a.service"}, {"unit": ""}, {"unit": "c.service"}]
    assert figures(sessions, system=False) == [{}, {"memory": 2097152, "cpu": 1.5, "tasks": 3}, {}, {}]
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--user show ")
    assert asked.endswith("-- a.service b.service c.service\n")
    assert figures([{"unit": ""}], system=True) == [{}]
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_shipped_actions_are_read_from_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / checks.POLICY
    policy.parent.mkdir(parents=True)
    policy.write_text((Path(__file__).parents[2] / "dbus/org.mcpd.mcp1.policy").read_text())
    found = checks.shipped_actions(tmp_path)
    assert "org.mcpd.mcp1.install-untrusted" in found
    assert len(found) == len(set(found)) >= 11
    assert checks.shipped_actions(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("cgroup", "user", "expected"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", "NAME=a\nDISPLAY=3\n", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", "NAME=a\n", False),
        ("0::/system.slice/cron.service\n", "NAME=a\nDISPLAY=3\n", False),
    ],
)
def test_the_agent_stands_back_in_a_session_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, user: str, expected: bool
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / str(os.getuid())).write_text(user)
    monkeypatch.setattr(agent, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(agent, "_USERS", tmp_path)
    assert agent._in_session() is expected
    monkeypatch.setattr(agent, "_USERS", tmp_path / "none")
    assert agent._in_session() is (expected and not user)


def test_figures_are_json(says: Callable[[str], None]) -> None:
    says("Id=a.service\nCPUUsageNSec=1234567\n")
    assert json.dumps(figures([{"unit": "a.service"}], system=True)) == '[{"cpu": 0.001}]'
