# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of a POST that an era needs in addition to its body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bridge.budget import Holding
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.modern.request import Agreed


@dataclass(slots=True)
class Post:
    """The relevant parts of a POST except for its body; missing headers are empty strings."""

    server: str
    caller: Caller
    session_id: str
    version: str
    headers: Mapping[bytes, bytes]
    """All of them, with names in lower case."""
    link: str = ""
    """The id of the stream to which the answers of a client of 2024-11-05 go."""
    over_stdio: bool = False
    """It came over ``stdio.sock``, where no headers repeat what the body says."""
    environment: Mapping[str, str] | None = None
    """Variables of the client for a process that no other client has."""
    held: Holding | None = None
    """What counts its body, until that was handed on."""
    agreed: Agreed | None = None
    """What a request said that its headers agree with, as the next one with the same headers may say the same."""

    def release(self) -> None:
        """Its body was handed on, or is gone."""
        if self.held is not None:
            self.held.close()
