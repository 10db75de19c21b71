# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble run`` and ``resume``: a run in the confined server, with its progress and result."""

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
from mcpd.cli.conversation import conversation
from mcpd.cli.ensemble_runtime import (
    CONSUMER,
    LIBRARIES,
    invalid,
    not_configured,
    projects_of,
    reused,
    summary,
)
from mcpd.cli.home import require_own
from mcpd.cli.libraries import GUARD, MAIN, interpreter
from mcpd.cli.output import clean, note, paint, warn, write_json, write_text
from mcpd.cli.user_input import STDIN, origin, read_input
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound, TimedOut
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Mapping

    from mcpd.mcp_client import McpClient


MAX_INPUT: Final = 1024 * 1024
"""Maximum bytes of an ensemble's input."""
_GRACE: Final = 10.0
"""Seconds for a cancelled run to be stored."""
_SHOWN: Final = 200
"""Maximum characters shown of a progress message."""
_NAMED: Final = 20
"""Maximum number of agents named in one line."""
_ID: Final = re.compile(
    r"(?:(?P<where>(?!(?:.*/)?\.{1,2}/)[^\0]{1,255})/)?"
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,127}/(?:latest|\d{8}-\d{6}-\d{3}))",
    re.ASCII,
)
"""The id of a run, optionally with the project or tier of its ensemble."""


def run(args: argparse.Namespace) -> int | Coroutine[object, object, int]:
    """``mcpctl ensemble run``: return 1 unless all agents succeed. JSON: the result of the tool ``invoke``."""
    require_own()
    found = _described(args)
    if isinstance(found, int):
        return found
    if not found["configured"]:
        raise not_configured(f"the ensemble {found['name']}", Path(found["project"]), projects_of(args))
    arguments = {"ensemble_name": found["qualified"], "input": _input(args, found)}
    return _run(args, args.ensemble, "invoke", arguments)


