# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a bridge can be found: its socket, its URL and the tokens for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.paths import BRIDGE_URL, STDIO_SOCKET, calls_key, calls_socket

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Layout


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one bridge."""

    url: Path
    """Holds the base URL while the bridge listens on TCP."""
    socket: Path
    stdio: Path
    """The socket where servers are spoken to as over stdio."""
    calls: Path
    """The socket for servers that may call others."""
    calls_key: Path
    """Holds the key of their passes."""
    token: Path
    """Holds what TCP clients have to send; for the system's bridge a directory with a file for each uid."""
    key: Path
    """Holds the public key that the configurations of clients are verified with, once some are published."""


def places(layout: Layout) -> Places:
    """The files of the bridge of *layout*'s user, or of the system's."""
    token = layout.state / "bridge.token" if layout.scope == "user" else layout.state.parent / "tokens"
    runtime = layout.runtime
    return Places(
        runtime / BRIDGE_URL,
        runtime / "bridge.sock",
        runtime / STDIO_SOCKET,
        calls_socket(runtime),
        calls_key(runtime),
        token,
        layout.orchestration / "verification_key.pem",
    )
