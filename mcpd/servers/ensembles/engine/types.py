# SPDX-License-Identifier: LGPL-2.1-or-later
"""What goes into a run, what comes out of it, and what the engine needs of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.errors import McpdError
    from mcpd.servers.ensembles.format.models import Ensemble, Plexus, Profile

MAX_DEPTH: Final = 5
"""How deep ensembles may run others."""
MAX_RESPONSE: Final = 4 * 1024 * 1024
"""Characters of an agent's response."""
MAX_KEPT: Final = 256 * 1024 * 1024
"""Characters of all responses of a run."""
MAX_BEGUN: Final = 30_000
"""Instances, and agents of ensembles that agents run, of a run as a whole."""

AgentStatus = Literal["success", "failed", "skipped", "cancelled"]
Tier = Literal["project", "user", "shipped"]
RunStatus = Literal["completed", "completed_with_errors", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What models took."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Of input and output."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an agent has no response."""

    error: str
    """The name of the error, such as ``TimedOut``."""
    message: str
    agent: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to say: ``file``, ``line``, ``output``, ``provider``, ``retry_after`` …"""


@dataclass(slots=True)
class AgentResult:
    """Result of an agent."""

    name: str
    """With ``[i]`` for the instances of one that fans out."""
    kind: str
    status: AgentStatus
    response: str | None = None
    fault: Fault | None = None
    depends_on: tuple[str, ...] = ()
    started_at: float = 0.0
    """Seconds since the epoch."""
    completed_at: float = 0.0
    usage: Usage = Usage()
    """Its own and of all that it ran."""
    model: str | None = None
    provider: str | None = None
    profile: str | None = None
    attempts: int = 1
    fallback: bool = False
    """True if the response is the fallback profile's."""
    iterations: int | None = None
    """Of a loop."""
    instances: list[AgentResult] = field(default_factory=list)
    """Of one that fans out."""
    child: RunResult | None = None
    """Of the ensemble that it ran; of a loop, the last iteration."""
    definition: str = ""
    """The hash of what it is and depends on; an earlier result counts for a later run with the same."""
    reused: bool = False
    """True if the response is an earlier run's."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, self.completed_at - self.started_at)


@dataclass(slots=True)
class RunResult:
    """Result of a run."""

    ensemble: str
    status: RunStatus
    input: str
    results: dict[str, AgentResult]
    """By agent, in the order of the file."""
    deliverable: str | None
    """The response of the last agent that nothing depends on; of several, an object of theirs as JSON."""
    started_at: float
    completed_at: float
    usage: Usage
    fault: Fault | None = None
    """Why the run as a whole ended early: a budget, its time, the policy."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an ensemble comes from."""

    tier: Tier
    file: Path
    base: Path
    """The directory that ``scripts/…`` is below: ``.llm-orc`` of the project, or the tier's own."""
    project: Path | None
    """The project that it belongs to."""


@dataclass(frozen=True, slots=True)
class Found:
    """An ensemble, where it comes from, and what goes with it there."""

    ensemble: Ensemble
    origin: Origin
    plexus: Plexus | None = None


class Source(Protocol):
    """Knows ensembles, profiles and scripts. What it says of the first two is quick, and may be asked in the loop."""

    def find(self, name: str, whose: Origin | None = None) -> Found:
        """The ensemble *name*, looked for first where *whose* is from, checked by itself.

        Raises :class:`~mcpd.errors.NotFound` or :class:`~mcpd.errors.InvalidConfig` that names file and line.
        """

    def profile(self, name: str, whose: Origin) -> Profile:
        """The profile *name* as an ensemble of *whose* means it. Raises :class:`~mcpd.errors.NotFound`."""

    def profile_of(self, name: str, whose: Origin) -> tuple[Profile, Tier]:
        """The same, and whose word it is."""

    def script(self, origin: Origin, script: str) -> Path:
        """The file *script* of an ensemble of *origin*. Called in a thread.

        Raises :class:`~mcpd.errors.NotFound` and :class:`~mcpd.errors.InvalidConfig`.
        """


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked."""

    text: str
    profile: Profile
    """With the agent's own settings over it."""
    system: str | None = None
    json: bool = False
    """True if the answer is to be JSON."""
    trusted: bool = False
    """True if the profile's ``base_url`` is the user's own word; a key goes nowhere else but where keys say."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What it answered."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""


class Models(Protocol):
    """Asks models."""

    async def complete(self, prompt: Prompt) -> Completion:
        """The answer. Only the caller's cancellation limits its time.

        Raises :class:`~mcpd.errors.LimitExceeded` (rate, ``data["retry_after"]`` in seconds if known),
        :class:`~mcpd.errors.ServiceUnavailable` (worth another try), :class:`~mcpd.errors.ConfigMissing` (no key),
        :class:`~mcpd.errors.NotAuthorized`, :class:`~mcpd.errors.InvalidArgument` and McpdError; each has in ``data``
        ``provider`` and ``model``.
        """


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script agent's call."""

    agent: str
    script: str
    parameters: Mapping[str, Any]
    input: str
    context: Mapping[str, Any]
    """``{"ensemble": …, "agent": …, "dependencies": {name: response}}`` and ``fan_out`` of an instance."""
    origin: Origin


class Scripts(Protocol):
    """Runs scripts."""

    async def run(self, call: ScriptCall) -> str:
        """The response: ``data`` of what the script printed, as JSON unless it is a string; all it printed if it has
        neither ``success`` nor ``data``. Cancelling it ends the script with all that it has started.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.SpawnFailed`, :class:`~mcpd.errors.LimitExceeded`
        (output), and McpdError for one that failed or printed no JSON; ``data`` has ``script`` and the end of
        ``output`` and ``stderr``.
        """


class ToolCaller(Protocol):
    """Calls tools of installed servers."""

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """The response: structured content as JSON, or the texts. Raises McpdError with the server's own words."""


class Journal(Protocol):
    """Keeps what has been reached, so that a run that is cut off can be continued. Its calls return at once."""

    def finished(self, result: AgentResult) -> None:
        """*result* of an agent of the run itself, not of what that ran."""

    def ended(self, result: RunResult) -> None:
        """The run is over, also if it was cancelled; nothing comes after this."""


class Observer(Protocol):
    """Hears of a run, in the loop's thread; names are paths like ``review/reader[3]`` for what an agent ran."""

    def started(self, agent: str) -> None:
        """The agent begins."""

    def fallback(self, agent: str, fault: McpdError) -> None:
        """The agent turns to its fallback profile."""

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """*done* of *total* agents of the run itself have ended, which counts instances in parts; *result* is new."""


class Silent:
    """Keeps and hears nothing."""

    def finished(self, result: AgentResult) -> None:
        """Nothing."""

    def ended(self, result: RunResult) -> None:
        """Nothing."""

    def started(self, agent: str) -> None:
        """Nothing."""

    def fallback(self, agent: str, fault: McpdError) -> None:
        """Nothing."""

    def progressed(self, done: float, total: float, result: AgentResult) -> None:
        """Nothing."""
