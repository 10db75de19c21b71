# SPDX-License-Identifier: LGPL-2.1-or-later
"""Repositories for tests, made by git itself without any configuration of this machine."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AUTHOR = "A U Thor"
EMAIL = "author@example.org"
TIME = "2026-01-02T03:04:05+00:00"
VARIABLES = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": AUTHOR,
    "GIT_AUTHOR_EMAIL": EMAIL,
    "GIT_AUTHOR_DATE": TIME,
    "GIT_COMMITTER_NAME": AUTHOR,
    "GIT_COMMITTER_EMAIL": EMAIL,
    "GIT_COMMITTER_DATE": TIME,
    "GIT_ALLOW_PROTOCOL": "file",
    "LC_ALL": "C.UTF-8",
}


class MadeRepository:
    """A repository at :attr:`path`, on the branch ``main``, with an identity in its configuration."""

    def __init__(self, path: Path) -> None:
        """One that is there already."""
        self.path = path

    @classmethod
    def make(cls, path: Path, *options: str) -> Self:
        """An empty one; *options* are those of ``git init``."""
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path)
        made.git("init", "--quiet", "--initial-branch=main", "--template=", *options)
        made.git("config", "user.name", AUTHOR)
        made.git("config", "user.email", EMAIL)
        return made

    def git(self, *arguments: str, stdin: bytes = b"", check: bool = True, **variables: str) -> str:
        """What git says to *arguments*, without the newline at its end; what is no UTF-8 becomes half surrogates."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={"PATH": os.environ["PATH"], "HOME": str(self.path), **VARIABLES, **variables},
            input=stdin,
            capture_output=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"git {arguments}: {done.stderr.decode(errors='replace')}")
        return os.fsdecode(done.stdout).removesuffix("\n")

    def write(self, name: str, content: str | bytes = "") -> Path:
        """A file of the working tree with *content*."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def commit(
        self, message: str = "A commit", /, files: Mapping[str, str | bytes] | None = None, **variables: str
    ) -> str:
        """Write *files*, commit all there is, and say the id."""
        for name, content in (files or {}).items():
            self.write(name, content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "-m", message, stdin=b"", check=True, **variables)
        return self.git("rev-parse", "HEAD")

    def head(self, name: str = "HEAD") -> str:
        """The id of the commit *name*."""
        return self.git("rev-parse", "--verify", name)

    def status(self) -> list[str]:
        """The lines of ``git status --porcelain``."""
        return self.git("status", "--porcelain", "--untracked-files=all").splitlines()
