# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories of ensembles, access to their files, and a cache for unchanged files.

A project may be untrusted: its symlinks must not lead out of its directory, and its files must not be symlinks. The
user and the package may lay out their directories as they like. Scanning opens only directories.
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
"""A value that changes with a file: its device, and :data:`mcpd.files.Signature`."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A project, the user's directory or the package."""

    kind: Kind
    label: str
    """The part before ``/`` in the names of its ensembles."""
    base: Path
    project: Path | None = None

    @property
    def ensembles(self) -> str:
        """Path of its ensembles from the base; ``.`` for the base itself."""
        return "." if self.kind == "shipped" else ENSEMBLES

    @property
    def nested(self) -> bool:
        """True if subdirectories are scanned; the package's contain scripts."""
        return self.kind != "shipped"

    @property
    def follows(self) -> bool:
        """True if symlinks may lead anywhere."""
        return self.project is None

    @property
    def _last(self) -> int:
        """The open(2) flag for the last component of a path."""
        return 0 if self.follows else os.O_NOFOLLOW

    def path(self, relative: str) -> Path:
        """Return the path of *relative*, which is relative to the base."""
        return self.base / relative

    def origin(self, file: Path) -> Origin:
        """Return the origin of the ensemble in *file*."""
        return Origin(self.kind, file, self.base, self.project)

    def holds(self, origin: Origin) -> bool:
        """Return True if *origin* is from this tier."""
        return self.kind == origin.tier and self.base == origin.base

    def open(self, relative: str, flags: int) -> int:
        """Return a descriptor of *relative*, which is relative to the base, without blocking. Raises OSError."""
        flags |= os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY)
        if self.project is None:
            return os.open(self.path(relative), flags)
        with _closing(os.open(self.project, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as project:
            base = open_beneath(project, DIRECTORY, os.O_PATH | os.O_DIRECTORY)
        with _closing(base):
            return open_beneath(base, relative, flags)

    @contextmanager
    def directory(self, relative: str) -> Iterator[int]:
        """Yield a descriptor of the directory *relative* for listing it. Raises OSError."""
        with _closing(self.open(relative, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
            yield descriptor

    def status(self, relative: str) -> os.stat_result:
        """Return the status of *relative*. Raises OSError."""
        with _closing(self.open(relative, os.O_PATH | self._last)) as descriptor:
            return os.fstat(descriptor)

    def data(self, relative: str) -> tuple[bytes, Signature | None]:
        """Return the content of *relative*, at most :data:`~.format.reading.MAX_SIZE` + 1 bytes, and its signature
        if that will differ after the next change, else None.

        Raises :class:`~mcpd.errors.InvalidConfig`, with the path, if it is not a regular file, and OSError.
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
        """Return the text of *relative*, and its signature if that will differ after the next change, else None.

        Raises :class:`~mcpd.errors.InvalidConfig`, with the path, if it is not text, not a regular file or larger than
        :data:`~.format.reading.MAX_SIZE`, and OSError.
        """
        data, settled = self.data(relative)
        return decoded(data, self.path(relative)), settled


def decoded(data: bytes, path: Path) -> str:
    """Return the text in *data*, the content of the file *path*.

    Raises :class:`~mcpd.errors.InvalidConfig`, with the path, if it is not text, or larger than
    :data:`~.format.reading.MAX_SIZE`.
    """
    if len(data) > MAX_SIZE:
        raise unusable(path, f"larger than {MAX_SIZE // 1024} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise unusable(path, f"not UTF-8 text (byte {error.start})") from error


def tiers(settings: Settings) -> list[Tier]:
    """Return all tiers, for equal names in order of precedence."""
    labels = _labels(settings.projects)
    projects = [Tier("project", labels[each], each / DIRECTORY, each) for each in dict.fromkeys(settings.projects)]
    return [*projects, Tier("user", "user", settings.user), Tier("shipped", "shipped", settings.shipped)]


def signature(status: os.stat_result) -> Signature:
    """Return a value that changes with the file."""
    return (status.st_dev, *files.signature(status))


def shown(path: Path) -> str:
    """Return *path*, whose names may be chosen by others, in printable form for messages."""
    return "/".join(map(printable, path.parts)).replace("//", "/", 1)


def unusable(path: Path, fault: str) -> InvalidConfig:
    """Return the error for a file that cannot be used at all."""
    error = InvalidConfig(f"{shown(path)}: {fault}")
    error.data = {"file": shown(path), "line": 1}
    return error


def unreadable(path: Path, error: OSError) -> InvalidConfig:
    """Return the error for a file that cannot be opened or read."""
    return unusable(path, refusal(error))


def refusal(error: OSError) -> str:
    """Return the reason why a file cannot be opened or read."""
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
    """Return the name of each project's directory, with as many parent directories as it takes to be unique."""
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
    """Cache of a value for each of at most *most* files, which discards the oldest; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._made: dict[Path, tuple[Signature, T]] = {}

    def get(self, path: Path, signature: Signature) -> T | None:
        """Return the value for *path* if the file is unchanged, or None."""
        with self._lock:
            found = self._made.get(path)
        return found[1] if found is not None and found[0] == signature else None

    def put(self, path: Path, signature: Signature, made: T) -> None:
        """Store the value *made*."""
        with self._lock:
            self._made.pop(path, None)
            self._made[path] = (signature, made)
            if len(self._made) > self._most:
                del self._made[next(iter(self._made))]


MOST_FILES: Final = 5000
"""Maximum number of files in a tier."""
MOST_NAMES: Final = 20_000
"""Maximum number of names of any kind in a tier."""
MAX_DEPTH: Final = 8
"""Maximum depth of directories below that of the ensembles."""


@dataclass(frozen=True, slots=True)
class File:
    """A possible ensemble file."""

    path: Path
    relative: str
    """Path relative to the base of its tier."""
    signature: Signature | None = None
    modified: float = 0.0
    """Seconds since the epoch."""
    problem: str | None = None
    """The reason why it is not opened, without its path."""

    @property
    def size(self) -> int:
        """Size in bytes; 0 if it is not opened."""
        return 0 if self.signature is None else self.signature[2]


@dataclass(slots=True)
class Walk:
    """The files and directories of the ensembles of *tier*, sorted by path."""

    tier: Tier
    files: list[File] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    """The directory of the ensembles and its subdirectories."""
    _names: int = 0
    _full: bool = False
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Scan the directory."""
        self._look(self.tier.ensembles, 0)
        self.files.sort(key=lambda file: os.fsencode(file.relative))

    def _look(self, relative: str, depth: int) -> None:
        """Scan the directory *relative* and those below."""
        below: list[str] = []
        try:
            with self.tier.directory(relative) as descriptor:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) in self._seen:  # A symlink to a directory that was scanned already.
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
        """Add a file, or append a directory to *below*."""
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
        """Stop adding, and note that as a problem."""
        self._full = True
        most = f"{MOST_FILES} ensembles or {MOST_NAMES} names"
        self._complain(self.tier.ensembles, f"there are more than {most}; the rest is left out")

    def _refused(self, relative: str, error: OSError) -> None:
        """Ignore what does not exist, and symlinks to non-directories; note other errors."""
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            self._complain(relative, refusal(error))

    def _complain(self, relative: str, fault: str) -> None:
        path = self.tier.path(relative)
        self.files.append(File(path, relative, problem=fault))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A loop of symlinks.
        return False
