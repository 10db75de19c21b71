# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names from the disk, which are bytes, as the text of a JSON answer."""

from __future__ import annotations

import json
import re
from typing import Final

_HALVES: Final = re.compile("[\ud800-\udfff]")


def shown_name(text: str) -> str:
    """*text*, a name or a path as ``os`` gives it, with U+FFFD for each byte in it that is no UTF-8.

    Python keeps such bytes as half surrogate pairs, which no JSON can carry.
    """
    return _HALVES.sub("\ufffd", text)


def is_addressable(name: str) -> bool:
    """Return True if *name*, as ``os`` gives it, is UTF-8, so that an argument of a tool can name it."""
    return _HALVES.search(name) is None


def json_size(text: str) -> int:
    """Bytes that *text* takes in JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass"))


def one_line(text: str) -> str:
    """*text*, a name or a path, as part of a listing: whatever cannot be shown, or ends the line, is escaped."""
    text = shown_name(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
