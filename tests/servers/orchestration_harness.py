# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-orchestration`` as a process on a machine of its own, with the SDK's client in front of it."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcpd.clients.service import Orchestration
from mcpd.paths import Scope, from_environment
from mcpd.servers.orchestration.server import make_server
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ERAS = ("legacy", "2026-07-28")
PROGRAM = ("-I", "-m", "mcpd.servers.orchestration")
SEED_TOOLS = ["list_clients", "list_profiles", "get_config", "diff_config"]


class Machine:
    """Directories as on a real machine, all below one, and servers to be found in them."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, root / "home"
        self.tree = self.home / ".mcp-orchestration"
        self.home.mkdir(parents=True)
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_", "MCP", "PYTHON"))
        } | {"HOME": str(self.home), "MCP_ROOT": str(root / "system")}

    def install(self, server_id: str, *, system: bool = False, **fields: Any) -> Path:
        """Put a server there, as another tool would."""
        share = self.root / "system/usr/share" if system else self.home / ".local/share"
        directory = share / "mcp/installed" / server_id
        directory.mkdir(parents=True)
        manifest = {
            "id": server_id,
            "name": server_id.title(),
            "summary": "Does things",
            "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
        }
        (directory / "manifest.json").write_text(json.dumps(manifest | fields))
        return directory

    @asynccontextmanager
    async def served(self, *, system: bool = False, mode: str = "legacy") -> AsyncIterator[Client]:
        """A client of the server in this process."""
        with patch.dict(os.environ, self.environ, clear=True):
            paths = from_environment()
        scope = Scope.SYSTEM if system else Scope.USER
        service = Orchestration(paths, scope, writable=not system)
        async with Client(make_server(service), mode=mode) as client:
            yield client

    @asynccontextmanager
    async def started(self, *arguments: str, mode: str = "legacy") -> AsyncIterator[Client]:
        """A client of the program."""
        program = StdioServerParameters(command=python(), args=[*PROGRAM, *arguments], env=self.environ)
        with (self.root / "log").open("a") as log:
            async with Client(stdio_client(program, errlog=log), mode=mode) as client:
                yield client

    async def held(self, mode: str) -> AsyncIterator[Client]:
        """The same for a fixture, whose two halves run in tasks of their own."""
        stop, made = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def hold() -> None:
            async with self.served(mode=mode) as client:
                made.set_result(client)
                await stop.wait()

        task = asyncio.create_task(hold())
        await asyncio.wait({task, made}, return_when=asyncio.FIRST_COMPLETED)
        if made.done():
            yield made.result()
        stop.set()
        await task

    @property
    def log(self) -> str:
        """What the program wrote on stderr."""
        return (self.root / "log").read_text()


def answer(result: Any) -> dict[str, Any]:
    """The structured content of a result that is no error, which is its text, too."""
    assert not result.is_error, result
    assert json.loads(result.content[0].text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


def refusal(result: Any) -> dict[str, Any]:
    """The error object of a result: as text and in ``_meta``, never as structured content."""
    assert result.is_error, result
    assert result.structured_content is None
    found: dict[str, Any] = json.loads(result.content[0].text)
    assert result.meta["org.mcpd/error"] == found
    assert isinstance(found["message"], str)
    return found
