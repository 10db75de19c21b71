# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests with the official Inspector's command line have in common: the ways to a bundled server."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

from tests.rig import BIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conformance.conftest import Tools

INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
ERAS = ("legacy", "modern")
WAYS = [(way, era) for way in ("alone", "confined", "http") for era in ERAS]
"""How the server is reached, and in which era of the protocol."""


class Machine(Protocol):
    """A rig with mcpd and the bridge."""

    environ: dict[str, str]

    @property
    def url(self) -> str:
        """Where the bridge is."""

    @property
    def token(self) -> str:
        """What it takes."""


def inspector(
    tools: Tools, machine: Machine, server: str, alone: list[str], chosen: tuple[str, str], directory: Path
) -> Callable[..., tuple[int, Any, str]]:
    """What runs one method; it returns the exit status, what the Inspector printed, as JSON, and its messages.

    *server* is reached by *chosen*, one of :data:`WAYS`; *alone* are Python's arguments to start it without mcpd.
    *directory* is for files.
    """
    way, era = chosen
    servers = {
        "alone": {"command": sys.executable, "args": alone},
        "confined": {"command": str(BIN / "mcpctl"), "args": ["--user", "run", server], "env": machine.environ},
        "http": {
            "type": "streamable-http",
            "url": f"{machine.url}/mcp/{server}",
            "headers": {"Authorization": f"Bearer {machine.token}"},
        },
    }
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {server: servers[way]}}))

    def run(method: str, *arguments: str) -> tuple[int, Any, str]:
        argv = ["--cli", "--config", str(config), "--server", server, "--protocol-era", era]
        argv += ["--connect-timeout", "200000", "--method", method, *arguments]
        done = tools.run(INSPECTOR, *argv, cwd=directory)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return run
