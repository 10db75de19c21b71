# SPDX-License-Identifier: LGPL-2.1-or-later
"""Heads of requests that are, byte for byte, what came over the same connection before.

Clients send the same headers again and again, and only the length of the body differs. Such a head was parsed, and
means what it meant then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.bridge.http.endpoint import Head

LONGEST: Final = 8192
"""Bytes of a head that is kept for a connection."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})(?=\r\n)", re.IGNORECASE)
_DIGITS: Final = 10


class KnownHead:
    """The *head* of a POST to *server*: the bytes *before* the digits of its Content-Length, and those *after* it."""

    __slots__ = ("_after", "_before", "head", "link", "server")

    def __init__(self, before: bytes, after: bytes, head: Head, server: str, link: str) -> None:
        self._before = before
        self._after = after
        self.head = head
        self.server = server
        self.link = link

    def body(self, data: bytes) -> bytes | None:
        """The body of the request that *data* is; ``None`` if it is anything but one whole request with this head."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + _DIGITS)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits = data[start:end]
        body = end + len(self._after)
        return data[body:] if digits.isdigit() and int(digits) == len(data) - body else None


def learn(data: bytes, size: int, head: Head, server: str, link: str) -> KnownHead | None:
    """What to know of *data*, one whole request with a body of *size* bytes, which was parsed and let in."""
    start = len(data) - size
    found = list(_LENGTH.finditer(data, 0, start)) if start <= LONGEST else []
    if len(found) != 1 or data.find(b"\r\n\r\n") + 4 != start or int(found[0].group(1)) != size:
        return None
    return KnownHead(data[: found[0].start(1)], data[found[0].end(1) : start], head, server, link)
