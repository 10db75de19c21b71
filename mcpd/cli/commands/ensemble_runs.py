# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble run``, ``resume`` and ``runs``: runs in the confined server, and what they have left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import jobs
from mcpd.cli.commands.ensemble import find, kept, opened
from mcpd.cli.ensemble_runtime import (
    LIBRARIES,
    WHOM,
    cost,
    duration,
    invalid,
    not_configured,
    projects_of,
    reused,
    summary,
    when,
)
from mcpd.cli.home import require_own
from mcpd.cli.libraries import GUARD, MAIN, interpreter
from mcpd.cli.mcp_client import conversation
from mcpd.cli.output import clean, details, note, paint, table, warn, write, write_json
from mcpd.cli.user_input import STDIN, origin, read_input
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound, TimedOut
from mcpd.servers.ensembles.artifacts.analysis import analyze
from mcpd.servers.ensembles.artifacts.metrics import metrics
from mcpd.servers.ensembles.artifacts.places import LATEST, is_stamp
from mcpd.servers.ensembles.artifacts.store import MAX_LISTED, Artifacts
from mcpd.servers.ensembles.artifacts.stored import parse
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Iterator, Mapping

    from mcpd.cli.mcp_client import McpClient
    from mcpd.servers.ensembles.artifacts.entries import ArtifactEntry
    from mcpd.servers.ensembles.artifacts.stored import StoredRun
    from mcpd.servers.ensembles.library.library import Library


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
        table(
            ("AGENT", "STATE", "TOOK", "TOKENS", "COST", "TRIES", "MODEL"),
            [_agent_row(run, name) for name in run.results],
        )
    said = list(_said(analysis))
    if said:
        write()
    for word, colour, text in said:
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


MAX_INPUT: Final = 1024 * 1024
"""Bytes of what an ensemble works on."""
_GRACE: Final = 10.0
"""Seconds that a cancelled run may take to be recorded."""
_SHOWN: Final = 200
"""Characters of what an agent's progress says."""
_NAMED: Final = 20
"""Agents that one line names."""
_ID: Final = re.compile(
    r"(?:(?P<where>(?!(?:.*/)?\.{1,2}/)[^\0]{1,255})/)?"
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,127}/(?:latest|\d{8}-\d{6}-\d{3}))",
    re.ASCII,
)
"""The id of a run, perhaps with the project or tier of its ensemble."""


def run(args: argparse.Namespace) -> int | Coroutine[object, object, int]:
    """``mcpctl ensemble run``; 1 unless all agents did what they should. JSON: what the tool ``invoke`` gives."""
    require_own()
    found = _about(args)
    if isinstance(found, int):
        return found
    if not found["configured"]:
        raise not_configured(f"the ensemble {found['name']}", Path(found["project"]), projects_of(args))
    arguments = {"ensemble_name": found["qualified"], "input": _input(args, found)}
    return _run(args, args.ensemble, "invoke", arguments)


def resume(args: argparse.Namespace) -> Coroutine[object, object, int]:
    """``mcpctl ensemble resume``; 1 unless all agents did what they should. JSON: what ``resume_execution`` gives."""
    found = _ID.fullmatch(args.run_id)
    if found is None:
        raise InvalidArgument(
            f"{args.run_id!r} is no run; 'mcpctl ensemble runs' lists them, such as review/20260131-120000-000"
        )
    projects = projects_of(args)
    own = projects.own
    if (
        own is not None
        and not projects.has(own)
        and str(own).endswith("" if found["where"] is None else f"/{found['where'].lstrip('/')}")
        and (own / DIRECTORY / "artifacts" / found["run"]).is_dir()
    ):
        raise not_configured(f"the run {args.run_id}", own, projects)
    return _run(args, args.run_id.rpartition("/")[0], "resume_execution", {"artifact_id": args.run_id})


def _about(args: argparse.Namespace) -> dict[str, Any] | int:
    """What ``mcpctl ensemble show --json`` says; its exit status if it fails.

    What starts servers is in one environment, and what reads ensembles may be in another.
    """
    python = interpreter(LIBRARIES, WHOM)
    if python is None:
        from mcpd.cli.commands.ensemble import about  # noqa: PLC0415 - what it imports may not be there

        return about(args)
    return _about_from(python, args)


def _about_from(python: str, args: argparse.Namespace) -> dict[str, Any] | int:
    scope = "--system" if args.system else "--user"
    project = () if args.project is None else ("--project", args.project)
    argv = [python, *MAIN, scope, "ensemble", "show", "--json", *project, "--", args.ensemble]
    environ = os.environ | {GUARD: "1"}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=False)
    if done.returncode:
        return done.returncode
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _input(args: argparse.Namespace, found: Mapping[str, Any]) -> str:
    """What the ensemble shall work on; nothing if it knows that by itself.

    Raises :class:`~mcpd.errors.InvalidArgument` if it is too long, no text or missing.
    """
    if args.input is not None and args.input != STDIN:
        what, data = "the input", os.fsencode(args.input)
    elif args.input is None and args.input_file is None and sys.stdin.isatty():
        what, data = "the input", b""
    else:
        name = args.input_file or STDIN
        what, data = origin(name), read_input(name, MAX_INPUT)
    if len(data) > MAX_INPUT:
        raise InvalidArgument(f"{what} is larger than {MAX_INPUT} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{what} is no text in UTF-8") from None
    if not text.strip() and found["needs_input"]:
        raise InvalidArgument(
            f"the ensemble {found['name']} needs something to work on: give INPUT, --input-file or standard input"
        )
    return text


