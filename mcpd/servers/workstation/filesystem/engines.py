# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the two search engines, and end them as soon as there are enough matches."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, McpdError
from mcpd.model import printable
from mcpd.servers.workstation.filesystem import ripgrep, scanning
from mcpd.servers.workstation.processes import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.filesystem.matches import Matches
    from mcpd.servers.workstation.filesystem.ripgrep import Sources
    from mcpd.servers.workstation.filesystem.walking import Query
    from mcpd.servers.workstation.jail import Place
    from mcpd.servers.workstation.processes import Completed

_KEPT: Final = 64 * 1024
"""Bytes of output to keep, in addition to the lines that are parsed."""


async def with_ripgrep(call: Call, query: Query, directory: Place, matches: Matches, sources: Sources) -> None:
    """Pass to *matches* what ripgrep finds for *query* in *directory*, verified with *sources*. Raises McpdError."""
    argv, stdin = ripgrep.started(query)
    events = ripgrep.Events(matches, sources, multiline=query.multiline)
    reported = 0

    def take(line: bytes) -> None:
        nonlocal reported
        events.take(line)
        if matches.files > reported:
            reported = matches.files
            call.report(reported, None, f"{reported} files with matches")

    done = await _run(call, Command(argv, directory, stdin=stdin, keep="tail", most=_KEPT), matches, take)
    # 2 is also the status of a search that could not read something.
    if done is not None and (done.code > 2 or (done.code == 2 and done.stderr)):
        complaint = printable(ripgrep.complaint(done.stderr))
        if done.code == 2:
            raise InvalidArgument(f"pattern '{printable(query.pattern)}': {complaint}")
        raise McpdError(f"ripgrep ended with the status {done.code}: {complaint}")


async def without_ripgrep(call: Call, query: Query, directory: Place, matches: Matches) -> None:
    """Do the same with the built-in engine, which also searches names."""
    argv, readable, stdin = scanning.started(query)
    faults: list[str] = []

    def take(line: bytes) -> None:
        # An incomplete line is the last one of a program that was ended.
        if not line.endswith(b"}"):
            return
        said: dict[str, Any] = json.loads(line)
        if said["kind"] == "walked":
            call.report(said["entries"], None, f"{said['entries']} names seen")
        elif said["kind"] == "begin":
            matches.begin(said["path"])
        elif said["kind"] == "end":
            matches.end(binary=said["binary"])
        elif said["kind"] == "name":
            matches.name(said["path"], said["type"])
        elif said["kind"] == "fault":
            faults.append(said["message"])
        else:
            matches.line(said["line"], said["text"], column=said["column"], match=said["kind"] == "match")

    command = Command(argv, directory, readable=readable, stdin=stdin, keep="tail", most=_KEPT)
    done = await _run(call, command, matches, take)
    if faults:
        raise InvalidArgument(f"pattern '{printable(query.pattern)}': {printable(faults[0])}")
    if done is not None and done.code != 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise McpdError(f"the search ended with the status {done.code}: {printable(said)}")


async def _run(call: Call, command: Command, matches: Matches, take: Callable[[bytes], None]) -> Completed | None:
    """Run *command* and call *take* with each line; return None if it was ended because *matches* are full."""
    full = asyncio.Event()

    def on_line(line: bytes) -> None:
        if not matches.full:
            take(line)
        if matches.full:
            full.set()

    running = asyncio.ensure_future(call.run(replace(command, on_line=on_line)))
    enough = asyncio.ensure_future(full.wait())
    try:
        await asyncio.wait((running, enough), return_when=asyncio.FIRST_COMPLETED)
    finally:
        enough.cancel()
        # On cancellation, wait until all processes of the command have ended.
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
    return None if full.is_set() and running.cancelled() else running.result()
