# SPDX-License-Identifier: LGPL-2.1-or-later
"""The request that a run belongs to: its client, how to ask it, and what it hears while the run goes on."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.errors import McpdError
    from mcpd.servers.ensembles.engine.types import AgentResult, Completion
    from mcpd.servers.ensembles.providers.sampling import Sampling

    Report = Callable[[float, float | None, str], None]
    Level = Literal["debug", "info", "warning", "error"]
    Say = Callable[[Level, str, Any], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What goes with a request."""

    sampling: Sampling | None = None
    """Asks the client's model; None if it has said that it has none."""
    hops: int = 0
    """How many servers it came through."""


_current: ContextVar[Request] = ContextVar("request", default=Request())  # noqa: B039 -- it is frozen


@contextmanager
def during(request: Request) -> Iterator[None]:
    """What is called, and the tasks that are begun, belong to *request*."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def hops() -> int:
    """How many servers the current request came through."""
    return _current.get().hops


class ClientsModel:
    """Asks the model of whichever client the current request is from."""

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        """The answer. Raises :class:`~mcpd.errors.NotSupported` if the client offers no model."""
        sampling = _current.get().sampling
        if sampling is None:
            raise NotSupported(
                "the client lends no model (it has not the capability sampling, or speaks a revision without it); give"
                " the profile another provider than mcp-sampling"
            )
        return await sampling.sample(system, text, max_tokens, temperature)


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
