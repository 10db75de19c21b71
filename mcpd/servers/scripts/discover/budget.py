# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits for the work on, and the output from, one script."""

from __future__ import annotations

from typing import Final

MAX_TOOL: Final = 128 * 1024
"""Maximum size of the schemas of a tool, in characters of JSON, approximately."""

MAX_FILE: Final = 4 * 1024 * 1024
"""Maximum size of the schemas of all tools of a file, in characters of JSON, approximately."""

MAX_EFFORT: Final = 4 * 1024 * 1024
"""Maximum total of the parts of a file that are read for references to them, in characters: a second or two."""


class Budget:
    """The remaining amounts to write and to read for a file."""

    def __init__(self) -> None:
        self.file = MAX_FILE
        self.tool = MAX_TOOL
        self._effort = MAX_EFFORT

    def next_tool(self) -> None:
        """Begin with another tool."""
        self.tool = MAX_TOOL

    def spend(self, characters: int) -> bool:
        """Return True and deduct *characters* if so many may still be written."""
        if characters > self.tool or characters > self.file:
            return False
        self.tool -= characters
        self.file -= characters
        return True

    def read(self, characters: int) -> bool:
        """Return True if *characters* of the file may be read for one more use. Once this is False, it remains so."""
        self._effort -= characters
        return self._effort >= 0
