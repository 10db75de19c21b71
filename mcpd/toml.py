# SPDX-License-Identifier: LGPL-2.1-or-later
"""TOML that anybody may have written."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

MAX_PARTS: Final = 64
"""Parts of a dotted key. The parser's time and memory grow with their square: 25 KB in one key take it seconds, and
100 KB a minute, which nothing can end, as it runs in a thread."""
MAX_FAULT: Final = 200
"""Characters of what the parser says, which repeats keys."""
_PART: Final = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"?+|'[^'\n]*+'?+)"""
_TOKEN: Final = re.compile(
    rf'''
    \#[^\n]*+
    | """(?:[^"\\]|\\[\s\S]|"(?!""))*+"{{0,5}}
    | \'\'\'(?:[^']|'(?!\'\'))*+'{{0,5}}
    | {_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{0,{MAX_PARTS - 1}}}+(?P<more>[ \t]*+\.)?
    ''',
    re.VERBOSE,
)
"""Comments and long strings, so that nothing in them is taken for a key, and keys; values of one line look like keys.
A string that does not end is taken to the end: nothing is read twice."""


def parse_toml(data: bytes | str) -> dict[str, Any]:
    """What *data* says, in a time that grows with its size only.

    Raises ValueError, whose text is one short line that says what is wrong and where, for everything that is not TOML,
    nested beyond reason, or holds keys of more than :data:`MAX_PARTS` parts or numbers of thousands of digits.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from error
    for token in _TOKEN.finditer(text):
        if token["more"] is not None:
            line = text.count("\n", 0, token.start()) + 1
            column = token.start() - text.rfind("\n", 0, token.start())
            raise ValueError(f"a key of more than {MAX_PARTS} parts (at line {line}, column {column})")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        what, at, where = str(error).rpartition(" (at ")
        raise ValueError(f"{what[:MAX_FAULT]}{at}{where}") from error
    except ValueError as error:
        raise ValueError("a number of thousands of digits") from error
