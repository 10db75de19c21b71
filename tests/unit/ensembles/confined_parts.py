# SPDX-License-Identifier: LGPL-2.1-or-later
"""Projects with scripts that are really run, for tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from mcpd.servers.ensembles.agents.scripts import ScriptAgents
from mcpd.servers.ensembles.engine.types import Origin, ScriptCall
from mcpd.servers.ensembles.settings import DIRECTORY, Settings

if TYPE_CHECKING:
    import pytest


class Den:
    """Two projects, a user's and a shipped tier; a context manager that ends all it has started.

    *settings* are those of :class:`Settings`.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.project, self.other = directory / "project", directory / "other"
        self.user, self.shipped = directory / "user", directory / "shipped"
        for base in (self.project / DIRECTORY, self.other / DIRECTORY, self.user, self.shipped):
            (base / "scripts").mkdir(parents=True, exist_ok=True)
        self.settings = replace(
            Settings(
                projects=(self.project, self.other),
                user=self.user,
                data=directory / "data",
                shipped=self.shipped,
                cache=directory / "cache",
                state=directory / "state",
                home=directory,
            ),
            **settings,
        )
        self.agents = ScriptAgents(self.settings, lambda origin, script: origin.base / script)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.agents.close()

    def origin(self, tier: Literal["project", "user", "shipped"] = "project") -> Origin:
        """Where an ensemble of *tier* comes from."""
        base = {"project": self.project / DIRECTORY, "user": self.user, "shipped": self.shipped}[tier]
        return Origin(tier, base / "ensembles/e.yaml", base, self.project if tier == "project" else None)

    def write(self, name: str, text: str, *, origin: Origin | None = None, mode: int = 0o644) -> Path:
        """Make the script *name* of *origin*, the project's unless said."""
        path = (origin or self.origin()).base / "scripts" / name
        path.write_text(text)
        path.chmod(mode)
        return path

    async def run(self, name: str, text: str = "", *, origin: Origin | None = None, **call: Any) -> str:
        """What the script *name* answers to the input *text*."""
        given = {"parameters": {}, "context": {}, **call}
        return await self.agents.run(
            ScriptCall("agent", f"scripts/{name}", input=text, origin=origin or self.origin(), **given)
        )

    async def shell(self, text: str, **run: Any) -> str:
        """What the shell script *text* answers."""
        self.write("it.sh", text, origin=run.get("origin"))
        return await self.run("it.sh", **run)

    def processes(self) -> list[int]:
        """The processes whose directory is in here."""
        found = []
        for each in Path("/proc").glob("[0-9]*/cwd"):
            try:
                where = each.readlink()
            except OSError:
                continue
            if where.is_relative_to(self.directory):
                found.append(int(each.parent.name))
        return found


def without_landlock(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keepers see a kernel, or a container, that has none; *directory* gets a file."""
    python = directory / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -B -c 'from mcpd.servers import landlock; landlock.version = lambda: -1;"
        " from mcpd.servers.commands import keeper; keeper.main()'\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
