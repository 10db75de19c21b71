# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a client hears of a run while it goes on: progress, and each agent's response as a message of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.errors import McpdError
    from mcpd.servers.ensembles.engine.types import AgentResult

    Report = Callable[[float, float | None, str], None]
    Level = Literal["debug", "info", "warning", "error"]
    Say = Callable[[Level, str, Any], None]

KEEP: Final = 256
"""Notices that wait for a client that reads slowly."""
MOST_SHOWN: Final = 16 * 1024
"""Characters of a response in a message."""


class Stream:
    """An :class:`~mcpd.servers.ensembles.engine.types.Observer` that passes on what it hears of *ensemble*.

    *report* is given the progress, and *say* the messages; either may be None.
    """

    def __init__(self, ensemble: str, report: Report | None, say: Say | None) -> None:
        self._ensemble, self._report, self._say = ensemble, report, say

    def started(self, agent: str) -> None:
        """The agent begins."""
        self._tell("debug", "agent_started", agent=agent)

    def fallback(self, agent: str, fault: McpdError) -> None:
        """The agent turns to its fallback profile."""
        self._tell("warning", "agent_fallback_started", agent=agent, error=fault.message)

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """*done* of *total* agents have ended."""
        if self._report is not None:
            self._report(done, total, f"{result.name}: {result.status} ({result.seconds:.1f} s)")
        said: dict[str, Any] = {"status": result.status}
        if result.response is not None:
            said["response"] = result.response[:MOST_SHOWN]
            if len(result.response) > MOST_SHOWN:
                said["characters"] = len(result.response)
        if result.fault is not None:
            said["error"] = result.fault.message
        self._tell("warning" if result.status == "failed" else "info", "agent_completed", agent=result.name, **said)

    def _tell(self, level: Level, event: str, **more: Any) -> None:
        if self._say is not None:
            self._say(level, self._ensemble, {"event": event, **more})
