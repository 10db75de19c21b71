# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of ensembles in a tier. Nothing is opened but directories."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.servers.ensembles.library.tiers import CONFIG, SUFFIXES, SYMLINK, Signature, Tier, refusal, signature

if TYPE_CHECKING:
    from pathlib import Path

MOST_FILES: Final = 5000
"""Of a tier."""
MOST_NAMES: Final = 20_000
"""Of a tier, whatever they are."""
MAX_DEPTH: Final = 8
"""Of directories below that of ensembles."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that is to be an ensemble."""

    path: Path
    relative: str
    """From the base of its tier."""
    signature: Signature | None = None
    modified: float = 0.0
    """Seconds since the epoch."""
    problem: str | None = None
    """Why it is not even opened, without its path."""

    @property
    def size(self) -> int:
        """In bytes; of what is not opened nothing."""
        return 0 if self.signature is None else self.signature[2]


@dataclass(slots=True)
class Walk:
    """What there is in the directory of ensembles of *tier*, in the order of paths."""

    tier: Tier
    files: list[File] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    """That one and those below."""
    _names: int = 0
    _full: bool = False
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Look."""
        self._look(self.tier.ensembles, 0)
        self.files.sort(key=lambda file: os.fsencode(file.relative))

    def _look(self, relative: str, depth: int) -> None:
        """At the directory *relative* and those below."""
        below: list[str] = []
        try:
            with self.tier.directory(relative) as descriptor:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) in self._seen:  # A symlink to one of them.
                    return
                self._seen.add((status.st_dev, status.st_ino))
                self.directories.append(self.tier.path(relative))
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        self._take(entry, "" if relative == "." else f"{relative}/", below)
                        if self._full:
                            return
        except OSError as error:
            self._refused(relative, error)
        for each in sorted(below):
            if self._full:
                return
            if depth == MAX_DEPTH:
                self._complain(each, f"directories are looked at {MAX_DEPTH} deep; move what is in it up")
            else:
                self._look(each, depth + 1)

    def _take(self, entry: os.DirEntry[str], prefix: str, below: list[str]) -> None:
        """Take a file in, and a directory into *below*."""
        self._names += 1
        if self._names > MOST_NAMES:
            self._fill()
            return
        relative = f"{prefix}{entry.name}"
        if entry.name.startswith(".") or (not self.tier.nested and entry.name == CONFIG):
            return
        is_link = not self.tier.follows and entry.is_symlink()
        if not entry.name.endswith(SUFFIXES):
            if self.tier.nested and (is_link or _is_directory(entry)):
                below.append(relative)
        elif is_link:
            self._complain(relative, SYMLINK)
        else:
            self._take_file(entry, relative, below)

    def _take_file(self, entry: os.DirEntry[str], relative: str, below: list[str]) -> None:
        try:
            status = entry.stat()
        except FileNotFoundError:
            if entry.is_symlink():
                self._complain(relative, "a symlink to nothing")
            return
        except OSError as error:
            self._complain(relative, refusal(error))
            return
        if len(self.files) == MOST_FILES:
            self._fill()
        elif stat.S_ISREG(status.st_mode):
            self.files.append(File(self.tier.path(relative), relative, signature(status), status.st_mtime))
        elif not stat.S_ISDIR(status.st_mode):
            self._complain(relative, "not a regular file")
        elif self.tier.nested:
            below.append(relative)

    def _fill(self) -> None:
        """Take nothing more, and say so."""
        self._full = True
        most = f"{MOST_FILES} ensembles or {MOST_NAMES} names"
        self._complain(self.tier.ensembles, f"there are more than {most}; the rest is left out")

    def _refused(self, relative: str, error: OSError) -> None:
        """What is not there, or a symlink to what is no directory, is nothing to speak of."""
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            self._complain(relative, refusal(error))

    def _complain(self, relative: str, fault: str) -> None:
        path = self.tier.path(relative)
        self.files.append(File(path, relative, problem=fault))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # Symlinks that go round in a circle.
        return False
