# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories that the tools may access, and the functions that open files in them.

A path is first checked as text and then resolved by the kernel below the descriptor of its root, so that neither a
symlink nor a concurrent rename leads outside.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound, from_oserror
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.git_directories import git_part, is_dot_git, is_git_directory
from mcpd.servers.workstation.moves import adding_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_PATH: Final = 4096
"""Maximum length of a path in bytes."""
HERE: Final = "."
_PATIENCE: Final = 30.0
"""Seconds that a call waits for another that adds a part of a git directory."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Root:
    """A directory that may be accessed, held open as long as this object exists."""

    path: str
    """Its absolute path, without symlinks."""
    fd: int
    spelled: tuple[str, ...] = ()
    """Other absolute paths that lead to it, such as the configured one."""
    within: str = ""
    """The path of the configured root that contains it; empty if it is a configured root itself."""

    def __post_init__(self) -> None:
        """Close the descriptor together with this object."""
        weakref.finalize(self, os.close, self.fd)

    @property
    def moved(self) -> bool:
        """True if its path no longer leads to it."""
        return path_of(self.fd) != self.path


@dataclass(frozen=True, slots=True)
class MissingRoot:
    """A configured root that could not be opened when the server started; nothing below it may be accessed."""

    path: str
    """The absolute path, as configured."""
    reason: str
    """The error message of the system."""
    spelled: tuple[str, ...] = ()
    """As in :class:`Root`."""

    @property
    def refusal(self) -> str:
        """Message of the error for a path below it."""
        return (
            f"the configured root {printable(self.path)} was not there when the server started ({self.reason}); create"
            " it and start the server again, or take it out of roots"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A path within a root, checked as text only: it may not exist."""

    root: Root
    relative: str
    """The path relative to the root, without ``..``; :data:`HERE` for the root itself."""

    @property
    def path(self) -> str:
        """The absolute path."""
        return self.root.path if self.relative == HERE else os.path.join(self.root.path, self.relative)  # noqa: PTH118

    @property
    def shown(self) -> str:
        """The absolute path, printable."""
        return printable(self.path)

    def child(self, name: str) -> Place:
        """Return the place of *name* in this directory."""
        return Place(self.root, name if self.relative == HERE else f"{self.relative}/{name}")


