# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server that a path names."""

from __future__ import annotations

import re
from typing import Final

from mcpd.bridge.http.short_cache import short_cache

RESERVED: Final = frozenset({"meta", "sse"})
"""Names below ``/mcp`` that are no servers."""
_NAME: Final = re.compile(r"[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,127}")
_PREFIX: Final = "/mcp/"


def is_server_name(name: str) -> bool:
    """Return True if *name* can be that of a server: it is one segment of a path and climbs nowhere."""
    return name not in RESERVED and _NAME.fullmatch(name) is not None


def stream_of(path: str) -> str:
    """The server whose stream of 2024-11-05 the decoded *path* is; empty if it is none's."""
    return server_of(path.removesuffix("/sse")) if path.endswith("/sse") else ""


@short_cache
def server_of(path: str) -> str:
    """The server whose endpoint the decoded *path* is; empty if it is none's."""
    if not path.startswith(_PREFIX):
        return ""
    name = path[len(_PREFIX) :].removesuffix("/")
    return name if is_server_name(name) else ""
