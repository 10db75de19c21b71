# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ``mcpctl script`` have in common."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.cli.conftest import Ended, Mcpctl

PATIENCE = 120.0
HELLO = '"""Says hello."""\n\n\ndef hello() -> str:\n    return "hello"\n'
SHELL = "#!/bin/sh\n# Says hello\necho hello\n"


def file(tmp_path: Path, name: str, text: str = HELLO) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in names(directory)}


async def listed(mcpctl: Mcpctl) -> list[dict[str, Any]]:
    ended = await mcpctl("script", "list", "--json")
    assert ended.code == 0
    found: list[dict[str, Any]] = json.loads(ended.out)["scripts"]
    return found


async def refused(mcpctl: Mcpctl, own: Path, *argv: str) -> Ended:
    """What is said of an addition that changes nothing."""
    before = contents(own)
    ended = await mcpctl("script", "add", *argv)
    assert ended.code != 0
    assert ended.out == ""
    assert contents(own) == before
    return ended


class Watch:
    """A running ``mcpctl script add --watch``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        assert line, "it ended"
        return line.decode().rstrip("\n")


@asynccontextmanager
async def watching(mcpctl: Mcpctl, *argv: str) -> AsyncIterator[Watch]:
    process = await mcpctl.start("script", "add", "--watch", *argv)
    watch = Watch(process)
    try:
        assert "Added" in await watch.line()
        await watch.line()
        assert (await watch.line()).startswith("Watching ")
        yield watch
    finally:
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 128 + signal.SIGINT
    assert err == b""
