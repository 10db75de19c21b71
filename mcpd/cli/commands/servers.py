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
    """``mcpctl list``. JSON: ``{"servers": [{id, name, summary, version, scope, state, …}]}`` from ``ListServers``."""
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
            note("The sandbox is off: servers run with all privileges of their user.")
        note_pending(servers)
    else:
        note("No servers are installed. 'mcpctl search' lists servers to install.")
    await _warn_of_map(args)
    return 0


async def show(args: argparse.Namespace) -> int:
    """``mcpctl show``.

    JSON: the keys of the server, and of an installed one also ``source``, ``config`` and ``secrets-set``.
    """
    async with open_bus(args) as bus:
        if args.source:
            server = await _offered(bus, args.id, {"source": args.source})
        else:
            server = await _installed_or_offered(bus, args.id)
    if args.json:
        write_json(server)
    else:
        _print_server(server)
        note_pending([server])
    await _warn_of_map(args)
    return 0


def title(server: Mapping[str, Any]) -> str:
    """Return the id, version and scope of *server*, for messages: ``weather 1.0 (user)``."""
    version = f" {clean(server['version'])}" if server.get("version") else ""
    return f"{clean(server['id'])}{version} ({clean(server.get('scope', ''))})"


def version_change(before: object, after: object) -> str:
    """Return `` from 1.0 to 2.0`` for an update from the version *before* to *after*; empty if neither is known."""
    old, new = clean(before), clean(after)
    if old and old == new:
        return f" within {new}"
    return (f" from {old}" if old else "") + (f" to {new}" if new else "")


def note_pending(servers: Iterable[Mapping[str, Any]]) -> None:
    """Print the pending updates of *servers*."""
    for server in servers:
        if server.get("pending-version"):
            server_id, version = clean(server["id"]), clean(server["pending-version"])
            note(
                f"{server_id}: the update to {version} changes its tools and is pending; 'mcpctl approve {server_id}' "
                "shows the changes."
            )


async def note_missing_tools(bus: Client, server: Mapping[str, Any]) -> None:
    """If *server*, which was just installed, lists no tools, print that and the properties that it may need."""
    if server.get("tools") != 0:
        return
    server_id = clean(server["id"])
    values, secrets = await bus.manager.call("GetConfig", "s", [server["id"]])
    keys = [str(known["key"]) for known in server.get("configurable-properties", ())]
    if unset := [clean(key) for key in keys if key not in values and key not in secrets]:
        note(
            f"{server_id} lists no tools yet. It may need configuration ({', '.join(unset)});"
            f" see 'mcpctl config get {server_id}'."
        )
    else:
        note(f"{server_id} lists no tools. If it should, see its documentation.")


def _may_have_map() -> bool:
    """Return whether the user or the administrator may have written a file of the mcps map.

    A quick test, because the module that reads the map is slow to import. Files from packages are ignored: the empty
    directory ``mcps.d``, and the map in ``/usr/share``.
    """
    root, config = os.environ.get("MCP_ROOT") or "/", os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    bases = [Path(root, "etc/mcp"), Path(config).expanduser() / "mcp"]
    return any(_may_be_there(base / "mcps.json") or _may_hold_files(base / "mcps.d") for base in bases)


def _may_be_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return _is_inaccessible(error)
    return True


def _may_hold_files(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.name.endswith(".json") for entry in entries)
    except OSError as error:
        return _is_inaccessible(error)


def _is_inaccessible(error: OSError) -> bool:
    """Return whether *error* means that the file may exist but cannot be accessed."""
    return error.errno not in {errno.ENOENT, errno.ENOTDIR}


async def _warn_of_map(args: argparse.Namespace) -> None:
    """Warn about faulty files of the mcps map, since servers may offer more than intended without them."""
    if not _may_have_map():
        return
    from mcpd.cli.mcps_checks import map_checks  # slow to import
    from mcpd.paths import Scope, from_environment

    scope = Scope.SYSTEM if args.system else Scope.USER
    for check in await asyncio.to_thread(lambda: list(map_checks(from_environment(), scope))):
        if check.result == "fail":
            warn(check.message)


