# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file that a script is copied from: what it holds, and who may read that."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, from_oserror
from mcpd.paths import Scope
from mcpd.store.files import Signature, is_missing, settled, signature
from mcpd.store.inspection import MAX_SCRIPT

if TYPE_CHECKING:
    from pathlib import Path

_GONE: Final = 5
"""Looks until a file that vanished is said to be gone: editors put another one in its place at once."""
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PUBLIC: Final = 0o644
_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Text:
    """What a script's file held."""

    data: bytes
    mode: int
    """Of a copy, which nobody may read who may not read the file."""


def read_text(source: Path, scope: Scope) -> Text:
    """What is in *source*, for a copy in *scope*.

    Everybody may read the system's scripts, so a file that others may not read is none for it: root would publish
    what a symlink of somebody else leads to. Raises :class:`~mcpd.errors.InvalidArgument` for one,
    :class:`~mcpd.errors.InvalidManifest` for what is no file or too large, and OSError.
    """
    descriptor = os.open(source, _OPEN)
    # What is asked is the file that is read, whatever has its name by then.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidManifest(f"{source}: not a regular file")
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if scope is Scope.SYSTEM and not status.st_mode & stat.S_IROTH:
            raise InvalidArgument(
                f"{source}: others may not read it, and as a script of the system it would become readable for"
                " everybody; if it may, chmod it first (chmod a+r)"
            )
        data = file.read(MAX_SCRIPT + 1)
    if len(data) > MAX_SCRIPT:
        raise InvalidManifest(f"{source}: larger than {MAX_SCRIPT} bytes")
    shared = stat.S_IRGRP | stat.S_IROTH
    return Text(data, _PUBLIC if scope is Scope.SYSTEM or status.st_mode & shared == shared else _PRIVATE)


def read_given(source: Path, scope: Scope) -> Text:
    """:func:`read_text` of a file that was named just now: raises :class:`~mcpd.errors.McpdError` only."""
    try:
        return read_text(source, scope)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"{source}: there is no such file") from error
        raise from_oserror(error, f"reading {source}") from error


@dataclass(slots=True)
class Watched:
    """A file that somebody edits: in place, or by putting another one there."""

    path: Path
    scope: Scope
    text: Text | None
    """What it held when it was last looked at."""
    _known: Signature | None = field(default=None, init=False)
    _last: Signature | None = field(default=None, init=False)
    _missing: int = field(default=0, init=False)
    _fault: str = field(default="", init=False)

    def look(self) -> Text | str | None:
        """What it holds, if that is something else than before, or why that cannot be told, once.

        ``None`` if there is nothing new, and while somebody is writing it.
        """
        try:
            status = self.path.stat()
            now = signature(status)
            if now == self._known or not (settled(status) or now == self._last):
                self._last = now
                return None
            text = read_text(self.path, self.scope)
        except OSError as error:
            self._known = None
            self._missing += is_missing(error)
            is_brief = is_missing(error) and self._missing < _GONE
            return None if is_brief else self._once(f"{self.path}: {error.strerror}")
        except (InvalidArgument, InvalidManifest) as error:
            return self._once(error.message)
        self._known, self._missing, self._fault = now, 0, ""
        if text == self.text:
            return None
        self.text = text
        return text

    def _once(self, fault: str) -> str | None:
        known, self._fault = self._fault, fault
        return None if known == fault else fault
