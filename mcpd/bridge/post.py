# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an era has to know of a POST beside its body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.callers import Caller


@dataclass(slots=True)
class Post:
    """What matters of a POST beside its body; empty strings stand for missing headers."""

    server: str
    caller: Caller
    session_id: str
    version: str
    headers: Mapping[bytes, bytes]
    """All of them, with names in lower case."""
    link: str = ""
    """The id of the stream to which the answers of a client of 2024-11-05 go."""
    held: Holding | None = None
    """What counts its body, until that was handed on."""

    def release(self) -> None:
        """Its body was handed on, or is gone."""
        if self.held is not None:
            self.held.close()
