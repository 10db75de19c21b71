# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inputs and results of runs, and the interfaces that the engine uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.errors import McpdError
    from mcpd.servers.ensembles.format.models import Ensemble, Plexus, Profile

MAX_DEPTH: Final = 5
"""Maximum depth of nested ensembles."""
MAX_RESPONSE: Final = 4 * 1024 * 1024
"""Maximum length of an agent's response in characters."""
MAX_KEPT: Final = 256 * 1024 * 1024
"""Maximum length of all responses of a run in characters."""
MAX_BEGUN: Final = 30_000
"""Maximum number of instances, and of agents in nested runs, of a run as a whole."""

AgentStatus = Literal["success", "failed", "skipped", "cancelled"]
Tier = Literal["project", "user", "shipped"]
RunStatus = Literal["completed", "completed_with_errors", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of models."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Number of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why an agent has no response."""

    error: str
    """Name of the error, such as ``TimedOut``."""
    message: str
    agent: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """Details: ``file``, ``line``, ``output``, ``provider``, ``retry_after`` …"""


@dataclass(slots=True)
class AgentResult:
    """Result of an agent."""

    name: str
    """Name of the agent, with ``[i]`` for instances."""
    kind: str
    status: AgentStatus
    response: str | None = None
    fault: Fault | None = None
    depends_on: tuple[str, ...] = ()
    started_at: float = 0.0
    """Seconds since the epoch."""
    completed_at: float = 0.0
    usage: Usage = Usage()
    """Usage of the agent and of everything that it ran."""
    model: str | None = None
    provider: str | None = None
    profile: str | None = None
    attempts: int = 1
    fallback: bool = False
    """True if the response is from the fallback profile."""
    iterations: int | None = None
    """Number of iterations of a loop."""
    instances: list[AgentResult] = field(default_factory=list)
    """Instances of an agent that fans out."""
    child: RunResult | None = None
    """Result of the ensemble that it ran; for a loop, of the last iteration."""
    definition: str = ""
    """Hash of its definition and dependencies; a later run with the same hash can reuse the result."""
    reused: bool = False
    """True if the response is from an earlier run."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return max(0.0, self.completed_at - self.started_at)


@dataclass(slots=True)
class RunResult:
    """Result of a run."""

    ensemble: str
    status: RunStatus
    input: str
    results: dict[str, AgentResult]
    """Results by agent, in the order of the file."""
    deliverable: str | None
    """The response of the last agent, on which nothing depends; of several, a JSON object of their responses."""
    started_at: float
    completed_at: float
    usage: Usage
    fault: Fault | None = None
    """The reason why the whole run ended early: a budget, its time limit, the failure policy."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an ensemble."""

    tier: Tier
    file: Path
    base: Path
    """The directory that contains ``scripts/…``: ``.llm-orc`` of the project, or that of the tier."""
    project: Path | None
    """The project that it belongs to."""


@dataclass(frozen=True, slots=True)
class Found:
    """An ensemble with its origin and the configuration that applies to it."""

    ensemble: Ensemble
    origin: Origin
    plexus: Plexus | None = None


class Source(Protocol):
    """Source of ensembles, profiles and scripts. Lookups of the first two are fast enough for the event loop."""

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """Return the ensemble *name*, validated on its own, preferably from the tier of *whose*.

        Raises :class:`~mcpd.errors.NotFound`, or :class:`~mcpd.errors.InvalidConfig` with file and line.
        """

    def profile(self, name: str, whose: Origin) -> Profile:
        """Return the profile *name* for an ensemble of *whose*. Raises :class:`~mcpd.errors.NotFound`."""

    def profile_of(self, name: str, whose: Origin) -> tuple[Profile, Tier]:
        """Return the same, with its tier."""

    def script(self, origin: Origin, script: str) -> Path:
        """Return the file *script* of an ensemble of *origin*. Called in a thread.

        Raises :class:`~mcpd.errors.NotFound` and :class:`~mcpd.errors.InvalidConfig`.
        """


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to a model."""

    text: str
    profile: Profile
    """The profile, overridden by the agent's own settings."""
    system: str | None = None
    json: bool = False
    """True if the answer has to be JSON."""
    trusted: bool = False
    """True if the user has configured the profile's ``base_url``; keys are still sent only to their own base URLs."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""


class Models(Protocol):
    """Requests completions from models."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the answer. Its time is limited only by cancellation.

        Raises :class:`~mcpd.errors.LimitExceeded` (rate, ``data["retry_after"]`` in seconds if known),
        :class:`~mcpd.errors.ServiceUnavailable` (a retry may help), :class:`~mcpd.errors.ConfigMissing` (no key),
        :class:`~mcpd.errors.NotAuthorized`, :class:`~mcpd.errors.InvalidArgument` and McpdError; ``data`` of each has
        ``provider`` and ``model``.
        """


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """The call of a script."""

    agent: str
    script: str
    parameters: Mapping[str, Any]
    input: str
    context: Mapping[str, Any]
    """``{"ensemble": …, "agent": …, "dependencies": {name: response}}``, and ``fan_out`` for an instance."""
    origin: Origin


class Scripts(Protocol):
    """Runs scripts."""

    async def run(self, call: ScriptCall) -> str:
        """Return the response: ``data`` in the output, as JSON unless it is a string; the whole output if that has
        neither ``success`` nor ``data``. Cancellation ends the script with all its processes.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.SpawnFailed`, :class:`~mcpd.errors.LimitExceeded`
        (output), and McpdError if it failed or printed no JSON; ``data`` has ``script`` and the end of ``output``
        and ``stderr``.
        """


class ToolCaller(Protocol):
    """Calls tools of installed servers."""

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the response: structured content as JSON, or the texts. Raises McpdError with the server's message."""


class Journal(Protocol):
    """Records results, so that an interrupted run can be continued. Its methods return at once."""

    def finished(self, result: AgentResult) -> None:
        """Record *result* of an agent of the run itself, not of a nested run."""

    def ended(self, result: RunResult) -> None:
        """Record the end of the run, even if it was cancelled; no further calls follow."""


class Observer(Protocol):
    """Observes a run, in the loop's thread; names are paths like ``review/reader[3]`` in nested runs."""

    def started(self, agent: str) -> None:
        """Note that the agent starts."""

    def fallback(self, agent: str, fault: McpdError) -> None:
        """Note that the agent uses its fallback profile, because of *fault*."""

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """Note *result*; *done* of *total* agents of the run itself have ended, instances counting as fractions."""


class Silent:
    """A journal and observer that does nothing."""

    def finished(self, result: AgentResult) -> None:
        """Do nothing."""

    def ended(self, result: RunResult) -> None:
        """Do nothing."""

    def started(self, agent: str) -> None:
        """Do nothing."""

    def fallback(self, agent: str, fault: McpdError) -> None:
        """Do nothing."""

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """Do nothing."""
