# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl search``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.client import variant
from mcpd.cli.commands.servers import cells, with_pin
from mcpd.cli.commands.sources import at_url, warn_of_registries
from mcpd.cli.output import clean, note, table, write_json
from mcpd.cli.session import open_bus
from mcpd.errors import NotFound

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from mcpd.bus.client import Client

PAGE: Final = 500
"""Maximum number of entries in one page of ``ListAvailable``."""
_FILTERS: Final = ("category", "source", "installable", "installed", "updatable")


async def search(args: argparse.Namespace) -> int:
    """``mcpctl search``. JSON: ``{"servers": [{id, name, summary, version, state, origin, …}]}``.

    Raises :class:`~mcpd.errors.NotFound` for a registry that is not listed.
    """
    async with open_bus(args) as bus:
        found, more = await _search(bus, _query(args), args.limit)
        sources = _in_registry(await bus.manager.call("ListSources"), args.source)
    if args.json:
        write_json({"servers": found})
    elif found:
        rows = [
            [
                *cells(entry, "id", "version"),
                _state(entry, is_system=bus.system),
                _trust(entry),
                entry.get("summary") or entry.get("name", ""),
            ]
            for entry in found
        ]
        table(("ID", "VERSION", "STATE", "TRUST", "SUMMARY"), rows)
    else:
        _note_nothing_found(args, sources)
    if more:
        shown = f"the first {args.limit} servers are" if args.limit > 1 else "the first server is"
        note(f"Only {shown} shown; --limit shows more.")
    warn_of_registries(sources)
    return 0


def _query(args: argparse.Namespace) -> dict[str, object]:
    query = {
        "text": " ".join(args.text),
        **{key: getattr(args, key) for key in _FILTERS},
    }
    return {key: value for key, value in query.items() if value}


def _in_registry(sources: Sequence[dict[str, Any]], url: str | None) -> Sequence[dict[str, Any]]:
    """Return the registry at *url* in *sources*, or all *sources* if *url* is ``None``.

    Raises :class:`~mcpd.errors.NotFound` if there is none.
    """
    if url is None:
        return sources
    chosen = at_url(sources, url)
    if not chosen:
        raise NotFound(f"there is no registry {url!r}; 'mcpctl source list' lists them")
    return chosen


def _note_nothing_found(args: argparse.Namespace, sources: Sequence[dict[str, Any]]) -> None:
    if not sources:
        note("There are no registries to search. 'mcpctl source add URL' adds one.")
        return
    text = clean(" ".join(args.text))
    note(f"No servers match {text!r}." if text else "The registries list no such servers.")
    filters = [f"--{key}" for key in _FILTERS if getattr(args, key)]
    if filters:
        note(f"There may be more without {' and '.join(filters)}.")
    else:
        note("'mcpctl source list' shows the registries, 'mcpctl refresh' updates the catalog.")


async def _search(bus: Client, query: dict[str, object], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the first *limit* entries that match *query*, and whether there are more."""
    query["limit"] = variant(min(limit, PAGE), "u")
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page, cursor = await bus.manager.call("ListAvailable", "a{sv}s", [query, cursor])
        found += page
        if not cursor or len(found) >= limit:
            return found[:limit], bool(cursor) or len(found) > limit


def _state(entry: Mapping[str, Any], *, is_system: bool) -> str:
    if entry.get("installable", True):
        return with_pin(entry)
    return "system only" if entry.get("scope") == "system" and not is_system else "unsupported"


def _trust(entry: Mapping[str, Any]) -> str:
    return "verified" if entry.get("verified") else "unverified"
