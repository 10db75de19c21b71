# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``mcpctl ensemble runs ID`` says of one run: its agents, what determined its time, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.cli.commands.ensemble import kept
from mcpd.cli.ensemble_output import cost, duration, when
from mcpd.cli.output import clean, details, paint, table, write, write_json
from mcpd.servers.ensembles.artifacts.analysis import analyze
from mcpd.servers.ensembles.artifacts.stored import parse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from mcpd.servers.ensembles.artifacts.store import Artifacts
    from mcpd.servers.ensembles.artifacts.stored import StoredRun


def one(args: argparse.Namespace, artifacts: Artifacts, artifact: str) -> int:
    """Show the run *artifact*. JSON: what the tool ``analyze_execution`` gives."""
    artifact, document = kept(artifacts, artifact)
    run, analysis = parse(document), analyze(document)
    if args.json:
        write_json({"artifact_id": artifact, "ensemble": run.ensemble, "status": run.status, "analysis": analysis})
        return 0
    details(
        [
            ("run", artifact),
            ("state", run.status),
            ("started", when(run.metadata.started_at)),
            ("took", duration(run.seconds)),
            ("tokens", str(run.tokens or "")),
            ("cost", cost(run.cost_usd)),
            ("input", _first_line(run.input)),
            ("critical path", _path(analysis)),
            ("side by side", _parallelism(analysis)),
        ]
    )
    if run.results:
        write()
        table(("AGENT", "STATE", "TOOK", "TOKENS", "COST", "TRIES", "MODEL"), [_row(run, name) for name in run.results])
    said = list(_said(analysis))
    if said:
        write()
    for word, colour, text in said:
        write(f"{paint(word, colour)} {clean(text)}")
    return 0


def _row(run: StoredRun, name: str) -> tuple[object, ...]:
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
    """The agents that determined when it ended, with what each took."""
    return " → ".join(
        f"{each['agent']} ({duration(each['seconds'])}"
        + (f", {100 * each['share']:.0f} %)" if each["share"] is not None else ")")
        for each in analysis["critical_path"]
    )


def _parallelism(analysis: dict[str, Any]) -> str:
    found = analysis["parallelism"]
    return f"{found['factor']:g} agents on average" if found and found["factor"] > 1 else ""


def _said(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What went wrong, and what could be done about the run."""
    if analysis["fault"]:
        yield "error:", "red", str(analysis["fault"]["message"])
    for each in analysis["failures"]:
        skipped = f" (not run for that: {', '.join(each['skipped'])})" if each["skipped"] else ""
        yield "error:", "red", f"{each['agent']}: {each['message'] or each['error'] or 'failed'}{skipped}"
    for each in analysis["suggestions"]:
        yield "hint:", "cyan", each["text"]


def _first_line(text: str | None) -> str:
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= 100 else line[:99] + "…"
