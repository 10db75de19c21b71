# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine with the bundled server ``workstation``, directories for it, and the SDK's client on every way in."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.script_parts import ScriptRig
from tests.rig import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPOSITORY = Path(__file__).parents[2]
SERVER = "workstation"
ERAS = ("legacy", "2026-07-28")
SLOW = "build:\n\t@echo begun; touch begun; (setsid sleep 600 &); sleep 600\n"
"""A Makefile whose target leaves a process behind and does not end."""


class WorkstationRig(ScriptRig):
    """A machine whose workstation offers all tools in ``~/src``, configured by its tilde, and ``~/work``."""

    def __init__(self) -> None:
        super().__init__()
        self.src, self.work, self.secret = self.home / "src", self.home / "work", self.home / "secret"
        self._configured: set[str] = set()

    def boot(self) -> None:
        """Start mcpd and the bridge; the server has no roots yet."""
        shutil.copytree(REPOSITORY / "data/share/servers" / SERVER, self.vendor / "servers" / SERVER)
        for directory in (self.src, self.work):
            directory.mkdir()
        self.secret.write_text("nobody's business\n")
        super().boot()

    def configure(self, **values: Any) -> None:
        """Set properties of the server, until :meth:`clear`."""
        written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        self.done("config", "set", SERVER, *(f"{key}={value}" for key, value in written.items()))
        self._configured |= values.keys()

    def unset(self, key: str) -> None:
        """Return to the default."""
        self.done("config", "unset", SERVER, key)
        self._configured.discard(key)

    def clear(self) -> None:
        """Leave nothing in the roots, and nothing configured but them."""
        for path in (*self.src.iterdir(), *self.work.iterdir()):
            # The roots themselves stay: a server that runs has them open.
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for key in self._configured - {"roots", "tools"}:
            self.unset(key)
        if not {"roots", "tools"} <= self._configured:
            self.configure(roots=["~/src", str(self.work)], tools="all")

    def git(self, *argv: str) -> str:
        """What the host's git says in ``~/src``."""
        environ = {name: value for name, value in self.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(
            ["git", "-C", str(self.src), *argv], env=environ, capture_output=True, text=True, check=True
        ).stdout

    @asynccontextmanager
    async def connect(self, way: str, mode: str, server: str = SERVER, **options: Any) -> AsyncIterator[Client]:
        """The SDK's client, of *server*: by ``mcpctl run`` if *way* is "stdio", through the bridge if it is "http"."""
        if way == "stdio":
            program, *words = self.command("run", server)
            command = StdioServerParameters(command=program, args=words, env=self.environ)
            with self.log("mcpctl").open("a") as log:
                async with Client(stdio_client(command, errlog=log), mode=mode, **options) as client:
                    yield client
        else:
            headers = {"Authorization": f"Bearer {self.token}"}
            url = f"{self.url}/mcp/{server}"
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
            ):
                yield client

    def running(self) -> set[int]:
        """The processes of the server: its sandbox, itself and :meth:`commands`."""
        # Its environment is nobody's to read, but its arguments are.
        return _holding("cmdline", f"--root={self.work}") | self.commands()

    def commands(self) -> set[int]:
        """The processes of the commands that it has started, by the home that it gives them."""
        return _holding("environ", f"HOME={self.state / SERVER}/home")

    def descriptors(self) -> dict[str, int]:
        """How many files the programs of this machine have open."""
        return {name: len(os.listdir(f"/proc/{each.pid}/fd")) for name, each in self.programs.items()}  # noqa: PTH208

    def said(self, text: str) -> int:
        """In how many lines mcpd's log, which has the server's, holds *text*."""
        return sum(text in line for line in self.log("mcpd").read_text(errors="replace").splitlines())


def _holding(file: str, mark: str) -> set[int]:
    """The processes that have *mark* in a file of theirs in ``/proc``."""
    found = set()
    for proc in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (proc / file).read_bytes():
                found.add(int(proc.name))
    return found


async def happens(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds; fails if it does not within a generous time."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        await asyncio.sleep(0.02)


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured result of a call, which has to succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert result.structured_content is not None
    found: dict[str, Any] = result.structured_content
    return found
