# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tool of a script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

MAX_TOOLS: Final = 1000
"""Maximum number of tools of one script; further ones are ignored."""
MAX_NAME: Final = 64
"""Maximum length of the name of a tool found in a script, in characters."""
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]+")
"""Matches characters that some clients do not accept in the name of a tool."""


def tool_name(text: str) -> str:
    """Return *text* as a tool name that every client accepts."""
    return _REFUSED.sub("_", text)[:MAX_NAME]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a script server, from the script, an entry or a transform.

    *function* is the function of the Python file to run, or the first word for the shell script; if empty, the whole
    script is run.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    function: str
    title: str = ""
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
