# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts as servers: listing many of them, and what a call costs."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.load.session import HANDSHAKE, Client
from bench.load.wire import Wrong
from mcpd.bus.client import connect
from tests.rig import BIN, Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.figures import Report

MANY = 200
LISTINGS = 20
STARTS = 5
CALLS = 200
PYTHON = '''\
"""Looks things up, number {number}."""

import dataclasses
import enum


class Order(enum.Enum):
    """How they are sorted."""

    RISING = "rising"
    FALLING = "falling"


@dataclasses.dataclass
class Query:
    """What is looked for."""

    text: str
    limit: int = 10
    order: Order = Order.RISING


def find_{number}(query: Query, tags: list[str] | None = None) -> list[dict[str, str]]:
    """Find something.

    Args:
        query: What is looked for.
        tags: What it has to be marked with.
    """
    return [{{"text": query.text}} for _ in range(query.limit)]


def count_{number}(text: str, *, exact: bool = False) -> int:
    """Count something.

    Args:
        text: What is counted.
        exact: Whether all of it has to match.
    """
    return len(text)
'''
SHELL = """\
#!/bin/sh
# Looks things up, number {number}.
for word in "$@"; do
    case $word in
    -*) echo "option $word" ;;
    *) echo "word $word" ;;
    esac
done
"""
ECHO = 'def echo(text: str) -> str:\n    """Say it again."""\n    return text\n'
SHELL_ECHO = '#!/bin/sh\n# Says it again.\necho "$*"\n'
TOKEN = "tok"
SERVERS = {"cold": ".py", "warm": ".py", "shell": ".sh"}


def measure(report: Report) -> None:
    """All of it, on machines of its own."""
    with Rig() as rig:
        os.environ.update(rig.environ)
        listings(rig, report)
    with Rig() as rig:
        os.environ.update(rig.environ)
        put_callable(rig)
        rig.start_daemon()
        rig.start_bridge()
        asyncio.run(calls(rig, report))


def put_many(rig: Rig) -> None:
    """Write many scripts, a fifth of them for the shell."""
    directory = rig.home / ".local/share/mcp/scripts"
    directory.mkdir(parents=True)
    for number in range(MANY):
        kind, text = (".sh", SHELL) if number % 5 == 0 else (".py", PYTHON)
        (directory / f"script-{number:03}{kind}").write_text(text.format(number=number))


def put_callable(rig: Rig) -> None:
    """Write the scripts that are called, one of them with workers."""
    directory, settings = rig.home / ".local/share/mcp/scripts", rig.home / ".config/mcp"
    directory.mkdir(parents=True)
    settings.mkdir(parents=True)
    for name, kind in SERVERS.items():
        (directory / f"{name}{kind}").write_text(ECHO if kind == ".py" else SHELL_ECHO)
    (settings / "mcps.json").write_text(json.dumps({"warm": {"runtime": {"workers": 2}}}))


# ---------------------------------------------------------------------------------------- listing


def listings(rig: Rig, report: Report) -> None:
    """``ListServers`` of a fresh mcpd that never saw the scripts, of one that has the cache, and of one that runs."""
    put_many(rig)
    cache = rig.home / ".cache/mcp/scripts.json"
    unseen, seen, running = [], [], []
    for number in range(2 * STARTS):
        is_cold = number < STARTS
        if is_cold:
            cache.unlink(missing_ok=True)
        began = time.perf_counter()
        with subprocess.Popen([BIN / "mcpd", "--user"], env=rig.environ, stderr=subprocess.DEVNULL) as process:
            subprocess.run(
                ["gdbus", "wait", "--session", "--timeout", "30", "org.mcpd.Mcp1"], env=rig.environ, check=True
            )
            spent = asyncio.run(_listed())
            if is_cold:
                unseen.append(time.perf_counter() - began)
            else:
                seen.append(spent[0])
                running += spent[1:]
            process.terminate()
    report.add(
        f"ListServers, {MANY} scripts, cold", statistics.median(unseen) * 1e3, 2000, "ms",
        f"from exec of a mcpd without its cache to the answer, {STARTS} starts",
    )  # fmt: skip
    report.add(
        f"the same, {MANY} scripts in the cache", statistics.median(seen) * 1e3, 100, "ms",
        f"the first call of a fresh mcpd, {STARTS} starts",
    )  # fmt: skip
    report.add(
        "the same of a mcpd that runs", statistics.median(running) * 1e3, 100, "ms", f"{len(running)} calls"
    )  # fmt: skip


async def _listed() -> list[float]:
    """What each of several calls takes."""
    spent = []
    async with connect(system=False) as bus:
        for _ in range(LISTINGS):
            began = time.perf_counter()
            servers = await bus.manager.call("ListServers", "a{sv}", [{}])
            spent.append(time.perf_counter() - began)
            broken = [each["id"] for each in servers if each["state"] != "installed"]
            if len(servers) != MANY or broken:
                raise RuntimeError(f"{len(servers)} scripts are listed, of which these are broken: {broken}")
    return spent


# ---------------------------------------------------------------------------------------- calls


class Pipe:
    """A server's own stdin and stdout."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin = os.fdopen(stdin, "wb", buffering=0)
        self._stdout = os.fdopen(stdout, "rb")

    def open(self) -> None:
        """Do the handshake."""
        about = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", about)
        self.tell("notifications/initialized", {})

    def call(self, server: str) -> None:
        """Call the tool of *server*."""
        result = self.ask("tools/call", call_of(server))
        if result["isError"] or result["content"][0]["text"].strip() != TOKEN:
            raise Wrong(f"{server}: {result}")

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request. Blocks."""
        self.tell(method, params, 1)
        while "id" not in (message := self.next()):
            pass
        return message["result"]

    def next(self) -> Any:
        """The next message. Blocks."""
        return json.loads(self._stdout.readline())

    def tell(self, method: str, params: dict[str, Any], identity: int | None = None) -> None:
        """Send a message."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if identity is not None:
            message["id"] = identity
        self._stdin.write(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Let go of the server, which ends."""
        self._stdin.close()
        self._stdout.close()


async def calls(rig: Rig, report: Report) -> None:
    """A trivial call of each kind of script, over the server's own pipe and over the bridge."""
    about: Mapping[str, tuple[str, float]] = {
        "cold": ("a call of a Python function", 60),
        "warm": ("the same with `runtime.workers` 2", 5),
        "shell": ("a call of a shell script", 60),
    }
    how = f"{CALLS} calls one after the other"
    async with connect(system=False) as bus:
        for server, (what, limit) in about.items():
            _, ends = await bus.spawn(server)
            with closing(Pipe(ends[0], ends[1])) as pipe:
                pipe.open()
                spent = _median(partial(pipe.call, server))
            report.add(what, spent, limit, "ms", f"its process included, over the server's own pipe; {how}")
    headers = (f"Authorization: Bearer {rig.token}",)
    for server, (what, limit) in about.items():
        with closing(Client(f"{rig.url}/mcp/{server}", headers).open()) as client:
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call_of(server)}
            spent = _median(partial(client.call, client.http.request(json.dumps(message).encode()), TOKEN.encode()))
        report.add(f"{what}, over the bridge", spent, limit, "ms", how)


def call_of(server: str) -> dict[str, Any]:
    """The params of a call that is answered with the token."""
    if SERVERS[server] == ".sh":
        return {"name": server, "arguments": {"args": TOKEN}}
    return {"name": "echo", "arguments": {"text": TOKEN}}


def _median(once: Callable[[], object]) -> float:
    """Milliseconds that *once* takes; the first time does not count."""
    once()
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        once()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3
