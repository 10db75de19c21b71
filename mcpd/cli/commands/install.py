# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl install``, ``remove``, ``update``, ``rollback`` and ``refresh``: everything that is a job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcpd.bus.client import variant
from mcpd.cli import prompt
from mcpd.cli.jobs import Answers, run_job
from mcpd.cli.output import clean, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.cli.targets import Wishes, manifest_of
from mcpd.cli.values import guess_value, parse_pairs
from mcpd.errors import AlreadyInstalled, NotFound

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.bus.client import Client


async def install(args: argparse.Namespace) -> int:
    """``mcpctl install``."""
    wishes = Wishes(
        id=args.id or "",
        program=args.program or "",
        arguments=tuple(args.arguments),
        permissions=tuple(args.permissions),
        secrets=tuple(args.secrets),
        env=tuple(args.env),
        run_as=args.run_as or "",
    )
    manifest = manifest_of(args.target, wishes)
    secrets = {key: prompt.read_secret(name) for key, name in args.secret_files}
    answers = Answers(args.yes, frozenset(args.permissions), secrets)
    options = {"consent": args.yes, "reinstall": args.reinstall, "config": _config(args.settings, manifest)}
    async with open_bus(args, changing=True) as bus:
        server_id = args.target if manifest is None else str(manifest.get("id", ""))
        try:
            await _run_install(bus, server_id, manifest, options, answers)
        except AlreadyInstalled as error:
            raise AlreadyInstalled(f"{error.message} (mcpctl update, or mcpctl install --reinstall)") from error
        for key, secret in answers.secrets.items():
            with prompt.memfd(secret, "secret") as fd:
                await bus.manager.call("SetSecret", "ssha{sv}", [server_id, key, 0, {}], fds=[fd])
        server, _ = await bus.manager.call("GetServer", "s", [server_id])
    write(f"Installed {_title(server)}.")
    return 0


async def _run_install(
    bus: Client, server_id: str, manifest: dict[str, Any] | None, options: dict[str, object], answers: Answers
) -> None:
    """Install *manifest*, or without one the entry *server_id* of the catalogue."""
    if manifest is not None:
        with prompt.memfd(json.dumps(manifest).encode(), "manifest") as fd:
            await run_job(bus, "InstallManifest", "ha{sv}", [0, options], fds=[fd], answers=answers)
        return
    try:
        await run_job(bus, "Install", "sa{sv}", [server_id, options], answers=answers)
    except NotFound as error:
        raise NotFound(f"{error.message}. From elsewhere: pypi:NAME, npm:NAME, git+URL or a path") from error


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
    """``mcpctl update``. JSON: ``{"updates": [{id, version, available-version, …}]}``, what was or can be updated."""
    async with open_bus(args, changing=True) as bus:
        if args.check:
            await run_job(bus, "CheckUpdates", "a{sv}", [{}])
        pending = await _updatable(bus, args.id)
        if not args.check and (pending or args.id):
            await run_job(bus, "Update", "asa{sv}", [args.id, {"consent": args.yes}], answers=Answers(consent=args.yes))
    if args.json:
        write_json({"updates": pending})
    elif not pending:
        note("Everything is up to date.")
    elif args.check:
        rows = [[server[key] for key in ("id", "version", "available-version", "scope")] for server in pending]
        table(("ID", "VERSION", "AVAILABLE", "SCOPE"), rows)
    else:
        for server in pending:
            change = f"from {clean(server['version'])} to {clean(server['available-version'])}"
            write(f"Updated {clean(server['id'])} {change}.")
    return 0


async def rollback(args: argparse.Namespace) -> int:
    """``mcpctl rollback``."""
    options = {"generation": variant(args.to, "u")} if args.to else {}
    async with open_bus(args, changing=True) as bus:
        await run_job(bus, "Rollback", "sa{sv}", [args.id, options])
        server, _ = await bus.manager.call("GetServer", "s", [args.id])
    write(f"Went back to {_title(server)}.")
    return 0


async def refresh(args: argparse.Namespace) -> int:
    """``mcpctl refresh``."""
    async with open_bus(args, changing=True) as bus:
        await run_job(bus, "Refresh", "a{sv}", [{}])
    return 0


async def _updatable(bus: Client, ids: list[str]) -> list[dict[str, Any]]:
    servers = await bus.manager.call("ListServers", "a{sv}", [{}])
    return [
        server | {"available-version": server.get("available-version", "")}
        for server in servers
        if server["state"] == "updatable" and (not ids or server["id"] in ids)
    ]


def _title(server: dict[str, Any]) -> str:
    version = f" {clean(server['version'])}" if server.get("version") else ""
    return f"{clean(server['id'])}{version} ({clean(server.get('scope', ''))})"
