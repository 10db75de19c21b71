# SPDX-License-Identifier: LGPL-2.1-or-later
"""The revisions of MCP and which of them are served how."""

from __future__ import annotations

from typing import Final

import msgspec

HANDSHAKE: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions with ``initialize`` and sessions, oldest first."""
LATEST_HANDSHAKE: Final = HANDSHAKE[-1]
MODERN: Final = "2026-07-28"
"""The revision without handshake and sessions, in which every request says all that there is to know of it."""
SUPPORTED: Final = (MODERN, *reversed(HANDSHAKE))
"""All that are served, the newest first."""
WITH_BATCHES: Final = frozenset({"", "2024-11-05", "2025-03-26"})
"""Values of ``MCP-Protocol-Version`` for which an array is a batch; empty stands for no header."""
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, the most verbose first."""
UNSUPPORTED_VERSION: Final = -32022
META: Final = "io.modelcontextprotocol/"
"""Begins the names that the protocol has in ``_meta``."""
META_VERSION: Final = META + "protocolVersion"
"""Stands in every request of the modern era."""
META_CAPABILITIES: Final = META + "clientCapabilities"
META_CLIENT: Final = META + "clientInfo"
META_SUBSCRIPTION: Final = META + "subscriptionId"


def unsupported_data(requested: str) -> bytes:
    """The ``data`` of the error for a revision that is not served."""
    return msgspec.json.encode({"supported": SUPPORTED, "requested": requested})
