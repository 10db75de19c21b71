# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories that ensembles come from, and the only way to the files in them.

A project may be somebody else's work: its symlinks do not lead out of its directory, and a file is never one. The
user's own and the package's directories are laid out as the user and the package like it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd import files
from mcpd.errors import InvalidConfig
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.ensembles.engine.types import Origin
from mcpd.servers.ensembles.format.reading import MAX_SIZE
from mcpd.servers.ensembles.settings import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.settings import Settings

ENSEMBLES: Final = "ensembles"
SUFFIXES: Final = (".yaml", ".yml")
CONFIG: Final = "config.yaml"
PROFILES: Final = "profiles"
SYMLINK: Final = "a symlink, and a project's are not followed; put the file itself there"

Kind: TypeAlias = Literal["project", "user", "shipped"]
Signature: TypeAlias = tuple[int, int, int, int, int]
"""What changes when a file changes: its device, and :data:`mcpd.files.Signature`."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A project, the user or the package."""

    kind: Kind
    label: str
    """What stands before ``/`` in the names of its ensembles."""
    base: Path
    project: Path | None = None

    @property
    def ensembles(self) -> str:
        """Where they are, from the base; ``.`` for the base itself."""
        return "." if self.kind == "shipped" else ENSEMBLES

    @property
    def nested(self) -> bool:
        """Whether directories below count; the package's are scripts."""
        return self.kind != "shipped"

    @property
    def follows(self) -> bool:
        """Whether symlinks may lead anywhere."""
        return self.project is None

    @property
    def _last(self) -> int:
        """The flag for the last part of a path."""
        return 0 if self.follows else os.O_NOFOLLOW

    def path(self, relative: str) -> Path:
        """Where *relative*, which is from the base, is."""
        return self.base / relative

    def origin(self, file: Path) -> Origin:
        """The origin of what is in *file*."""
        return Origin(self.kind, file, self.base, self.project)

    def holds(self, origin: Origin) -> bool:
        """Whether *origin* is from here."""
        return self.kind == origin.tier and self.base == origin.base

    def open(self, relative: str, flags: int) -> int:
        """A descriptor of *relative*, which is from the base; it waits for nobody. Raises OSError."""
        flags |= os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY)
        if self.project is None:
            return os.open(self.path(relative), flags)
        with _closing(os.open(self.project, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as project:
            base = open_beneath(project, DIRECTORY, os.O_PATH | os.O_DIRECTORY)
        with _closing(base):
            return open_beneath(base, relative, flags)

    @contextmanager
    def directory(self, relative: str) -> Iterator[int]:
        """A descriptor of the directory *relative*, which can be listed. Raises OSError."""
        with _closing(self.open(relative, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
            yield descriptor

    def status(self, relative: str) -> os.stat_result:
        """What *relative* is. Raises OSError."""
        with _closing(self.open(relative, os.O_PATH | self._last)) as descriptor:
            return os.fstat(descriptor)

    def data(self, relative: str) -> tuple[bytes, Signature | None]:
        """What is in *relative*, one byte more than :data:`~.format.reading.MAX_SIZE` at most, and its signature if
        that tells it from the next edit.

        Raises :class:`~mcpd.errors.InvalidConfig` that names the file if it is not a regular one, and OSError.
        """
        with _closing(self.open(relative, os.O_RDONLY | self._last)) as descriptor:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise unusable(self.path(relative), "not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_SIZE + 1) or b""
            after = os.fstat(descriptor)
        same = signature(before) == signature(after)
        return data, signature(after) if same and files.settled(after) else None

    def read(self, relative: str) -> tuple[str, Signature | None]:
        """The text of *relative*, and its signature if that tells it from the next edit.

        Raises :class:`~mcpd.errors.InvalidConfig` that names the file for what is no text, not a regular file or
        larger than :data:`~.format.reading.MAX_SIZE`, and OSError.
        """
        data, settled = self.data(relative)
        return decoded(data, self.path(relative)), settled


def decoded(data: bytes, path: Path) -> str:
    """The text that *data* of the file *path* is.

    Raises :class:`~mcpd.errors.InvalidConfig` that names the file for what is no text, or larger than
    :data:`~.format.reading.MAX_SIZE`.
    """
    if len(data) > MAX_SIZE:
        raise unusable(path, f"larger than {MAX_SIZE // 1024} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise unusable(path, f"not UTF-8 text (byte {error.start})") from error


def tiers(settings: Settings) -> list[Tier]:
    """All of them, those that count first where names clash at the beginning."""
    labels = _labels(settings.projects)
    projects = [Tier("project", labels[each], each / DIRECTORY, each) for each in dict.fromkeys(settings.projects)]
    return [*projects, Tier("user", "user", settings.user), Tier("shipped", "shipped", settings.shipped)]


def signature(status: os.stat_result) -> Signature:
    """What changes when the file changes."""
    return (status.st_dev, *files.signature(status))


def shown(path: Path) -> str:
    """*path* for messages: somebody else chose the names in it."""
    return "/".join(map(printable, path.parts)).replace("//", "/", 1)


def unusable(path: Path, fault: str) -> InvalidConfig:
    """The error for a file that cannot be read at all."""
    error = InvalidConfig(f"{shown(path)}: {fault}")
    error.data = {"file": shown(path), "line": 1}
    return error


def unreadable(path: Path, error: OSError) -> InvalidConfig:
    """The error for a file that the system does not give."""
    return unusable(path, refusal(error))


def refusal(error: OSError) -> str:
    """Why the system does not give a file."""
    if error.errno == errno.EXDEV:
        return "leads out of the project by a symlink, and is left out"
    if error.errno == errno.ELOOP:
        return SYMLINK
    return error.strerror or str(error)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _labels(projects: Sequence[Path]) -> dict[Path, str]:
    """The name of each project's directory, with as many of those around it as it takes to tell them apart."""
    labels: dict[Path, str] = {}
    for project in projects:
        parts = project.parts[1:]
        tails = ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [f"/{each.as_posix().strip('/')}" for each in projects if each != project]
        free = (
            tail
            for tail in tails
            if tail not in {"user", "shipped"} and not any(o.endswith(f"/{tail}") for o in others)
        )
        labels[project] = next(free, str(project))
    return labels
