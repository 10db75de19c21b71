# SPDX-License-Identifier: LGPL-2.1-or-later
"""``llm-orc`` as a process with a project and a home of its own, and the SDK's client in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPOSITORY = Path(__file__).parents[2]
ERAS = ("legacy", "2026-07-28")
PROGRAM: tuple[str, ...] = ("-I", "-m", "mcpd.servers.ensembles")
PATIENCE = 120.0
CONFIG = """\
model_profiles:
  fast: {provider: mock, model: tiny, cost_per_token: 0.5, options: {response: "<{input}>", tokens: 4}}
  slow: {provider: mock, model: tiny, options: {latency: 600}}
  broken: {provider: mock, model: tiny, options: {fail: refused}}
  client: {provider: mcp-sampling, model: whatever}
"""
PAIR = """\
# Two readers, and one who sums up.
name: pair
description: Two readers and a summary
default_task: What is there?
agents:
  - {name: first, model_profile: fast}
  - {name: second, model_profile: fast}   # the other one
  - {name: sum, model_profile: fast, depends_on: [first, second], input_scope: dependencies}
"""
UPPER = """\
import json, sys
given = json.load(sys.stdin)
print(json.dumps({"success": True, "data": str(given["input"]).upper()}))
"""


class Room:
    """A project with ensembles, a home, and the program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home, self.project, self.state = directory / "home", directory / "project", directory / "state"
        self.base = self.project / ".llm-orc"
        self.program = PROGRAM
        for made in (self.home, self.base / "ensembles", self.base / "scripts"):
            made.mkdir(parents=True)
        (self.base / "config.yaml").write_text(CONFIG)
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "MCP", "PYTHON", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "LLM_ORC"))
        } | {"HOME": str(self.home), "MCP_VENDOR_DIR": str(REPOSITORY / "data/share/servers")}

    def put(self, text: str, name: str = "") -> Path:
        """Write an ensemble of the project, under the name that it has in *text*."""
        name = name or next(line for line in text.splitlines() if line.startswith("name:")).split()[1]
        file = self.base / "ensembles" / f"{name}.yaml"
        file.write_text(text)
        return file

    def put_script(self, name: str, text: str) -> Path:
        """Write a script of the project."""
        file = self.base / "scripts" / name
        file.write_text(text)
        return file

    def argv(self, command: str, *arguments: str) -> list[str]:
        """The program."""
        project = () if any(each.startswith("--project") for each in arguments) else ("--project", str(self.project))
        return [*self.program, "mcp", command, *project, "--state", str(self.state), *arguments]

    @asynccontextmanager
    async def started(self, *arguments: str, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
        """A client of the program."""
        command = StdioServerParameters(
            command=python(), args=self.argv("serve", *arguments), env=self.environ, cwd=self.directory
        )
        with (self.directory / "log").open("a") as log:
            async with Client(stdio_client(command, errlog=log), mode=mode, **options) as client:
                yield client

    def status(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``llm-orc mcp status``."""
        return subprocess.run(
            [python(), *self.argv("status", *arguments)],
            env=self.environ, cwd=self.directory, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @property
    def log(self) -> str:
        """What the program wrote on stderr."""
        return (self.directory / "log").read_text()


async def invoked(client: Client, ensemble: str, text: str = "", **more: Any) -> dict[str, Any]:
    """The structured result of a run, which has not failed."""
    result = await client.call_tool("invoke", {"ensemble_name": ensemble, "input": text, **more})
    assert not result.is_error, result
    assert result.structured_content is not None
    return dict(result.structured_content)


async def read(client: Client, uri: str) -> Any:
    """The JSON that a resource is."""
    (content,) = (await client.read_resource(uri)).contents
    assert (content.uri, content.mime_type) == (uri, "application/json")
    return json.loads(content.text)  # type: ignore[union-attr]


async def happens(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds; fails if it does not within a generous time."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        await asyncio.sleep(0.02)
