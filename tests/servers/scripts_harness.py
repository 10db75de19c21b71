# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-scripts`` as a process, with the SDK's client or raw messages in front of it."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.preloaded import python
from tests.servers.remote_harness import Client as Wire
from tests.unit.scripts.facility_parts import manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["ERAS", "SCRIPT", "command", "manifest", "served", "text", "wire"]

ERAS = ("legacy", "2026-07-28")
PROGRAM = ("-I", "-m", "mcpd.servers.scripts")

SCRIPT = '''
"""Things to try."""
import os
import time


def echo(message: str) -> str:
    """Say it back.

    Args:
        message: What to say.
    """
    return message


def greet(name: str, greeting: str = "Hello") -> str:
    return f"{greeting}, {name}!"


def fail(reason: str) -> str:
    raise RuntimeError(reason)


def count(steps: int) -> str:
    from mcpd.script import progress
    for step in range(steps):
        progress(step + 1, steps, f"step {step + 1}")
    return "counted"


def wait(file: str) -> str:
    with open(file, "w") as begun:
        begun.write(str(os.getpid()))
    while True:
        time.sleep(60)


def print_much() -> str:
    print('{"jsonrpc": "2.0", "method": "nonsense"}')
    return "printed"


def where(context: dict) -> dict:
    return {"server": context["server_name"], "key": context["config"].get("key")}


def move() -> object:
    from mcpd.script import Redirect
    return Redirect("variable://note")
'''


def command(*arguments: object) -> list[str]:
    return [python(), *PROGRAM, *map(str, arguments)]


@asynccontextmanager
async def served(*arguments: object, mode: str, log: Path) -> AsyncIterator[Client]:
    """The SDK's client of a server started with *arguments*, in the era of *mode*; its stderr goes to *log*."""
    program, *rest = command(*arguments)
    with log.open("a") as errors:
        transport = stdio_client(StdioServerParameters(command=program, args=rest), errlog=errors)
        async with Client(transport, mode=mode) as client:
            yield client


@asynccontextmanager
async def wire(*arguments: object, log: Path) -> AsyncIterator[Wire]:
    """The raw messages of a server started with *arguments*."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, limit=2**27
        )
    try:
        yield Wire(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def text(result: Any) -> str:
    (block,) = result.content
    return str(block.text)