def resume(args: argparse.Namespace) -> Coroutine[object, object, int]:
    """``mcpctl ensemble resume``; 1 unless all agents succeed. JSON: the result of the tool ``resume_execution``."""
    found = _ID.fullmatch(args.run_id)
    if found is None:
        raise InvalidArgument(
            f"{args.run_id!r} is not the id of a run, such as review/20260131-120000-000; 'mcpctl ensemble runs' lists"
            " them"
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


def _described(args: argparse.Namespace) -> dict[str, Any] | int:
    """Return the output of ``mcpctl ensemble show --json``, or its exit status if it fails.

    The libraries that read ensembles may be in another Python environment than the one that starts servers.
    """
    python = interpreter(LIBRARIES, CONSUMER)
    if python is None:
        from mcpd.cli.commands.ensemble import about  # its imports may be missing

        return about(args)
    return _described_by(python, args)


def _described_by(python: str, args: argparse.Namespace) -> dict[str, Any] | int:
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
    """Return the input of the ensemble; empty if it has a default task.

    Raises :class:`~mcpd.errors.InvalidArgument` if the input is too long, not UTF-8 or missing.
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
        raise InvalidArgument(f"{what} is not UTF-8 text") from None
    if not text.strip() and found["needs_input"]:
        raise InvalidArgument(f"the ensemble {found['name']} needs input: pass INPUT or --input-file, or pipe it in")
    return text


async def _run(args: argparse.Namespace, name: str, tool: str, arguments: Mapping[str, object]) -> int:
    """Call *tool*, which runs the ensemble *name*; show its progress and print its result."""
    run_view = _RunView(args, name)
    try:
        execution = await _within(args, run_view, tool, arguments)
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
        run_view.view.pause()
    if args.json:
        write_json(execution)
    elif execution.get("deliverable") is not None:
        write_text(str(execution["deliverable"]))
    _note_errors(execution)
    if not args.quiet:
        _note_reused(execution)
        note(summary(execution))
    return 0 if execution.get("status") == "completed" else EXIT_FAILED


async def _within(
    args: argparse.Namespace, run_view: _RunView, tool: str, arguments: Mapping[str, object]
) -> dict[str, Any]:
    """Start the server and call *tool*; return its result. Each of the two steps has ``args.timeout`` seconds.

    Raises :class:`~mcpd.errors.TimedOut`, and the errors of starting the server and of the call.
    """
    failure = f"{SERVER} did not start within"
    try:
        async with (
            asyncio.timeout(args.timeout) as limit,
            conversation(args, SERVER, None, run_view.notified) as client,
        ):
            if args.verbose:
                await client.request("logging/setLevel", {"level": "info"})
            if args.timeout is not None:
                limit.reschedule(asyncio.get_running_loop().time() + args.timeout)
            failure = f"{run_view.name} was cancelled after"
            found = _execution(await _called(client, run_view, tool, arguments))
            # Stopping the server has a timeout of its own.
            limit.reschedule(None)
            return found
    except TimeoutError:
        raise TimedOut(f"{failure} {args.timeout:g} s; --timeout allows more") from None


async def _called(client: McpClient, run_view: _RunView, tool: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Call *tool* and return its result. If cancelled, cancel the run and give it some seconds to be stored."""
    options = {"output_format": "json", "streaming": run_view.enabled}
    call = client.call(tool, {**arguments, **options}, progress=run_view.enabled, grace=_GRACE)
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        run_view.view.pause()
        note("cancelling")
        task.cancel()
        await asyncio.wait([task])
        note(f"The partial run is kept; 'mcpctl ensemble runs {run_view.name}' shows it.")
        raise
    return task.result()


class _RunView:
    """Shows the notifications of the server while the ensemble *name* runs."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.name = name
        self.enabled = not args.quiet
        self.view = jobs.view()

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """Handle a notification."""
        if not self.enabled:
            return
        if method == "notifications/progress":
            self._progressed(params)
        elif method == "notifications/message":
            self._logged(params.get("data"))

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

    def _logged(self, data: object) -> None:
        """Show the response of an agent that has ended, below its name."""
        if not isinstance(data, dict) or not data.get("agent"):
            return
        text = data.get("response") or data.get("error")
        if text is None:
            return
        self.view.pause()
        note(paint(f"--- {clean(data['agent'])}", "bold", sys.stderr))
        note(clean(text, lines=True).rstrip("\n"))


def _execution(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run in the *result* of a tool; raise McpdError if the tool failed."""
    found = result.get("structuredContent")
    if isinstance(found, dict) and "status" in found:
        return dict(found)
    content = result.get("content")
    texts = (
        [str(each.get("text", "")) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    )
    raise McpdError(f"{SERVER}: " + ("\n".join(texts).strip() or "the response contains no run"))


def _note_reused(execution: Mapping[str, Any]) -> None:
    """Print the agents whose responses were reused from an earlier run."""
    found = reused(execution)
    if found and len(found) == len(execution["results"]):
        note("Nothing left to do: all responses were reused from the earlier run.")
    elif found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        note(clean(f"reused: {', '.join(found[:_NAMED])}{more}"))


def _note_errors(execution: Mapping[str, Any]) -> None:
    """Print one line for each failed agent, for the error that ended the run, and for incomplete results."""
    results = execution.get("results")
    for agent, each in results.items() if isinstance(results, dict) else ():
        if isinstance(each, dict) and each.get("status") == "failed":
            _note_error(f"{agent}: {each.get('error') or 'failed'}")
    if execution.get("error"):
        _note_error(execution["error"])
    if execution.get("cut"):
        warn(f"responses are truncated here; see execution.json of {execution.get('artifact_id')} for all of them")
    if execution.get("not_kept"):
        warn(f"the run was only partly stored: {execution['not_kept']}")
    plexus = execution.get("plexus")
    if isinstance(plexus, dict) and plexus.get("error"):
        warn(f"the run was not reported to Plexus: {plexus['error']}")


def _note_error(text: object) -> None:
    note(f"{paint('error:', 'red', sys.stderr)} {clean(text)}")
