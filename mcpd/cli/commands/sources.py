# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl source``: the registries that servers are installed from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, note, table, write, write_json
from mcpd.cli.session import open_bus

if TYPE_CHECKING:
    import argparse

SHIPPED: Final = Path("/usr/share/mcp/registry.json")
"""The registry that comes with mcpd."""


async def list_sources(args: argparse.Namespace) -> int:
    """``mcpctl source list``. JSON: ``{"sources": [{url, file, scope, state, problem, updated, read-only}]}``."""
    async with open_bus(args) as bus:
        sources: list[dict[str, Any]] = await bus.manager.call("ListSources")
    if args.json:
        write_json({"sources": sources})
    elif sources:
        table(
            ("URL", "SCOPE", "STATE", "FILE", "PROBLEM"),
            [[source.get(key, "") for key in ("url", "scope", "state", "file", "problem")] for source in sources],
        )
    else:
        note("There are no registries. 'mcpctl source add URL' adds one.")
        if SHIPPED.exists():
            note(f"{SHIPPED} has a few servers to begin with: mcpctl source add file://{SHIPPED}")
    return 0


async def add_source(args: argparse.Namespace) -> int:
    """``mcpctl source add``."""
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("AddSource", "sa{sv}", [args.url, {}])
    write(f"Added {clean(args.url)}. 'mcpctl refresh' reads it.")
    return 0


async def remove_source(args: argparse.Namespace) -> int:
    """``mcpctl source remove``."""
    async with open_bus(args, changing=True) as bus:
        await bus.manager.call("RemoveSource", "sa{sv}", [args.url, {}])
    write(f"Removed {clean(args.url)}.")
    return 0
