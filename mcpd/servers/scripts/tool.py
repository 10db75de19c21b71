# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a script offers: a tool, and how its arguments become words of a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

MAX_TOOLS: Final = 1000
"""How many tools of one script are found. Those after them are left out: a script with that many may have more."""
MAX_NAME: Final = 64
"""Characters in the name of a tool that was found in a script."""
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that some clients do not accept in the name of a tool."""


def tool_name(text: str) -> str:
    """Return *text* as a tool name that every client accepts."""
    return _REFUSED.sub("_", text)[:MAX_NAME]


@dataclass(frozen=True, slots=True)
class Option:
    """One property of a shell tool, and how its value is written on the command line.

    *name* is the property in the input schema. *flag* is what goes before the value (``--file``, ``-f``), or is
    empty for a positional argument. A property without *takes_value* is a flag: true writes it once, a number that
    often. *repeats*: the value is a list, each item with the flag before it. *together*: the value is a list that
    follows one flag (``--move FROM TO``). *signs* are the characters with which the script's options begin; a value
    that begins with one of them never gets a word of its own where the script looks for options.
    """

    name: str
    flag: str = ""
    takes_value: bool = True
    repeats: bool = False
    together: bool = False
    signs: str = "-"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a script server, discovered, static or made by a transform.

    *function* is what runs: a function of the Python file, a command of the shell script, or empty for the script as
    a whole. *options* say how the arguments of a shell tool become words; without any, the property ``args`` is split
    as a shell would. *end_of_options* says when ``--`` goes before the positional words: ``"always"``, ``"needed"``
    (one of them looks like an option), or ``""`` if the script is not known to understand it: such words are refused.
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
