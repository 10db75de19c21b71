# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much may be made of one script, however much is in it."""

from __future__ import annotations

from typing import Final

MAX_TOOL: Final = 128 * 1024
MAX_FILE: Final = 4 * 1024 * 1024
"""How large the schemas of a tool, and of all tools of a file, may become, in characters of JSON, about."""


class Budget:
    """How much may still be written for a file."""

    def __init__(self) -> None:
        self.file = MAX_FILE
        self.tool = MAX_TOOL

    def next_tool(self) -> None:
        """Begin with another tool."""
        self.tool = MAX_TOOL

    def spend(self, characters: int) -> bool:
        """Whether there is room for *characters* more; if so, they are taken."""
        if characters > self.tool or characters > self.file:
            return False
        self.tool -= characters
        self.file -= characters
        return True
