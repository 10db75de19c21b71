# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl source``: the registries that servers are installed from."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.names import ROOT
from mcpd.cli.output import clean, counted, note, table, warn, write, write_json
from mcpd.cli.registries import at_url, faults_shown, name_of, of_faults, warn_of
from mcpd.cli.session import open_bus
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.bus.client import Client
    from mcpd.bus.connection import Signal

SHIPPED: Final = Path("/usr/share/mcp/registry.json")
"""The registry that comes with mcpd."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_READING: Final = 60.0
"""Seconds that a registry which was added may take to be read, until it is said that it still is."""
_FAULTS: Final = 20
"""Faults of a source that are named, of which somebody may have made thousands."""
_UNSIGNED: Final = {"required": "no, but has to be", "warn": "no", "off": "not asked for"}


async def list_sources(args: argparse.Namespace) -> int:
    """``mcpctl source list``, and what is wrong with the entries of each source.

    JSON: ``{"sources": […]}`` with the keys of ``ListSources``.
    """
    async with open_bus(args) as bus:
        sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    if args.json:
        write_json({"sources": sources})
    elif sources:
        now = time.time()
        table(
            ("URL", "NAME", "TYPE", "SCOPE", "STATE", "AGE", "ENTRIES", "SIGNED", "PROBLEM"),
            [
                [
                    _place(source),
                    name_of(source),
                    source.get("type", ""),
                    source.get("scope", ""),
                    source.get("state", ""),
                    age(source.get("updated", 0), now),
                    source.get("entries", ""),
                    source.get("signed-by") or _UNSIGNED.get(source.get("signature", ""), ""),
                    _problem(source),
                ]
                for source in sources
            ],
        )
        _write_faults(sources)
    else:
        note("There are no registries. 'mcpctl source add URL' adds one.")
        if SHIPPED.exists():
            note(f"{SHIPPED} has a few servers to begin with: mcpctl source add file://{SHIPPED}")
    return 0


async def add_source(args: argparse.Namespace) -> int:
    """``mcpctl source add``."""
    _refuse_path(args.url)
    options = {key: value for key in ("name", "type", "signature", "key") if (value := getattr(args, key))}
    async with open_bus(args, changing=True) as bus, bus.signals(path=ROOT, member="CatalogChanged") as changes:
        await bus.manager.call("AddSource", "sa{sv}", [args.url, options])
        sources = await _read(bus, args.url, changes)
        keys = await bus.manager.call("ListKeys") if args.key else []
    if any(source.get("entries") for source in sources):
        number = counted(sum(int(source["entries"]) for source in sources), "server")
        write(f"Added {clean(args.url)}, which has {number}.")
    else:
        write(f"Added {clean(args.url)}.")
    warn_of(sources)
    if args.key and args.key not in {key.get("name") for key in keys}:
        warn(f"there is no key {args.key!r} yet; 'mcpctl key add FILE --name {args.key}' trusts it")
    return 0


async def _read(bus: Client, url: str, changes: asyncio.Queue[Signal]) -> list[dict[str, Any]]:
    """Wait until mcpd has read the registry at *url*, which was added; it as ListSources has it, if it is there."""
    found: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_READING):
            while True:
                found = at_url(await bus.manager.call("ListSources"), url)
                if all(source.get("state") != "new" for source in found):
                    break
                await changes.get()
    return found


def _refuse_path(url: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` with the URL of the file, if *url* is a path."""
    if ":" not in url.partition("/")[0] and (path := Path(url).expanduser()).exists():
        raise InvalidArgument(f"{url!r} is a path; a source is a URL: mcpctl source add {path.resolve().as_uri()}")


async def remove_source(args: argparse.Namespace) -> int:
    """``mcpctl source remove``."""
    async with open_bus(args, changing=True) as bus:
        url = await _url_of(bus, args.url)
        await bus.manager.call("RemoveSource", "sa{sv}", [url, {}])
    write(f"Removed {clean(url)}.")
    return 0


async def _url_of(bus: Client, called: str) -> str:
    """The URL of the source that is *called* so, as its URL or its name; *called* itself if none is.

    Raises :class:`~mcpd.errors.InvalidArgument` for a name of several, and of one whose URL cannot be told.
    """
    if ":" in called:
        return called
    named = [source for source in await bus.manager.call("ListSources") if name_of(source) == called]
    if len(named) > 1:
        raise InvalidArgument(f"{len(named)} sources are called {called!r}; give the URL of one")
    if named and not named[0].get("url"):
        raise InvalidArgument(f"{named[0].get('file', called)} names no URL; mend the file, or remove it")
    return str(named[0]["url"]) if named else called


def age(updated: float, now: float) -> str:
    """How long before *now* the time *updated* was, both Unix times: ``5 min``. Empty if *updated* is 0."""
    if not updated:
        return ""
    passed = max(now - updated, 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if passed >= size), (1, "s"))
    return f"{passed // size:.0f} {unit}"


def _place(source: Mapping[str, Any]) -> str:
    return str(source.get("url") or source.get("file", ""))


def _problem(source: Mapping[str, Any]) -> str:
    """What is wrong with it, and how much with its entries."""
    return "; ".join(filter(None, (str(source.get("problem") or ""), of_faults(source))))


def _write_faults(sources: Sequence[Mapping[str, Any]]) -> None:
    """Name what is wrong with the entries of each of *sources*, below the table, which has no room for it."""
    for source in sources:
        if shown := faults_shown(source, _FAULTS, "mcpctl source list --json"):
            write(f"\nIn {clean(_place(source))}:")
            for fault in shown:
                write(f"  {clean(fault)}")
