# SPDX-License-Identifier: LGPL-2.1-or-later
"""What package sources have in common: the protocol of their recipes, what these return, and files of projects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.errors import InvalidManifest
from mcpd.store.files import is_missing, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import Entry, JsonValue, Source

MAX_WORDS: Final = 500
"""Characters of the name or the summary of a package that are kept."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file that was fetched, and what it must hash to."""

    name: str
    version: str
    integrity: str
    """``sha256:<hex>`` as pip has it, or an SRI value as npm has it."""
    file: str = ""
    size: int = 0
    """Bytes, 0 if unknown."""

    def to_json(self) -> dict[str, JsonValue]:
        """As it stands in the lock file."""
        found: dict[str, JsonValue] = {"name": self.name, "version": self.version, "integrity": self.integrity}
        if self.file:
            found["file"] = self.file
        return found


@dataclass(frozen=True, slots=True)
class Words:
    """What the metadata of a package says of it, as lines that can be shown; empty where it says nothing."""

    name: str
    summary: str

    @classmethod
    def of(cls, name: object, summary: object) -> Words:
        """The words *name* and *summary*, which the package may give in any shape and length."""
        return cls(_line(name), _line(summary))


def _line(value: object) -> str:
    text = " ".join(value.encode("utf-8", "replace").decode().split()) if isinstance(value, str) else ""
    return "".join(filter(str.isprintable, text))[:MAX_WORDS]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was installed."""

    version: str = ""
    """The resolved version of the package; empty where the source has none."""
    resolved: dict[str, JsonValue] = field(default_factory=dict)
    """What the source's pin came out as (``rev``, ``version``, ``sha256``)."""
    files: tuple[LockedFile, ...] = ()
    package: str = ""
    """Name of the package, if it is one."""
    scripts: tuple[str, ...] = ()
    """Commands that the package brings."""
    words: Words | None = None
    """What the package says of itself."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What is known once a source was asked, before anything of it runs or is unpacked."""

    files: tuple[LockedFile, ...] = ()
    """What will be fetched."""
    entry: Entry | None = None
    """The entry with what the source itself says, of a source that describes its server; None: as it was."""
    size: int = 0
    """Bytes of the files; 0 if unknown."""
    version: str = ""
    """The exact version of a package; empty where a source has none or names it itself."""


class Recipe(Protocol):
    """How one source type becomes the files of a generation."""

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` for a source that can never work; reads nothing from outside."""

    async def resolve(self) -> Resolution:
        """Find out what will be fetched; commands run with the network on, nothing of the package does."""

    async def fetch(self) -> None:
        """Bring everything that has to come from outside; commands run with the network on."""

    async def build(self) -> Outcome:
        """Make it ready to run; the package's own code runs here only, with the network off."""


MAX_FILE: Final = 1024 * 1024
"""Bytes of ``package.json``, a file of requirements."""
MAX_LOCK: Final = 8 * 1024 * 1024
"""Bytes of ``package-lock.json``."""


def read_project_file(path: Path, limit: int = MAX_FILE) -> bytes | None:
    """The content of *path*; None if it is missing, a link or no file.

    Raises :class:`~mcpd.errors.InvalidManifest` for more than *limit* bytes, OSError for what cannot be read.
    """
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return read_file(path, limit)
    except InvalidManifest as error:
        raise InvalidManifest(f"{path.name} of the project is larger than {limit / 1024**2:g} MiB") from error
    except OSError as error:
        if is_missing(error):
            return None
        raise
