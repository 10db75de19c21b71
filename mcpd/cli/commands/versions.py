# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl rollback``, ``history``, ``pin``, ``verify`` and ``approve``: which version of a server is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.bus.client import variant
from mcpd.cli import prompt
from mcpd.cli.commands.servers import title
from mcpd.cli.jobs import run_job
from mcpd.cli.output import clean, table, write, write_json
from mcpd.cli.registries import registry_of
from mcpd.cli.session import open_bus
from mcpd.errors import EXIT_FAILED, Cancelled, IntegrityMismatch, NotAuthorized

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mcpd.bus.client import Client


async def rollback(args: argparse.Namespace) -> int:
    """``mcpctl rollback``. JSON: the keys of the server."""
    options = {"generation": variant(args.to, "u")} if args.to else {}
    async with open_bus(args, changing=True) as bus:
        await run_job(bus, "Rollback", "sa{sv}", [args.id, options])
        await _tell(bus, args, "Went back to")
    return 0


async def history(args: argparse.Namespace) -> int:
    """``mcpctl history``. JSON: ``{"generations": [{generation, version, state, registry, resolved, …}]}``."""
    async with open_bus(args) as bus:
        generations: list[dict[str, Any]] = await bus.manager.call("GetHistory", "s", [args.id])
    if args.json:
        write_json({"generations": generations})
    else:
        table(("GENERATION", "VERSION", "STATE", "INSTALLED", "TRUST", "REGISTRY", "RESOLVED"), map(_row, generations))
    return 0


def _row(generation: Mapping[str, Any]) -> list[object]:
    from datetime import datetime  # noqa: PLC0415 - for this alone

    installed = datetime.fromtimestamp(generation.get("installed", 0)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    trust = "verified" if generation.get("verified") else "unverified"
    registry, resolved = generation.get("registry", ""), generation.get("resolved", "")
    return [
        *(generation.get(key, "") for key in ("generation", "version", "state")),
        installed,
        trust,
        registry,
        resolved,
    ]


async def pin(args: argparse.Namespace) -> int:
    """``mcpctl pin``; nothing if one of the ids is unknown. JSON: ``{"servers": [{id, version, pinned, …}]}``."""
    wanted = not args.remove
    async with open_bus(args, changing=True) as bus:
        ids = list(dict.fromkeys(args.id))
        for server_id in ids:
            await bus.manager.call("GetServer", "s", [server_id])
        for server_id in ids:
            await bus.manager.call("SetPinned", "sba{sv}", [server_id, wanted, {}])
        servers = [(await bus.manager.call("GetServer", "s", [server_id]))[0] for server_id in ids]
    if args.json:
        write_json({"servers": servers})
    else:
        for server in servers:
            write(f"{title(server)} {'stays at its version' if wanted else 'is updated again'}.")
    return 0


async def verify(args: argparse.Namespace) -> int:
    """``mcpctl verify``; fails if a server is not as it was installed.

    JSON: ``{"servers": [{id, state, problem}]}``, where ``state`` is ``intact`` or ``changed``, and ``problem`` names
    each file that is another one. Nothing is verified if one of the ids is unknown.
    """
    async with open_bus(args, changing=True) as bus:
        found = [await _verified(bus, server_id) for server_id in await _to_verify(bus, args)]
        changed = [server for server in found if server["state"] == "changed"]
        problems = [_mending(server, await registry_of(bus, server["id"])) for server in changed]
    if args.json:
        write_json({"servers": found})
    elif args.id:
        for server in found:
            if server not in changed:
                write(f"{clean(server['id'])} is as it was installed.")
    elif not changed:
        write("All servers are as they were installed.")
    if problems and not args.json:
        raise IntegrityMismatch("\n".join(problems))
    return EXIT_FAILED if changed else 0


async def _to_verify(bus: Client, args: argparse.Namespace) -> list[str]:
    """The servers that are named, else those of this instance that mcpd installed."""
    named = list(dict.fromkeys(args.id))
    for server_id in named:
        await bus.manager.call("GetServer", "s", [server_id])
    if named:
        return named
    scope = "system" if args.system else "user"
    servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{"scope": scope}])
    # What others installed has no generations, and nothing to compare it with.
    return [server["id"] for server in servers if await registry_of(bus, server["id"]) is not None]


async def _verified(bus: Client, server_id: str) -> dict[str, Any]:
    """What a job finds of *server_id*."""
    try:
        await run_job(bus, "Verify", "asa{sv}", [[server_id], {}])
    except IntegrityMismatch as error:
        # Between what it is about, and what to do about it.
        lines = [line.strip() for line in error.message.splitlines() if line.startswith("  ")]
        return {"id": server_id, "state": "changed", "problem": "\n".join(lines) or error.message}
    return {"id": server_id, "state": "intact", "problem": ""}


def _mending(server: Mapping[str, Any], registry: str | None) -> str:
    """What is wrong with *server*, which is from *registry*, and what to do about it."""
    problem = server["problem"].replace("\n", "\n  ")
    how = (
        f"'mcpctl install --reinstall {server['id']}' mends it"
        if registry
        else "'mcpctl install --reinstall' of where it came from mends it"
    )
    return f"{server['id']} is not what was installed; {how}:\n  {problem}"


async def approve(args: argparse.Namespace) -> int:
    """``mcpctl approve``. JSON: ``{"update": {generation, …}, "changes": [{tool, change, before, after}]}``."""
    async with open_bus(args, changing=True) as bus:
        update, changes = await bus.manager.call("GetPending", "s", [args.id])
        if args.json:
            write_json({"update": update, "changes": changes})
        else:
            _show_changes(args.id, update, changes)
        if args.dry_run:
            return 0
        _ask(args, update)
        options = {"generation": variant(update["generation"], "u")}
        await run_job(bus, "Approve", "sa{sv}", [args.id, options])
        if not args.json:
            await _tell(bus, args, "Now used:")
    return 0


def _show_changes(server_id: str, update: Mapping[str, Any], changes: list[dict[str, Any]]) -> None:
    from mcpd.cli.tool_diff import diff_lines  # noqa: PLC0415 - for this alone

    before, after = (clean(update.get(key, "")) for key in ("from-version", "version"))
    write(f"{clean(server_id)}: the update from {before} to {after} changes what it says of its tools:")
    for change in changes:
        for line in diff_lines(change):
            write(line)


def _ask(args: argparse.Namespace, update: Mapping[str, Any]) -> None:
    """Return if the update is approved of."""
    if args.yes:
        return
    if not prompt.terminal():
        raise NotAuthorized(f"{args.id}: the update needs your approval; give it with --yes")
    if not prompt.confirm(f"Use {clean(args.id)} {clean(update.get('version', ''))}?"):
        raise Cancelled(f"{args.id}: the update was not approved and goes on waiting")


async def _tell(bus: Client, args: argparse.Namespace, done: str) -> None:
    server, _ = await bus.manager.call("GetServer", "s", [args.id])
    if args.json:
        write_json(server)
    else:
        write(f"{done} {title(server)}.")
