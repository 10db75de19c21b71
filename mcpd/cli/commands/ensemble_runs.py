# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble runs``: what runs have left, what it was like, and what they take on average."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.cli.commands.ensemble import find, opened
from mcpd.cli.commands.ensemble_analysis import one
from mcpd.cli.ensemble_output import cost, duration, when
from mcpd.cli.output import clean, details, note, table, warn, write, write_json
from mcpd.errors import InvalidArgument, InvalidConfig, NotFound
from mcpd.servers.ensembles.artifacts.metrics import metrics
from mcpd.servers.ensembles.artifacts.places import LATEST, is_stamp
from mcpd.servers.ensembles.artifacts.store import MAX_LISTED, Artifacts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mcpd.servers.ensembles.artifacts.entries import ArtifactEntry
    from mcpd.servers.ensembles.library.library import Library

_HEADINGS: Final = ("RUN", "STATE", "STARTED", "TOOK", "AGENTS", "TOKENS", "COST")


def runs(args: argparse.Namespace) -> int:
    """``mcpctl ensemble runs``.

    JSON: ``{"runs": [{id, timestamp, status, started_at, duration_seconds, cost_usd, tokens, agents, errors, path}]}``,
    of one run what the tool ``analyze_execution`` gives, and with ``--metrics`` what ``llm-orc://metrics/NAME`` holds.
    """
    _, library = opened(args)
    artifacts = Artifacts.of(library)
    name, _, stamp = (args.runs or "").rpartition("/")
    if name and (is_stamp(stamp) or stamp == LATEST):
        return one(args, artifacts, args.runs)
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
        when(entry.started_at),
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
            ("of these", ", ".join(f"{count} {status}" for status, count in found["by_status"].items())),
            ("first", window["since"] or ""),
            ("last", window["until"] or ""),
            ("success rate", "" if rate is None else f"{100 * rate:.1f} %"),
            ("takes", _spread({key: duration(value) for key, value in took.items() if key != "count"})),
            ("costs", _spread({key: cost(value, "$0") for key, value in costs.items() if key != "count"})),
            ("cost of all", cost(found["total_cost_usd"])),
            ("tokens of all", str(found["total_tokens"] or "")),
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
    """The mean with what is said beside it; nothing if nothing is known."""
    mean, median, p95 = (values.get(key, "") for key in ("mean", "median", "p95"))
    return f"{mean} on average, half at most {median}, 95 % at most {p95}" if mean else ""


def _known(name: str, artifacts: Artifacts, library: Library) -> str:
    """The name that the runs of the ensemble *name* go by, which has some or is there.

    Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` for one that cannot be used.
    """
    try:
        found = find(library, name)
    except (InvalidConfig, NotFound):
        if artifacts.count(name):
            return name
        raise
    return artifacts.name(found.ensemble.name, library.artifact_root(found.origin))
