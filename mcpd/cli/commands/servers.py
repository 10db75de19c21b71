# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl list`` and ``show``."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, details, note, paint, table, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import McpdError, NotFound, ServiceUnavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from mcpd.bus.client import Client

_SHOWN_KEYS: Final = (
    "name", "id", "version", "available-version", "pending-version", "state", "installable", "problem", "scope",
    "origin", "also-from", "verified", "signed-by", "author", "licenses", "categories", "homepage", "bug-url",
    "donation-url", "release-date", "sharing", "run-as", "pinned", "sandboxed",
)  # fmt: skip
_SOURCE_KEYS: Final = ("type", "package", "url", "path", "version", "rev", "sha256")


async def list_servers(args: argparse.Namespace) -> int:
    """``mcpctl list``. JSON: ``{"servers": [{id, name, summary, version, scope, state, …}]}``, keys as on the bus."""
    async with open_bus(args) as bus:
        servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    if args.json:
        write_json({"servers": servers})
    elif servers:
        table(
            ("ID", "VERSION", "SCOPE", "STATE", "SUMMARY"),
            [[*cells(server, "id", "version", "scope"), with_pin(server), _summary(server)] for server in servers],
        )
        if any(not server.get("sandboxed", True) for server in servers):
            note("The sandbox is off: servers run with all rights of the user they run as.")
        tell_waiting(servers)
    else:
        note("No servers are installed. 'mcpctl search' lists what can be.")
    await _warn_of_map(args)
    return 0


async def show(args: argparse.Namespace) -> int:
    """``mcpctl show``. JSON: the server's keys, and for an installed one ``source``, ``config`` and ``secrets-set``."""
    async with open_bus(args) as bus:
        if args.source:
            server = await _offered(bus, args.id, {"source": args.source})
        else:
            server = await _installed_or_offered(bus, args.id)
    if args.json:
        write_json(server)
    else:
        _print_server(server)
        tell_waiting([server])
    await _warn_of_map(args)
    return 0


def title(server: Mapping[str, Any]) -> str:
    """What *server* is called where something is said of it: id, version and scope."""
    version = f" {clean(server['version'])}" if server.get("version") else ""
    return f"{clean(server['id'])}{version} ({clean(server.get('scope', ''))})"


def step(before: object, after: object) -> str:
    """What an update from the version *before* to *after* is: `` from 1.0 to 2.0``; empty where neither is known."""
    old, new = clean(before), clean(after)
    if old and old == new:
        return f" within {new}"
    return (f" from {old}" if old else "") + (f" to {new}" if new else "")


def tell_waiting(servers: Iterable[Mapping[str, Any]]) -> None:
    """Say which updates of *servers* wait for somebody to approve of what they change."""
    for server in servers:
        if server.get("pending-version"):
            server_id, version = clean(server["id"]), clean(server["pending-version"])
            note(
                f"{server_id}: the update to {version} changes what it says of its tools, and waits for "
                f"'mcpctl approve {server_id}'."
            )


async def tell_without_tools(bus: Client, server: Mapping[str, Any]) -> None:
    """If *server*, which was just installed, lists no tools, say so and which settings it may need."""
    if server.get("tools") != 0:
        return
    server_id = clean(server["id"])
    values, secrets = await bus.manager.call("GetConfig", "s", [server["id"]])
    keys = [str(known["key"]) for known in server.get("configurable-properties", ())]
    if unset := [clean(key) for key in keys if key not in values and key not in secrets]:
        note(
            f"{server_id} lists no tools yet. It may need settings ({', '.join(unset)});"
            f" 'mcpctl config get {server_id}' shows them."
        )
    else:
        note(f"{server_id} lists no tools. If it should, its documentation says what it needs.")


def _may_have_map() -> bool:
    """Whether somebody wrote a file of the map: what reads all of them takes its time to import.

    What comes with packages does not count: the empty directory ``mcps.d``, and the map in ``/usr/share``.
    """
    root, config = os.environ.get("MCP_ROOT") or "/", os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    bases = [Path(root, "etc/mcp"), Path(config).expanduser() / "mcp"]
    return any(_may_be_there(base / "mcps.json") or _may_hold_files(base / "mcps.d") for base in bases)


def _may_be_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return _is_telling(error)
    return True


def _may_hold_files(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.name.endswith(".json") for entry in entries)
    except OSError as error:
        return _is_telling(error)


def _is_telling(error: OSError) -> bool:
    """What may not be looked at is looked for, and told of."""
    return error.errno not in {errno.ENOENT, errno.ENOTDIR}


async def _warn_of_map(args: argparse.Namespace) -> None:
    """Tell on stderr of files of the mcps map that are not used: what is shown may be more than somebody wants."""
    if not _may_have_map():
        return
    from mcpd.cli.mcps_checks import map_checks  # noqa: PLC0415 - which completion does not need
    from mcpd.paths import Scope, from_environment  # noqa: PLC0415

    scope = Scope.SYSTEM if args.system else Scope.USER
    for check in await asyncio.to_thread(lambda: list(map_checks(from_environment(), scope))):
        if check.result == "fail":
            warn(check.message)


