# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time and cost of a run, causes of missing responses, and metrics of all runs of an ensemble."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mcpd.model import printable
from mcpd.servers.ensembles.artifacts.stored import moment, parse, rounded
from mcpd.servers.ensembles.engine.types import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcpd.servers.ensembles.artifacts.stored import ArtifactEntry, Measure, StoredAgent, StoredRun

MOST_TIME: Final = 0.5
"""Share of a run's time from which an agent is reported as slow."""
MOST_COST: Final = 0.5
"""Share of a run's cost from which an agent is reported as expensive."""
MUCH_WAITING: Final = 0.2
"""Share of a run's time that agents have waited although their dependencies were complete."""
STRAGGLER: Final = 3.0
"""Factor above the median from which an instance is reported as delaying the others."""
_WORTH: Final = 1.0
"""Seconds below which a time is not reported."""


def suggested(analysis: dict[str, Any]) -> list[dict[str, Any]]:
    """Return suggestions for *analysis*, see :func:`.analysis.analyze`, with ``about``, ``agent`` and ``text``."""
    return [
        {"about": about, "agent": agent, "text": text}
        for found in (_failing(analysis), _slow(analysis), _waiting(analysis), _straggling(analysis), _dear(analysis))
        for about, agent, text in found
    ]


def _failing(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for failure in analysis["failures"]:
        agent, skipped = failure["agent"], failure["skipped"]
        if failure["error"] == "Timeout":
            yield "timeout", agent, f"{agent} was not done in time: raise its timeout_seconds, or give it less to do."
        if skipped:
            text = f"{agent} failed, so {len(skipped)} more were not run; retries, or a fallback, would let them run."
            yield "skipped", agent, text
    for fallback in analysis["fallbacks"]:
        agent, profile = fallback["agent"], fallback["profile"]
        yield "fallback", agent, f"{agent} was answered by its fallback {profile or 'profile'}: its own did not work."


def _slow(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if (analysis["duration_seconds"] or 0.0) < _WORTH:
        return
    for step in analysis["critical_path"]:
        if (step["share"] or 0.0) >= MOST_TIME and len(analysis["critical_path"]) > 1:
            agent, share = step["agent"], f"{step['share']:.0%}"
            yield "time", agent, f"{agent} took {share} of the run's time; what makes it faster makes the run faster."


def _waiting(analysis: dict[str, Any]) -> Iterator[tuple[str, None, str]]:
    waited = sum(step["waited"] for step in analysis["critical_path"])
    wall = analysis["duration_seconds"] or 0.0
    if waited >= _WORTH and waited >= MUCH_WAITING * wall:
        text = f"Agents waited {waited:.1f} s of {wall:.1f} s for others to end; a higher max_concurrent shortens that."
        yield "waiting", None, text


def _straggling(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    path = {step["agent"] for step in analysis["critical_path"]}
    for fan_out in analysis["fan_out"]:
        median, longest = fan_out["median"] or 0.0, fan_out["max"] or 0.0
        if fan_out["agent"] in path and longest >= _WORTH and median and longest >= STRAGGLER * median:
            slowest = fan_out["slowest"][0]["agent"]
            text = f"{slowest} took {longest:.1f} s, and half of its siblings no more than {median:.1f} s."
            yield "straggler", slowest, text


def _dear(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    agents = [each for each in analysis["cost"]["agents"] if each["cost_usd"]]
    for each in agents if len(agents) > 1 else ():
        if (each["share"] or 0.0) >= MOST_COST:
            agent, share = each["agent"], f"{each['share']:.0%}"
            yield "cost", agent, f"{agent} is {share} of the cost; a cheaper model there saves most."


MAX_CHILDREN: Final = 100
"""Maximum number of nested runs that are analyzed."""
_SLOWEST: Final = 5
_MESSAGE: Final = 2000
"""Maximum length of an error message in characters."""


def analyze(artifact: dict[str, Any]) -> dict[str, Any]:
    """Return the analysis of the run in the document *artifact*, see :mod:`.execution`, as JSON. Times are in seconds.

    - ``ensemble``, ``status``, ``duration_seconds`` (null if unknown), ``fault`` (``{error, message}`` or null): why
      the run as a whole ended early.
    - ``critical_path``: the agents that determined when it ended, the first one first, each with ``agent``,
      ``seconds``, ``waited`` (from the end of its dependencies to its start) and ``share`` of the run's time; empty
      if the times of agents are unknown.
    - ``failures``: ``agent``, ``error``, ``message``, ``attempts`` and ``skipped``: the agents not run because of it.
    - ``cost``: ``total_usd`` (null if unknown), ``total_tokens``, and ``agents``, the most expensive first, with
      ``agent``, ``cost_usd``, ``tokens``, ``model`` and ``share`` of the cost (null without one).
    - ``retries``: ``agent`` and the number of ``retries``; ``fallbacks``: ``agent``, ``profile`` and ``model``;
      ``reused``: the names of agents whose responses are from an earlier run.
    - ``parallelism``: ``busy_seconds`` (of all agents), ``wall_seconds`` and ``factor``, their quotient; or null.
    - ``fan_out``: ``agent``, ``instances``, ``failed``, ``min``, ``median`` and ``max`` seconds, and ``slowest``.
    - ``slowest``: the five slowest agents or instances, ``agent`` and ``seconds``.
    - ``children``: such a document for each agent that ran an ensemble; for a fan-out, of its slowest instance.
    - ``suggestions``: ``about`` (a word), ``agent`` (null if none) and ``text``.
    """
    return _analyzed(parse(artifact), iter(range(MAX_CHILDREN)), 0)


def _analyzed(run: StoredRun, budget: Iterator[int], depth: int) -> dict[str, Any]:
    made = {
        "ensemble": printable(run.ensemble or ""),
        "status": printable(run.status),
        "duration_seconds": rounded(run.seconds),
        "fault": None if run.fault is None else {"error": _word(run.fault.error), "message": _said(run.fault.message)},
        "critical_path": _critical_path(run),
        "failures": _failures(run),
        "cost": _cost(run),
        "retries": [{"agent": name, "retries": each.retries} for name, each in _own(run) if each.retries],
        "fallbacks": [
            {"agent": name, "profile": _word(each.profile), "model": _word(each.model)}
            for name, each in _own(run)
            if each.fallback
        ],
        "reused": [printable(name) for name, each in run.results.items() if each.reused],
        "parallelism": _parallelism(run),
        "fan_out": [_fan_out(name, each) for name, each in _own(run) if each.instances],
        "slowest": _slowest(run),
        "children": _children(run, budget, depth) if depth < MAX_DEPTH else {},
    }
    return {**made, "suggestions": suggested(made)}


def _own(run: StoredRun) -> Iterator[tuple[str, StoredAgent]]:
    """Yield the agents that were run in this run, with printable names."""
    return ((printable(name), each) for name, each in run.results.items() if not each.reused)


def _word(text: str | None) -> str | None:
    return None if text is None else printable(text)


def _said(text: str | None) -> str | None:
    return None if text is None else text[:_MESSAGE]


def _critical_path(run: StoredRun) -> list[dict[str, Any]]:
    """Return the chain from the agent that ended last back to, each time, the last one that it waited for."""
    ends = {
        name: each.completed_at
        for name, each in run.results.items()
        if each.completed_at is not None and each.started_at is not None and each.status != "skipped"
    }
    ran = {name: end for name, end in ends.items() if not run.results[name].reused}
    chain: list[str] = []
    at = max(ran, key=ran.__getitem__, default=None)
    while at is not None:
        chain.append(at)
        behind = [name for name in run.results[at].depends_on if name in ran and name not in chain]
        at = max(behind, key=ran.__getitem__, default=None)
    chain.reverse()
    wall = run.seconds or 0.0
    free = run.metadata.started_at
    path = []
    for name in chain:
        agent = run.results[name]
        began, seconds = agent.started_at or 0.0, agent.seconds or 0.0
        path.append(
            {
                "agent": printable(name),
                "seconds": rounded(seconds),
                "waited": rounded(max(0.0, began - free) if free is not None else 0.0),
                "share": round(min(1.0, seconds / wall), 4) if wall else None,
            }
        )
        free = ran[name]
    return path


def _failures(run: StoredRun) -> list[dict[str, Any]]:
    failed = {name: each for name, each in run.results.items() if each.status == "failed"}
    skipped: dict[str, list[str]] = {name: [] for name in failed}
    for name, causes in _causes(run).items():
        for cause in causes if name not in failed else ():
            skipped[cause].append(printable(name))
    return [
        {
            "agent": printable(name),
            "error": _word(each.fault.error if each.fault else None),
            "message": _said(each.why),
            "attempts": each.attempts,
            "skipped": skipped[name],
        }
        for name, each in failed.items()
    ]


def _causes(run: StoredRun) -> dict[str, set[str]]:
    """Return the failed agents that made each agent have no response, directly or through skipped ones."""
    graph = {name: [each for each in agent.depends_on if each in run.results] for name, agent in run.results.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError:
        # A recorded run has no circles.
        return {}
    causes: dict[str, set[str]] = {}
    for name in order:
        status = run.results[name].status
        if status == "failed":
            causes[name] = {name}
        elif status == "skipped" and all(run.results[each].status != "success" for each in graph[name]):
            causes[name] = set().union(*(causes[each] for each in graph[name]))
        else:
            # It has a response, or its own condition did not hold.
            causes[name] = set()
    return causes


def _cost(run: StoredRun) -> dict[str, Any]:
    used = {name: run.usage_of(name) for name in run.results}
    order = sorted(used, key=lambda name: (-(used[name].cost_usd or 0.0), -used[name].tokens))
    total = run.cost_usd
    return {
        "total_usd": total,
        "total_tokens": run.tokens,
        "agents": [
            {
                "agent": printable(name),
                "cost_usd": (cost := used[name].cost_usd),
                "tokens": used[name].tokens,
                "model": _word(run.results[name].model),
                "share": round(min(1.0, cost / total), 4) if cost is not None and total else None,
            }
            for name in order
            if used[name].cost_usd or used[name].tokens
        ],
    }


def _parallelism(run: StoredRun) -> dict[str, Any] | None:
    busy = [
        seconds
        for _, agent in _own(run)
        for each in agent.instances or (agent,)
        if each.status != "skipped" and (seconds := each.seconds) is not None
    ]
    if not busy or not run.seconds:
        return None
    total = math.fsum(busy)
    return {
        "busy_seconds": rounded(total),
        "wall_seconds": rounded(run.seconds),
        "factor": round(total / run.seconds, 2),
    }


def _timed(name: str, agent: StoredAgent) -> list[tuple[str, float]]:
    """Return the instances of *agent* whose times are known, slowest first."""
    named = ((printable(each.name or f"{name}[{at}]"), each) for at, each in enumerate(agent.instances))
    known = ((name, each.seconds) for name, each in named if not each.reused)
    return sorted(((name, seconds) for name, seconds in known if seconds is not None), key=lambda each: -each[1])


def _fan_out(name: str, agent: StoredAgent) -> dict[str, Any]:
    timed = _timed(name, agent)
    seconds = [each for _, each in timed]
    return {
        "agent": name,
        "instances": len(agent.instances),
        "failed": sum(each.status == "failed" for each in agent.instances),
        "min": rounded(min(seconds, default=None)),
        "median": rounded(statistics.median(seconds)) if seconds else None,
        "max": rounded(max(seconds, default=None)),
        "slowest": [{"agent": each, "seconds": rounded(took)} for each, took in timed[:3]],
    }


def _slowest(run: StoredRun) -> list[dict[str, Any]]:
    timed: list[tuple[str, float]] = []
    for name, agent in run.results.items():
        if agent.reused or agent.status == "skipped":
            continue
        seconds = run.seconds_of(name)
        if agent.instances:
            timed += _timed(name, agent)
        elif seconds is not None:
            timed.append((printable(name), seconds))
    timed.sort(key=lambda each: -each[1])
    return [{"agent": name, "seconds": rounded(seconds)} for name, seconds in islice(timed, _SLOWEST)]


def _children(run: StoredRun, budget: Iterator[int], depth: int) -> dict[str, Any]:
    made = {}
    for name, agent in _own(run):
        instances = [each for each in agent.instances if each.child is not None]
        slowest = max(instances, key=lambda each: each.seconds or 0.0, default=None)
        child = agent.child or (slowest.child if slowest else None)
        if child is not None and next(budget, None) is not None:
            made[printable(slowest.name or name) if slowest and not agent.child else name] = _analyzed(
                child, budget, depth + 1
            )
    return made


ENDED: Final = frozenset({"completed", "completed_with_errors", "failed"})
"""Statuses of runs that were neither cancelled nor interrupted; only these indicate how good an ensemble is."""
_RAN: Final = frozenset({"success", "failed"})
_MOST_AGENTS: Final = 1000


def metrics(entries: Iterable[ArtifactEntry]) -> dict[str, Any]:
    """Return metrics of the runs *entries*, as JSON.

    - ``runs``: their number, and ``by_status``: the number for each status.
    - ``window``: ``since`` and ``until``, the start times of the oldest and the newest run, ISO 8601 or null.
    - ``success_rate``: the share, 0 to 1, of ``completed`` runs among those that are :data:`ENDED`; null without any.
    - ``duration_seconds`` and ``cost_usd``: ``mean``, ``median`` and ``p95`` of runs that are :data:`ENDED` and have a
      value, and their number ``count``; null without any. ``p95`` is interpolated like by
      :func:`statistics.quantiles` for a whole population.
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
    """Return the 95th percentile of *values*, of which there has to be at least one."""
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
