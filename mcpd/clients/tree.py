# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directory with the configurations of one scope: its layout, and safe reading and writing of its files.

A compromised server may write in a user's tree, in which ``mcpctl``, which is not confined, writes as well. Therefore,
nothing is opened by its full path: each directory is opened from its parent, and no symlink is followed from
:attr:`Tree.root` down. If a directory is replaced with a symlink at any moment, that is an error, or the directory
counts as missing; nothing outside the tree is accessed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from mcpd.clients.errors import InvalidInput
from mcpd.errors import InvalidConfig, from_oserror
from mcpd.files import (
    MAX_FILE,
    TEMP_NAME,
    Staged,
    WriteLock,
    is_missing,
    make_directory,
    settled,
    signature,
)
from mcpd.model import printable
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.files import Signature

_INTO: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def walk(root: Path, directory: Path, access: int, doing: str, mode: int | None = None) -> int:
    """Open *directory* for *access*, step by step from *root* down; the caller closes the descriptor.

    With a *mode*, missing directories below the root are created; without one they are a FileNotFoundError. Raises
    :class:`~mcpd.errors.InvalidConfig` for a symlink, including the root itself, another
    :class:`~mcpd.errors.McpdError` that begins with *doing*.
    """
    if not directory.is_relative_to(root) or ".." in (names := directory.relative_to(root).parts):
        raise InvalidConfig(f"{directory}: not in {root}")
    here, current = root, -1
    try:
        current = os.open(root, access | _INTO)
        for name in names:
            here = here / name
            current = _step(current, name, access, mode)
    except OSError as error:
        try:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                _refuse(root, here, current)
        finally:
            if current >= 0:
                os.close(current)
        if is_missing(error) and mode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        raise from_oserror(error, doing) from error
    return current


def _refuse(root: Path, path: Path, parent: int) -> None:
    """Raise the reason why *path*, in the open directory *parent*, was not entered, unless it is not a directory."""
    try:
        status = path.lstat() if parent < 0 else os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode):
        raise InvalidConfig(f"{path}: changed while it was being opened; find out what changed it, and try again")
    if stat.S_ISLNK(status.st_mode) and path == root:
        raise InvalidConfig(f"{path}: a symlink, which is not followed; replace it with the directory itself")
    if stat.S_ISLNK(status.st_mode):
        raise InvalidConfig(f"{path}: a symlink that points outside {root}; move it away")


def _step(current: int, name: str, access: int, mode: int | None) -> int:
    """Open the directory *name* in *current*, and close that; with a *mode*, create it if it is missing."""
    try:
        following = os.open(name, access | _INTO, dir_fd=current)
    except FileNotFoundError:
        if mode is None:
            raise
        following = _make(current, name, access, mode)
    os.close(current)
    return following


def _make(current: int, name: str, access: int, mode: int) -> int:
    try:
        os.mkdir(name, mode, dir_fd=current)
    except FileExistsError:  # another process created it and chose its mode
        return os.open(name, access | _INTO, dir_fd=current)
    following = os.open(name, access | _INTO, dir_fd=current)
    try:
        os.fchmod(following, mode)
        os.fsync(current)
    except OSError:
        os.close(following)
        raise
    return following


NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
"""Pattern of the id of a client or a profile, for ``fullmatch``; it is safe as a file name."""

