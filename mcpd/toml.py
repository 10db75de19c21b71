# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parser for TOML files from untrusted authors."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

MAX_PARTS: Final = 64
"""Maximum parts of a dotted key. The parser's time and memory grow with the square of their number: a key of 25 KB
takes seconds and one of 100 KB a minute, and a thread cannot be interrupted."""
MAX_FAULT: Final = 200
"""Maximum characters of the parser's error message, which repeats keys."""
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
"""Matches keys, as well as comments and multi-line strings so that their content is not mistaken for keys. Single-line
values look like keys. An unterminated string extends to the end of the text, so no text is scanned twice."""


def parse_toml(data: bytes | str) -> dict[str, Any]:
    """Parse *data*, in time proportional to its size.

    Raises ValueError with one short line that says what is wrong and where: for invalid TOML, excessive nesting, keys
    of more than :data:`MAX_PARTS` parts, and numbers with thousands of digits.
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
        raise ValueError("a number with thousands of digits") from error