async def _run(args: argparse.Namespace, name: str, tool: str, arguments: Mapping[str, object]) -> int:
    """Call *tool*, which runs the ensemble *name*, show how far it is, and print its result."""
    hearer = _Hearer(args, name)
    try:
        execution = await _within(args, hearer, tool, arguments)
    except NotFound as fault:
        raise NotFound(f"{fault.message}; {SERVER} comes with the package mcpd-servers") from fault
    except McpdError as fault:
        error = (fault.data or {}).get("error")
        if error == NotFound.__name__:
            raise NotFound(fault.message) from fault
        if error == InvalidConfig.__name__:
            raise invalid(InvalidConfig(fault.message), name) from fault
        raise
    finally:
        hearer.view.close()
    if args.json:
        write_json(execution)
    else:
        _print_deliverable(execution.get("deliverable"))
    _say_errors(execution)
    if not args.quiet:
        _say_reused(execution)
        note(summary(execution))
    return 0 if execution.get("status") == "completed" else EXIT_FAILED


async def _within(
    args: argparse.Namespace, hearer: _Hearer, tool: str, arguments: Mapping[str, object]
) -> dict[str, Any]:
    """What *tool* says of the run, for which there are ``args.timeout`` seconds, and as many for the server's start.

    Raises :class:`~mcpd.errors.TimedOut`, and what else starting the server and calling it raises.
    """
    said = f"{SERVER} did not start in"
    try:
        async with asyncio.timeout(args.timeout) as limit, conversation(args, SERVER, None, hearer.heard) as client:
            if args.verbose:
                await client.request("logging/setLevel", {"level": "info"})
            if args.timeout is not None:
                limit.reschedule(asyncio.get_running_loop().time() + args.timeout)
            said = f"{hearer.name} was cancelled after"
            found = _execution(await _called(client, hearer, tool, arguments))
            # Only the server's end is left, which has a limit of its own.
            limit.reschedule(None)
            return found
    except TimeoutError:
        raise TimedOut(f"{said} {args.timeout:g} s; --timeout gives it more") from None


async def _called(client: McpClient, hearer: _Hearer, tool: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    """The result of *tool*. When this is cancelled so is the run, which has some seconds to be recorded."""
    options = {"output_format": "json", "streaming": hearer.listens}
    call = client.call(tool, {**arguments, **options}, progress=hearer.listens, grace=_GRACE)
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        hearer.view.close()
        note("cancelling")
        task.cancel()
        await asyncio.wait([task])
        note(f"What it has reached is kept; 'mcpctl ensemble runs {hearer.name}' shows it.")
        raise
    return task.result()


class _Hearer:
    """Shows what the server tells while the ensemble *name* runs."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.name = name
        self.listens = not args.quiet
        self.view = jobs.view()

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """A notification."""
        if not self.listens:
            return
        if method == "notifications/progress":
            self._progressed(params)
        elif method == "notifications/message":
            self._said(params.get("data"))

    def _progressed(self, params: Mapping[str, Any]) -> None:
        done, total = params.get("progress"), params.get("total")
        percent = jobs.UNKNOWN
        if isinstance(done, int | float) and isinstance(total, int | float) and 0 <= done <= total > 0:
            percent = int(100 * done / total)
        self.view.show(
            {
                "ServerId": self.name,
                "State": str(params.get("message") or "running")[:_SHOWN],
                "Progress": percent,
            }
        )

    def _said(self, data: object) -> None:
        """An agent has ended; its response is shown with its name above it."""
        if not isinstance(data, dict) or not data.get("agent"):
            return
        text = data.get("response") or data.get("error")
        if text is None:
            return
        self.view.pause()
        note(paint(f"--- {clean(data['agent'])}", "bold", sys.stderr))
        note(clean(text, lines=True).rstrip("\n"))


def _execution(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the tool says of the run. Raises McpdError if it says that it could not run it."""
    found = result.get("structuredContent")
    if isinstance(found, dict) and "status" in found:
        return dict(found)
    content = result.get("content")
    texts = (
        [str(each.get("text", "")) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    )
    raise McpdError(f"{SERVER}: " + ("\n".join(texts).strip() or "the answer says nothing of the run"))


def _print_deliverable(text: object) -> None:
    if text is None:
        return
    shown = str(text).removesuffix("\n")
    write(clean(shown, lines=True) if sys.stdout.isatty() else shown)


def _say_reused(execution: Mapping[str, Any]) -> None:
    """One line on the agents that have not run, as an earlier run has their responses."""
    found = reused(execution)
    if found and len(found) == len(execution["results"]):
        note("There was nothing left to do: all responses are those of the earlier run.")
    elif found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        note(clean(f"reused: {', '.join(found[:_NAMED])}{more}"))


def _say_errors(execution: Mapping[str, Any]) -> None:
    """One line for each agent that failed, for what ended the run, and for what there is more, or less, of."""
    results = execution.get("results")
    for agent, each in results.items() if isinstance(results, dict) else ():
        if isinstance(each, dict) and each.get("status") == "failed":
            _say_error(f"{agent}: {each.get('error') or 'failed'}")
    if execution.get("error"):
        _say_error(execution["error"])
    if execution.get("cut"):
        warn(f"responses are cut short here; execution.json of {execution.get('artifact_id')} has all of them")
    if execution.get("not_kept"):
        warn(f"the run is not kept as a whole: {execution['not_kept']}")
    plexus = execution.get("plexus")
    if isinstance(plexus, dict) and plexus.get("error"):
        warn(f"Plexus has not heard of the run: {plexus['error']}")


def _say_error(text: object) -> None:
    note(f"{paint('error:', 'red', sys.stderr)} {clean(text)}")