async def _installed_or_offered(bus: Client, server_id: str) -> dict[str, Any]:
    """What is installed as *server_id*, else what a registry offers."""
    server: dict[str, Any]
    try:
        server, _path = await bus.manager.call("GetServer", "s", [server_id])
    except NotFound:
        with suppress(NotFound):
            return await _offered(bus, server_id, {})
        raise NotFound(
            f"there is no server {server_id!r}, neither installed nor in the catalog; "
            "'mcpctl search' lists what can be installed"
        ) from None
    values, secrets = await bus.manager.call("GetConfig", "s", [server_id])
    return await _source_of(bus, server_id) | server | {"config": values, "secrets-set": secrets}


async def _source_of(bus: Client, server_id: str) -> dict[str, Any]:
    """``source`` of the entry that *server_id* was installed from, as GetAvailable has it; nothing if there is none."""
    try:
        entry = json.loads(await bus.manager.call("GetEntry", "s", [server_id]))
    except ServiceUnavailable:
        raise
    except (McpdError, ValueError):  # a script has none, nor has what is broken
        return {}
    source = entry.get("source")
    known = {key: source[key] for key in _SOURCE_KEYS if source.get(key)} if isinstance(source, dict) else {}
    return {"source": known} if known else {}


async def _offered(bus: Client, server_id: str, options: Mapping[str, object]) -> dict[str, Any]:
    """What a registry offers as *server_id*, after a warning if there is no news of that registry."""
    from mcpd.cli.commands.sources import warn_of_origin  # noqa: PLC0415 - which what is installed does without

    try:
        server: dict[str, Any] = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, options])
    except NotFound:
        await warn_of_origin(bus, str(options.get("source", "")))
        raise
    await warn_of_origin(bus, server.get("origin", ""))
    return server


def _print_server(server: Mapping[str, Any]) -> None:
    from mcpd.cli.permissions import described  # noqa: PLC0415 - which a list does not need
    from mcpd.cli.values import show_value  # noqa: PLC0415 - nor json

    if server.get("summary"):
        write(paint(clean(server["summary"]), "bold"))
    if server.get("description"):
        write(clean(server["description"], lines=True))
    shown = [(key, _text(server.get(key))) for key in _SHOWN_KEYS]
    if source := server.get("source"):
        shown.append(("source", "  ".join(str(source[key]) for key in _SOURCE_KEYS if source.get(key))))
    shown += [("permission", described(text)) for text in server.get("permissions", [])]
    if _is_told_later(server):
        more = "more may be " if server.get("permissions") else ""
        shown.append(("permissions", f"{more}known when it is fetched"))
    elif not server.get("permissions") and server.get("state") != "broken":
        confined = server.get("sandboxed", True)
        shown.append(("permissions", "none beyond the sandbox" if confined else "all of the user: the sandbox is off"))
    for transport in server.get("transports", []):
        command = " ".join([str(transport.get("command") or ""), *transport.get("args", [])]).strip()
        shown.append(("transport", f"{transport.get('type', '')}  {command or transport.get('url', '')}".strip()))
    shown += [(f"property {prop['key']}", _property(prop)) for prop in server.get("configurable-properties", [])]
    shown += [(f"config {key}", show_value(value)) for key, value in sorted(server.get("config", {}).items())]
    shown += [(f"config {key}", "(set, not shown)") for key in sorted(server.get("secrets-set", []))]
    details(shown)


def _is_told_later(server: Mapping[str, Any]) -> bool:
    """Whether *server* is offered by a registry that does not tell how it is started: a bundle, or a manifest does."""
    if "config" in server or server.get("transports") or not server.get("installable", True):
        return False
    return "source" not in server or server["source"].get("type") == "mcpb"


def _property(prop: Mapping[str, Any]) -> str:
    """One line for a configurable property."""
    kinds = [str(prop.get("type") or "any value"), *(kind for kind in ("sensitive", "required") if prop.get(kind))]
    return ": ".join(filter(None, (", ".join(kinds), str(prop.get("description") or ""))))


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else value


def cells(server: Mapping[str, Any], *keys: str) -> list[str]:
    """What *server* has under *keys*, empty where it has nothing, for a row of a table."""
    return [str(server.get(key, "")) for key in keys]


def with_pin(server: Mapping[str, Any]) -> str:
    """The state of *server*, for a row of a table: ``installed, pinned``."""
    return f"{server.get('state', '')}{', pinned' if server.get('pinned') else ''}"


def _summary(server: Mapping[str, Any]) -> str:
    return str(server.get("problem") or server.get("summary") or server.get("name") or "")
