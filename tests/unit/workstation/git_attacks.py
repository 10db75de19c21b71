# SPDX-License-Identifier: LGPL-2.1-or-later
"""Attacks of a repository on whoever runs git in it, and what they do to see that one has succeeded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpd.errors import McpdError
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import COMMIT
from mcpd.servers.workstation.git.running import find, git
from mcpd.servers.workstation.git.stashing import STASH
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.tool import Tool


Prepare = Callable[[MadeRepository, str], object]
Act = Callable[[Workbench], Awaitable[object]]


@dataclass(frozen=True)
class Attack:
    """A repository that *prepare* makes run a command when *act* is done."""

    name: str
    prepare: Prepare
    act: Act


def canary(bench: Workbench) -> Path:
    """What the commands of an attack make, where every command may write."""
    return bench.settings.state / "home" / "canary"


def call(tool: Tool, **arguments: Any) -> Act:
    return lambda bench: bench.call(tool, path="project", **arguments)


def config(*entries: tuple[str, str], after: Callable[[MadeRepository], object] | None = None) -> Prepare:
    def prepare(made: MadeRepository, command: str) -> None:
        for key, value in entries:
            made.git("config", key, value.replace("CMD", command))
        if after is not None:
            after(made)

    return prepare


def attributes(line: str, *entries: tuple[str, str], changed: bool = True) -> Prepare:
    def prepare(made: MadeRepository, command: str) -> None:
        made.commit("Attributes", {".gitattributes": line + "\n"})
        config(*entries)(made, command)
        if changed:
            made.write("file", "two\n")

    return prepare


commit = call(COMMIT, message="Hello", allow_empty=True)
everything = call(COMMIT, message="Hello", all=True)
push = call(STASH, action="push")
switch = call(CHECKOUT, revision="new", create=True)


def running(*arguments: str) -> Act:
    """git without the options by which a tool switches off what it does not want."""

    async def act(bench: Workbench) -> object:
        one = bench.new_call()
        return await git(one, await find(one, "project"), *arguments)

    return act


def project(bench: Workbench) -> MadeRepository:
    made = MadeRepository.make(bench.root / "project")
    made.commit(files={"file": "one\n"})
    return made


async def is_run(bench: Workbench, attack: Attack) -> bool:
    made = project(bench)
    attack.prepare(made, f"touch '{canary(bench)}'")
    canary(bench).unlink(missing_ok=True)
    # A command that does not end as git expects may well be an error.
    with suppress(McpdError):
        await attack.act(bench)
    return canary(bench).exists()
