# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl install``, ``remove``, ``update`` and ``refresh``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mcpd.cli import prompt
from mcpd.cli.commands.servers import tell_waiting, title
from mcpd.cli.jobs import Answers, foresee_job, run_job
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.cli.registries import read_registries, registry_of, warn_of_origin
from mcpd.cli.session import open_bus
from mcpd.cli.target_archives import sending
from mcpd.cli.targets import Target, Wishes, target_of
from mcpd.cli.values import guess_value, parse_pairs
from mcpd.errors import EXIT_FAILED, Cancelled, InvalidArgument, McpdError, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.bus.client import Client


class _Call(NamedTuple):
    """What starts an installation."""

    member: str
    signature: str
    args: list[object]
    fds: list[int]


async def install(args: argparse.Namespace) -> int:
    """``mcpctl install``. JSON: the keys of the server; with ``--dry-run`` ``{"id", "plan": [{kind, key, …}]}``."""
    target = target_of(args.target, _wishes(args))
    if args.source and (target.manifest is not None or target.bundle is not None):
        raise InvalidArgument(f"{args.target!r} is not from a registry; leave out --source")
    secrets = {key: prompt.read_secret(name) for key, name in args.secret_files}
    options: dict[str, object] = {"consent": args.yes and not args.dry_run, "reinstall": args.reinstall}
    options |= {"config": _config(args.settings, target.manifest)}
    options |= {key: value for key, value in (("source", args.source), ("signature", target.signature)) if value}
    options |= {"dry-run": True} if args.dry_run else {}
    async with open_bus(args, changing=True) as bus:
        if target.manifest is None and target.bundle is None:
            await _warn_of_registry(bus, target.id, args.source)
        with _call(target, options, args.sha256 or "") as call:
            if args.dry_run:
                return await _foresee(bus, call, target, as_json=args.json)
            answers = Answers(args.yes, frozenset(args.permissions), secrets, takes_values=True)
            with _ways_out():
                server_id = await run_job(bus, *call[:3], fds=call.fds, answers=answers) or target.id
        for key, secret in answers.secrets.items():
            with prompt.memfd(secret, "secret") as fd:
                await bus.manager.call("SetSecret", "ssha{sv}", [server_id, key, 0, {}], fds=[fd])
        server, _ = await bus.manager.call("GetServer", "s", [server_id])
    if args.json:
        write_json(server)
    else:
        write(f"Installed {title(server)}.")
    return 0


def _wishes(args: argparse.Namespace) -> Wishes:
    return Wishes(
        id=args.id or "",
        program=args.program or "",
        arguments=tuple(args.arguments),
        permissions=tuple(args.permissions),
        secrets=tuple(args.secrets),
        env=tuple(args.env),
        run_as=args.run_as or "",
        sha256=args.sha256 or "",
    )


@contextmanager
def _call(target: Target, options: Mapping[str, object], sha256: str) -> Iterator[_Call]:
    """The call that installs *target*, while its files are open."""
    if target.bundle is not None:
        with sending(target.bundle, sha256) as (fd, digest):
            yield _Call("InstallBundle", "ha{sv}", [0, {**options, "sha256": digest}], [fd])
    elif target.manifest is not None:
        with prompt.memfd(target.data, "manifest") as fd:
            yield _Call("InstallManifest", "ha{sv}", [0, options], [fd])
    else:
        yield _Call("Install", "sa{sv}", [target.id, options], [])


async def _warn_of_registry(bus: Client, server_id: str, source: str | None) -> None:
    """Say if there is no news of the registry that *server_id* is installed from, or of any if none has it."""
    try:
        options = {"source": source} if source else {}
        offered = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, options])
    except ServiceUnavailable:
        raise
    except McpdError:  # the installation says what is wrong
        await warn_of_origin(bus, source or "")
    else:
        await warn_of_origin(bus, offered.get("origin", ""))


@contextmanager
def _ways_out() -> Iterator[None]:
    """Errors of an installation, with what to do about them here."""
    try:
        yield
    except NotFound as error:
        raise NotFound(f"{error.message}. From elsewhere: pypi:NAME, npm:NAME, git+URL or a path") from error


async def _foresee(bus: Client, call: _Call, target: Target, *, as_json: bool) -> int:
    from mcpd.cli.plan_output import plan_lines  # noqa: PLC0415 - for this alone

    with _ways_out():
        foreseen = await foresee_job(bus, *call[:3], fds=call.fds)
    server_id = foreseen.server_id or target.id
    if as_json:
        write_json({"id": server_id, "plan": foreseen.plan})
    else:
        write(f"{clean(server_id)}:")
        for line in plan_lines(foreseen.plan):
            write(line)
        if target.manifest is not None and all(item["kind"] != "command" for item in foreseen.plan):
            note("What is started is known when it is installed; where that fails, --command names the program.")
        note("Nothing was installed.")
    return 0


def _config(settings: Sequence[tuple[str, str]], manifest: Mapping[str, Any] | None) -> dict[str, object]:
    """The values of ``--set``, typed by the *manifest*; an entry of the catalogue does not tell its types."""
    properties = manifest.get("configurableProperties") if manifest else None
    if isinstance(properties, list):
        return parse_pairs(settings, [known for known in properties if isinstance(known, dict)])
    return {key: guess_value(text) for key, text in settings}


