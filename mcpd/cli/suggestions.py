# SPDX-License-Identifier: LGPL-2.1-or-later
"""Suggestions for the id of a server that was not found."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcpd.bus.client import variant
from mcpd.errors import McpdError, did_you_mean

if TYPE_CHECKING:
    import argparse

    from mcpd.bus.client import Client
    from mcpd.errors import NotFound

_OFFERS = frozenset({"install", "show"})
"""Commands that also accept ids from registries."""
_PREFIX = 2
"""Letters of each word that are assumed to be correct, to limit the search in large registries."""
_MOST = 200
"""Maximum number of ids from registries that are compared."""


async def with_suggestion(bus: Client, args: argparse.Namespace, error: NotFound) -> NotFound:
    """Return *error*, with a similar id if *args* name an unknown server."""
    named = _named(args)
    if not named:
        return error
    with suppress(McpdError):
        known = {server["id"] for server in await bus.manager.call("ListServers", "a{sv}", [{}])}
        for word in named:
            found = known | await _offered(bus, word) if args.command in _OFFERS else known
            if word not in found and (hint := did_you_mean(word, sorted(found))):
                return type(error)(error.message.removesuffix(".") + hint)
    return error


def _named(args: argparse.Namespace) -> list[str]:
    """Return the ids in *args*, without paths and packages."""
    named: Any = getattr(args, "target", None) or getattr(args, "id", None) or getattr(args, "session", None) or ()
    return [word for word in ([named] if isinstance(named, str) else named) if word[:1].isalnum() and ":" not in word]


async def _offered(bus: Client, word: str) -> set[str]:
    """Return the ids in the catalog whose words begin like those of *word*."""
    words = "".join(char if char.isalnum() else " " for char in word).split()
    query = {"text": " ".join(part[:_PREFIX] for part in words), "limit": variant(_MOST, "u")}
    found, _ = await bus.manager.call("ListAvailable", "a{sv}s", [query, ""])
    return {entry["id"] for entry in found}
