# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings and objects that the parts of a bridge share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.bridge.budget import Budget
from mcpd.bridge.observe.limits import RateLimiter
from mcpd.bridge.observe.metrics import Metrics
from mcpd.bridge.observe.watch import Nobody
from mcpd.bridge.site import Site
from mcpd.bridge.upstream.counts import ProcessCounts
from mcpd.bridge.upstream.pipes import Chatter

if TYPE_CHECKING:
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.tasks import Tasks
    from mcpd.bridge.upstream.source import ServerSource


@dataclass(frozen=True, slots=True)
class Options:
    """What the administrator decides; the defaults are those of ``mcpd.toml``. Times in seconds, sizes in bytes."""

    idle_timeout: float = 300
    call_timeout: float = 30
    max_body: int = 4 * 1024 * 1024
    max_line: int = 64 * 1024 * 1024
    max_sessions: int = 256
    """Sessions of one caller at once that have a process of their own."""
    strict_sessions: bool = False
    """Refuse requests without a session id instead of serving them from the pool."""
    sharing: str = "session"
    """``session`` or ``caller``, for servers that do not say it."""
    max_children: int = 256
    """Processes of one caller at once."""
    keepalive: float = 30
    """Seconds after which a silent stream carries a comment."""
    rate: float = 50_000
    """Calls a second that one caller may make of one server, on average."""
    burst: int = 10_000
    """Calls that may come at once."""


@dataclass(slots=True)
class Parts:
    """The objects that sessions and pools share."""

    source: ServerSource
    options: Options
    """See :meth:`take_over`."""
    tasks: Tasks
    budget: Budget = field(default_factory=Budget)
    process_counts: ProcessCounts = field(default_factory=ProcessCounts)
    chatter: Chatter = field(default_factory=Chatter)
    watch: Watch = field(default_factory=Nobody)
    metrics: Metrics = field(default_factory=Metrics)
    """What the watch counts, for whoever asks."""
    site: Site = field(default_factory=Site)
    limiter: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = RateLimiter(self.options.rate, self.options.burst)

    def take_over(self, options: Options) -> None:
        """Go by other *options* from now on; what has started keeps its time-outs."""
        self.options = options
        self.limiter.replace(options.rate, options.burst)
