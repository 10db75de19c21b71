# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the runs of an ensemble have in common."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.ensembles.artifacts.entries import moment, rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcpd.servers.ensembles.artifacts.entries import ArtifactEntry, Measure

ENDED: Final = frozenset({"completed", "completed_with_errors", "failed"})
"""How runs end that nobody cancelled and nothing cut off; only these tell how good an ensemble is."""
_RAN: Final = frozenset({"success", "failed"})
_MOST_AGENTS: Final = 1000


def metrics(entries: Iterable[ArtifactEntry]) -> dict[str, Any]:
    """Metrics of the runs *entries*, as JSON.

    - ``runs``: how many, and ``by_status``: how many of each status.
    - ``window``: ``since`` and ``until``, when the oldest and the newest of them began, ISO 8601 or null.
    - ``success_rate``: the share, 0 to 1, of ``completed`` among those that are :data:`ENDED`; null if none is.
    - ``duration_seconds`` and ``cost_usd``: ``mean``, ``median`` and ``p95`` over those that are :data:`ENDED` and say
      so, with ``count``, how many these are; null for none. ``p95`` is interpolated, as
      :func:`statistics.quantiles` does it for the whole of a population.
    - ``total_cost_usd`` and ``total_tokens`` of all runs, and ``mean_tokens`` of those that are :data:`ENDED`.
    - ``agents``: by name ``runs`` (without those skipped, cancelled or reused), ``failures``, ``skipped``,
      ``mean_duration_seconds``, ``mean_cost_usd`` (null if unknown) and ``total_tokens``.
    """
    known = list(entries)
    ended = [each for each in known if each.status in ENDED]
    begun = [each.started_at for each in known if each.started_at is not None]
    good = sum(each.status == "completed" for each in ended)
    return {
        "runs": len(known),
        "by_status": dict(sorted(Counter(each.status for each in known).items())),
        "window": {"since": moment(min(begun, default=None)), "until": moment(max(begun, default=None))},
        "success_rate": round(good / len(ended), 4) if ended else None,
        "duration_seconds": _spread([each.seconds for each in ended]),
        "cost_usd": _spread([each.cost_usd for each in ended]),
        "total_cost_usd": _total(each.cost_usd for each in known),
        "total_tokens": sum(each.tokens for each in known),
        "mean_tokens": round(statistics.fmean(each.tokens for each in ended), 1) if ended else None,
        "agents": _agents(known),
    }


def _spread(values: Iterable[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "count": len(known),
        "mean": round(statistics.fmean(known), 6),
        "median": round(statistics.median(known), 6),
        "p95": round(p95(known), 6),
    }


def p95(values: Sequence[float]) -> float:
    """What 95 % of *values*, of which there is at least one, do not exceed."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[94]


def _agents(entries: Iterable[ArtifactEntry]) -> dict[str, Any]:
    measured: dict[str, list[Measure]] = {}
    for entry in entries:
        for each in entry.agents:
            if each.name in measured or len(measured) < _MOST_AGENTS:
                measured.setdefault(each.name, []).append(each)
    return {name: _agent(measures) for name, measures in measured.items()}


def _agent(measures: Iterable[Measure]) -> dict[str, Any]:
    own = [each for each in measures if not each.reused]
    ran = [each for each in own if each.status in _RAN]
    return {
        "runs": len(ran),
        "failures": sum(each.status == "failed" for each in ran),
        "skipped": sum(each.status == "skipped" for each in own),
        "mean_duration_seconds": rounded(_mean(each.seconds for each in ran)),
        "mean_cost_usd": _mean(each.cost_usd for each in ran),
        "total_tokens": sum(each.tokens for each in own),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
