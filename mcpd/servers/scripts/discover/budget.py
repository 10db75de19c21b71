# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much may be made of one script, however much is in it."""

from __future__ import annotations

from typing import Final

MAX_TOOL: Final = 128 * 1024
MAX_FILE: Final = 4 * 1024 * 1024
"""How large the schemas of a tool, and of all tools of a file, may become, in characters of JSON, about."""

MAX_EFFORT: Final = 16 * 1024 * 1024
"""How much of a file may be read for what refers to it, each time anew, in characters, about; some seconds."""


class Budget:
    """How much may still be written for a file, and read of it."""

    def __init__(self) -> None:
        self.file = MAX_FILE
        self.tool = MAX_TOOL
        self._effort = MAX_EFFORT

    def next_tool(self) -> None:
        """Begin with another tool."""
        self.tool = MAX_TOOL

    def spend(self, characters: int) -> bool:
        """Return True if there is room for *characters* more; if so, they are taken."""
        if characters > self.tool or characters > self.file:
            return False
        self.tool -= characters
        self.file -= characters
        return True

    def read(self, characters: int) -> bool:
        """Return True if *characters* of the file may be read for one more use. Once they may not, nothing more is."""
        self._effort -= characters
        return self._effort >= 0
