# SPDX-License-Identifier: LGPL-2.1-or-later
"""Common parts of the package sources: the recipe protocol, its results, and reading of project files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.errors import InvalidManifest
from mcpd.files import is_missing, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, JsonValue, Source

MAX_TEXT: Final = 500
"""Maximum number of characters of a package's name or summary; the rest is dropped."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file to fetch, and its expected hash."""

    name: str
    version: str
    integrity: str
    """Algorithm and hash as the package manager writes them: ``sha256:<hex>`` (pip, uv) or an SRI value (npm)."""
    file: str = ""
    size: int = 0
    """Bytes, 0 if unknown."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the file in the format of the lock file."""
        found: dict[str, JsonValue] = {"name": self.name, "version": self.version, "integrity": self.integrity}
        if self.file:
            found["file"] = self.file
        return found


@dataclass(frozen=True, slots=True)
class PackageTexts:
    """Name and summary in the metadata of a package, each as one printable line; empty if missing."""

    name: str
    summary: str

    @classmethod
    def of(cls, name: object, summary: object) -> PackageTexts:
        """Return name and summary, cleaned up and shortened; a package may contain values of any type and length."""
        return cls(_line(name), _line(summary))


def _line(value: object) -> str:
    text = " ".join(value.encode("utf-8", "replace").decode().split()) if isinstance(value, str) else ""
    return "".join(filter(str.isprintable, text))[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a build."""

    version: str = ""
    """The resolved version of the package; empty if the source has none."""
    resolved: dict[str, JsonValue] = field(default_factory=dict)
    """The exact ``rev``, ``version`` or ``sha256`` of the source."""
    files: tuple[LockedFile, ...] = ()
    package: str = ""
    """Name of the package; empty if the source is not a package."""
    scripts: tuple[str, ...] = ()
    """Commands that the package installs."""
    texts: PackageTexts | None = None
    """Name and summary of the package."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of resolving a source, before any of its code is run."""

    files: tuple[LockedFile, ...] = ()
    """The files that will be fetched."""
    entry: Entry | None = None
    """The entry, completed by a package that describes its own server; None if unchanged."""
    size: int = 0
    """Total size of the files in bytes; 0 if unknown."""
    version: str = ""
    """The exact version of the package; empty if the source has none or already names it."""


class Recipe(Protocol):
    """The steps by which one type of package source fills a generation."""

    def __init__(self, bench: Workbench, source: Source) -> None: ...

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` for an invalid source; reads nothing outside the entry."""

    async def resolve(self) -> Resolution:
        """Determine the files to fetch; commands have network access, and no code of the package runs."""

    async def fetch(self) -> None:
        """Fetch everything that is needed from outside; commands have network access."""

    async def build(self) -> Outcome:
        """Make the server ready to run; the only step in which the package's own code may run, without network."""


MAX_FILE: Final = 1024 * 1024
"""Maximum size of a project file in bytes, for example ``package.json``."""
MAX_LOCK: Final = 8 * 1024 * 1024
"""Maximum size of ``package-lock.json`` in bytes."""


def read_project_file(path: Path, limit: int = MAX_FILE) -> bytes | None:
    """Return the content of *path*; None if it is missing, a link or not a file.

    Raises :class:`~mcpd.errors.InvalidManifest` for more than *limit* bytes, OSError if it cannot be read.
    """
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return read_file(path, limit)
    except InvalidManifest as error:
        raise InvalidManifest(f"the project's {path.name} is larger than {limit / 1024**2:g} MiB") from error
    except OSError as error:
        if is_missing(error):
            return None
        raise
