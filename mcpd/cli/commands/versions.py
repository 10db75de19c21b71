# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl rollback``, ``history``, ``pin``, ``verify`` and ``approve``: the versions of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.bus.client import variant
from mcpd.cli import user_input
from mcpd.cli.commands.servers import title, version_change
from mcpd.cli.commands.sources import registry_of
from mcpd.cli.jobs import run_job
from mcpd.cli.output import clean, local_time, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import EXIT_FAILED, Cancelled, IntegrityMismatch, NotAuthorized, NotFound, NotSupported

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from mcpd.bus.client import Client


async def rollback(args: argparse.Namespace) -> int:
    """``mcpctl rollback``. JSON: the keys of the server."""
    options = {"generation": variant(args.to, "u")} if args.to else {}
    async with open_bus(args, changing=True) as bus:
        await run_job(bus, "Rollback", "sa{sv}", [args.id, options])
        server = await _print_server(bus, args, "Rolled back to")
    if not args.json:
        server_id = clean(args.id)
        note(
            f"It is pinned, so it is not updated until 'mcpctl pin --remove {server_id}'."
            if server.get("pinned")
            else f"It is not pinned: the next update replaces it, unless you run 'mcpctl pin {server_id}'."
        )
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
    return [
        *(generation.get(key, "") for key in ("generation", "version", "state")),
        local_time(generation.get("installed", 0)),
        "verified" if generation.get("verified") else "unverified",
        *(generation.get(key, "") for key in ("registry", "resolved")),
    ]


async def pin(args: argparse.Namespace) -> int:
    """``mcpctl pin``. Changes nothing if one of the ids is unknown.

    JSON: ``{"servers": [{id, version, pinned, …}]}``.
    """
    wanted = not args.remove
    async with open_bus(args, changing=True) as bus:
        ids = list(dict.fromkeys(args.id))
        before = {server_id: (await bus.manager.call("GetServer", "s", [server_id]))[0] for server_id in ids}
        for server_id in ids:
            await bus.manager.call("SetPinned", "sba{sv}", [server_id, wanted, {}])
        servers = [(await bus.manager.call("GetServer", "s", [server_id]))[0] for server_id in ids]
    if args.json:
        write_json({"servers": servers})
    else:
        for server in servers:
            was_pinned = before[server["id"]].get("pinned", False)
            unpinned = "is no longer pinned" if was_pinned else "was not pinned"
            write(f"{title(server)} {'is pinned' if wanted else unpinned}.")
    return 0


async def verify(args: argparse.Namespace) -> int:
    """``mcpctl verify``; fails with the error of mcpd if installed files have changed.

    JSON: ``{"servers": [{id, state, problem}]}``, where ``state`` is ``intact``, ``changed`` (or no longer verifiable)
    or ``unknown`` (not installed by mcpd, or removed in the meantime), and ``problem`` is the message of mcpd. Verifies
    nothing if one of the ids is unknown.
    """
    named = list(dict.fromkeys(args.id))
    async with open_bus(args, changing=True) as bus:
        for server_id in named:
            await bus.manager.call("GetServer", "s", [server_id])
        if args.json:
            return await _verify_each(bus, named or await _recorded(bus, "system" if args.system else "user"))
        await run_job(bus, "Verify", "asa{sv}", [named, {}])
    for server_id in named:
        write(f"{clean(server_id)} is unchanged since its installation.")
    if not named:
        write("All servers are unchanged since their installation.")
    return 0


async def _recorded(bus: Client, scope: str) -> list[str]:
    """Return the ids of the servers in *scope* that mcpd installed; only these have recorded hashes."""
    servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{"scope": scope}])
    return [server["id"] for server in servers if await registry_of(bus, server["id"]) is not None]


async def _verify_each(bus: Client, server_ids: list[str]) -> int:
    """Verify each of *server_ids* in a separate job, print the results as JSON, and return the exit status."""
    found: list[dict[str, str]] = []
    for server_id in server_ids:
        state, problem = "intact", ""
        try:
            await run_job(bus, "Verify", "asa{sv}", [[server_id], {}], about=server_id)
        except (IntegrityMismatch, NotSupported, NotFound) as error:
            state, problem = "changed" if isinstance(error, IntegrityMismatch) else "unknown", error.message
        found.append({"id": server_id, "state": state, "problem": problem})
    write_json({"servers": found})
    return EXIT_FAILED if any(server["problem"] for server in found) else 0


async def approve(args: argparse.Namespace) -> int:
    """``mcpctl approve``. JSON: ``{"update": {generation, …}, "changes": [{tool, change, before, after}]}``.

    With ``--drop`` the pending update is removed. JSON: the keys of the server.
    """
    async with open_bus(args, changing=True) as bus:
        if args.drop:
            await run_job(bus, "Approve", "sa{sv}", [args.id, {"drop": True}])
            await _print_server(bus, args, "Removed the pending update; still active:")
            return 0
        update, changes = await bus.manager.call("GetPending", "s", [args.id])
        if args.json:
            write_json({"update": update, "changes": changes})
        else:
            _show_changes(args.id, update, changes)
        if args.dry_run:
            return 0
        _require_approval(args, update)
        options = {"generation": variant(update["generation"], "u")}
        await run_job(bus, "Approve", "sa{sv}", [args.id, options])
        if not args.json:
            await _print_server(bus, args, "Now active:")
    return 0


def _show_changes(server_id: str, update: Mapping[str, Any], changes: list[dict[str, Any]]) -> None:
    from mcpd.cli.tool_diff import diff_lines

    versions = version_change(update.get("from-version", ""), update.get("version", ""))
    write(f"{clean(server_id)}: the update{versions} changes its tools:")
    for change in changes:
        for line in diff_lines(change):
            write(line)


def _require_approval(args: argparse.Namespace, update: Mapping[str, Any]) -> None:
    """Ask for approval of the update; raise :class:`~mcpd.errors.McpdError` if it is not given."""
    if args.yes:
        return
    if not user_input.terminal():
        raise NotAuthorized(f"{args.id}: the update needs your approval; approve it with --yes")
    if not user_input.confirm(f"Use {clean(args.id)} {clean(update.get('version', ''))}?"):
        raise Cancelled(
            f"{args.id}: the update was not approved and stays pending; 'mcpctl approve --drop {args.id}' removes it"
        )


async def _print_server(bus: Client, args: argparse.Namespace, done: str) -> dict[str, Any]:
    """Print *done* with the server, or the server as JSON; return its keys."""
    server: dict[str, Any] = (await bus.manager.call("GetServer", "s", [args.id]))[0]
    if args.json:
        write_json(server)
    else:
        write(f"{done} {title(server)}.")
    return server
