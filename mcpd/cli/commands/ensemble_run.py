# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ensemble run`` and ``resume``: a run in the confined server, its progress and what it delivers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import progress
from mcpd.cli.conversation import conversation
from mcpd.cli.ensemble_output import reused, summary
from mcpd.cli.ensemble_runtime import LIBRARIES, WHOM, invalid, not_configured, projects_of
from mcpd.cli.given import STDIN, origin, read_input
from mcpd.cli.home import require_own
from mcpd.cli.libraries import GUARD, MAIN, interpreter
from mcpd.cli.output import clean, note, paint, warn, write, write_json
from mcpd.errors import EXIT_FAILED, InvalidArgument, InvalidConfig, McpdError, NotFound, TimedOut
from mcpd.servers.ensembles.directories import SERVER
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Mapping

    from mcpd.cli.mcp_client import McpClient

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
        self.view = progress.view()

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
        percent = progress.UNKNOWN
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
