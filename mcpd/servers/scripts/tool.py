# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tool of a script, and the conversion of its arguments into words of a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

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
class Option:
    """A property of a shell tool, and its form on the command line.

    *name* is the property in the input schema. *flag* is the option before the value (``--file``, ``-f``), empty for a
    positional argument. Without *takes_value* the property is a flag: true writes it once, a number as often. With
    *repeats* the value is a list, each item with the flag before it; with *together* a list after a single flag
    (``--move FROM TO``). *signs* are the characters with which the script's options begin; a value that begins with one
    of them never gets a word of its own where the script expects options.
    """

    name: str
    flag: str = ""
    takes_value: bool = True
    repeats: bool = False
    together: bool = False
    signs: str = "-"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a script server, from the script, an entry or a transform.

    *function* is run: a function of the Python file, a command of the shell script, or empty for the whole script.
    *options* convert the arguments of a shell tool into words; without any, the property ``args`` is split as by a
    shell. *end_of_options* determines when ``--`` precedes the positional words: ``"always"``, ``"needed"`` (one of
    them looks like an option), or ``""`` if the script may not support it: such words are then refused.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    function: str
    title: str = ""
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    options: tuple[Option, ...] = ()
    end_of_options: Literal["", "needed", "always"] = ""
