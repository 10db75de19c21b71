# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories that ensembles come from, the only way to their files, and what was read from unchanged files.

A project may be somebody else's work: its symlinks do not lead out of its directory, and a file is never one. The
user's own and the package's directories are laid out as the user and the package like it. Looking for ensembles opens
nothing but directories.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

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
        """True if directories below count; the package's are scripts."""
        return self.kind != "shipped"

    @property
    def follows(self) -> bool:
        """True if symlinks may lead anywhere."""
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
        """Return True if *origin* is from here."""
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


T = TypeVar("T")


class Memory(Generic[T]):
    """For each of at most *most* files what was made of it; what was put in first goes first. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._made: dict[Path, tuple[Signature, T]] = {}

    def get(self, path: Path, signature: Signature) -> T | None:
        """What was made of *path*, if it is still what it was."""
        with self._lock:
            found = self._made.get(path)
        return found[1] if found is not None and found[0] == signature else None

    def put(self, path: Path, signature: Signature, made: T) -> None:
        """Remember *made*."""
        with self._lock:
            self._made.pop(path, None)
            self._made[path] = (signature, made)
            if len(self._made) > self._most:
                del self._made[next(iter(self._made))]


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
