# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble runs``: the runs of an ensemble, their artifacts and their averages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.commands.ensemble import find, opened, stored_run
from mcpd.cli.ensemble_runtime import cost, duration
from mcpd.cli.output import (
    clean,
    details,
    first_line,
    local_time,
    note,
    paint,
    shortened,
    table,
    warn,
    write,
    write_json,
)
from mcpd.errors import InvalidArgument, InvalidConfig, NotFound
from mcpd.servers.ensembles.artifacts.analysis import analyze, metrics
from mcpd.servers.ensembles.artifacts.places import LATEST, is_stamp
from mcpd.servers.ensembles.artifacts.store import MAX_LISTED, Artifacts
from mcpd.servers.ensembles.artifacts.stored import parse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from mcpd.servers.ensembles.artifacts.stored import ArtifactEntry, StoredRun
    from mcpd.servers.ensembles.library.library import Library


def show_run(args: argparse.Namespace, artifacts: Artifacts, artifact: str) -> int:
    """Show the run *artifact*. JSON: the result of the tool ``analyze_execution``."""
    artifact, document = stored_run(artifacts, artifact)
    run, analysis = parse(document), analyze(document)
    if args.json:
        write_json({"artifact_id": artifact, "ensemble": run.ensemble, "status": run.status, "analysis": analysis})
        return 0
    details(
        [
            ("run", artifact),
            ("state", run.status),
            ("started", local_time(run.metadata.started_at)),
            ("took", duration(run.seconds)),
            ("tokens", str(run.tokens or "")),
            ("cost", cost(run.cost_usd)),
            ("input", shortened(first_line(run.input or ""), 100)),
            ("critical path", _path(analysis)),
            ("parallelism", _parallelism(analysis)),
        ]
    )
    if run.results:
        write()
        table(
            ("AGENT", "STATE", "TOOK", "TOKENS", "COST", "TRIES", "MODEL"),
            [_agent_row(run, name) for name in run.results],
        )
    remarks = list(_remarks(analysis))
    if remarks:
        write()
    for word, colour, text in remarks:
        write(f"{paint(word, colour)} {clean(text)}")
    return 0


def _agent_row(run: StoredRun, name: str) -> tuple[object, ...]:
    agent, used = run.results[name], run.usage_of(name)
    return (
        name,
        "reused" if agent.reused else agent.status,
        duration(run.seconds_of(name)),
        used.tokens or "",
        cost(used.cost_usd),
        agent.attempts,
        (agent.model or "") + (" (fallback)" if agent.fallback else ""),
    )


def _path(analysis: dict[str, Any]) -> str:
    """Return the agents on the critical path, with their durations."""
    return " → ".join(
        f"{each['agent']} ({duration(each['seconds'])}"
        + (f", {100 * each['share']:.0f}%)" if each["share"] is not None else ")")
        for each in analysis["critical_path"]
    )


def _parallelism(analysis: dict[str, Any]) -> str:
    found = analysis["parallelism"]
    return f"{found['factor']:g} agents on average" if found and found["factor"] > 1 else ""


