# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpd and mcpctl: start, memory, listing, calls, spawning, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import time
from typing import TYPE_CHECKING
from unittest.mock import patch

from bench.processes import cpu, descendants, open_fds, pss
from bench.servers import ECHO, put_many, put_server
from mcpd import errors
from mcpd.bus.client import Client, connect
from tests.rig import BIN, Rig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.figures import Report

IN_FLIGHT = 32
CALLS = 10_000
SPAWNS = 2_000
WRONG_FDS = 20_000
SETTLE = 10.0
"""Seconds that processes and descriptors have to go away after the last call."""


def measure(report: Report) -> None:
    """Measure on a private session bus."""
    # The client in this process finds the bus by the environment.
    with Rig() as rig, patch.dict(os.environ, rig.environ):
        starts(rig, report)
        put_many(rig.installed, 1000)
        pid = rig.start_daemon().pid
        asyncio.run(calls(report))
        asyncio.run(wrong_fds(pid, report))
        asyncio.run(spawns(pid, report))


def starts(rig: Rig, report: Report) -> None:
    """From ``exec`` of mcpd to owning its name; its memory, idle; ``mcpctl list`` as a process."""
    times = []
    for _ in range(10):
        began = time.perf_counter()
        with subprocess.Popen([BIN / "mcpd", "--user"], env=rig.environ, stderr=subprocess.DEVNULL) as process:
            subprocess.run(
                ["gdbus", "wait", "--session", "--timeout", "30", "org.mcpd.Mcp1"], env=rig.environ, check=True
            )
            times.append(time.perf_counter() - began)
            process.send_signal(signal.SIGTERM)
    report.add("mcpd owns its name after", statistics.median(times) * 1e3, 500, "ms", "`gdbus wait`, 10 starts")

    put_server(rig.installed, "echo", {"server.py": ECHO})
    process = rig.start_daemon()
    report.add("PSS of idle mcpd", pss(process.pid), 40, "MiB", "smaps_rollup, after a listing")
    times = []
    for _ in range(30):
        began = time.perf_counter()
        subprocess.run([BIN / "mcpctl", "--user", "list"], env=rig.environ, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    report.add("`mcpctl list`", statistics.median(times) * 1e3, 150, "ms", "30 processes, one server installed")
    rig.stop("mcpd")


async def calls(report: Report) -> None:
    """``ListServers`` with 1,000 servers, then many small calls with 32 in flight."""
    async with connect(system=False) as bus:
        await bus.manager.call("ListServers", "a{sv}", [{}])
    command = ["busctl", "--user", "--quiet", "call", "org.mcpd.Mcp1", "/org/mcpd/Mcp1"]
    measured = {
        "ping": [*command, "org.freedesktop.DBus.Peer", "Ping"],
        "list": [*command, "org.mcpd.Mcp1.Manager", "ListServers", "a{sv}", "0"],
    }
    spent: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(20):
        for name, argv in measured.items():
            began = time.perf_counter()
            subprocess.run(argv, check=True)
            spent[name].append(time.perf_counter() - began)
    report.add(
        "ListServers, 1,000 servers",
        (statistics.median(spent["list"]) - statistics.median(spent["ping"])) * 1e3,
        50,
        "ms",
        "`busctl --quiet call`, less what a `Ping` by busctl takes; 20 each",
    )

    failures = 0

    async def one(bus: Client) -> None:
        nonlocal failures
        try:
            await bus.manager.call("GetManifestPath", "s", ["echo"])
        except errors.McpdError:
            failures += 1

    async with connect(system=False) as bus:
        began = time.perf_counter()
        await many(CALLS, lambda: one(bus))
        rate = CALLS / (time.perf_counter() - began)
    report.add(f"errors in {CALLS:,} calls, {IN_FLIGHT} in flight", failures, 0, "", f"GetManifestPath; {rate:,.0f}/s")


async def wrong_fds(pid: int, report: Report) -> None:
    """File descriptors sent where none belong, in every wrong way; mcpd must close them all."""
    before = open_fds(pid)
    wrong: list[tuple[str, str, list[object]]] = [
        ("ListServers", "a{sv}", [{}]),
        ("GetServer", "s", ["no-such-server"]),
        ("NoSuchMethod", "", []),
        ("Spawn", "sa{uh}ta{sv}", ["no-such-server", {0: 0, 1: 1}, 0, {}]),
        ("Spawn", "sa{uh}ta{sv}", ["echo", {0: 9}, 0, {}]),
        ("Spawn", "sa{uh}ta{sv}", ["echo", {0: 0, 1: 1, 7: 0}, 0, {}]),
        ("SetSecret", "ssha{sv}", ["echo", "no-such-key", 0, {}]),
        ("Spawn", "sa{uh}ta{sv}", ["echo", {0: 0, 1: 1}, 1 << 40, {}]),
    ]
    null = os.open("/dev/null", os.O_RDWR)

    async def one(bus: Client, shape: int) -> None:
        member, signature, args = wrong[shape % len(wrong)]
        with contextlib.suppress(errors.McpdError):
            await bus.manager.call(member, signature, args, fds=[null] * 4)

    async with connect(system=False) as bus:
        shapes = iter(range(WRONG_FDS // 4))
        await many(WRONG_FDS // 4, lambda: one(bus, next(shapes)))
    os.close(null)
    left = await settled(lambda: open_fds(pid) - before)
    report.add(f"descriptors kept of {WRONG_FDS:,} sent wrongly", left, 0, "", f"{len(wrong)} wrong ways, 4 a call")


async def spawns(pid: int, report: Report) -> None:
    """Start, use and leave a server many times: what is left, and what mcpd itself adds to a start."""
    before, processes = open_fds(pid), len(descendants(pid))
    async with connect(system=False) as bus:
        used = cpu(pid)
        for _ in range(SPAWNS):
            _, ends = await bus.spawn("echo")
            for end in ends.values():
                os.close(end)
        used = cpu(pid) - used
    report.add("mcpd's own time in a spawn", used / SPAWNS * 1e3, 5, "ms", f"its CPU time over {SPAWNS:,} spawns")
    left = await settled(lambda: open_fds(pid) - before)
    report.add(f"descriptors left after {SPAWNS:,} spawns", left, 0, "", "/proc/PID/fd")
    left = await settled(lambda: len(descendants(pid)) - processes)
    report.add(f"processes left after {SPAWNS:,} spawns", left, 0, "", "below mcpd")


async def many(count: int, make: Callable[[], Awaitable[None]]) -> None:
    """Await *count* calls of *make*, with at most 32 in flight."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await make()

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def settled(read: Callable[[], int]) -> int:
    """What *read* says once it is zero, or after ten seconds."""
    give_up = time.monotonic() + SETTLE
    while (value := read()) > 0 and time.monotonic() < give_up:
        await asyncio.sleep(0.05)
    return value
