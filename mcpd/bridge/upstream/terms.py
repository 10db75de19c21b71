# SPDX-License-Identifier: LGPL-2.1-or-later
"""On what terms a server runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.bridge.budget import Budget
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.observe.watch import Watch
    from mcpd.bridge.upstream.pipes import Chatter
    from mcpd.bridge.upstream.policy import Policy

START_TIMEOUT: Final = 60.0
"""Seconds in which a server must answer ``initialize``."""
DRAIN_TIMEOUT: Final = 30.0
"""Seconds that other calls of a server get after one of its calls timed out."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Options for starting a process."""

    timeout: float
    """Seconds that a call may take without an answer or progress."""
    max_line: int
    """Bytes of one message of it."""
    caller: Caller
    """For whom its messages are kept in memory."""
    budget: Budget
    watch: Watch
    chatter: Chatter
    shared: bool = False
    """Several callers use it."""
    policy: Policy | None = None
    """What stands between it and all its clients."""
