# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text agent of polkit runs exactly while somebody at a terminal may be asked."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.cli import agent

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """#!{python}
import os, signal, sys
log = open({log!r}, "w", buffering=1)
print(*sys.argv[1:], file=log)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("stopped", file=log)))
os.close(int(sys.argv[-1]))  # ready, as pkttyagent says it
while True:
    signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the agent was told, and whether it was stopped."""
    program = tmp_path / "pkttyagent"
    program.write_text(PROGRAM.format(python=sys.executable, log=str(tmp_path / "log")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(agent, "terminal", lambda: True)
    return tmp_path / "log"


def test_the_agent_serves_this_process_and_is_stopped(log: Path) -> None:
    with agent.password_agent():
        words = [word for word in log.read_text().split() if word != "--fallback"]
        assert words[:3] == ["--process", str(os.getpid()), "--notify-fd"]
    assert log.read_text().splitlines()[1:] == ["stopped"]


@pytest.mark.parametrize("why", ["root", "no terminal", "not installed"])
def test_no_agent_where_nobody_can_be_asked(log: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "root":
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    elif why == "no terminal":
        monkeypatch.setattr(agent, "terminal", lambda: False)
    else:
        monkeypatch.setenv("PATH", "/nonexistent")
    with agent.password_agent():
        assert not log.exists()
