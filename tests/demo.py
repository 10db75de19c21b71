# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make demo``: two real MCP servers, installed through D-Bus, confined, and called in every way there is."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.rig import BIN, Rig

REGISTRY = Path(__file__).resolve().parents[1] / "data/registry.json"


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def show(rig: Rig, *argv: str) -> None:
    """Run ``mcpctl`` with *argv* before the reader's eyes; a failure ends the demonstration."""
    print(f"$ mcpctl {shlex.join(argv)}", flush=True)
    if subprocess.run([BIN / "mcpctl", "--user", *argv], env=rig.environ, check=False).returncode:
        raise SystemExit("demo: that should not have happened; the logs are above")


async def talk(client: Client, tool: str, arguments: dict[str, object]) -> None:
    """Negotiate, list the tools, call one and print what came back."""
    async with client:
        tools = await client.list_tools()
        result = await client.call_tool(tool, arguments)
        print(f"  protocol {client.protocol_version}, {len(tools.tools)} tools; {tool} says:")
        for block in result.content:
            print("   ", getattr(block, "text", block.type).replace("\n", "\n    "))


def ignore_late_reads(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """anyio's reader of a unix socket may be called once more after it has been answered, which asyncio reports."""
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


async def official_client(rig: Rig) -> None:
    """The official SDK client over ``mcpctl run``, over TCP with the token, and over the unix socket."""
    asyncio.get_running_loop().set_exception_handler(ignore_late_reads)
    say("The official SDK client over stdio: mcpctl run, and no byte passes through mcpd")
    stdio = StdioServerParameters(
        command=str(BIN / "mcpctl"), args=["--user", "run", "mcp-server-time"], env=rig.environ
    )
    await talk(Client(stdio, mode="legacy"), "get_current_time", {"timezone": "Europe/Berlin"})

    say(f"The same over HTTP, at {rig.url}/mcp/mcp-server-time, with the token")
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {rig.token}"}, timeout=120) as http:
        transport = streamable_http_client(f"{rig.url}/mcp/mcp-server-time", http_client=http)
        await talk(Client(transport, mode="legacy"), "get_current_time", {"timezone": "Asia/Tokyo"})

    say("The npm server over the bridge's unix socket, where the kernel says who is calling")
    socket = httpx2.AsyncHTTPTransport(uds=str(rig.socket))
    async with httpx2.AsyncClient(transport=socket, timeout=120) as http:
        transport = streamable_http_client("http://localhost/mcp/server-everything", http_client=http)
        await talk(Client(transport, mode="legacy"), "echo", {"message": "from a confined process"})


def demonstrate(rig: Rig) -> None:
    """All of it, on *rig*."""
    say("A private session bus with mcpd --user on it, and mcpd-bridge beside it")
    rig.start_daemon()
    rig.start_bridge()
    show(rig, "doctor")

    say("A registry: a JSON file with well-known servers from PyPI and npm")
    show(rig, "source", "add", REGISTRY.as_uri())
    show(rig, "refresh")
    show(rig, "search")

    say("Install both: fetched by their hashes, built without install scripts, started once to see them answer")
    show(rig, "install", "mcp-server-time")
    show(rig, "install", "server-everything")
    show(rig, "list")

    say("Configure one, and look at it")
    show(rig, "config", "set", "mcp-server-time", "local_timezone=Europe/Vienna")
    show(rig, "config", "get", "mcp-server-time")
    show(rig, "show", "mcp-server-time")

    say("Call their tools from the shell")
    show(rig, "tools", "mcp-server-time")
    show(rig, "call", "mcp-server-time", "get_current_time", "timezone=Europe/Vienna")
    show(rig, "call", "server-everything", "get-sum", "a=20", "b=22")

    asyncio.run(official_client(rig))

    say("Remove one again")
    show(rig, "ps")
    show(rig, "remove", "server-everything")
    show(rig, "list")


def main() -> None:
    """Run the demonstration; the logs are shown if it fails."""
    with Rig() as rig:
        try:
            demonstrate(rig)
        except BaseException:
            for log in sorted(rig.home.glob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
            raise
    say("Done: two servers installed, configured, confined and called, over D-Bus, stdio and HTTP.")


if __name__ == "__main__":
    main()
