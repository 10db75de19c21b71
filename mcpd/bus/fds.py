# SPDX-License-Identifier: LGPL-2.1-or-later
"""File descriptors that travel with messages: every one has an owner who closes it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable


class Fds:
    """Owns file descriptors until they are taken; leaving the ``with`` block closes the rest.

    What came with a message is addressed by its index, which the sender chose: it is checked, and never used
    as a descriptor number.
    """

    __slots__ = ("_open",)

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._open: list[int | None] = list(fds)

    def __len__(self) -> int:
        return len(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, fd: int) -> int:
        """Own *fd* too; returns its index."""
        self._open.append(fd)
        return len(self._open) - 1

    def get(self, index: int) -> int:
        """The descriptor at *index*, still owned here.

        Raises :class:`~mcpd.errors.InvalidArgument` if there is none, or if it was taken already.
        """
        fd = self._open[index] if 0 <= index < len(self._open) else None
        if fd is None:
            raise InvalidArgument(
                f"file descriptor {index} was named, but the message carries {len(self._open)}, each to be used once"
            )
        return fd

    def take(self, index: int) -> int:
        """The descriptor at *index*; the caller owns it from now on. Raises like :meth:`get`."""
        fd = self.get(index)
        self._open[index] = None
        return fd

    def close(self) -> None:
        """Close everything that was not taken."""
        while self._open:
            fd = self._open.pop()
            if fd is not None:
                os.close(fd)