class Jail:
    """The roots of one client. Without any, every path is refused with the message *hint*."""

    def __init__(
        self,
        roots: Sequence[Root | MissingRoot],
        *,
        hint: str,
        state: Path,
        home: str = "",
        hard_links: bool = False,
        whole: bool = False,
    ) -> None:
        """Keep the locks in the directory *state*; *home* replaces ``~/`` in paths.

        *hard_links* permits reading files with several names, some of which may be outside. *whole* says that these are
        all configured roots.
        """
        self._state = state
        self._home = home
        self.roots = tuple(root for root in roots if isinstance(root, Root))
        self._missing = tuple(root for root in roots if isinstance(root, MissingRoot))
        self._first = roots[0] if roots else None
        self.whole = whole
        self._hint = hint
        self._hard_links = hard_links

    def place(self, path: str) -> Place:
        """Return the place of *path*: absolute, in the user's home (``~/``), or relative to the first root.

        Raises :class:`~mcpd.errors.InvalidArgument` for an invalid path and :class:`~mcpd.errors.NotAuthorized` for one
        outside the roots.
        """
        if self._first is None:
            raise NotAuthorized(self._hint)
        shown = printable(path[:200])
        if not path or "\0" in path:
            raise InvalidArgument(f"'{shown}': a path is not empty and holds no NUL")
        try:
            encoded = os.fsencode(path)
            path.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"'{shown}': a path holds no half surrogate pairs") from None
        if len(encoded) > MAX_PATH:
            raise InvalidArgument(f"'{shown}'…: a path has at most {MAX_PATH} bytes")
        parts = path.split("/")
        if ".." in parts:
            raise InvalidArgument(f"'{shown}': a path with '..' is refused; write it from a root, without '..'")
        root, rest = self._find(path, shown)
        relative = "/".join(part for part in rest.split("/") if part not in {"", HERE})
        return Place(root, relative or HERE)

    def check_root(self, path: str) -> None:
        """Raise :class:`~mcpd.errors.NotFound` if the root of *path* was moved, replaced or removed.

        Raises the errors of :meth:`place`, too.
        """
        root = self.place(path).root
        if root.moved:
            raise NotFound(
                f"{printable(root.path)} was moved or deleted since the server started; start the server again"
            )

    def _find(self, path: str, shown: str) -> tuple[Root, str]:
        if self._home and path.startswith("~/"):
            path = self._home + path[1:]
        if not path.startswith("/"):
            return self._base(), path
        clean = "/" + "/".join(part for part in path.split("/") if part not in {"", HERE})
        best: tuple[Root, str] | None = None
        length = -1
        for root in self.roots:
            for spelled in (root.path, *root.spelled):
                prefix = spelled.rstrip("/") + "/"
                if len(prefix) > length and (clean + "/").startswith(prefix):
                    best, length = (root, clean[len(prefix) :]), len(prefix)
        if best is None:
            raise self._outside(clean, shown)
        return best

    def _base(self) -> Root:
        """Return the root for relative paths, the first one; if that is missing, no other root replaces it."""
        if isinstance(self._first, Root):
            return self._first
        first = self._missing[0]
        others = f"; absolute paths may lead into {self._listed()}" if self.roots else ""
        raise NotAuthorized(f"relative paths begin at the first root: {first.refusal}{others}")

    def _outside(self, path: str, shown: str) -> NotAuthorized:
        """Return the error for *path*, absolute and in no available root; *shown* is its printable form."""
        for root in self._missing:
            if (path + "/").startswith(root.path.rstrip("/") + "/"):
                return NotAuthorized(f"'{shown}': {root.refusal}")
        missing = ", ".join(printable(root.path) for root in self._missing)
        also = f" (missing: {missing})" if missing else ""
        return NotAuthorized(f"'{shown}' is outside the directories that may be touched: {self._listed()}{also}")

    def _listed(self) -> str:
        return ", ".join(printable(root.path) for root in self.roots) or "none"

    @contextmanager
    def opened(self, place: Place, flags: int = os.O_PATH, *, links: bool = True) -> Iterator[int]:
        """Yield a descriptor of *place*, opened with *flags*, which must not create it.

        Without *links*, symlinks anywhere in the path are refused. Raises McpdError.
        """
        if not flags & os.O_PATH:
            flags |= os.O_NOCTTY | os.O_NONBLOCK
        with translated(place, "opening"):
            fd = open_beneath(place.root.fd, place.relative, flags, links=links)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def directory(self, place: Place) -> Iterator[int]:
        """Yield a descriptor of the directory *place*, with which it can be listed."""
        with self.opened(place, os.O_RDONLY | os.O_DIRECTORY) as fd:
            yield fd

    @contextmanager
    def file(self, place: Place) -> Iterator[int]:
        """Yield a descriptor of the regular file *place*, open for reading.

        Raises :class:`~mcpd.errors.InvalidArgument` for anything else, without opening it, and
        :class:`~mcpd.errors.NotAuthorized` for a file that has other names, unless those are allowed.
        """
        with self.opened(place) as found:
            self.check_file(place, os.fstat(found))
            # Opens the file that was checked: nobody else can replace what this path, our descriptor, refers to.
            with translated(place, "opening"):
                fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                yield fd
            finally:
                os.close(fd)

    def check_file(self, place: Place, status: os.stat_result) -> None:
        """Raise the errors of :meth:`file` for a file with *status*."""
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, not a file")
        if status.st_nlink > 1 and not self._hard_links:
            raise NotAuthorized(
                f"{place.shown} is a hard link: it has {status.st_nlink} names, and others may lie outside the roots;"
                " allow_hard_links permits to read such files"
            )

    @contextmanager
    def parent(self, place: Place, *, adds: bool = True) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the parent directory of *place*, and the name in it: to create, rename or remove that.

        Without *adds* the name is only renamed away or removed. Raises :class:`~mcpd.errors.NotAuthorized` for a root
        itself, and for files of git, whose configuration and hooks name programs that would run outside the sandbox:
        anything named ``.git`` below the configured root, anything in a git directory (:func:`.is_git_directory`), and
        anything that would make a directory one.
        """
        if place.relative == HERE:
            raise NotAuthorized(f"{place.shown} is one of the roots, which stay as they are")
        above, _, name = place.relative.rpartition("/")
        added = git_part(name) if adds else None
        with (
            self.opened(Place(place.root, above or HERE), os.O_PATH | os.O_DIRECTORY) as fd,
            adding_part(self._state, place, _PATIENCE) if added else nullcontext(),
        ):
            self._check_git(place, fd, name, added)
            yield fd, name

    def _check_git(self, place: Place, directory: int, name: str, added: str | None) -> None:
        """Check the real path: a symlink or a case-insensitive file system may have led to a git directory."""
        configured = place.root.within or place.root.path
        above = path_of(directory).removeprefix(configured).split("/")
        with translated(place, "opening"):
            theirs = any(is_dot_git(part) for part in (*above, name)) or _in_repository(
                directory, len(above) - 1, added
            )
        if theirs:
            raise NotAuthorized(f"{place.shown} belongs to git; use the git tools")


def _in_repository(directory: int, above: int, added: str | None) -> bool:
    """Return True if *directory*, with *added* in it, or one of its *above* parents is a git directory."""
    at = os.dup(directory)

    def has(part: str) -> bool:
        return part == added or has_name(at, part)

    try:
        for _ in range(above):
            if is_git_directory(has):
                return True
            added = None
            upper = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = upper
        return is_git_directory(has)
    finally:
        os.close(at)


def has_name(directory: int, name: str) -> bool:
    """Return True if *directory* contains an entry *name*. Raises OSError."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def path_of(fd: int) -> str:
    """Return the current absolute path of the file that *fd* has opened, without symlinks."""
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - pathlib would change the text


def kind(mode: int) -> str:
    """Return the kind of file for *mode*, for messages."""
    for test, word in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISLNK, "a symlink"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISREG, "a file"),
    ):
        if test(mode):
            return word
    return "a device"


@contextmanager
def translated(place: Place, doing: str) -> Iterator[None]:
    """Convert OSErrors raised while *doing* something (``"opening"``) with *place* into McpdErrors."""
    try:
        yield
    except OSError as error:
        raise fault(error, place, doing) from error


_FAULTS: Final[dict[int, tuple[type[McpdError], str]]] = {
    errno.EXDEV: (NotAuthorized, "leads out of the root, by a symlink"),
    errno.ELOOP: (NotAuthorized, "leads through a symlink that is not followed, or through too many"),
    errno.ENOENT: (NotFound, "does not exist"),
    errno.ENOTDIR: (InvalidArgument, "or something on the way to it is not a directory"),
    errno.EISDIR: (InvalidArgument, "is a directory"),
    errno.ENAMETOOLONG: (InvalidArgument, "has a name in it that is too long"),
}


def fault(error: OSError, place: Place, doing: str) -> McpdError:
    """Return the McpdError for *error*, which was raised while *doing* something with *place*."""
    known = _FAULTS.get(error.errno or 0)
    if known is None:
        return from_oserror(error, f"{doing} {place.shown}")
    return known[0](f"{place.shown} {known[1]}")
