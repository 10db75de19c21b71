# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who is told of every call: audit and metrics (design §8 "Audit")."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcpd.bridge.call import Call


class Outcome(Enum):
    """How a call ended."""

    RESULT = "result"
    """The server answered with a result, which may still say ``isError``."""
    ERROR = "error"
    """The server answered with a JSON-RPC error."""
    TIMED_OUT = "timeout"
    CANCELLED = "cancelled"
    """Its client cancelled it or went away."""
    BROKEN = "broken"
    """The server ended, or answered with what is no JSON."""


class Watch(Protocol):
    """Is told of calls. It is on the path of every call, so it only takes them down."""

    def ended(self, server: str, call: Call, outcome: Outcome, size: int) -> None:
        """*call* has ended; its response has *size* bytes, 0 if the bridge gave it."""


class Nobody:
    """Takes nothing down."""

    def ended(self, server: str, call: Call, outcome: Outcome, size: int) -> None:
        """See :class:`Watch`."""
