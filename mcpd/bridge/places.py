# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a bridge can be found: its socket, its URL and the tokens for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Layout


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one bridge."""

    url: Path
    """Holds the base URL while the bridge listens on TCP."""
    socket: Path
    token: Path
    """Holds what TCP clients have to send; for the system's bridge a directory with a file for each uid."""


def places(layout: Layout) -> Places:
    """The files of the bridge of *layout*'s user, or of the system's."""
    token = layout.state / "bridge.token" if layout.scope == "user" else layout.state.parent / "tokens"
    return Places(layout.runtime / "bridge.url", layout.runtime / "bridge.sock", token)
