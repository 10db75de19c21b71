# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command is given to read: a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from mcpd.errors import InvalidArgument, McpdError, NotFound

STDIN: Final = "-"
LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a file, unless a command takes less."""


def read_input(name: str, limit: int = LIMIT) -> bytes:
    """What the file *name* holds, or standard input (``-``), up to *limit* bytes.

    Raises :class:`~mcpd.errors.InvalidArgument` or :class:`~mcpd.errors.NotFound` for what is no such file.
    """
    from mcpd.store.files import is_missing, read_file  # noqa: PLC0415 - few commands read files

    if name == STDIN:
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise InvalidArgument(f"standard input is larger than {limit} bytes")
        return data
    try:
        return read_file(Path(name), limit)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"there is no file {name}") from error
        raise
    except McpdError as error:
        raise InvalidArgument(error.message) from error


def origin(name: str) -> str:
    """What a message calls the input *name*."""
    return "standard input" if name == STDIN else name