_OWN: Final = 0o600
_PUBLIC: Final = 0o644
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Tree:
    """The configurations of one scope below *root*.

    Nothing is created before something is written. In the system scope everyone may read everything but the signing
    key; in the user scope nobody else may read anything. Changes are made under the :meth:`lock`; within a process that
    is one lock per instance, so there is one instance per tree.
    """

    def __init__(self, root: Path, scope: Scope) -> None:
        self.root = root
        self.artifacts = root / "artifacts"
        """``{id}.json``, each written once."""
        self.indexes = root / "index"
        self.drafts = root / "drafts"
        self.deployments = root / "deployments"
        self.keys = root / "keys"
        self.verification_key = root / "verification_key.pem"
        self.verification_key_raw = root / "verification_key.raw"
        self.audit = root / "audit.jsonl"
        self._shared = scope is Scope.SYSTEM
        self._public = frozenset({self.verification_key, self.verification_key_raw})
        self._lock = WriteLock(root / ".lock")

    def index(self, client_id: str, profile_id: str) -> Path:
        """Return the path of the list of releases. Raises :class:`InvalidInput` for an invalid id."""
        return _file(self.indexes, client_id, profile_id)

    def draft(self, client_id: str, profile_id: str) -> Path:
        """Return the path of the draft."""
        return _file(self.drafts, client_id, profile_id)

    def deployment(self, client_id: str, profile_id: str) -> Path:
        """Return the path of the note on the last deployment."""
        return _file(self.deployments, client_id, profile_id)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude every other writer, in this process and in others; the holder may take it again.

        Raises :class:`~mcpd.errors.Busy` after ten seconds, :class:`~mcpd.errors.ReadOnly` where nothing can be
        written, :class:`~mcpd.errors.InvalidConfig` if :attr:`root` is a symlink.
        """
        os.close(self._made(self.root))
        with self._lock.hold():
            yield

    def write(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """Write *data* to the file *path* below :attr:`root` atomically: readers see the whole old or new file.

        Nobody else may read a *private* file. Raises :class:`~mcpd.errors.ReadOnly`, :class:`~mcpd.errors.NoSpace` or
        another :class:`~mcpd.errors.McpdError`; then the old file is unchanged.
        """
        with self.lock():
            self.prepare(path.parent)
            with self.stage(path, data, private=private) as staged:
                staged.commit()

    def stage(self, path: Path, data: bytes, *, private: bool = False) -> Staged:
        """Return a staged file for :meth:`write`; committing it needs no further disk space.

        The caller holds the lock and has called :meth:`prepare`.
        """
        public = not private and (self._shared or path in self._public)
        return Staged(path, data, _PUBLIC if public else _OWN, self._entered(path.parent))

    def read(self, path: Path, limit: int = MAX_FILE, *, private: bool = False) -> bytes | None:
        """Return the content of the file *path*; None if there is no such file.

        Raises :class:`~mcpd.errors.InvalidConfig` for a symlink, there or on the way from :attr:`root`, anything else
        that is not a regular file, a file larger than *limit* bytes, and a *private* file that another user may read or
        owns; another :class:`~mcpd.errors.McpdError` for a file that cannot be read.
        """
        directory = self._find(path.parent, os.O_PATH, f"reading {path}")
        if directory is None:
            return None
        try:
            descriptor = os.open(path.name, _READING, dir_fd=directory)
        except OSError as error:
            if is_missing(error):
                return None
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _not_regular(path) from error
            raise from_oserror(error, f"reading {path}") from error
        finally:
            os.close(directory)
        try:
            _check(path, os.fstat(descriptor), private=private)
        except InvalidConfig:
            os.close(descriptor)
            raise
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            try:
                data: bytes | None = file.read(limit + 1)
            except OSError as error:
                raise from_oserror(error, f"reading {path}") from error
        if data is None:  # some kernel files look regular and are streams
            raise _not_regular(path)
        if len(data) > limit:
            raise InvalidConfig(f"{path}: larger than {limit} bytes; it was not written by mcpd; move it away")
        return data

    def status(self, path: Path) -> os.stat_result | None:
        """Return the status of *path*, or of the symlink itself; None if there is nothing.

        Raises as :meth:`names` does.
        """
        directory = self._find(path.parent, os.O_PATH, f"reading {path}")
        if directory is None:
            return None
        try:
            return os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if is_missing(error):
                return None
            raise from_oserror(error, f"reading {path}") from error
        finally:
            os.close(directory)

    def names(self, directory: Path) -> list[str]:
        """Return the names in *directory*, sorted; none if it is missing or not a directory.

        Raises :class:`~mcpd.errors.InvalidConfig` for a symlink on the way from :attr:`root`, another
        :class:`~mcpd.errors.McpdError` if it cannot be read.
        """
        descriptor = self._find(directory, os.O_RDONLY, f"reading {directory}")
        if descriptor is None:
            return []
        try:
            return sorted(os.listdir(descriptor))  # noqa: PTH208 - a descriptor
        except OSError as error:
            raise from_oserror(error, f"reading {directory}") from error
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> bool:
        """Remove the file *path*, or the symlink but never its target; return True if there was one.

        Raises :class:`~mcpd.errors.InvalidConfig` for a symlink on the way from :attr:`root`, another
        :class:`~mcpd.errors.McpdError` if it cannot be removed.
        """
        if self.status(path) is None:
            return False
        with self.lock():
            directory = self._find(path.parent, os.O_RDONLY, f"removing {path}")
            if directory is None:
                return False
            try:
                os.unlink(path.name, dir_fd=directory)
                os.fsync(directory)
            except OSError as error:
                if is_missing(error):
                    return False
                raise from_oserror(error, f"removing {path}") from error
            finally:
                os.close(directory)
        return True

    @contextmanager
    def directory(self, path: Path) -> Iterator[int]:
        """Open the directory *path*, for use as ``dir_fd``.

        Raises :class:`~mcpd.errors.InvalidConfig` for a symlink on the way from :attr:`root`, another
        :class:`~mcpd.errors.McpdError` if it is missing or may not be read.
        """
        descriptor = self._entered(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def prepare(self, directory: Path) -> None:
        """Create *directory*, below :attr:`root`, and remove what killed writers left in it.

        The caller holds the lock and has no staged files in *directory*. Raises :class:`~mcpd.errors.InvalidConfig` for
        a symlink on the way from :attr:`root`.
        """
        descriptor = self._made(directory)
        try:
            for name in os.listdir(descriptor):  # noqa: PTH208 - likewise
                if TEMP_NAME.fullmatch(name):
                    with suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(name, dir_fd=descriptor)
        except OSError as error:
            raise from_oserror(error, f"writing {directory}") from error
        finally:
            os.close(descriptor)

    def _entered(self, directory: Path) -> int:
        """Open *directory*, which exists."""
        try:
            return walk(self.root, directory, os.O_RDONLY, f"writing {directory}")
        except FileNotFoundError as error:
            raise from_oserror(error, f"writing {directory}") from error

    def _find(self, directory: Path, access: int, doing: str) -> int | None:
        """Open *directory*; None if it is missing or not a directory."""
        try:
            return walk(self.root, directory, access, doing)
        except FileNotFoundError:
            return None

    def _made(self, directory: Path) -> int:
        """Open *directory*, and create it if it is missing."""
        mode = 0o755 if self._shared else 0o700
        if not os.path.lexists(self.root):  # a dangling symlink is refused below
            make_directory(self.root, mode)
        return walk(self.root, directory, os.O_RDONLY, f"creating {directory}", mode)


def mark(path: Path) -> Signature | None:
    """Return a value that changes whenever the file *path* does, at the cost of one ``lstat``.

    None if there is no file, or if it is so new that the next change may go unnoticed. Content that is read after this
    call is valid as long as the value stays the same.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return signature(status) if settled(status) else None


def _file(directory: Path, client_id: str, profile_id: str) -> Path:
    for what, name in (("client", client_id), ("profile", profile_id)):
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"'{printable(name)}' is not the id of a {what}: use 1 to 64 characters from a-z 0-9 . _ -,"
                " beginning with a letter or digit"
            )
    return directory / client_id / f"{profile_id}.json"


def _check(path: Path, status: os.stat_result, *, private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path)
    if not private:
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise InvalidConfig(f"{path}: belongs to another user (uid {status.st_uid}); run this as that user")
    if status.st_mode & 0o077:
        raise InvalidConfig(
            f"{path}: accessible to other users (mode {stat.S_IMODE(status.st_mode):04o}); run 'chmod 600 {path}'"
        )


def _not_regular(path: Path) -> InvalidConfig:
    return InvalidConfig(f"{path}: not a regular file; move it away")
