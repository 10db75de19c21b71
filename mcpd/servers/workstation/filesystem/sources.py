# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that ripgrep names, read by ourselves through the jail.

ripgrep opens by path. Whoever swaps a file for a symlink or a hard link meanwhile makes it read something else, so of
what it says only that is believed which a descriptor of ours has at the same place.
"""

from __future__ import annotations

import codecs
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from mcpd.errors import McpdError
from mcpd.servers.workstation.filesystem.chunks import read_at
from mcpd.servers.workstation.filesystem.scanning import MAX_WHOLE

if TYPE_CHECKING:
    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

_UTF_16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Sources:
    """One file after the other; a context manager that closes the last."""

    def __init__(self, call: Call, directory: Place) -> None:
        """Paths are from *directory*."""
        self._call = call
        self._directory = directory
        self._open = ExitStack()
        self._fd = -1
        self._start = 0
        """Where the text begins, behind a byte order mark."""
        self._text: bytes | None = None
        """The whole text, as UTF-8, of what is written otherwise."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, path: str) -> bool:
        """Go on to the file *path*; says whether it may be read at all."""
        self._open.close()
        self._fd, self._text = -1, None
        try:
            self._fd = self._open.enter_context(self._call.jail.file(self._directory.child(path)))
            head = os.pread(self._fd, len(codecs.BOM_UTF8), 0)
            self._start = len(head) if head == codecs.BOM_UTF8 else 0
            codec = _UTF_16.get(head[:2])
            if codec is not None:
                self._text = read_at(self._call, self._fd, 2, MAX_WHOLE).decode(codec, "replace").encode()
        except (McpdError, OSError):
            self._open.close()
            self._fd = -1
        return self._fd >= 0

    def has(self, offset: int, data: bytes) -> bool:
        """Whether the file has *data* at *offset*, counted as ripgrep does: in UTF-8 and without a byte order mark."""
        if self._text is not None:
            return self._text[offset : offset + len(data)] == data
        try:
            return os.pread(self._fd, len(data), self._start + offset) == data
        except OSError:
            return False
