# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page ``/metrics`` for Prometheus. It is imported when somebody asks for it: most bridges never are.

Who runs the bridge, and root, see all of it. Others see what they did themselves, nothing of what the process is or
does besides.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mcpd import __version__
from mcpd.bridge.observe.metrics import BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.observe.metrics import Metrics

_NAME: Final = "mcpd_bridge_"
_ENDS: Final = (*(str(bound) for bound in BOUNDS), "+Inf")


async def render(metrics: Metrics, viewer: Caller, accept: str) -> tuple[bytes, bytes]:
    """The page for *viewer* in the format that *accept* asks for, and its content type."""
    # What others change while it is read is taken here; numbers may be read by a thread at any time.
    sessions = list(metrics.sessions())
    return await asyncio.to_thread(_render, metrics, viewer, accept, sessions)


def _render(metrics: Metrics, viewer: Caller, accept: str, sessions: list[tuple[Caller, str]]) -> tuple[bytes, bytes]:
    registry = CollectorRegistry()
    registry.register(_Page(metrics, viewer, sessions))
    if _sees_all(viewer):
        ProcessCollector(registry=registry)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind.encode()


def _sees_all(viewer: Caller) -> bool:
    return not viewer.server and viewer.uid in {0, os.getuid()}


def _merged(parts: Iterable[Histogram]) -> Histogram:
    whole = Histogram()
    for part in parts:
        whole.counts = [mine + more for mine, more in zip(whole.counts, part.counts, strict=True)]
        whole.total += part.total
    return whole


def _add(family: HistogramMetricFamily, labels: list[str], times: Histogram) -> None:
    buckets = list(zip(_ENDS, accumulate(times.counts), strict=True))
    family.add_metric(labels, buckets, times.total)


class _Page(Collector):
    """The numbers that *viewer* may see, summed up over callers."""

    def __init__(self, metrics: Metrics, viewer: Caller, sessions: list[tuple[Caller, str]]) -> None:
        self._metrics = metrics
        self._viewer = viewer
        self._sees_all = _sees_all(viewer)
        self._sessions = sessions

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything."""
        yield InfoMetricFamily(
            _NAME + "build", "What runs.", {"version": __version__, "python": platform.python_version()}
        )
        yield from self._calls()
        yield from self._processes()
        sessions = GaugeMetricFamily(_NAME + "sessions", "Sessions that are open.", labels=["server"])
        for server, number in Counter(server for caller, server in self._sessions if self._sees(caller)).items():
            sessions.add_metric([server], number)
        yield sessions
        yield self._refusals()
        if self._sees_all:
            yield from self._whole()

    def _sees(self, caller: Caller) -> bool:
        if self._sees_all:
            return True
        viewer = self._viewer
        return caller == viewer if viewer.server else caller.uid == viewer.uid

    def _calls(self) -> Iterator[Metric]:
        outcomes: Counter[tuple[str, str, str]] = Counter()
        tools: Counter[tuple[str, str, str]] = Counter()
        times: dict[tuple[str, str], list[Histogram]] = {}
        sent: Counter[str] = Counter()
        received: Counter[str] = Counter()
        for (caller, server, method), calls in list(self._metrics.calls.items()):
            if not self._sees(caller):
                continue
            for outcome, number in (("result", calls.results), *list(calls.others.items())):
                outcomes[server, method, outcome] += number
            for (tool, outcome), number in list(calls.tools.items()):
                tools[server, tool, outcome] += number
                outcomes[server, method, outcome] += number
            times.setdefault((server, method), []).append(calls.times)
            sent[server] += calls.sent
            received[server] += calls.received
        labels = ["server", "method", "outcome"]
        yield _counter("calls", "Calls that a server has seen, by how they ended.", labels, outcomes)
        labels = ["server", "tool", "outcome"]
        yield _counter("tool_calls", "Calls of tools, by how they ended.", labels, tools)
        family = HistogramMetricFamily(
            _NAME + "call_duration_seconds", "From the server's getting a call to its end.", labels=["server", "method"]
        )
        for key, parts in times.items():
            _add(family, list(key), _merged(parts))
        yield family
        per_server = ["server"]
        yield _counter("request_bytes", "Bytes of requests, as servers get them.", per_server, sent)
        yield _counter("response_bytes", "Bytes of responses.", per_server, received)

    def _processes(self) -> Iterator[Metric]:
        numbers: dict[str, Counter[str]] = {name: Counter() for name in ("failures", "crashes", "restarts", "running")}
        starts: dict[str, list[Histogram]] = {}
        for (caller, server), processes in list(self._metrics.processes.items()):
            if self._sees(caller):
                starts.setdefault(server, []).append(processes.starts)
                for name, by_server in numbers.items():
                    by_server[server] += getattr(processes, name)
        labels = ["server"]
        family = HistogramMetricFamily(
            _NAME + "server_start_duration_seconds", "Starts of servers that succeeded.", labels=labels
        )
        for server, parts in starts.items():
            _add(family, [server], _merged(parts))
        yield family
        yield _counter("server_start_failures", "Starts of servers that failed.", labels, numbers["failures"])
        yield _counter("server_crashes", "Processes that ended by themselves.", labels, numbers["crashes"])
        yield _counter("server_restarts", "Starts after a crash.", labels, numbers["restarts"])
        running = GaugeMetricFamily(_NAME + "server_processes", "Processes that run.", labels=labels)
        for server, number in numbers["running"].items():
            running.add_metric([server], number)
        yield running

    def _refusals(self) -> Metric:
        refusals: Counter[tuple[str, str]] = Counter()
        for (caller, server, reason), number in list(self._metrics.refusals.items()):
            if self._sees(caller):
                refusals[server, reason] += number
        return _counter("refusals", "Calls that no server has seen.", ["server", "reason"], refusals)

    def _whole(self) -> Iterator[Metric]:
        metrics = self._metrics
        replies = HistogramMetricFamily(
            _NAME + "http_request_duration_seconds", "HTTP requests, to the reply.", labels=["route", "status"]
        )
        for (route, status), times in list(metrics.replies.items()):
            _add(replies, [route, str(status)], times)
        yield replies
        yield GaugeMetricFamily(_NAME + "connections", "Clients that are connected.", metrics.connections())
        yield GaugeMetricFamily(_NAME + "buffered_bytes", "Messages that wait in memory.", metrics.buffered())
        yield CounterMetricFamily(
            _NAME + "audit_lost_records", "Calls of tools without a record.", value=metrics.unrecorded()
        )


def _counter(
    name: str,
    text: str,
    labels: list[str],
    numbers: Counter[str] | Counter[tuple[str, str]] | Counter[tuple[str, str, str]],
) -> Metric:
    family = CounterMetricFamily(_NAME + name, text, labels=labels)
    for key, number in numbers.items():
        family.add_metric([key] if isinstance(key, str) else list(key), number)
    return family
