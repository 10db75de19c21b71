# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl source``: the registries that servers are installed from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, counted, note, table, write, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

SHIPPED: Final = Path("/usr/share/mcp/registry.json")
"""The registry that comes with mcpd."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_UNSIGNED: Final = {"required": "no, but has to be", "warn": "no", "off": "not asked for"}


async def list_sources(args: argparse.Namespace) -> int:
    """``mcpctl source list``. JSON: ``{"sources": […]}`` with the keys of ``ListSources``."""
    async with open_bus(args) as bus:
        sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    if args.json:
        write_json({"sources": sources})
    elif sources:
        now = time.time()
        table(
            ("URL", "TYPE", "SCOPE", "STATE", "AGE", "ENTRIES", "SIGNED", "PROBLEM"),
            [
                [
                    source.get("url") or source.get("file", ""),
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
    else:
        note("There are no registries. 'mcpctl source add URL' adds one.")
        if SHIPPED.exists():
            note(f"{SHIPPED} has a few servers to begin with: mcpctl source add file://{SHIPPED}")
    return 0


async def add_source(args: argparse.Namespace) -> int:
    """``mcpctl source add``."""
    _refuse_path(args.url)
    options = {key: value for key in ("name", "type", "signature", "key") if (value := getattr(args, key))}
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("AddSource", "sa{sv}", [args.url, options])
    write(f"Added {clean(args.url)}. 'mcpctl refresh' reads it.")
    return 0


def _refuse_path(url: str) -> None:
    """Raise :class:`~mcpd.errors.InvalidArgument` with the URL of the file, if *url* is a path."""
    if ":" not in url.partition("/")[0] and (path := Path(url).expanduser()).exists():
        raise InvalidArgument(f"{url!r} is a path; a source is a URL: mcpctl source add {path.resolve().as_uri()}")


async def remove_source(args: argparse.Namespace) -> int:
    """``mcpctl source remove``."""
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("RemoveSource", "sa{sv}", [args.url, {}])
    write(f"Removed {clean(args.url)}.")
    return 0


def age(updated: float, now: float) -> str:
    """How long before *now* the time *updated* was, both Unix times: ``5 min``. Empty if *updated* is 0."""
    if not updated:
        return ""
    passed = max(now - updated, 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if passed >= size), (1, "s"))
    return f"{passed // size:.0f} {unit}"


def _problem(source: Mapping[str, Any]) -> str:
    """What is wrong with it, else with its entries."""
    faults = source.get("faults") or ()
    if source.get("problem") or not faults:
        return str(source.get("problem", ""))
    return f"{counted(len(faults), 'fault')} in its entries: {faults[0]}"
