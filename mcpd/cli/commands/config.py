# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl config`` and ``mcpctl secret``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli import user_input
from mcpd.cli.output import clean, note, table, warn, write, write_json
from mcpd.cli.permissions import missing_paths
from mcpd.cli.session import open_bus
from mcpd.cli.values import parse_pairs, show_value
from mcpd.errors import InvalidArgument, InvalidConfig, NotFound, did_you_mean
from mcpd.paths import from_environment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from mcpd.bus.client import Client

_HIDDEN: Final = "(set, not shown)"


async def get(args: argparse.Namespace) -> int:
    """``mcpctl config get``. JSON: ``{"values": {key: value}, "secrets-set": [key], "properties": [{key, type, …}]}``.

    With KEY: only its value.
    """
    async with open_bus(args) as bus:
        values, secrets = await bus.manager.call("GetConfig", "s", [args.id])
        properties = await _properties(bus, args.id)
    if args.key is not None:
        return _get_one(args, values, secrets, properties)
    if args.json:
        write_json({"values": values, "secrets-set": secrets, "properties": properties})
        return 0
    rows = [_row(known, values, secrets) for known in properties]
    # Manifests written by other tools may contain values without declaring properties for them.
    known_keys = {str(known["key"]) for known in properties}
    rows += [_row({"key": key}, values, secrets) for key in sorted({*values, *secrets} - known_keys)]
    if rows:
        table(("KEY", "TYPE", "DEFAULT", "VALUE"), rows)
    else:
        note(f"{clean(args.id)} has no configuration.")
    return 0


def _row(known: Mapping[str, Any], values: Mapping[str, object], secrets: list[str]) -> list[str]:
    """Return the table row for the property *known*, with its value."""
    key = str(known["key"])
    kinds = [str(known.get("type") or ""), *(kind for kind in ("sensitive", "required") if known.get(kind))]
    value = _HIDDEN if key in secrets else show_value(values[key]) if key in values else ""
    default = show_value(known["default"]) if "default" in known else ""
    return [key, ", ".join(filter(None, kinds)), default, value]


def _get_one(
    args: argparse.Namespace,
    values: Mapping[str, object],
    secrets: list[str],
    properties: list[dict[str, Any]],
) -> int:
    if args.key in secrets:
        raise InvalidConfig(f"{args.key} of {args.id} is set, but not shown because it is sensitive")
    if args.key not in values:
        known = {*values, *secrets, *(str(each["key"]) for each in properties)}
        listed = f"'mcpctl config get {args.id}' lists its properties"
        if args.key in known:
            raise NotFound(f"{args.id} has no value for {args.key!r}; {listed}")
        # The error that mcpd raises for setting an unknown property.
        hint = did_you_mean(args.key, sorted(known))
        raise InvalidConfig(f"{args.id} has no property {args.key!r}; {listed}{hint}")
    value = values[args.key]
    if args.json:
        write_json(value)
    else:
        write(show_value(value))
    return 0


async def set_values(args: argparse.Namespace) -> int:
    """``mcpctl config set``."""
    async with open_bus(args, changing=True) as bus:
        server, _ = await bus.manager.call("GetServer", "s", [args.id])
        properties = server.get("configurable-properties", [])
        _refuse_sensitive(args.id, [key for key, _ in args.pairs], properties, "set")
        changes = parse_pairs(args.pairs, properties)
        await bus.manager.call("SetConfig", "sa{sv}a{sv}", [args.id, changes, {}])
    for key, path in missing_paths(server.get("permissions", []), changes, from_environment().home):
        warn(f"{key}: {path} does not exist; create it before {args.id} starts")
    return 0


async def unset_values(args: argparse.Namespace) -> int:
    """``mcpctl config unset``."""
    async with open_bus(args, changing=True) as bus:
        _refuse_sensitive(args.id, args.keys, await _properties(bus, args.id), "unset")
        await bus.manager.call("SetConfig", "sa{sv}a{sv}", [args.id, {}, {"unset": args.keys}])
    return 0


async def _properties(bus: Client, server_id: str) -> list[dict[str, Any]]:
    server, _ = await bus.manager.call("GetServer", "s", [server_id])
    properties: list[dict[str, Any]] = server.get("configurable-properties", [])
    return properties


def _refuse_sensitive(
    server_id: str, keys: Iterable[str], properties: Iterable[Mapping[str, Any]], command: str
) -> None:
    sensitive = {known.get("key") for known in properties if known.get("sensitive")}
    for key in keys:
        if key in sensitive:
            raise InvalidConfig(f"{key} of {server_id} is sensitive; use 'mcpctl secret {command} {server_id} {key}'")


async def set_secret(args: argparse.Namespace) -> int:
    """``mcpctl secret set``: read the value from the terminal without echo, else from standard input."""
    key, equals, _ = args.key.partition("=")
    if equals:
        raise InvalidArgument(
            f"{key} is followed by a value, which other users can see on a command line; omit it, and enter the secret "
            "when you are asked for it or pass it on standard input"
        )
    secret = user_input.ask_secret(f"{args.key} of {args.id}") if sys.stdin.isatty() else user_input.read_secret("-")
    await _send_secret(args, secret)
    return 0


async def unset_secret(args: argparse.Namespace) -> int:
    """``mcpctl secret unset``."""
    await _send_secret(args, b"")
    return 0


async def _send_secret(args: argparse.Namespace, secret: bytes) -> None:
    async with open_bus(args, changing=True) as bus:
        with user_input.memfd(secret, "secret") as fd:
            await bus.manager.call("SetSecret", "ssha{sv}", [args.id, args.key, 0, {}], fds=[fd])
