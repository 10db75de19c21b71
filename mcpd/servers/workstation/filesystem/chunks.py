# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files read in chunks, so that no call goes on for long once nobody waits for it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call

CHUNK: Final = 1024 * 1024
"""Bytes that are read or written between two questions whether anybody still waits."""


def read_at(call: Call, fd: int, offset: int, most: int) -> bytes:
    """The bytes of *fd* from *offset* on: *most* of them, fewer only where the file ends. Raises OSError."""
    parts = []
    while most > 0:
        call.check()
        part = os.pread(fd, min(CHUNK, most), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        most -= len(part)
    return b"".join(parts)


def digest(call: Call, fd: int) -> str:
    """The SHA-256, in hexadecimal digits, of all that *fd* has; the call reports how far it is. Raises OSError."""
    found, done = hashlib.sha256(), 0
    size = os.fstat(fd).st_size
    while part := read_at(call, fd, done, CHUNK):
        found.update(part)
        done += len(part)
        call.report(done, max(done, size), "reading")
    return found.hexdigest()
