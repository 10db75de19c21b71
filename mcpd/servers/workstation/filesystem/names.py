# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names from the disk, which are bytes, as text for JSON."""

from __future__ import annotations

import json
import re
from typing import Final

_HALVES: Final = re.compile("[\ud800-\udfff]")


def shown_name(text: str) -> str:
    """Return *text*, a name or a path decoded as by ``os``, with U+FFFD for each byte that is not UTF-8.

    Python represents such bytes as surrogates, which JSON cannot contain.
    """
    return _HALVES.sub("\ufffd", text)


def is_addressable(name: str) -> bool:
    """Return True if *name*, decoded as by ``os``, is UTF-8, so that an argument of a tool can name it."""
    return _HALVES.search(name) is None


def json_size(text: str) -> int:
    """Return the size of *text* as JSON, in bytes."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass"))


def one_line(text: str) -> str:
    """Return *text*, a name or a path, in one line, with unprintable characters escaped."""
    text = shown_name(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
