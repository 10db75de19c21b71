# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-workstation`` as a process with directories of its own, and the SDK's client in front of it."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.children import marked
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ERAS = ("legacy", "2026-07-28")
PROGRAM: tuple[str, ...] = ("-I", "-m", "mcpd.servers.workstation")


async def gone(mark: str, *, but: str = "") -> None:
    """Wait until no process has *mark* in its environment or command line, but for those that have *but* there, too."""
    while any(pid not in marked(but) for pid in marked(mark)) if but else marked(mark):
        await asyncio.sleep(0.02)


class Desk:
    """A root, what lies beside it, and the program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root, self.outside, self.home = directory / "root", directory / "outside", directory / "home"
        self.state = directory / "state"
        self.program = PROGRAM
        for made in (self.root, self.outside, self.home):
            made.mkdir()
        (self.outside / "secret").write_text("nobody's business\n")
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MCP", "PYTHON"))
        } | {"HOME": str(self.home)}

    def command(self, *arguments: str) -> StdioServerParameters:
        """The program with its one root and all tools, unless *arguments* say otherwise."""
        roots = () if any(argument.startswith("--root") for argument in arguments) else ("--root", str(self.root))
        tools = () if "--tools" in arguments else ("--tools", "all")
        return StdioServerParameters(
            command=python(),
            args=[*self.program, *roots, *tools, "--state", str(self.state), *arguments],
            env=self.environ,
        )

    @asynccontextmanager
    async def started(self, *arguments: str, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
        """A client of the program."""
        with (self.directory / "log").open("a") as log:
            async with Client(stdio_client(self.command(*arguments), errlog=log), mode=mode, **options) as client:
                yield client

    @property
    def log(self) -> str:
        """What the program wrote on stderr."""
        return (self.directory / "log").read_text()

    @property
    def audit(self) -> list[dict[str, Any]]:
        """The audit trail."""
        return [json.loads(line) for line in (self.state / "audit.jsonl").read_text().splitlines()]