async def _installed_or_offered(bus: Client, server_id: str) -> dict[str, Any]:
    """Return the keys of the installed server *server_id*, else of its offer."""
    server: dict[str, Any]
    try:
        server, _path = await bus.manager.call("GetServer", "s", [server_id])
    except NotFound:
        with suppress(NotFound):
            return await _offered(bus, server_id, {})
        raise NotFound(
            f"there is no server {server_id!r}, neither installed nor in the catalog; 'mcpctl search' lists the catalog"
        ) from None
    values, secrets = await bus.manager.call("GetConfig", "s", [server_id])
    return await _source_of(bus, server_id) | server | {"config": values, "secrets-set": secrets}


async def _source_of(bus: Client, server_id: str) -> dict[str, Any]:
    """Return ``{"source": …}`` with the package source of *server_id*, as in ``GetAvailable``; ``{}`` if unknown."""
    try:
        entry = json.loads(await bus.manager.call("GetEntry", "s", [server_id]))
    except ServiceUnavailable:
        raise
    except (McpdError, ValueError):  # script servers and broken servers have no entry
        return {}
    source = entry.get("source")
    known = {key: source[key] for key in _SOURCE_KEYS if source.get(key)} if isinstance(source, dict) else {}
    return {"source": known} if known else {}


async def _offered(bus: Client, server_id: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the offer for *server_id*; warn if its registry could not be read."""
    from mcpd.cli.commands.sources import warn_of_registry  # not needed for installed servers

    try:
        server: dict[str, Any] = await bus.manager.call("GetAvailable", "sa{sv}", [server_id, options])
    except NotFound:
        await warn_of_registry(bus, str(options.get("source", "")))
        raise
    await warn_of_registry(bus, server.get("origin", ""))
    return server


def _print_server(server: Mapping[str, Any]) -> None:
    from mcpd.cli.permissions import described  # 'list' starts faster without
    from mcpd.cli.values import show_value

    if server.get("summary"):
        write(paint(clean(server["summary"]), "bold"))
    if server.get("description"):
        write(clean(server["description"], lines=True))
    shown = [(key, _text(server.get(key))) for key in _SHOWN_KEYS]
    if source := server.get("source"):
        shown.append(("source", "  ".join(str(source[key]) for key in _SOURCE_KEYS if source.get(key))))
    shown += [("permission", described(text)) for text in server.get("permissions", [])]
    if _is_described_by_package(server):
        more = "more may be " if server.get("permissions") else ""
        shown.append(("permissions", f"{more}known once it is fetched"))
    elif not server.get("permissions") and server.get("state") != "broken":
        confined = server.get("sandboxed", True)
        shown.append(
            (
                "permissions",
                "none beyond the sandbox" if confined else "everything its user can access: the sandbox is off",
            )
        )
    for transport in server.get("transports", []):
        command = " ".join([str(transport.get("command") or ""), *transport.get("args", [])]).strip()
        shown.append(("transport", f"{transport.get('type', '')}  {command or transport.get('url', '')}".strip()))
    shown += [(f"property {prop['key']}", _property(prop)) for prop in server.get("configurable-properties", [])]
    shown += [(f"config {key}", show_value(value)) for key, value in sorted(server.get("config", {}).items())]
    shown += [(f"config {key}", "(set, not shown)") for key in sorted(server.get("secrets-set", []))]
    details(shown)


def _is_described_by_package(server: Mapping[str, Any]) -> bool:
    """Return whether *server* is an offer whose command is defined in a bundle or manifest, not in the entry."""
    if "config" in server or server.get("transports") or not server.get("installable", True):
        return False
    return "source" not in server or server["source"].get("type") == "mcpb"


def _property(prop: Mapping[str, Any]) -> str:
    """Return one line for a property: its type and description."""
    kinds = [str(prop.get("type") or "any value"), *(kind for kind in ("sensitive", "required") if prop.get(kind))]
    return ": ".join(filter(None, (", ".join(kinds), str(prop.get("description") or ""))))


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else value


def cells(server: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the values of *server* under *keys* as cells of a table; empty for missing ones."""
    return [str(server.get(key, "")) for key in keys]


def with_pin(server: Mapping[str, Any]) -> str:
    """Return the state of *server* as a cell of a table: ``installed, pinned``."""
    return f"{server.get('state', '')}{', pinned' if server.get('pinned') else ''}"


def _summary(server: Mapping[str, Any]) -> str:
    return str(server.get("problem") or server.get("summary") or server.get("name") or "")
