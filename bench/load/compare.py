# SPDX-License-Identifier: LGPL-2.1-or-later
"""The path of a call beside other bridges.

The machine is taken to be small and noisy: blocks are short, those of all targets alternate, a figure is the median
over the rounds, and a ratio the median of the ratios in each round, so that a slow minute hits both sides. Latency is
measured with everything on one core, where it is the sum of what all take and repeats to a few per cent.
"""

from __future__ import annotations

import os
import random
import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from prettytable import PrettyTable

from bench.load import blocks, footprint, peers
from bench.load.session import MODERN
from bench.load.target import Target
from bench.load.wire import Wrong

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.figures import Report

ROUNDS: Final = 8
CALLS: Final = 150
LOAD_SECONDS: Final = 1.0
LOADS: Final = {"c16": (16, False), "c100": (100, False), "s16": (16, True), "s100": (100, True)}
"""Calls in flight, and whether each client has a session, and the same ids as all others, of its own."""
DIRECT: Final = "direct"
OURS: Final = "mcpd-bridge"
OURS_UNRECORDED: Final = "mcpd-bridge, no audit"
OURS_MODERN: Final = "mcpd-bridge, 2026-07-28"
PROXY: Final = "mcp-proxy (PyPI)"

Rounds = dict[str, list[dict[str, float]]]


def measure(report: Report) -> None:
    """Compare, and add what the bridge has to reach to *report*."""
    server = peers.echo_server()
    others = peers.others()
    core = {max(os.sched_getaffinity(0))}
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        with ExitStack() as stack:
            targets = _start(stack, server, others)
            path = _rounds(targets, lambda target: blocks.latency(target, CALLS), ROUNDS)
            big = _rounds(targets, lambda target: blocks.large(target, 6), ROUNDS // 2)
    finally:
        os.sched_setaffinity(0, everywhere)
    with ExitStack() as stack:
        targets = [each for each in _start(stack, server, others) if each.pid]
        rates = {name: _rounds(targets, _load(*load), 3) for name, load in LOADS.items()}
    opening = _opening(server)
    _table(path, big, rates)
    _judge(report, path, big, rates)
    report.add("first answer of a fresh bridge", opening[0], 350, "ms", "with the server's start, 5 starts")
    report.add("a session on a running process", opening[1], 1, "ms", "`--sharing caller`, with its connection")
    footprint.measure(report)


def _start(stack: ExitStack, server: str, others: list[peers.Peer]) -> list[Target]:
    candidates = [
        Target(DIRECT, None, server),
        Target(OURS, peers.ours(), server),
        Target(OURS_UNRECORDED, peers.ours("--audit", "off"), server),
        Target(OURS_MODERN, peers.ours(), server, MODERN),
        *(Target(peer.name, peer, server) for peer in others),
    ]
    started = []
    for target in candidates:
        stack.callback(target.stop)
        try:
            target.start()
        except (OSError, Wrong) as error:
            print(f"not measured: {error}")
        else:
            started.append(target)
    return started


def _load(connections: int, sessions: bool) -> Callable[[Target], dict[str, float]]:
    return lambda target: blocks.load(target, connections, LOAD_SECONDS, sessions=sessions)


def _rounds(targets: list[Target], block: Callable[[Target], dict[str, float]], rounds: int) -> Rounds:
    found: Rounds = defaultdict(list)
    order = random.Random(1)
    for _ in range(rounds):
        for target in order.sample(targets, len(targets)):
            try:
                found[target.name].append(block(target))
            except (OSError, Wrong) as error:
                print(f"{target.name}: {str(error)[:200]}")
                found[target.name].append({"failed": 1.0})
                target.forget_session()
    return found


def _opening(server: str) -> tuple[float, float]:
    starts = []
    for _ in range(5):
        target = Target(OURS, peers.ours("--sharing", "caller"), server)
        try:
            starts.append(target.start() * 1e3)
            opened = blocks.opening(target, 200)["open"]
        finally:
            target.stop()
    return statistics.median(starts), opened


def _median(rounds: Rounds, name: str, key: str) -> float:
    values = [each[key] for each in rounds.get(name, []) if key in each]
    return statistics.median(values) if values else float("nan")


def _ratio(rounds: Rounds, name: str, other: str, key: str) -> float:
    pairs = zip(rounds.get(name, []), rounds.get(other, []), strict=False)
    ratios = [mine[key] / its[key] for mine, its in pairs if key in mine and key in its]
    return statistics.median(ratios) if ratios else float("nan")


def _table(path: Rounds, big: Rounds, rates: dict[str, Rounds]) -> None:
    table = PrettyTable(["bridge", "p50 µs", "× direct", "CPU µs", *(f"{name}/s" for name in rates), "1 MiB ms"])
    table.align = "r"
    table.align["bridge"] = "l"
    for name in path:
        loads = [f"{_median(each, name, 'rate'):,.0f}" for each in rates.values()]
        large = f"{_median(big, name, 'result'):.2f} / {_median(big, name, 'argument'):.2f}"
        times = f"{_ratio(path, name, DIRECT, 'p50'):.1f}"
        cpu = f"{_median(path, name, 'cpu'):.0f}"
        table.add_row([name, f"{_median(path, name, 'p50'):.0f}", times, cpu, *loads, large])
    print(table)


def _judge(report: Report, path: Rounds, big: Rounds, rates: dict[str, Rounds]) -> None:
    base = _median(path, DIRECT, "p50")
    one = "one core, median of a call, less the server's own pipe"
    beside = "of PyPI mcp-proxy's, the same rounds"
    for name, what in ((OURS, "a call through the bridge"), (OURS_MODERN, "the same, 2026-07-28")):
        report.add(what, _median(path, name, "p50") - base, None, "µs", one)
        report.add(f"{what}, beside mcp-proxy", _ratio(path, name, PROXY, "p50") * 100, 100 / 9, "%", beside)
        report.add(f"{what}, CPU of the bridge", _median(path, name, "cpu"), None, "µs", "schedstat")
        report.add(f"{what}, CPU beside mcp-proxy", _ratio(path, name, PROXY, "cpu") * 100, 100 / 9, "%", beside)
    for name, (flight, _) in LOADS.items():
        rounds = rates[name]
        how = f"{flight} calls in flight" + (", each client with a session and process" if name[0] == "s" else "")
        if name[0] == "c":
            report.add(f"CPU in a call, {name}", _median(rounds, OURS, "cpu"), None, "µs", how)
        share = _ratio(rounds, PROXY, OURS, "rate") * 100
        report.add(f"mcp-proxy's rate beside ours, {name}", share, 100 / 18, "%", how)
    for key in ("result", "argument"):
        times = _ratio(big, OURS, DIRECT, key)
        report.add(f"a 1 MiB {key}, times the server's own pipe", times, 6, "×", "one core")
    times = _ratio(big, OURS_UNRECORDED, DIRECT, "argument")
    report.add("the same argument, without the audit trail", times, 6, "×", "one core; the rest is SHA-256")
    failed = sum(each.get("failed", 0) for rounds in (path, big, *rates.values()) for each in rounds.get(OURS, []))
    report.add("blocks with a wrong or missing answer", failed, 0, "", "any load")
