# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl doctor``: problems of this machine, with advice."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mcpd import __version__
from mcpd.cli import bridge, tool_names
from mcpd.cli.checks import Check, installed, key_checks, local_checks, name_check, service_checks, source_checks
from mcpd.cli.mcps_checks import Known, map_checks
from mcpd.cli.output import clean, coloured, write, write_json
from mcpd.cli.permissions import missing_paths
from mcpd.cli.script_places import first, layers
from mcpd.cli.session import open_bus
from mcpd.clients.detect import is_installed
from mcpd.clients.families import Families
from mcpd.clients.servers import Servers
from mcpd.errors import EXIT_FAILED, McpdError
from mcpd.paths import Scope, from_environment
from mcpd.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from mcpd.bus.client import Client
    from mcpd.paths import Paths


async def doctor(args: argparse.Namespace) -> int:
    """``mcpctl doctor``; 1 if something fails. JSON: ``{"checks": [{name, result, message, advice}]}``."""
    scope = Scope.SYSTEM if args.system else Scope.USER
    paths = from_environment()
    checks = await asyncio.to_thread(lambda: list(_machine_checks(paths, scope)))
    off = any(check.name == "sandbox" and check.result == "warn" for check in checks)
    of_bus, servers = await _bus_checks(args, off=off)
    checks += of_bus
    checks += await asyncio.to_thread(
        lambda: list(map_checks(paths, scope, Known(paths, scope, servers or ()), deep=True))
    )
    if servers:
        checks += await _name_checks(args, paths, scope)
    if args.json:
        write_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
    return EXIT_FAILED if any(check.result == "fail" for check in checks) else 0


def _machine_checks(paths: Paths, scope: Scope) -> Iterator[Check]:
    """Run the checks that do not need the bus."""
    # The checks report faulty files themselves.
    logging.getLogger("mcpd").addHandler(logging.NullHandler())
    yield from local_checks(paths, scope)
    yield from key_checks(paths, scope)
    yield from bridge.checks(paths, scope)
    if scope is Scope.SYSTEM and installed(paths.system):
        yield from service_checks(paths.system)


async def _name_checks(args: argparse.Namespace, paths: Paths, scope: Scope) -> list[Check]:
    """Warn about tools that the clients on this machine refuse because of their names."""
    families = [
        family
        for family in Families.of(paths, scope).all()
        if family.tools is not None and is_installed(family, paths.home, os.environ)
    ]
    if not families:
        return []
    servers = Servers(paths, scope)
    usable = [server.id for server in servers.all().values() if not (server.problem or server.entry.disabled)]
    tools = await tool_names.listed(args, servers, usable)
    return [
        Check("tool names", "warn", f"{server_id}: {refusal}", tool_names.ADVICE)
        for server_id, names in tools.items()
        for family in families
        if (refusal := tool_names.refusal(family, server_id, names))
    ]


async def _bus_checks(args: argparse.Namespace, *, off: bool) -> tuple[list[Check], set[str] | None]:
    """Run the checks over the bus; return them with the ids of the servers, or ``None`` if mcpd does not answer."""
    name = "system bus" if args.system else "session bus"
    try:
        async with open_bus(args) as bus:
            checks, servers = await _mcpd_checks(bus, off=off)
            return [Check(name, "ok", "reachable"), *checks], servers
    except McpdError as error:
        return [Check(name, "fail", error.message, "start D-Bus, or run mcpctl in a login session")], None


async def _mcpd_checks(bus: Client, *, off: bool) -> tuple[list[Check], set[str] | None]:
    """Check mcpd and its servers; return the checks and the ids of the servers.

    *off* tells whether the sandbox is turned off in the settings.
    """
    unit = "systemctl status mcpd" if bus.system else "systemctl --user status mcpd"
    try:
        properties = await bus.manager.properties()
        servers = await bus.manager.call("ListServers", "a{sv}", [{}])
        sources = await bus.manager.call("ListSources")
        named = [await name_check(bus)] if bus.system else []
    except McpdError as error:
        return [Check("mcpd", "fail", error.message, f"see '{unit}'")], None
    running, own = properties.get("Version", ""), __version__
    if running == own:
        checks = [Check("mcpd", "ok", f"version {running} is running")]
    else:
        advice = unit.replace("status", "restart")
        checks = [Check("mcpd", "warn", f"mcpd is version {running}, mcpctl is version {own}", f"run '{advice}'")]
    checks += named
    if "sandbox" in properties.get("Features", ()):
        checks.append(Check("confinement", "ok", "mcpd confines the servers it starts"))
    elif not off:
        message = "mcpd cannot confine servers, so it does not start any"
        checks.append(Check("confinement", "fail", message, f"'{unit}' shows why; then restart it"))
    is_broken = any(server["state"] == "broken" for server in servers)
    scripts = await asyncio.to_thread(_broken_scripts, system=bus.system) if is_broken else {}
    for server in servers:
        if server["state"] == "broken":
            server_id = server["id"]
            message = f"{server_id}: {server.get('problem', '').removeprefix(f'{server_id}: ')}"
            advice = scripts.get(server_id, f"'mcpctl rollback {server_id}' or 'mcpctl remove {server_id}'")
            checks.append(Check("server", "fail", message, advice))
        elif not server.get("configured", True):
            message = f"{server['id']} is missing required values"
            checks.append(Check("server", "warn", message, f"see 'mcpctl config get {server['id']}'"))
        checks += await _path_checks(bus, server)
    checks += [Check("servers", "ok", f"{len(servers)} installed"), *source_checks(sources)]
    return checks, {server["id"] for server in servers}


async def _path_checks(bus: Client, server: Mapping[str, Any]) -> list[Check]:
    """Warn about each path in the configuration of *server* that a permission needs and that does not exist."""
    server_id, permissions = server["id"], server.get("permissions", [])
    if not any("{config." in permission for permission in permissions):
        return []
    try:
        values, _ = await bus.manager.call("GetConfig", "s", [server_id])
    except McpdError:
        # The caller reports the state of the server.
        return []
    return [
        Check(
            "server",
            "warn",
            f"{server_id}: {path} does not exist",
            f"create it, or change {key}; see 'mcpctl config get {server_id}'",
        )
        for key, path in missing_paths(permissions, values, from_environment().home)
    ]


def _broken_scripts(*, system: bool) -> dict[str, str]:
    """Return advice for broken script servers, by id."""
    paths, scope = from_environment(), Scope.SYSTEM if system else Scope.USER
    removals = {"user": "mcpctl script remove", "system": "mcpctl --system script remove"}
    found = {}
    for server_id in (server.id for server in Store(paths, scope).list() if server.script is not None):
        place = first(layers(paths, scope), server_id)
        if place is None:
            found[server_id] = "fix its entry in the mcps map; 'mcpctl mcps check' shows where it is"
            continue
        layer, file = place
        otherwise = f"or '{removals[layer]} {server_id}'" if layer in removals else "which belongs to a package"
        found[server_id] = f"fix {file}, {otherwise}"
    return found


def _print(check: Check) -> None:
    write(f"{coloured(check.result, 4)}  {check.name}: {clean(check.message)}")
    if check.advice and check.result != "ok":
        write(f"      {clean(check.advice)}")
