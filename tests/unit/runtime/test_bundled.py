# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the programs that come with mcpd are found, and what is said if they are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mcpd
from mcpd.errors import NotSupported
from mcpd.runtime import bundled
from mcpd.runtime.bundled import remote_program


def test_an_environment_of_ones_own_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundled, "PYTHON", tmp_path)
    program = remote_program("x")
    assert program.argv == (sys.executable, "-I", "-m", "mcpd.servers.remote")
    assert [mount.target for mount in program.mounts()] == [str(Path(mcpd.__file__).parent)]


def test_the_systems_mcpd_takes_the_distributions_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(bundled, "PYTHON", tmp_path)
    assert remote_program("x").argv[0] == str(tmp_path)


@pytest.mark.parametrize(("prefix", "says"), [("/somewhere/venv", r"mcpd-system\[servers\]"), (None, "mcpd-servers")])
def test_without_its_libraries_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str | None, says: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix or sys.base_prefix)
    monkeypatch.setattr(bundled, "PYTHON", tmp_path / "absent")
    monkeypatch.setattr(bundled, "NEEDED", ("httpx2", "no_such_library"))
    with pytest.raises(NotSupported, match=f"^x runs elsewhere.*{says}"):
        remote_program("x")
