# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl ps`` and ``stop``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.names import SESSIONS
from mcpd.cli.output import clean, local_time, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.units import figures
from mcpd.errors import NotFound

if TYPE_CHECKING:
    import argparse

_HEADINGS: Final = ("SESSION", "SERVER", "PID", "CALLER", "STATE", "STARTED", "MEMORY", "CPU", "TASKS", "UNIT")


async def ps(args: argparse.Namespace) -> int:
    """``mcpctl ps``.

    JSON: ``{"sessions": [{session, path, server-id, unit, state, pid, owner-uid, started, memory, cpu, tasks}]}``;
    memory (bytes), cpu (seconds) and tasks are present if the control group of the unit accounts them.
    """
    async with open_bus(args) as bus:
        sessions = [_numbered(session) for session in await bus.manager.call("ListSessions")]
    used = await asyncio.to_thread(figures, sessions, system=args.system)
    sessions = [session | figure for session, figure in zip(sessions, used, strict=True)]
    if args.json:
        write_json({"sessions": sessions})
    elif sessions:
        table(_HEADINGS, [_row(session) for session in sessions])
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


def _numbered(session: dict[str, Any]) -> dict[str, Any]:
    return {"session": int(session["path"].removeprefix(SESSIONS + "/")), **session}


def _row(session: dict[str, Any]) -> list[object]:
    started = local_time(session["started"])
    memory = f"{session['memory'] / 2**20:.1f}M" if "memory" in session else ""
    cpu = f"{session['cpu']:.2f}s" if "cpu" in session else ""
    return [*(session.get(key, "") for key in ("session", "server-id", "pid", "owner-uid", "state")), started, memory,
            cpu, session.get("tasks", ""), session.get("unit", "")]  # fmt: skip
