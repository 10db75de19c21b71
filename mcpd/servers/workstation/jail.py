# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories that the tools may touch, and the only way to anything in them.

A path is looked at as text first and then resolved by the kernel below the descriptor of its root, so that no symlink,
and nobody who renames something meanwhile, leads out of it.
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
"""Bytes of a path."""
HERE: Final = "."
_PATIENCE: Final = 30.0
"""Seconds that a call waits for another that adds a part of a git directory."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Root:
    """One directory that may be touched, held open as long as there is somebody who may need it."""

    path: str
    """Where it is: absolute, without symlinks."""
    fd: int
    spelled: tuple[str, ...] = ()
    """Other absolute paths that lead to it: as it was configured."""
    within: str = ""
    """The path of the configured root that it lies in; empty if it is one itself."""

    def __post_init__(self) -> None:
        """The descriptor is this one's from now on."""
        weakref.finalize(self, os.close, self.fd)

    @property
    def moved(self) -> bool:
        """True if something else is at its path now, or nothing."""
        return path_of(self.fd) != self.path


@dataclass(frozen=True, slots=True)
class MissingRoot:
    """A configured root that could not be opened when the server started: nothing below it may be touched."""

    path: str
    """As it was configured, absolute."""
    reason: str
    """In the words of the system."""
    spelled: tuple[str, ...] = ()
    """As of a :class:`Root`."""

    @property
    def refusal(self) -> str:
        """What to say of a path below it."""
        return (
            f"the configured root {printable(self.path)} was not there when the server started ({self.reason}); create"
            " it and start the server again, or take it out of roots"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A path that is in a root by its text; nothing has been looked at yet."""

    root: Root
    relative: str
    """From the root: without ``..``, :data:`HERE` for the root itself."""

    @property
    def path(self) -> str:
        """The absolute path."""
        return self.root.path if self.relative == HERE else os.path.join(self.root.path, self.relative)  # noqa: PTH118

    @property
    def shown(self) -> str:
        """The same for messages."""
        return printable(self.path)

    def child(self, name: str) -> Place:
        """What is called *name* in it."""
        return Place(self.root, name if self.relative == HERE else f"{self.relative}/{name}")


class Jail:
    """The roots of one client. Without any, everything is refused, and *hint* says what to do."""

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
        """*state* is the directory of the server's locks, *home* what ``~/`` stands for in a path.

        *hard_links* allows to read files that have several names, of which one may be elsewhere. *whole* is whether
        these are all the roots that are configured.
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
        """Where *path* is: absolute, from the user's home (``~/``), or relative to the first root.

        Raises :class:`~mcpd.errors.InvalidArgument` for what is no acceptable path and
        :class:`~mcpd.errors.NotAuthorized` for one outside the roots.
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
        """Raise :class:`~mcpd.errors.NotFound` if something else is where the root of *path* was, or nothing.

        Raises what :meth:`place` does, too.
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
        """The root that relative paths begin at: no other one takes the place of a first root that is missing."""
        if isinstance(self._first, Root):
            return self._first
        first = self._missing[0]
        others = f"; absolute paths may lead into {self._listed()}" if self.roots else ""
        raise NotAuthorized(f"relative paths begin at the first root: {first.refusal}{others}")

    def _outside(self, path: str, shown: str) -> NotAuthorized:
        """The fault of *path*, absolute, which is *shown* so and is in none of the roots that are there."""
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
        """A descriptor of *place*, opened with *flags* (none that creates) and closed at the end.

        Without *links* a symlink anywhere on the way is refused. Raises McpdError.
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
        """A descriptor of the directory *place*, which can be listed."""
        with self.opened(place, os.O_RDONLY | os.O_DIRECTORY) as fd:
            yield fd

    @contextmanager
    def file(self, place: Place) -> Iterator[int]:
        """A descriptor of the regular file *place*, which can be read.

        Raises :class:`~mcpd.errors.InvalidArgument` for anything else, which is not even opened, and
        :class:`~mcpd.errors.NotAuthorized` for a file that has other names, unless those are allowed.
        """
        with self.opened(place) as found:
            self.check_file(place, os.fstat(found))
            # What was looked at is what is opened. Nobody else can open anything by this name: it is our descriptor.
            with translated(place, "opening"):
                fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                yield fd
            finally:
                os.close(fd)

    def check_file(self, place: Place, status: os.stat_result) -> None:
        """Raise what :meth:`file` does for what *status* says."""
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, not a file")
        if status.st_nlink > 1 and not self._hard_links:
            raise NotAuthorized(
                f"{place.shown} is a hard link: it has {status.st_nlink} names, and others may lie outside the roots;"
                " allow_hard_links permits to read such files"
            )

    @contextmanager
    def parent(self, place: Place, *, adds: bool = True) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that *place* is in, and its name there: to create, rename or remove it.

        Without *adds* the name is only renamed away or removed. Raises :class:`~mcpd.errors.NotAuthorized` for a root
        itself and for what belongs to git, whose configuration and hooks name programs that would run outside of here:
        what is called ``.git`` below the configured root, and what is in a git directory (:func:`.is_git_directory`),
        whatever that is called, or would make one.
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
        """By the real path: a symlink, or a file system that does not tell cases apart, may have led there."""
        configured = place.root.within or place.root.path
        above = path_of(directory).removeprefix(configured).split("/")
        with translated(place, "opening"):
            theirs = any(is_dot_git(part) for part in (*above, name)) or _in_repository(
                directory, len(above) - 1, added
            )
        if theirs:
            raise NotAuthorized(f"{place.shown} belongs to git; use the git tools")


def _in_repository(directory: int, above: int, added: str | None) -> bool:
    """Return True if *directory*, with *added* in it, or one of the *above* ones that it is in is a git directory."""
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
    """Return whether there is anything called *name* in *directory*. Raises OSError."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def path_of(fd: int) -> str:
    """Where what *fd* has opened is now: absolute, without symlinks."""
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - pathlib would change the text


def kind(mode: int) -> str:
    """What a file of *mode* is, for messages."""
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
    """Make McpdErrors of OSErrors that are met while *doing* something (``"opening"``) with *place*."""
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
    """What to say of *error*, met while *doing* something with *place*."""
    known = _FAULTS.get(error.errno or 0)
    if known is None:
        return from_oserror(error, f"{doing} {place.shown}")
    return known[0](f"{place.shown} {known[1]}")
