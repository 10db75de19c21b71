# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl update``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.cli.commands.servers import note_pending, version_change
from mcpd.cli.commands.sources import at_url, read_registries, registry_of
from mcpd.cli.jobs import Answers, run_job
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import Cancelled, McpdError, NeedsApproval, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.bus.client import Client


async def update(args: argparse.Namespace) -> int:
    """``mcpctl update``. JSON: ``{"updates": [{id, version, available-version, …}], "servers": [{id, state, …}]}``.

    ``updates`` contains the servers that were updated or, with ``--check``, can be updated. ``servers`` contains the
    outcome (see :func:`_outcome`) for each named server or, without names, for each server with news.

    Updates nothing if one of the ids is unknown. Warns about registries that cannot be read, and uses their known
    entries. Continues after a server fails, and raises the errors at the end.
    """
    failed: dict[str, McpdError] = {}
    ids = list(dict.fromkeys(args.id))
    async with open_bus(args, changing=True) as bus:
        for server_id in ids:
            await bus.manager.call("GetServer", "s", [server_id])
        is_read = await _check_registries(bus)
        servers = await _servers(bus)
        updatable = _updatable(servers, ids)
        if not args.check and (ids or updatable):
            failed = await _update_each(bus, args, ids or list(updatable))
            servers = await _servers(bus)
        named = [server for server in servers if not ids or server["id"] in ids]
        asked = [server for server in named if server["id"] not in failed]
        rest = [server for server in asked if server["id"] not in updatable]
        reasons = {
            server["id"]: reason
            for server in rest
            if (reason := await _why_not_updated(bus, server, is_named=bool(ids)))
        }
    updates = [server for server_id, server in updatable.items() if server_id not in failed]
    if args.json:
        done = "available" if args.check else "updated"
        outcomes = [_outcome(server, updatable, failed, reasons, done) for server in named]
        write_json({"updates": updates, "servers": [each for each in outcomes if ids or _is_worth_showing(each)]})
    elif args.check and updates:
        rows = [[server[key] for key in ("id", "version", "available-version", "scope")] for server in updates]
        table(("ID", "VERSION", "AVAILABLE", "SCOPE"), rows)
    elif not (updates or failed or reasons or any(server.get("pending-version") for server in asked)):
        note(f"Everything is up to date{'' if is_read else ', as far as is known'}.")
    else:
        for server in updates:
            write(f"Updated {clean(server['id'])}{version_change(server['version'], server['available-version'])}.")
    for reason in reasons.values():
        note(reason)
    note_pending(asked)
    if failed:
        first = next(iter(failed.values()))
        raise type(first)("\n".join(error.message for error in failed.values()))
    return 0


def _outcome(
    server: Mapping[str, Any],
    updatable: Mapping[str, Mapping[str, Any]],
    failed: Mapping[str, McpdError],
    reasons: Mapping[str, str],
    done: str,
) -> dict[str, str]:
    """Return the outcome for *server*: its id, versions, ``state``, and the reason for no update (``problem``).

    The state is *done* if the update succeeded, or is available; else ``failed``, ``held`` (pending for approval),
    ``pinned``, ``broken`` or ``up-to-date``.
    """
    server_id = server["id"]
    known = updatable.get(server_id, server)
    error = failed.get(server_id)
    if error is not None:
        state = "held" if isinstance(error, NeedsApproval) else "failed"
    elif server_id in updatable:
        state = done
    elif server.get("pending-version"):
        state = "held"
    elif server.get("pinned"):
        state = "pinned"
    else:
        state = "broken" if server["state"] == "broken" else "up-to-date"
    return {
        "id": server_id,
        **{key: str(known.get(key, "")) for key in ("version", "available-version")},
        "pending-version": str(server.get("pending-version", "")),
        "state": state,
        "problem": error.message if error is not None else reasons.get(server_id, ""),
    }


def _is_worth_showing(outcome: Mapping[str, str]) -> bool:
    """Return whether to show *outcome* of an unnamed server; a pinned server is shown if another version exists."""
    return outcome["state"] not in {"up-to-date", "broken"} and (
        outcome["state"] != "pinned" or bool(outcome["problem"])
    )


async def _check_registries(bus: Client) -> bool:
    """Have mcpd read the registries for updates; warn about unread ones, and return whether all were read."""
    try:
        return await read_registries(bus, "CheckUpdates")
    except (Cancelled, ServiceUnavailable):
        raise
    except McpdError as error:
        warn(f"{error.message}; there may be newer updates")
        return False


async def _why_not_updated(bus: Client, server: Mapping[str, Any], *, is_named: bool) -> str:
    """Return why *server* is not updated, or an empty text: it is pinned, or has no registry.

    Without *is_named*, return a reason only if the server is pinned and another version exists. Pending updates are
    reported by :func:`.note_pending`.
    """
    server_id, version = clean(server["id"]), server.get("version", "")
    if not (is_named or server.get("pinned")):
        return ""
    registry = await registry_of(bus, server["id"])
    is_gone = bool(registry) and not at_url(await bus.manager.call("ListSources"), registry or "")
    if server.get("pinned"):
        offered = await _offered_version(bus, server["id"], registry) if registry and not is_gone else ""
        remark = f"; its registry has {clean(offered)}" if offered not in {"", version} else ""
        if not (is_named or remark):
            return ""
        remark = f"; its registry {clean(registry)} was removed" if is_gone else remark
        version = clean(version) or "its version"
        return f"{server_id} is pinned to {version}{remark}. 'mcpctl pin --remove {server_id}' unpins it."
    if is_gone:
        return (
            f"{server_id} has no updates: its registry {clean(registry)} was removed. Add it again with 'mcpctl source"
            f" add', or install from another registry with 'mcpctl install --reinstall {server_id}'."
        )
    if registry == "" and not server.get("pending-version"):
        return f"{server_id} was not installed from a registry; install another version with --reinstall."
    return ""


async def _offered_version(bus: Client, server_id: str, registry: str) -> str:
    """Return the version of *server_id* in *registry*; empty if unknown."""
    try:
        offered = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, {"source": registry}])
    except NotFound:
        return ""
    return str(offered.get("available-version") or offered.get("version", ""))


async def _servers(bus: Client) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    return servers


def _updatable(servers: Sequence[dict[str, Any]], ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the *servers* that have an update, by id; only those in *ids* unless it is empty."""
    return {
        server["id"]: server | {"available-version": server.get("available-version", "")}
        for server in servers
        if server["state"] == "updatable" and (not ids or server["id"] in ids)
    }


async def _update_each(bus: Client, args: argparse.Namespace, ids: Sequence[str]) -> dict[str, McpdError]:
    """Update each of *ids* in a separate job, so that each question is about one server; return the errors by id."""
    failed: dict[str, McpdError] = {}
    for server_id in ids:
        try:
            options = {"consent": args.yes}
            answers = Answers(args.yes, verbose=args.verbose)
            await run_job(bus, "Update", "asa{sv}", [[server_id], options], answers=answers)
        except ServiceUnavailable:
            raise
        except McpdError as error:
            failed[server_id] = error
    return failed
