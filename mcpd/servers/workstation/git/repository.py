# SPDX-License-Identifier: LGPL-2.1-or-later
"""Discovery of repositories below the roots; those with any part outside are refused."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound, NotSupported
from mcpd.model import printable
from mcpd.servers.workstation.jail import HERE, MAX_PATH, Place, kind, path_of, translated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Jail

GIT: Final = ".git"
MAX_CONTENT: Final = 64 * 1024
"""Maximum size of a file with the path of another one, in bytes."""
_ALTERNATES: Final = 32
"""Maximum number of other object stores that a repository may use."""
_READ_AT_ONCE: Final = (
    "config", "config.worktree", "index", "packed-refs", "shallow", "info/attributes", "info/exclude",
    "objects/info/commit-graph",
)  # fmt: skip
"""Files that git opens without checking their type."""
_WAITED_FOR: Final = frozenset({stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK})
_HEAD: Final = re.compile(rb"ref:\s*refs/.+|[0-9a-f]{40}([0-9a-f]{24})?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository all parts of which are within the roots."""

    place: Place
    """The top level of the working tree, or the bare repository itself; symlinks resolved."""
    relative: str
    """The requested path, relative to the top level: ``.`` for the top level itself."""
    git_directory: Place
    """The directory with HEAD and the index."""
    bare: bool = False
    """True if there is no working tree."""
    directories: tuple[str, ...] = ()
    """The real paths of the git directory, and of the directory that all working trees share."""
    hook_safe: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Configuration, as keys and values, that overrides the unsafe parts of the repository's in each run of git."""
    filters: frozenset[str] = field(default=frozenset(), repr=False)
    """Names of the filters in the repository's configuration, which are disabled."""
    readable: tuple[str, ...] = field(default=(), repr=False)
    """Files of the user's configuration that git may read."""

    def pathspec(self, path: str) -> str:
        """Convert *path*, absolute or relative to the top level, into a path relative to the top level for git.

        It need not exist. Raises :class:`~mcpd.errors.InvalidArgument` for an invalid path and for one outside the
        working tree.
        """
        shown = printable(path)
        if not path or "\0" in path or _surrogates(path) or len(path.encode()) > MAX_PATH:
            raise InvalidArgument(
                f"'{shown}': a path is not empty, valid Unicode without NUL, and at most {MAX_PATH} bytes"
            )
        parts = [part for part in path.split("/") if part not in {"", HERE}]
        if ".." in parts or GIT in parts:
            raise InvalidArgument(f"'{shown}': a path with '..' or '{GIT}' is refused; write it from the top level")
        if not path.startswith("/"):
            return "/".join(parts) or HERE
        clean = "/".join(("", *parts))
        below = "" if self.place.relative == HERE else f"/{self.place.relative}"
        for root in (self.place.root.path, *self.place.root.spelled):
            top = root.rstrip("/") + below
            if clean == top:
                return HERE
            if clean.startswith(top + "/"):
                return clean[len(top) + 1 :]
        raise InvalidArgument(f"'{shown}' is not in the working tree of {self.place.shown}")


def discover(call: Call, path: str) -> Repository:
    """Return the repository of *path*, a directory or a file in it, without evaluating its configuration.

    Searches no further up than the root that contains *path*, like git-rev-parse(1) with that as a ceiling. Raises
    :class:`~mcpd.errors.NotFound` if there is none, and :class:`~mcpd.errors.NotAuthorized` if it uses anything
    outside the roots.
    """
    jail = call.jail
    asked = jail.place(path)
    with jail.opened(asked) as fd:
        real = jail.place(path_of(fd))
    if GIT in real.relative.split("/"):
        raise InvalidArgument(
            f"{asked.shown} is in a directory that is git's own; name the working tree that it belongs to"
        )
    at = real
    while True:
        call.check()
        found = _at(jail, at)
        if found is not None:
            directory, bare = found
            _check_files(jail, directory)
            _check_objects(jail, directory)
            below = real.relative if at.relative == HERE else real.relative[len(at.relative) + 1 :] or HERE
            return Repository(at, below, directory, bare, _directories(jail, directory))
        if at.relative == HERE:
            break
        at = Place(at.root, at.relative.rpartition("/")[0] or HERE)
    raise NotFound(
        f"{asked.shown} is in no git repository, looking up to the root {printable(real.root.path)}; name a directory"
        " that is, or make one with git init"
    )


def check_worktree(jail: Jail, repository: Repository, setting: str) -> None:
    """Raise NotAuthorized if *setting*, ``core.worktree``, differs from the working tree that was found."""
    there = os.path.normpath(os.path.join(repository.git_directory.path, setting))  # noqa: PTH118 - no pathlib for what may be bytes
    try:
        with jail.opened(jail.place(there)) as fd:
            if path_of(fd) == repository.place.path:
                return
    except (NotFound, InvalidArgument, NotAuthorized):
        # The error follows below.
        pass
    raise NotAuthorized(
        f"{repository.place.shown}: its configuration puts the working tree elsewhere, at {printable(there)}"
        " (core.worktree); such a repository is not used"
    )


def _at(jail: Jail, place: Place) -> tuple[Place, bool] | None:
    """Return the git directory of the top level *place*, and whether it is bare; None if *place* is not a top level."""
    inner = place.child(GIT)
    kind = _kind(jail, inner)
    if kind == stat.S_IFDIR and _is_git_directory(jail, inner):
        return inner, False
    if kind == stat.S_IFREG:
        return _linked(jail, place, inner), False
    if _is_git_directory(jail, place):
        return place, True
    return None