async def remove(args: argparse.Namespace) -> int:
    """``mcpctl remove``; nothing if one of the ids is unknown, and no more after one that cannot be removed."""
    async with open_bus(args, changing=True) as bus:
        for server_id in args.id:
            await bus.manager.call("GetServer", "s", [server_id])
        for server_id in dict.fromkeys(args.id):
            await run_job(bus, "Uninstall", "sa{sv}", [server_id, {"keep-config": args.keep_config}])
            write(f"Removed {clean(server_id)}.")
    return 0


async def update(args: argparse.Namespace) -> int:
    """``mcpctl update``. JSON: ``{"updates": [{id, version, available-version, …}]}``, what was or can be updated.

    Nothing if one of the ids is unknown. What cannot be read of the registries is told, and what is known of them is
    used. One that fails stops no other; the command then fails for all that did.
    """
    failed: dict[str, McpdError] = {}
    ids = list(dict.fromkeys(args.id))
    async with open_bus(args, changing=True) as bus:
        for server_id in ids:
            await bus.manager.call("GetServer", "s", [server_id])
        is_read = await _look(bus)
        servers = await _servers(bus)
        updatable = _updatable(servers, ids)
        if not args.check and (ids or updatable):
            failed = await _update_each(bus, ids or list(updatable), consent=args.yes)
            servers = await _servers(bus)
        asked = [server for server in servers if (not ids or server["id"] in ids) and server["id"] not in failed]
        rest = [server for server in asked if server["id"] not in updatable]
        reasons = [reason for server in rest if (reason := await _why_not(bus, server, is_named=bool(ids)))]
    updates = [server for server_id, server in updatable.items() if server_id not in failed]
    if args.json:
        write_json({"updates": updates})
    elif args.check and updates:
        rows = [[server[key] for key in ("id", "version", "available-version", "scope")] for server in updates]
        table(("ID", "VERSION", "AVAILABLE", "SCOPE"), rows)
    elif not (updates or failed or reasons or any(server.get("pending-version") for server in asked)):
        note(f"Everything is up to date{'' if is_read else ', as far as is known'}.")
    else:
        for server in updates:
            before, after = clean(server["version"]), clean(server["available-version"])
            change = f"from {before} to {after}" if before != after else f"within {after}"
            write(f"Updated {clean(server['id'])} {change}.")
    for reason in reasons:
        note(reason)
    tell_waiting(asked)
    if failed:
        first = next(iter(failed.values()))
        raise type(first)("\n".join(error.message for error in failed.values()))
    return 0


async def _look(bus: Client) -> bool:
    """Have the registries read for updates; whether all could be. What could not is told."""
    try:
        return await read_registries(bus, "CheckUpdates")
    except (Cancelled, ServiceUnavailable):
        raise
    except McpdError as error:
        warn(f"{error.message}; what is known of updates may be old")
        return False


async def _why_not(bus: Client, server: Mapping[str, Any], *, is_named: bool) -> str:
    """Why *server* is not updated, if it may have no update; one that waits for approval is told of elsewhere.

    Unless it *is_named*, that is of interest only if there is another version.
    """
    server_id, version = clean(server["id"]), server.get("version", "")
    if not (is_named or server.get("pinned")):
        return ""
    registry = await registry_of(bus, server["id"])
    if server.get("pinned"):
        offered = await _offered_version(bus, server["id"], registry) if registry else ""
        there = f"; its registry has {clean(offered)}" if offered not in {"", version} else ""
        if not (is_named or there):
            return ""
        version = clean(version) or "what it is"
        return f"{server_id} is pinned to {version}{there}. 'mcpctl pin --remove {server_id}' lets it be updated."
    if registry == "" and not server.get("pending-version"):
        return f"{server_id} was not installed from a registry; install another version with --reinstall."
    return ""


async def _offered_version(bus: Client, server_id: str, registry: str) -> str:
    """The version that *registry* has of *server_id*; empty if nobody knows."""
    try:
        offered = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, {"source": registry}])
    except NotFound:
        return ""
    return str(offered.get("available-version") or offered.get("version", ""))


async def _servers(bus: Client) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    return servers


def _updatable(servers: Sequence[dict[str, Any]], ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What of *servers* has an update, by id; with *ids* only of these."""
    return {
        server["id"]: server | {"available-version": server.get("available-version", "")}
        for server in servers
        if server["state"] == "updatable" and (not ids or server["id"] in ids)
    }


async def _update_each(bus: Client, ids: Sequence[str], *, consent: bool) -> dict[str, McpdError]:
    """Update each of *ids* by a job of its own, so that its questions are about it; the errors of those that failed."""
    failed: dict[str, McpdError] = {}
    for server_id in ids:
        try:
            options = {"consent": consent}
            await run_job(bus, "Update", "asa{sv}", [[server_id], options], answers=Answers(consent=consent))
        except ServiceUnavailable:
            raise
        except McpdError as error:
            failed[server_id] = error
    return failed


async def refresh(args: argparse.Namespace) -> int:
    """``mcpctl refresh``; fails if a registry could not be read."""
    async with open_bus(args, changing=True) as bus:
        is_read = await read_registries(bus, "Refresh")
    return 0 if is_read else EXIT_FAILED
