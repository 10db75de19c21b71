# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which generations are not finished: files ``generations/<id>/.<n>~building``, locked by the process that builds."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(r"\.([0-9]+)~building", re.ASCII)


class Unfinished:
    """The generations of one scope that are being built, by this process or by another one."""

    def __init__(self, generations: Path) -> None:
        self._generations = generations
        self._own: dict[tuple[str, int], int] = {}
        """Descriptors of the files that this process has locked."""

    def begin(self, server_id: str, number: int) -> None:
        """This process builds the generation from now on. Raises OSError, then :meth:`end` tidies up."""
        descriptor = os.open(
            self._file(server_id, number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._own[server_id, number] = descriptor

    def mark(self, server_id: str, number: int) -> None:
        """Say of a finished generation that it is none. Raises OSError."""
        self._file(server_id, number).touch(0o600)

    def end(self, server_id: str, number: int) -> None:
        """The generation is complete, or gone."""
        with suppress(FileNotFoundError):
            self._file(server_id, number).unlink()
        descriptor = self._own.pop((server_id, number), None)
        if descriptor is not None:
            os.close(descriptor)

    def is_marked(self, server_id: str, number: int) -> bool:
        """Whether the generation is unfinished, be it that nobody builds it any more."""
        return self._file(server_id, number).exists()

    def is_own(self, server_id: str, number: int) -> bool:
        """Whether this process builds it."""
        return (server_id, number) in self._own

    def is_alive(self, server_id: str, number: int) -> bool:
        """Whether a living process builds it."""
        return self.is_own(server_id, number) or self._is_locked(server_id, number)

    def _is_locked(self, server_id: str, number: int) -> bool:
        try:
            descriptor = os.open(self._file(server_id, number), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _file(self, server_id: str, number: int) -> Path:
        return self._generations / server_id / f".{number}~building"


def number_of(name: str) -> int | None:
    """The number of the generation that a file called *name* marks; None if it marks none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
