# SPDX-License-Identifier: LGPL-2.1-or-later
"""However ``mcp-workstation`` ends, nothing of what it runs is left."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.servers.workstation_harness import Desk, gone

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = "all:\n\t@echo begun; touch begun; (trap '' TERM; env -i setsid sleep 600 &); sleep 600\n"
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
BUILD = {"name": "ci_build", "arguments": {"path": ".", "timeout_seconds": 600}}


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL", "the end of stdin"])
async def test_nothing_is_left(tmp_path: Path, ending: str) -> None:
    desk = Desk(tmp_path)
    (desk.root / "Makefile").write_text(MAKEFILE)
    program = desk.command()
    process = await asyncio.create_subprocess_exec(
        program.command, *program.args, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, env=desk.environ,
    )  # fmt: skip
    assert process.stdin is not None
    for message in (
        {"id": 1, "method": "initialize", "params": ABOUT},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": BUILD},
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    await process.stdin.drain()
    while not (desk.root / "begun").exists():
        await asyncio.sleep(0.01)
    if ending == "the end of stdin":
        process.stdin.close()
    else:
        process.send_signal(signal.Signals[ending])
    assert await process.wait() == (-signal.SIGKILL if ending == "SIGKILL" else 0)
    await gone(str(desk.directory))
