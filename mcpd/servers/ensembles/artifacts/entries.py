# SPDX-License-Identifier: LGPL-2.1-or-later
"""Artifacts in short, as lists have them and metrics are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcpd.model import printable

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.artifacts.stored import StoredRun


@dataclass(frozen=True, slots=True)
class Measure:
    """An agent's part in a run."""

    name: str
    status: str
    seconds: float | None
    """How long it took; None if nothing says so."""
    cost_usd: float | None
    tokens: int
    reused: bool = False
    """Whether an earlier run did it."""


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """A run in short."""

    id: str
    """``ensemble/timestamp``."""
    ensemble: str
    timestamp: str
    """The name of its directory; such names sort by time."""
    path: Path
    """The directory."""
    status: str
    """``completed``, ``completed_with_errors``, ``failed``, ``cancelled``, ``running``, ``interrupted``; what another
    program has written there; ``unreadable`` with a :attr:`problem`."""
    started_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    cost_usd: float | None = None
    tokens: int = 0
    errors: int = 0
    """How many agents failed."""
    agents: tuple[Measure, ...] = ()
    problem: str | None = None
    """Why nothing is known of it."""

    def payload(self) -> dict[str, Any]:
        """As JSON: ``id``, ``timestamp``, ``status``, ``started_at`` (ISO 8601, UTC, or null), ``duration_seconds`` and
        ``cost_usd`` (null if unknown), ``tokens``, ``agents`` and ``errors`` (how many), ``path``, and ``problem`` of
        one that is unreadable.
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
    """*run*, whose directory *path* is, in short."""
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
    """*seconds* since the epoch as ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rounded(seconds: float | None) -> float | None:
    """*seconds* with as many digits as clocks are good for."""
    return None if seconds is None else round(seconds, 3)
