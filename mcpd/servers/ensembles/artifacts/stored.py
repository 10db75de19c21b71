# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading ``execution.json``, and its summary for listings and metrics.

A file may be ours, llm-orc's, or part of a cloned project, with any content. A member of the wrong type counts as
missing, so that it does not make the rest unreadable.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator

from mcpd.errors import InvalidConfig, InvalidManifest
from mcpd.model import load_json, printable
from mcpd.servers.ensembles.engine.types import AgentResult, Fault, RunResult, Usage
from mcpd.servers.ensembles.format.models import MAX_AGENTS

if TYPE_CHECKING:
    from pathlib import Path

MAX_DEPTH: Final = 100
"""Maximum number of levels in a document; nested runs take fewer."""
MAX_VALUES: Final = 500_000
"""Maximum number of members and elements in a document. The result of an agent has about fifteen."""
Container: TypeAlias = dict[Any, Any] | list[Any]
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Matches a string, even if it is not terminated."""
_STATUSES: Final = frozenset({"success", "failed", "skipped", "cancelled"})
_ENDS: Final = frozenset({"completed", "completed_with_errors", "failed", "cancelled"})


def load(data: bytes, origin: str) -> dict[str, Any]:
    """Return the document in *data*, read from *origin*; its values can be written as JSON again.

    Raises :class:`~mcpd.errors.InvalidConfig` if it is invalid, or has more than :data:`MAX_VALUES`.
    """
    check_values(data, origin)
    try:
        document = load_json(data, origin)
    except InvalidManifest as fault:
        raise InvalidConfig(fault.message) from fault
    if not isinstance(document, dict):
        raise InvalidConfig(f"{origin}: not a JSON object")
    _tidy(document, origin)
    return document


def check_values(data: bytes, origin: str, most: int = MAX_VALUES) -> int:
    """Return an upper bound of the number of values in *data*, without parsing, which takes much memory.

    Raises :class:`~mcpd.errors.InvalidConfig` for more than *most*.
    """
    count = _marks(data)
    if count > most:
        # Characters in strings do not count.
        count = _marks(_STRING.sub(b"", data))
    if count > most:
        raise InvalidConfig(f"{origin}: holds more than {most} values")
    return count


def _marks(data: bytes) -> int:
    """Return the number of separators and opening brackets, of which there is one before almost every value."""
    return sum(map(data.count, (b",", b"[", b"{")))


def parse(document: dict[str, Any]) -> StoredRun:
    """Return the valid parts of *document*."""
    return StoredRun.model_validate(document)


def _tidy(document: dict[str, Any], origin: str) -> None:
    """Remove from *document* what JSON cannot represent, without recursion."""
    level: list[Container] = [document]
    count = 0
    for _ in range(MAX_DEPTH):
        count += sum(map(len, level))
        if count > MAX_VALUES:
            raise InvalidConfig(f"{origin}: holds more than {MAX_VALUES} values")
        level = [below for container in level for below in _tidied(container)]
        if not level:
            return
    raise InvalidConfig(f"{origin}: nested deeper than {MAX_DEPTH} levels")


def _tidied(container: Container) -> list[Container]:
    """Do that for *container* itself, and return the containers in it."""
    below: list[Container] = []
    if isinstance(container, dict):
        for key in [key for key in container if _text(key) is not key]:
            container[_text(key)] = container.pop(key)
    for at, value in container.items() if isinstance(container, dict) else enumerate(container):
        if isinstance(value, (dict, list)):
            below.append(value)
        elif isinstance(value, str):
            container[at] = _text(value)
        elif isinstance(value, float) and not math.isfinite(value):
            container[at] = None
    return below


def _text(text: str) -> str:
    """Return *text* without single surrogates; the same object if it has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _or(default: Any) -> WrapValidator:
    """Return a validator that replaces values of the wrong type by *default*."""

    def validated(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError:
            return default() if callable(default) else default

    return WrapValidator(validated)


def _as_text(value: Any) -> Any:
    """Return inputs and responses that are objects, as in llm-orc, as JSON text."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def _seconds(value: Any) -> Any:
    """Return seconds since the epoch, from a number or an ISO 8601 date and time."""
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _few(value: Any) -> Any:
    """Return *value* cut to the maximum number of an ensemble's agents."""
    if isinstance(value, dict):
        return dict(islice(value.items(), MAX_AGENTS))
    return value[:MAX_AGENTS] if isinstance(value, list) else value


def _duration(value: Any) -> Any:
    """Return a duration given as ``2.32s`` or as a number."""
    return value.removesuffix("s") if isinstance(value, str) else value


Text = Annotated[str | None, BeforeValidator(_as_text)]
Word = Annotated[str | None, Field(strict=True), _or(None)]
Flag = Annotated[bool, Field(strict=True), _or(default=False)]
Count = Annotated[int, Field(ge=0, le=10**15), _or(0)]
Money = Annotated[float | None, Field(ge=0, le=1e12, allow_inf_nan=False), _or(None)]
Milliseconds = Annotated[float | None, Field(ge=0, le=1e12, allow_inf_nan=False), _or(None)]
Seconds = Annotated[float | None, Field(ge=0, le=1e9, allow_inf_nan=False), BeforeValidator(_duration), _or(None)]
Moment = Annotated[float | None, Field(ge=0, le=2e11, allow_inf_nan=False), BeforeValidator(_seconds), _or(None)]
Names = Annotated[tuple[str, ...], BeforeValidator(_few), _or(())]
Mapping = Annotated[dict[str, Any], _or(dict)]


class Stored(BaseModel):
    """A part of a document; unknown members are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class StoredUsage(Stored):
    """Tokens, cost and time of models."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    total_tokens: Count = 0
    cost_usd: Money = None
    duration_ms: Milliseconds = None

    @property
    def tokens(self) -> int:
        """Number of input and output tokens."""
        return self.total_tokens or self.input_tokens + self.output_tokens


class StoredFault(Stored):
    """The reason why an agent has no response."""

    error: Word = None
    message: Word = None
    agent: Word = None
    data: Mapping = Field(default_factory=dict)

    def fault(self) -> Fault:
        """Return the fault as the engine's type."""
        return Fault(self.error or "Failed", self.message or "", self.agent or "", self.data)


class StoredAgent(Stored):
    """Result of an agent."""

    name: Word = None
    """Name of an instance; in ``agents.jsonl``, of the agent."""
    response: Text = None
    status: Annotated[str, Field(strict=True), _or("unknown")] = "unknown"
    error: Word = None
    fault: Annotated[StoredFault | None, _or(None)] = None
    kind: Word = None
    depends_on: Names = ()
    model: Word = None
    provider: Word = None
    profile: Word = None
    fallback: Flag = False
    iterations: Annotated[int | None, Field(ge=0, le=10**6), _or(None)] = None
    reused: Flag = False
    cut: Flag = False
    definition: Word = None
    started_at: Moment = None
    completed_at: Moment = None
    attempts: Annotated[int, Field(ge=0, le=10**6), _or(1)] = 1
    usage: Annotated[StoredUsage | None, _or(None)] = None
    instances: Annotated[tuple[Annotated[StoredAgent, _or(StoredAgent)], ...], _or(())] = ()
    child: Annotated[StoredRun | None, _or(None)] = None

    @property
    def seconds(self) -> float | None:
        """Duration in seconds, or None if unknown; 0 if the response is from an earlier run."""
        if self.reused:
            return 0.0
        if self.started_at is None or self.completed_at is None:
            return None
        return max(0.0, self.completed_at - self.started_at)

    @property
    def retries(self) -> int:
        """Number of retries; the first attempt of each instance does not count."""
        return max(0, self.attempts - max(1, len(self.instances)))

    @property
    def why(self) -> str | None:
        """Message of the failure."""
        return self.fault.message if self.fault and self.fault.message else self.error

    def result(self, name: str) -> AgentResult:
        """Return the result as the engine's type."""
        usage = self.usage or StoredUsage()
        return AgentResult(
            name=name,
            kind=self.kind or "model",
            status=self.status if self.status in _STATUSES else "failed",  # type: ignore[arg-type]
            response=self.response,
            fault=self.fault.fault() if self.fault else None,
            depends_on=self.depends_on,
            started_at=self.started_at or 0.0,
            completed_at=self.completed_at or 0.0,
            usage=Usage(usage.input_tokens, usage.output_tokens, usage.cost_usd or 0.0),
            model=self.model,
            provider=self.provider,
            profile=self.profile,
            attempts=self.attempts,
            fallback=self.fallback,
            iterations=self.iterations,
            instances=[each.result(each.name or f"{name}[{at}]") for at, each in enumerate(self.instances)],
            child=self.child.result() if self.child else None,
            definition=self.definition or "",
            reused=self.reused,
        )


class StoredTotals(Stored):
    """Totals of a whole run."""

    total_tokens: Count = 0
    total_input_tokens: Count = 0
    total_output_tokens: Count = 0
    total_cost_usd: Money = None
    total_duration_ms: Milliseconds = None


class StoredUsages(Stored):
    """Usage of all models of a run."""

    agents: Annotated[dict[str, Annotated[StoredUsage, _or(StoredUsage)]], _or(dict)] = Field(default_factory=dict)
    totals: Annotated[StoredTotals | None, _or(None)] = None


class StoredMetadata(Stored):
    """Times and usage of a run."""

    started_at: Moment = None
    completed_at: Moment = None
    duration: Seconds = None
    usage: Annotated[StoredUsages, _or(StoredUsages)] = StoredUsages()


class StoredRun(Stored):
    """A run."""

    ensemble: Word = None
    status: Annotated[str, Field(strict=True), _or("unknown")] = "unknown"
    input: Text = None
    input_cut: Flag = False
    results: Annotated[dict[str, Annotated[StoredAgent, _or(StoredAgent)]], BeforeValidator(_few), _or(dict)] = Field(
        default_factory=dict
    )
    metadata: Annotated[StoredMetadata, _or(StoredMetadata)] = StoredMetadata()
    deliverable: Text = None
    fault: Annotated[StoredFault | None, _or(None)] = None
    definition: Mapping = Field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """Duration in seconds; for a run without end, until the end of its last agent."""
        told = self.metadata
        ends = [each.completed_at for each in self.results.values() if each.completed_at and not each.reused]
        end = told.completed_at or max(ends, default=None)
        if told.started_at is not None and end is not None:
            return max(0.0, end - told.started_at)
        return told.duration

    def seconds_of(self, name: str) -> float | None:
        """Return the duration of the agent *name* in seconds."""
        known = self.results[name].seconds
        told = self.metadata.usage.agents.get(name)
        if known is None and told is not None and told.duration_ms is not None:
            return told.duration_ms / 1000
        return known

    def usage_of(self, name: str) -> StoredUsage:
        """Return the usage of models by the agent *name* in this run."""
        result = self.results[name]
        if result.reused:
            return StoredUsage()
        return result.usage or self.metadata.usage.agents.get(name) or StoredUsage()

    @property
    def cost_usd(self) -> float | None:
        """Cost in dollars; None if unknown."""
        totals = self.metadata.usage.totals
        if totals is not None and totals.total_cost_usd is not None:
            return totals.total_cost_usd
        costs = [cost for name in self.results if (cost := self.usage_of(name).cost_usd) is not None]
        return math.fsum(costs) if costs else None

    @property
    def tokens(self) -> int:
        """Number of tokens that models read and wrote."""
        totals = self.metadata.usage.totals
        if totals is not None and totals.total_tokens:
            return totals.total_tokens
        return sum(self.usage_of(name).tokens for name in self.results)

    def result(self) -> RunResult:
        """Return the run as the engine's type."""
        told = self.metadata
        totals = told.usage.totals or StoredTotals()
        return RunResult(
            ensemble=self.ensemble or "",
            status=self.status if self.status in _ENDS else "failed",  # type: ignore[arg-type]
            input=self.input or "",
            results={name: each.result(name) for name, each in self.results.items()},
            deliverable=self.deliverable,
            started_at=told.started_at or 0.0,
            completed_at=told.completed_at or 0.0,
            usage=Usage(totals.total_input_tokens, totals.total_output_tokens, totals.total_cost_usd or 0.0),
            fault=self.fault.fault() if self.fault else None,
        )


StoredAgent.model_rebuild()


@dataclass(frozen=True, slots=True)
class Measure:
    """The part of an agent in a run."""

    name: str
    status: str
    seconds: float | None
    """Duration in seconds; None if unknown."""
    cost_usd: float | None
    tokens: int
    reused: bool = False
    """True if the response is from an earlier run."""


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """Summary of a run."""

    id: str
    """``ensemble/timestamp``."""
    ensemble: str
    timestamp: str
    """Name of its directory; such names sort by time."""
    path: Path
    """Its directory."""
    status: str
    """``completed``, ``completed_with_errors``, ``failed``, ``cancelled``, ``running``, ``interrupted``; another value
    written by another program; ``unreadable`` with a :attr:`problem`."""
    started_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    cost_usd: float | None = None
    tokens: int = 0
    errors: int = 0
    """Number of failed agents."""
    agents: tuple[Measure, ...] = ()
    problem: str | None = None
    """The reason why it cannot be read."""

    def payload(self) -> dict[str, Any]:
        """Return the entry as JSON: ``id``, ``timestamp``, ``status``, ``started_at`` (ISO 8601, UTC, or null),
        ``duration_seconds`` and ``cost_usd`` (null if unknown), ``tokens``, the numbers of ``agents`` and ``errors``,
        ``path``, and for an unreadable one ``problem``.
        """
        made: dict[str, Any] = {
            "id": self.id,
            "timestamp": self.timestamp,
            "status": self.status,
            "started_at": moment(self.started_at),
            "duration_seconds": rounded(self.seconds),
            "cost_usd": self.cost_usd,
            "tokens": self.tokens,
            "agents": len(self.agents),
            "errors": self.errors,
            "path": str(self.path),
        }
        return made if self.problem is None else {**made, "problem": self.problem}


def entry(ensemble: str, timestamp: str, path: Path, run: StoredRun) -> ArtifactEntry:
    """Return the summary of *run*, which is in the directory *path*."""
    agents = tuple(
        Measure(
            name=printable(name),
            status=printable(each.status),
            seconds=run.seconds_of(name),
            cost_usd=(used := run.usage_of(name)).cost_usd,
            tokens=used.tokens,
            reused=each.reused,
        )
        for name, each in run.results.items()
    )
    return ArtifactEntry(
        id=f"{ensemble}/{timestamp}",
        ensemble=ensemble,
        timestamp=timestamp,
        path=path,
        status=printable(run.status),
        started_at=run.metadata.started_at,
        seconds=run.seconds,
        cost_usd=run.cost_usd,
        tokens=run.tokens,
        errors=sum(each.status == "failed" for each in run.results.values()),
        agents=agents,
    )


def moment(seconds: float | None) -> str | None:
    """Return *seconds* since the epoch as ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rounded(seconds: float | None) -> float | None:
    """Return *seconds* rounded to milliseconds."""
    return None if seconds is None else round(seconds, 3)
