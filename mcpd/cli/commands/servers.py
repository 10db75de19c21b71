# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl list``, ``search`` and ``show``."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, details, note, paint, table, warn, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import NotFound

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping

    from mcpd.bus.client import Client

_SHOWN_KEYS: Final = (
    "name", "id", "version", "available-version", "state", "problem", "scope", "origin", "author", "licenses",
    "categories", "homepage", "bug-url", "donation-url", "release-date", "sharing", "run-as", "pinned", "sandboxed",
)  # fmt: skip


async def list_servers(args: argparse.Namespace) -> int:
    """``mcpctl list``. JSON: ``{"servers": [{id, name, summary, version, scope, state, …}]}``, keys as on the bus."""
    async with open_bus(args) as bus:
        servers: list[dict[str, Any]] = await bus.manager.call("ListServers", "a{sv}", [{}])
    if args.json:
        write_json({"servers": servers})
    elif servers:
        table(
            ("ID", "VERSION", "SCOPE", "STATE", "SUMMARY"),
            [[*_cells(server, "id", "version", "scope", "state"), _summary(server)] for server in servers],
        )
        if any(not server.get("sandboxed", True) for server in servers):
            note("The sandbox is off: servers run with all rights of the user they run as.")
    else:
        note("No servers are installed. 'mcpctl search' lists what can be.")
    await _warn_of_map(args)
    return 0


async def search(args: argparse.Namespace) -> int:
    """``mcpctl search``. JSON: ``{"servers": [{id, name, summary, version, state, origin, …}]}``."""
    text = " ".join(args.text)
    found: list[dict[str, Any]] = []
    async with open_bus(args) as bus:
        async for entry in _available(bus, text):
            if len(found) == args.limit:
                note(f"Only the first {args.limit} servers are shown; --limit shows more.")
                break
            found.append(entry)
    if args.json:
        write_json({"servers": found})
    elif found:
        rows = [[*_cells(entry, "id", "version", "state"), _summary(entry)] for entry in found]
        table(("ID", "VERSION", "STATE", "SUMMARY"), rows)
    else:
        note(f"Nothing was found for {clean(text)!r}." if text else "The registries list no servers.")
        note("'mcpctl source list' shows the registries, 'mcpctl refresh' reads them again.")
    return 0


async def show(args: argparse.Namespace) -> int:
    """``mcpctl show``. JSON: the server's keys, and for an installed one ``config`` and ``secrets-set``."""
    async with open_bus(args) as bus:
        try:
            server, _path = await bus.manager.call("GetServer", "s", [args.id])
            values, secrets = await bus.manager.call("GetConfig", "s", [args.id])
            server |= {"config": values, "secrets-set": secrets}
        except NotFound as error:
            server = await _catalogue_entry(bus, args.id, error)
    if args.json:
        write_json(server)
    else:
        _print_server(server)
    await _warn_of_map(args)
    return 0


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


async def _available(bus: Client, text: str) -> AsyncIterator[dict[str, Any]]:
    """The entries of the catalogue that hold *text*, page by page."""
    cursor = ""
    while True:
        page, cursor = await bus.manager.call("ListAvailable", "a{sv}s", [{"text": text} if text else {}, cursor])
        for entry in page:
            yield entry
        if not cursor:
            return


async def _catalogue_entry(bus: Client, server_id: str, missing: NotFound) -> dict[str, Any]:
    async for entry in _available(bus, server_id):
        if entry.get("id") == server_id:
            return entry
    raise NotFound(
        f"there is no server {server_id!r}, neither installed nor in the catalogue; "
        "'mcpctl search' lists what can be installed"
    ) from missing


def _print_server(server: Mapping[str, Any]) -> None:
    from mcpd.cli.permissions import described  # noqa: PLC0415 - which a list does not need
    from mcpd.cli.values import show_value  # noqa: PLC0415 - nor json

    if server.get("summary"):
        write(paint(clean(server["summary"]), "bold"))
    if server.get("description"):
        write(clean(server["description"], lines=True))
    shown = [(key, _text(server.get(key))) for key in _SHOWN_KEYS]
    shown += [("permission", described(text)) for text in server.get("permissions", [])]
    if not server.get("permissions") and server.get("state") != "broken":
        confined = server.get("sandboxed", True)
        shown.append(("permissions", "none beyond the sandbox" if confined else "all of the user: the sandbox is off"))
    for transport in server.get("transports", []):
        command = " ".join([str(transport.get("command") or ""), *transport.get("args", [])]).strip()
        shown.append(("transport", f"{transport.get('type', '')}  {command or transport.get('url', '')}".strip()))
    shown += [(f"property {prop['key']}", _property(prop)) for prop in server.get("configurable-properties", [])]
    shown += [(f"config {key}", show_value(value)) for key, value in sorted(server.get("config", {}).items())]
    shown += [(f"config {key}", "(set, not shown)") for key in sorted(server.get("secrets-set", []))]
    details(shown)


def _property(prop: Mapping[str, Any]) -> str:
    """One line for a configurable property."""
    kinds = [str(prop.get("type") or "any value"), *(kind for kind in ("sensitive", "required") if prop.get(kind))]
    return ": ".join(filter(None, (", ".join(kinds), str(prop.get("description") or ""))))


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else value


def _cells(server: Mapping[str, Any], *keys: str) -> list[str]:
    return [str(server.get(key, "")) for key in keys]


def _summary(server: Mapping[str, Any]) -> str:
    return str(server.get("problem") or server.get("summary") or server.get("name") or "")
