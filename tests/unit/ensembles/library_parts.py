# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories with ensembles and profiles in them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from mcpd.servers.ensembles.library.library import Library
from mcpd.servers.ensembles.settings import DIRECTORY, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.library.library import Entry


def settings(top: Path, *projects: str) -> Settings:
    """Settings whose directories are below *top*; *projects* are made, the others are not."""
    for project in projects:
        (top / project).mkdir(parents=True, exist_ok=True)
    return Settings(
        projects=tuple(top / project for project in projects),
        user=top / "user",
        data=top / "data",
        shipped=top / "shipped",
        cache=top / "cache",
        state=top / "state",
        home=top / "home",
    )


def library(top: Path, *projects: str) -> Library:
    """A library as a new process has it."""
    return Library(settings(top, *projects))


def ensemble(name: str, description: str = "") -> str:
    """The text of an ensemble."""
    return f"name: {name}\ndescription: {json.dumps(description)}\nagents:\n  - {{name: reader, model_profile: fast}}\n"


def put(path: Path, text: str) -> Path:
    """Write *text* to *path*, whose directories are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def put_ensemble(base: Path, name: str, description: str = "", file: str | None = None) -> Path:
    """An ensemble in the tier whose base is *base*."""
    return put(base / "ensembles" / (file or f"{name}.yaml"), ensemble(name, description))


def of_project(top: Path, project: str) -> Path:
    """The base of *project*."""
    return top / project / DIRECTORY


def age(path: Path) -> None:
    """Make *path* so old that the clock of its file system tells it from what is written next."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 1_000_000_000))


def by_name(library: Library) -> dict[str, Entry]:
    """The entries, of which each name has one."""
    entries = library.entries()
    found = {entry.name: entry for entry in entries}
    assert len(found) == len(entries), [entry.qualified for entry in entries]
    return found
