# SPDX-License-Identifier: LGPL-2.1-or-later
"""Agents that are tools of installed servers, called through the bridge."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import LimitExceeded, McpdError
from mcpd.model import printable
from mcpd.paths import Scope
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.paths import Paths
    from mcpd.servers.others import Others

_TITLES: Final = ("Method not found: ", "Invalid params: ", "Internal error: ")
"""JSON-RPC's names of error codes, which servers put before messages; useless in the result of a run."""


class ServerTools:
    """Calls tools; implements :class:`~.engine.types.ToolCaller` of the engine."""

    def __init__(self, others: Others, *, hops: int = 0, paths: Paths | None = None) -> None:
        """Call tools for a request that came through *hops* servers.

        *paths* are the directories of installed servers; None in a sandbox, where they are not visible.
        """
        self._others = others
        self._hops = hops
        self._paths = paths

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; see :meth:`~.engine.types.ToolCaller.call`."""
        try:
            result = await self._others(server, tool, dict(arguments), self._hops)
            return _text(result, f"tool {printable(tool)} of server {printable(server)}")
        except McpdError as fault:
            fault.args = (_plain(fault.message, f"tool {tool} of server {server}: "),)
            fault.data = {"server": server, "tool": tool, **(fault.data or {})}
            raise

    async def names(self, server: str) -> list[str]:
        """Return the names of the tools of *server*. Raises McpdError."""
        return await self._others.tools(server, self._hops)

    async def servers(self) -> list[str] | None:
        """Return the ids of the user's servers, or None if they are unknown."""
        return None if self._paths is None else await asyncio.to_thread(_installed, self._paths)


def _plain(message: str, start: str) -> str:
    """Return *message* without the name of the error code that a server may have put after *start*."""
    said = message.removeprefix(start)
    title = next((each for each in _TITLES if said.startswith(each)), "")
    return start + said.removeprefix(title) if title and message.startswith(start) else message


def _installed(paths: Paths) -> list[str]:
    from mcpd.store.store import Store  # a server of mcpd never needs it

    return [each.id for each in Store(paths, Scope.USER).list()]


def _text(result: Mapping[str, Any], what: str) -> str:
    """Return the response of a tool: its structured content, its texts, or, with other blocks, all blocks as JSON."""
    structured, blocks = result.get("structuredContent"), result.get("content")
    texts = [_of_block(each) for each in blocks] if isinstance(blocks, list) else []
    try:
        if structured is not None:
            text = _json(structured)
        elif None in texts:
            text = _json(blocks)
        else:
            text = "\n".join(each for each in texts if each is not None)
    except (ValueError, RecursionError) as error:
        raise McpdError(f"{what}: the answer cannot be written as JSON: {error}") from error
    # JSON can contain single surrogates, which UTF-8 cannot.
    encoded = text.encode(errors="replace")
    if len(encoded) > MAX_RESPONSE:
        raise LimitExceeded(f"{what}: the answer has more than {MAX_RESPONSE // 1024 // 1024} MiB")
    return encoded.decode()


def _of_block(block: object) -> str | None:
    """Return the text of *block*, or None if it is not a text block."""
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
