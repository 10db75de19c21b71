# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tools called without a server around them: on real files, with real commands, their schemas held to."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from jsonschema import Draft202012Validator

from mcpd.servers.checking import checked
from mcpd.servers.workstation.call import Call
from mcpd.servers.workstation.processes import Environment, Processes
from mcpd.servers.workstation.roots import Roots
from mcpd.servers.workstation.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.tool import Tool

    Progress = Callable[[float, float | None, str], None]


class Answer(NamedTuple):
    """The answer of a tool, whose *result* has the fields of that tool's model."""

    result: Any
    content: tuple[dict[str, Any], ...]


class Workbench:
    """One root with what lies beside it; a context manager.

    *settings* are those of :class:`Settings`, without which there is the one root and nothing is allowed.
    """

    def __init__(self, directory: Path, *, roots: int = 1, **settings: Any) -> None:
        self.directory = directory
        self.root, self.outside, self.home = directory / "root", directory / "outside", directory / "home"
        self.roots = [self.root, *(directory / f"root{number}" for number in range(2, roots + 1))]
        for made in (*self.roots, self.outside, self.home):
            made.mkdir()
        (self.outside / "secret").write_text("nobody's business\n")
        self.settings = Settings(
            **{
                "roots": tuple(self.roots),
                "toolchains": (),
                "home": self.home,
                "state": directory / "state",
                **settings,
            }
        )
        self._stack = ExitStack()

    @classmethod
    def of(cls, other: Workbench, **settings: Any) -> Self:
        """One with the same directories and other *settings*."""
        made = cls.__new__(cls)
        made.__dict__.update(other.__dict__)
        made.settings = replace(other.settings, **settings)
        made._stack = ExitStack()
        return made

    def __enter__(self) -> Self:
        environment = Environment(self.settings)
        self._stack.callback(environment.close)
        self.processes = Processes(environment)
        self._stack.callback(self.processes.close)
        self.roots_found = Roots(self.settings)
        self.jail = self.roots_found.jail
        self._executor = self._stack.enter_context(ThreadPoolExecutor(4))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def new_call(self, seconds: float = 30.0, *, progress: Progress | None = None, jail: Jail | None = None) -> Call:
        """A call that may touch all roots, or what *jail* says."""
        return Call(
            jail=jail or self.jail,
            settings=self.settings,
            processes=self.processes,
            executor=self._executor,
            seconds=seconds,
            progress=progress,
        )

    async def call(self, tool: Tool, /, *, call: Call | None = None, **arguments: Any) -> Answer:
        """What *tool* answers, held against its schemas. Raises McpdError, for arguments as the server does."""
        Draft202012Validator.check_schema(tool.input_schema)
        answer = await tool.run(call or self.new_call(), checked(tool, arguments))
        said = answer.result.model_dump(mode="json", exclude_none=True)
        Draft202012Validator(tool.output_schema).validate(said)
        return Answer(answer.result, answer.content)

    def fingerprint(self) -> str:
        """A digest of all that lies outside of the roots, names, modes and contents."""
        digest = hashlib.sha256()
        for path in sorted((*self.outside.rglob("*"), *self.home.rglob("*"))):
            status = path.lstat()
            digest.update(os.fsencode(f"{path}\0{status.st_mode:o}\0{status.st_nlink}\0"))
            if path.is_symlink():
                digest.update(os.fsencode(path.readlink()))
            elif path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()
