# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics of the bridge: plain numbers that each call changes. :mod:`.exposition` shows them.

Everything about servers is counted for each caller by itself, so that nobody is shown what others do. Labels that
come from clients (methods, tools, servers that do not exist) are bounded: what is too much is counted as ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from mcpd.bridge.callers import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper ends of the histograms' buckets, in seconds."""
OTHER: Final = "other"
OTHERS: Final = Caller(-1)
"""Whose calls are counted that come after too many series; nobody who asks is that caller."""
MOST_SERIES: Final = 10_000
"""Pairs of caller and server, times methods, that are told apart."""
MOST_TOOLS: Final = 100
"""Tools of one server, for one caller, that are told apart."""
LONGEST_TOOL: Final = 128
_METHODS: Final = frozenset({
    "completion/complete", "initialize", "logging/setLevel", "ping", "prompts/get", "prompts/list", "resources/list",
    "resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe", "server/discover",
    "subscriptions/listen", "tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update", "tools/call",
    "tools/list",
})  # fmt: skip


class Histogram:
    """A histogram of durations in seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """For each bucket, not cumulated; the last one has no end."""
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class Calls:
    """The calls of one caller, to one server, of one method."""

    __slots__ = ("others", "received", "results", "sent", "times", "tools")

    def __init__(self) -> None:
        self.results = 0
        """How many had a result; of tools see there."""
        self.others: dict[str, int] = {}
        """Number of calls by each other outcome."""
        self.times = Histogram()
        self.sent = 0
        """Bytes of requests."""
        self.received = 0
        """Bytes of responses."""
        self.tools: dict[tuple[str, str], int] = {}
        """Number of calls of each tool by outcome."""

    def add(self, outcome: str) -> None:
        """Count a call that had no result."""
        self.others[outcome] = self.others.get(outcome, 0) + 1

    def add_tool(self, tool: str, outcome: str) -> None:
        """Count a call of *tool* that had no such *outcome* before."""
        known = {name for name, _ in self.tools}
        if len(tool) > LONGEST_TOOL or (tool not in known and len(known) >= MOST_TOOLS):
            tool = OTHER
        self.tools[tool, outcome] = self.tools.get((tool, outcome), 0) + 1


class Processes:
    """The processes of one server for one caller."""

    __slots__ = ("crashes", "failures", "is_restart", "restarts", "running", "starts")

    def __init__(self) -> None:
        self.starts = Histogram()
        self.failures = 0
        self.crashes = 0
        self.restarts = 0
        """Starts after a crash."""
        self.is_restart = False
        self.running = 0


class Metrics:
    """The numbers of one bridge."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Caller, str, str], Calls] = {}
        self.processes: dict[tuple[Caller, str], Processes] = {}
        self.refusals: dict[tuple[Caller, str, str], int] = {}
        """By caller, server and reason."""
        self.replies: dict[tuple[str, int], Histogram] = {}
        """By route and status."""
        self.sessions: Callable[[], Iterable[tuple[Caller, str]]] = tuple
        """Caller and server of every session that is open."""
        self.connections: Callable[[], int] = int
        """Number of connected clients."""
        self.unrecorded: Callable[[], int] = int
        """Number of calls that the audit has lost."""
        self.buffered: Callable[[], int] = int
        """Bytes of messages that wait in memory."""

    def of_calls(self, key: tuple[Caller, str, str]) -> Calls:
        """The numbers of the calls that *key* names: their caller, server and method."""
        caller, server, method = key
        key = (caller, server, method if method in _METHODS else OTHER)
        if key not in self.calls and len(self.calls) >= MOST_SERIES:
            key = (OTHERS, OTHER, key[2])
        return self.calls.setdefault(key, Calls())

    def refused(self, caller: Caller, server: str, reason: str) -> None:
        """No server has seen a call of *caller*."""
        if (caller, server) not in self.processes:
            server = OTHER
        key = (caller, server, reason)
        if key not in self.refusals and len(self.refusals) >= MOST_SERIES:
            key = (OTHERS, OTHER, reason)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def process(self, caller: Caller, server: str) -> Processes:
        """The numbers about processes of *server* for *caller*."""
        found = self.processes.get((caller, server))
        if found is None:
            key = (OTHERS, OTHER) if len(self.processes) >= MOST_SERIES else (caller, server)
            found = self.processes.setdefault(key, Processes())
        return found

    def of_replies(self, key: tuple[str, int]) -> Histogram:
        """The times of the requests to a route with a status, which *key* names."""
        return self.replies.setdefault(key, Histogram())
