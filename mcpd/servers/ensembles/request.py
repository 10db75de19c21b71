# SPDX-License-Identifier: LGPL-2.1-or-later
"""The request that a run belongs to: its client, the client's model, and the events sent during the run."""

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
    """Context of a request."""

    sampling: Sampling | None = None
    """Requests completions from the client's model; None if the client has not declared one."""
    hops: int = 0
    """Number of servers that the request came through."""


_current: ContextVar[Request] = ContextVar("request", default=Request())  # noqa: B039 -- it is frozen


@contextmanager
def during(request: Request) -> Iterator[None]:
    """Make *request* the current one for calls, and for tasks started, within the context."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def hops() -> int:
    """Return the number of servers that the current request came through."""
    return _current.get().hops


class ClientsModel:
    """Requests completions from the model of the current request's client."""

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        """Return the answer. Raises :class:`~mcpd.errors.NotSupported` if the client offers no model."""
        sampling = _current.get().sampling
        if sampling is None:
            raise NotSupported(
                "the client lends no model (it has not the capability sampling, or speaks a revision without it); give"
                " the profile another provider than mcp-sampling"
            )
        return await sampling.sample(system, text, max_tokens, temperature)


KEEP: Final = 256
"""Maximum number of notifications queued for a slow client."""
MOST_SHOWN: Final = 16 * 1024
"""Maximum length of a response in a message, in characters."""


class Stream:
    """An :class:`~mcpd.servers.ensembles.engine.types.Observer` that reports a run of *ensemble* to the client.

    *report* gets the progress, and *say* the log messages; either may be None.
    """

    def __init__(self, ensemble: str, report: Report | None, say: Say | None) -> None:
        self._ensemble, self._report, self._say = ensemble, report, say

    def started(self, agent: str) -> None:
        """Report that the agent starts."""
        self._tell("debug", "agent_started", agent=agent)

    def fallback(self, agent: str, fault: McpdError) -> None:
        """Report that the agent uses its fallback profile, because of *fault*."""
        self._tell("warning", "agent_fallback_started", agent=agent, error=fault.message)

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """Report that *done* of *total* agents have ended."""
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
