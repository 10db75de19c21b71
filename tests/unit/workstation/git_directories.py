# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories that git would take for its own, with a configuration that names a command."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.unit.workstation.git_parts import VARIABLES

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "ref: refs/heads/main\n"
WORKTREE = "[core]\n\tbare = false\n\tworktree = ..\n"


def planted(directory: Path) -> Path:
    """The file that the command of :func:`config` makes."""
    return directory / "planted"


def config(directory: Path) -> str:
    """A configuration with a command for ``git status``."""
    command = f"[core]\n\trepositoryFormatVersion = 1\n\tfsmonitor = \"touch '{planted(directory)}'; false\"\n"
    return f"{WORKTREE}{command}[extensions]\n\tworktreeConfig = true\n"


def runs(directory: Path, *, below: Path) -> bool:
    """Return whether ``git status`` anywhere *below* runs the command."""
    env = {"PATH": os.environ["PATH"], **VARIABLES}
    for found in (below, *(each for each in below.rglob("*") if each.is_dir() and ".git" not in each.parts)):
        # Most of them are no repositories.
        subprocess.run(["git", "status"], cwd=found, env=env, capture_output=True, check=False)
    return planted(directory).exists()
