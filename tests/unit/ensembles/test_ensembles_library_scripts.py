# SPDX-License-Identifier: LGPL-2.1-or-later
"""The scripts of ensembles are below the base of these, or refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig, McpdError, NotFound
from tests.unit.ensembles.library_parts import library, of_project, put, put_ensemble

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.library.library import Library


def _project(tmp_path: Path) -> tuple[Library, Origin]:
    put_ensemble(of_project(tmp_path, "app"), "review")
    put(of_project(tmp_path, "app") / "scripts/x.py", "print()")
    made = library(tmp_path, "app")
    return made, made.find("review").origin


@pytest.mark.parametrize("script", ["scripts/x.py", "./scripts/x.py", "scripts//x.py"])
def test_a_script_is_below_the_base(tmp_path: Path, script: str) -> None:
    made, origin = _project(tmp_path)
    assert made.script(origin, script) == of_project(tmp_path, "app") / "scripts/x.py"
    assert made.script_problem(origin, script) is None


def test_a_symlink_within_the_base_is_where_it_leads(tmp_path: Path) -> None:
    made, origin = _project(tmp_path)
    (of_project(tmp_path, "app") / "scripts/y.py").symlink_to("x.py")
    assert made.script(origin, "scripts/y.py") == of_project(tmp_path, "app") / "scripts/x.py"


@pytest.mark.parametrize("script", ["scripts/none.py", "scripts", ".", "scripts/pipe", "scripts/x.py/y"])
def test_what_is_not_there_or_no_file_is_named_with_the_base(tmp_path: Path, script: str) -> None:
    made, origin = _project(tmp_path)
    os.mkfifo(of_project(tmp_path, "app") / "scripts/pipe")
    with pytest.raises(NotFound if "none" in script or "x.py" in script else InvalidConfig) as refused:
        made.script(origin, script)
    assert script in refused.value.message
    assert str(origin.base) in refused.value.message
    assert made.script_problem(origin, script) == refused.value.message


@pytest.mark.parametrize(
    "script",
    ["", "/bin/sh", "../../secret.py", "scripts/../../secret.py", "scripts/../scripts/x.py", "scripts/x.py\0", "..",
     "x" * 5000, "\udc80\ud800.py"],
    ids=["empty", "absolute", "up", "up later", "up and down", "nul", "dots", "long", "surrogates"],
)  # fmt: skip
def test_no_way_of_writing_it_leads_out(tmp_path: Path, script: str) -> None:
    made, origin = _project(tmp_path)
    put(tmp_path / "secret.py", "")
    with pytest.raises(McpdError) as refused:
        made.script(origin, script)
    assert str(origin.base) in refused.value.message
    assert made.script_problem(origin, script) is not None


@pytest.mark.parametrize("tier", ["project", "user"])
def test_no_symlink_leads_out(tmp_path: Path, tier: str) -> None:
    put_ensemble(of_project(tmp_path, "app"), "review")
    put_ensemble(tmp_path / "user", "plan")
    made = library(tmp_path, "app")
    origin = made.find("review" if tier == "project" else "plan").origin
    outside = put(tmp_path / "outside/x.py", "print()")
    (origin.base / "scripts").symlink_to(outside.parent)
    (origin.base / "x.py").symlink_to(outside)
    for script in ("scripts/x.py", "x.py"):
        with pytest.raises(InvalidConfig, match="by a symlink"):
            made.script(origin, script)


def test_a_base_that_was_moved_out_of_its_project_has_no_scripts(tmp_path: Path) -> None:
    made, origin = _project(tmp_path)
    origin.base.rename(tmp_path / "outside")
    origin.base.symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidConfig, match="by a symlink"):
        made.script(origin, "scripts/x.py")


def test_the_users_directory_may_be_a_symlink(tmp_path: Path) -> None:
    put_ensemble(tmp_path / "dotfiles", "plan")
    script = put(tmp_path / "dotfiles/scripts/x.py", "print()")
    (tmp_path / "user").symlink_to("dotfiles")
    made = library(tmp_path)
    assert made.script(made.find("plan").origin, "scripts/x.py") == script