def _linked(jail: Jail, place: Place, link: Place) -> Place:
    """Return the git directory that *link*, the ``.git`` file of a submodule or linked working tree, refers to."""
    content = content_of(jail, link).rstrip(b"\r\n")
    if not content.startswith(b"gitdir: "):
        raise InvalidArgument(f"{link.shown} is no file of git's: it does not say where the git directory is (gitdir:)")
    directory = _elsewhere(jail, place, content.removeprefix(b"gitdir: "), f"{link.shown} says that the git directory")
    if not _is_git_directory(jail, directory):
        raise NotFound(f"{link.shown} says that the git directory is {directory.shown}, and that is none")
    return directory


def _is_git_directory(jail: Jail, place: Place) -> bool:
    """Return True if git would accept *place*: it has HEAD and, possibly in a shared directory, objects and refs."""
    if _kind(jail, place.child("HEAD"), links=False) == stat.S_IFLNK:
        # Old repositories have a symlink to a branch, which need not exist yet.
        head = True
    else:
        head = _kind(jail, place.child("HEAD")) == stat.S_IFREG and bool(
            _HEAD.fullmatch(content_of(jail, place.child("HEAD")).strip())
        )
    if not head:
        return False
    common = common_directory(jail, place)
    return all(_kind(jail, common.child(name)) == stat.S_IFDIR for name in ("objects", "refs"))


def common_directory(jail: Jail, place: Place) -> Place:
    """Return the directory that all working trees of *place* share. Raises NotAuthorized if it is outside the roots."""
    link = place.child("commondir")
    if _kind(jail, link) is None:
        return place
    return _elsewhere(jail, place, content_of(jail, link).rstrip(b"\r\n"), f"{link.shown} says that the repository")


def _directories(jail: Jail, directory: Place) -> tuple[str, ...]:
    """Return the real paths of the git directory *directory*, and of the one that all working trees share.

    Raises NotAuthorized if that is another repository's: symlinks in *directory* could make git write anywhere in it.
    """
    found = []
    for place in (directory, common_directory(jail, directory)):
        with jail.opened(place) as fd:
            found.append(path_of(fd))
    own, common = found
    if not f"{own}/".startswith(f"{common}/"):
        raise NotAuthorized(
            f"{directory.shown} uses the repository {printable(common)}, which it is not in; such a repository is not"
            " used (git worktree add makes one that is)"
        )
    return tuple(dict.fromkeys(found))


def _check_files(jail: Jail, directory: Place) -> None:
    """Raise InvalidArgument if a file that git reads is a pipe or similar, for which it would wait forever."""
    for place in dict.fromkeys((directory, common_directory(jail, directory))):
        for name in _READ_AT_ONCE:
            try:
                found = _kind(jail, place.child(name))
            except NotAuthorized:
                # A symlink that leads outside the root: git cannot read it either.
                continue
            if found in _WAITED_FOR:
                raise InvalidArgument(f"{place.child(name).shown} is {kind(found)}, not a file; git would wait for it")


def _check_objects(jail: Jail, directory: Place) -> None:
    """Raise NotAuthorized if objects are read from outside the roots (gitrepository-layout(5), alternates)."""
    todo, seen = [common_directory(jail, directory).child("objects")], set[str]()
    while todo:
        objects = todo.pop()
        if objects.path in seen:
            continue
        seen.add(objects.path)
        if len(seen) > _ALTERNATES:
            raise NotSupported(f"{directory.shown} uses the objects of more than {_ALTERNATES} repositories")
        link = objects.child("info/alternates")
        if _kind(jail, link) is None:
            continue
        for line in content_of(jail, link).split(b"\n"):
            if line.startswith(b'"'):
                raise NotSupported(f"{link.shown}: a path in quotes is not understood; write it without")
            if line and not line.startswith(b"#"):
                todo.append(_elsewhere(jail, objects, line, f"{link.shown} says that more objects"))


def _elsewhere(jail: Jail, base: Place, path: bytes, what: str) -> Place:
    """Return the place of *path*, read from a file and relative to *base*. Raises NotAuthorized if it is outside."""
    target = os.path.normpath(os.path.join(base.path, os.fsdecode(path)))  # noqa: PTH118 - no pathlib for what may be bytes
    try:
        place = jail.place(target)
        with jail.opened(place):
            return place
    except NotFound:
        return jail.place(target)
    except McpdError as error:
        raise NotAuthorized(
            f"{what} is {printable(target)}, which git may not read ({error.message}); add its directory to roots if"
            " you trust it"
        ) from error


def _kind(jail: Jail, place: Place, *, links: bool = True) -> int | None:
    """Return the type of *place* as in st_mode, or None if it does not exist; follow a symlink only with *links*."""
    try:
        with jail.opened(place, os.O_PATH | (0 if links else os.O_NOFOLLOW)) as fd:
            return stat.S_IFMT(os.fstat(fd).st_mode)
    except (NotFound, InvalidArgument):
        return None


def present(jail: Jail, directory: Place, names: Iterable[str]) -> set[str]:
    """Return those of *names* that exist in the git directory *directory*."""
    return {name for name in names if _kind(jail, directory.child(name)) is not None}


def content_of(jail: Jail, place: Place, most: int = MAX_CONTENT) -> bytes:
    """Return the content of a regular file of git, which may be a hard link, as it is only examined, not shown.

    Raises McpdError if it is not a regular file, cannot be read or has more than *most* bytes.
    """
    with jail.opened(place) as found, translated(place, "opening"):
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise InvalidArgument(f"{place.shown} is no regular file")
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise NotSupported(f"{place.shown} is longer than {most} bytes")
    return data


def _surrogates(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
