# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ps``, ``stop`` and ``logs``."""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.names import SESSIONS
from mcpd.cli.output import clean, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import NotFound, NotSupported, ServiceUnavailable

if TYPE_CHECKING:
    import argparse

_JOURNAL: Final = Path("/run/systemd/journal/socket")


async def ps(args: argparse.Namespace) -> int:
    """``mcpctl ps``. JSON: ``{"sessions": [{session, path, server-id, unit, state, pid, owner-uid, started}]}``."""
    async with open_bus(args) as bus:
        sessions = [_numbered(session) for session in await bus.manager.call("ListSessions")]
    if args.json:
        write_json({"sessions": sessions})
    elif sessions:
        table(("SESSION", "SERVER", "PID", "UID", "STATE", "STARTED", "UNIT"), [_row(session) for session in sessions])
    else:
        note("No servers are running.")
    return 0


async def stop(args: argparse.Namespace) -> int:
    """``mcpctl stop``."""
    async with open_bus(args, changing=True) as bus:
        sessions = [_numbered(session) for session in await bus.manager.call("ListSessions")]
        if args.session.isascii() and args.session.isdigit():
            chosen = [session for session in sessions if session["session"] == int(args.session)]
        else:
            chosen = [session for session in sessions if session["server-id"] == args.session]
        if not chosen:
            raise NotFound(f"{args.session!r} is neither a session nor the id of a running server; see 'mcpctl ps'")
        for session in chosen:
            await bus.session(session["path"]).call("Stop", "a{sv}", [{}])
            write(f"Stopped {clean(session['server-id'])} (session {session['session']}).")
    return 0


async def logs(args: argparse.Namespace) -> int:
    """``mcpctl logs``: becomes journalctl. What a directly run server wrote went to its client instead."""
    unasked = False
    try:
        async with open_bus(args) as bus:
            await bus.manager.call("GetServer", "s", [args.id])
    except ServiceUnavailable:
        unasked = True
    program = shutil.which("journalctl")
    if program is None or not _JOURNAL.exists():
        raise NotSupported(
            "this system has no journal, so mcpd's own output holds what servers wrote; see where mcpd was started"
        )
    if unasked:
        note("mcpd does not answer; the journal is shown nevertheless.")
    argv = [program, *_follow(args), f"MCP_SERVER_ID={args.id}"]
    os.execv(program, argv)  # noqa: S606 - argv of our own, and no shell is wanted


def _follow(args: argparse.Namespace) -> list[str]:
    return [*(["-n", str(args.lines)] if args.lines else []), *(["-f"] if args.follow else [])]


def _numbered(session: dict[str, Any]) -> dict[str, Any]:
    return {"session": int(session["path"].removeprefix(SESSIONS + "/")), **session}


def _row(session: dict[str, Any]) -> list[object]:
    started = datetime.fromtimestamp(session["started"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return [*(session.get(key, "") for key in ("session", "server-id", "pid", "owner-uid", "state")), started,
            session.get("unit", "")]  # fmt: skip