def _remarks(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the errors of a run and suggestions: prefix, colour, text."""
    if analysis["fault"]:
        yield "error:", "red", str(analysis["fault"]["message"])
    for each in analysis["failures"]:
        skipped = f" (skipped because of it: {', '.join(each['skipped'])})" if each["skipped"] else ""
        yield "error:", "red", f"{each['agent']}: {each['message'] or each['error'] or 'failed'}{skipped}"
    for each in analysis["suggestions"]:
        yield "hint:", "cyan", each["text"]


_HEADINGS: Final = ("RUN", "STATE", "STARTED", "TOOK", "AGENTS", "TOKENS", "COST")


def runs(args: argparse.Namespace) -> int:
    """``mcpctl ensemble runs``.

    JSON: ``{"runs": [{id, timestamp, status, started_at, duration_seconds, cost_usd, tokens, agents, errors, path}]}``,
    for one run the result of the tool ``analyze_execution``, with ``--metrics`` the resource
    ``llm-orc://metrics/NAME``.
    """
    _, library = opened(args)
    artifacts = Artifacts.of(library)
    name, _, stamp = (args.runs or "").rpartition("/")
    if name and (is_stamp(stamp) or stamp == LATEST):
        return show_run(args, artifacts, args.runs)
    if args.metrics:
        return _metrics(args, artifacts, library)
    return _list(args, artifacts, library)


def _list(args: argparse.Namespace, artifacts: Artifacts, library: Library) -> int:
    names = [_known(args.runs, artifacts, library)] if args.runs else list(artifacts.ensembles())
    found = [each for name in names for each in artifacts.listing(name, args.limit)]
    found = sorted(found, key=lambda each: each.timestamp, reverse=True)[: args.limit]
    if args.json:
        write_json({"runs": [each.payload() for each in found]})
    elif found:
        table(_HEADINGS, map(_row, found))
        for each in found:
            if each.problem:
                warn(each.problem)
    else:
        note(f"{clean(args.runs)} has not been run yet." if args.runs else "No ensemble has been run yet.")
    return 0


def _row(entry: ArtifactEntry) -> tuple[object, ...]:
    failed = f" ({entry.errors} failed)" if entry.errors else ""
    return (
        entry.id,
        entry.status,
        local_time(entry.started_at),
        duration(entry.seconds),
        f"{len(entry.agents)}{failed}",
        entry.tokens or "",
        cost(entry.cost_usd),
    )


def _metrics(args: argparse.Namespace, artifacts: Artifacts, library: Library) -> int:
    if not args.runs:
        raise InvalidArgument("--metrics needs the name of an ensemble: mcpctl ensemble runs --metrics NAME")
    name = _known(args.runs, artifacts, library)
    found = metrics(artifacts.listing(name, MAX_LISTED))
    if args.json:
        write_json({"ensemble": name, **found})
        return 0
    window, took, costs = found["window"], found["duration_seconds"] or {}, found["cost_usd"] or {}
    rate = found["success_rate"]
    details(
        [
            ("ensemble", name),
            ("runs", str(found["runs"])),
            ("by status", ", ".join(f"{count} {status}" for status, count in found["by_status"].items())),
            ("first", window["since"] or ""),
            ("last", window["until"] or ""),
            ("success rate", "" if rate is None else f"{100 * rate:.1f}%"),
            ("takes", _spread({key: duration(value) for key, value in took.items() if key != "count"})),
            ("costs", _spread({key: cost(value, "$0") for key, value in costs.items() if key != "count"})),
            ("total cost", cost(found["total_cost_usd"])),
            ("total tokens", str(found["total_tokens"] or "")),
        ]
    )
    if found["agents"]:
        write()
        rows = [
            (agent, each["runs"], each["failures"], each["skipped"], duration(each["mean_duration_seconds"]),
             cost(each["mean_cost_usd"]), each["total_tokens"] or "")
            for agent, each in found["agents"].items()
        ]  # fmt: skip
        table(("AGENT", "RUNS", "FAILED", "SKIPPED", "TAKES", "COSTS", "TOKENS"), rows)
    return 0


def _spread(values: Mapping[str, str]) -> str:
    """Format the mean, median and 95th percentile; empty if they are unknown."""
    mean, median, p95 = (values.get(key, "") for key in ("mean", "median", "p95"))
    return f"mean {mean}, median {median}, 95th percentile {p95}" if mean else ""


def _known(name: str, artifacts: Artifacts, library: Library) -> str:
    """Return the name under which the runs of the ensemble *name* are stored.

    Raises :class:`~mcpd.errors.NotFound` or :class:`~mcpd.errors.InvalidConfig` if there are neither runs nor a usable
    ensemble of that name.
    """
    try:
        found = find(library, name)
    except (InvalidConfig, NotFound):
        if artifacts.count(name):
            return name
        raise
    return artifacts.name(found.ensemble.name, library.artifact_root(found.origin))
