# SPDX-License-Identifier: LGPL-2.1-or-later
"""Warnings about tools that a client refuses because of their names."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.conversation import names_of_tools
from mcpd.clients.policy import origin_of
from mcpd.clients.validation import Finding
from mcpd.errors import McpdError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping

    from mcpd.clients.families import Family
    from mcpd.clients.servers import Servers

CODE: Final = "TOOL_NAMES"
ADVICE: Final = "rename the tools in the mcps map, set the server to list other names, or install it under a shorter id"
_SECONDS: Final = 10.0
"""Seconds for a server to list its tools."""
_AT_ONCE: Final = 4
"""Maximum number of servers that are asked at the same time."""
_SHOWN: Final = 3
"""Maximum number of names in one message."""


async def listed(args: argparse.Namespace, servers: Servers, server_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the tools of *server_ids*.

    Servers without a tool catalog are started and asked; those that do not answer are left out.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def names(server_id: str) -> list[str] | None:
        try:
            recorded = await asyncio.to_thread(servers.tools, server_id)
            if recorded is not None:
                return recorded
            async with turn:
                return await names_of_tools(args, server_id, _SECONDS)
        except (McpdError, OSError):
            return None

    ids = list(dict.fromkeys(server_ids))
    found = await asyncio.gather(*map(names, ids))
    return {server_id: tools for server_id, tools in zip(ids, found, strict=True) if tools is not None}


def warnings(args: argparse.Namespace, servers: Servers, family: Family, entries: Mapping[str, Any]) -> list[Finding]:
    """Return a warning for each of *entries* that runs an installed server with tools that *family* refuses."""
    if family.tools is None:
        return []
    installed = servers.all()
    ids = {
        name: runs[0]
        for name, entry in sorted(entries.items())
        if len(runs := origin_of(entry, installed, family).runs) == 1 and runs[0] in installed
    }
    tools = asyncio.run(listed(args, servers, ids.values()))
    return [
        Finding(CODE, "warning", f"server '{name}': {text}; {ADVICE}", name)
        for name, server_id in ids.items()
        if (text := refusal(family, name, tools.get(server_id, ())))
    ]


def refusal(family: Family, name: str, tools: Iterable[str]) -> str:
    """Return a message about the *tools* that the client refuses in its server *name*; empty if there are none."""
    refused = family.refused_tools(name, tools)
    if not refused:
        return ""
    shown = ", ".join(refused[:_SHOWN]) + (", …" if len(refused) > _SHOWN else "")
    what = "the name of 1 tool" if len(refused) == 1 else f"the names of {len(refused)} tools"
    rules = family.tools
    if rules is not None and all(re.fullmatch(rules.name, tool) for tool in refused):
        what += f" because they are longer than {rules.max_length} characters with the server's name"
    return f"{family.name} refuses {what}: {shown}"
