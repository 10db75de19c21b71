# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unpack an untrusted archive; a program that needs only the standard library, to be run in a sandbox.

``unpack.py extract ARCHIVE TARGET`` unpacks a tar or zip file into the directory TARGET, which it creates;
``unpack.py member ARCHIVE NAME`` writes one file of a zip file to standard output. An invalid archive results in one
line ``error: …`` on standard error, and status 1; the caller removes what has been unpacked by then.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
import tarfile
import unicodedata
import zipfile
from contextlib import closing
from typing import IO, Final

MAX_MEMBERS: Final = 100_000
"""Maximum number of files, directories and links in an archive, including the directories in the paths of files."""
MAX_BYTES: Final = 4 << 30
"""Maximum total size in bytes of the unpacked files of an archive."""
MAX_RATIO: Final = 100
"""Maximum ratio of unpacked to packed size above :data:`MODEST_BYTES` unpacked bytes; about 10 for programs."""
MODEST_BYTES: Final = 256 << 20
MAX_HEADERS: Final = 256 << 20
"""Maximum size in bytes of a tar file in addition to its contents; names and attributes can have any length."""
MAX_MEMBER: Final = 1 << 20
"""Maximum size in bytes of a file that is written to standard output, or of the target of a link."""
MAX_NAME: Final = 255
"""Maximum length of one component of a path, in bytes."""
MAX_PATH: Final = 1024
"""Maximum length of a path, in bytes."""
MAX_DEPTH: Final = 64
MEMORY: Final = 1 << 30
"""Memory limit in bytes; with :data:`SECONDS` of CPU time, it stops hostile compression or tables of contents."""
SECONDS: Final = 600
_CHUNK: Final = 1 << 20
_SHOWN: Final = 150
_ENCRYPTED: Final = 0x41
_LOCAL_HEADER: Final = 30
_ZIP_MARKS: Final = (b"PK\3\4", b"PK\5\6")


class Refused(Exception):
    """The archive is rejected; the text names the member and its fault."""


def extract(archive: str, target: str) -> None:
    """Unpack the file *archive* into the directory *target*, which must not exist.

    Raises :class:`Refused`, OSError, and the errors of :mod:`tarfile` and :mod:`zipfile` for invalid files.
    """
    with open(archive, "rb") as file:  # noqa: PTH123 - importing pathlib would take most of the start-up time
        size = os.fstat(file.fileno()).st_size
        unpacked = _Unpacked(target, min(MAX_BYTES, max(MODEST_BYTES, MAX_RATIO * size)))
        if _is_zip(file):
            with zipfile.ZipFile(file) as opened:
                _extract_zip(opened, file, unpacked)
        else:
            with tarfile.open(fileobj=file, mode="r:*") as opened:
                _extract_tar(opened, unpacked)
        unpacked.make_links()


def member(archive: str, name: str) -> bytes:
    """Return the content of the file *name* in the zip file *archive*, after checking all its members.

    Raises the same errors as :func:`extract`.
    """
    with open(archive, "rb") as file:  # noqa: PTH123
        if not _is_zip(file):
            raise Refused("it is not a zip file")
        with zipfile.ZipFile(file) as opened:
            for info, path in _zip_members(opened, file, MAX_BYTES):
                if path == name and not info.is_dir():
                    return _small(opened, info, path)
    raise Refused(f"it does not contain {_shown(name)}")


def checked_name(raw: str) -> str:
    """Return *raw*, the name of a member, as a path below the target; empty for the target itself.

    Raises :class:`Refused` for a path that leads outside, or that is not safe on a file system or terminal.
    """
    name = raw
    while name.startswith("./"):
        name = name[2:]
    name = name.removesuffix("/")
    if name in {"", "."} and raw not in {"", "/"}:
        return ""
    if not name or any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in name):
        raise Refused(f"{_shown(raw)}: a name that is empty, not in UTF-8 or with control characters")
    if name.startswith("/") or "\\" in name:
        raise Refused(f"{_shown(raw)}: an absolute name, or one with backslashes")
    parts = name.split("/")
    if ".." in parts:
        raise Refused(f"{_shown(raw)}: a name that leads outside the archive")
    if "" in parts or "." in parts:
        raise Refused(f"{_shown(raw)}: a name with empty parts")
    if len(parts) > MAX_DEPTH or len(name.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
        raise Refused(f"{_shown(raw)}: a name that is too long or too deep")
    return name


def leads_outside(relative: str, points_at: str) -> bool:
    """Return whether a link at *relative* to *points_at* may lead outside the root that *relative* is below.

    The parents of the link have to be real directories. ``..`` is accepted only at the beginning of *points_at*: after
    a name, which may itself be a link, it could lead anywhere.
    """
    parts = [part for part in points_at.split("/") if part not in {"", "."}]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return points_at.startswith("/") or climbs > relative.count("/") or ".." in parts[climbs:]


class _Unpacked:
    """The unpacked files. Links are created last, so that nothing can be written through one."""

    def __init__(self, target: str, limit: int) -> None:
        """*limit* is the number of bytes that may be unpacked."""
        os.mkdir(target, 0o755)  # noqa: PTH102
        self._target = target
        self._left = limit
        self.limit = limit
        self._kinds = {"": "directory"}
        self._links: list[tuple[str, str]] = []

    def directory(self, name: str) -> None:
        """Create a directory; an existing one is kept, as archives may list a directory twice."""
        if self._kinds.get(name) != "directory":
            self._place(name, "directory")
            os.mkdir(self._path(name), 0o755)  # noqa: PTH102

    def file(self, name: str, content: IO[bytes], size: int, *, executable: bool) -> None:
        """Write a file of *size* bytes."""
        self._place(name, "file")
        mode = 0o755 if executable else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._path(name), flags, mode), "wb") as file:  # noqa: PTH123
            done = 0
            while chunk := content.read(_CHUNK):
                done += len(chunk)
                self._left -= len(chunk)
                if self._left < 0:
                    raise _too_large(self.limit)
                file.write(chunk)
        if done != size:
            raise Refused(f"{_shown(name)}: {done:,} bytes, but the archive states {size:,}")

    def copy(self, name: str, of: str, *, executable: bool) -> None:
        """Write a copy of the file *of* in place of a hard link, which would change together with it."""
        if self._kinds.get(of) != "file":
            raise Refused(f"{_shown(name)}: a link to {_shown(of)}, which is not an earlier file of the archive")
        with open(self._path(of), "rb") as content:  # noqa: PTH123
            self.file(name, content, os.fstat(content.fileno()).st_size, executable=executable)

    def link(self, name: str, points_at: str) -> None:
        """Record a symlink for :meth:`make_links`."""
        strange = not points_at.isprintable() or not points_at or len(points_at) > MAX_PATH
        if strange or leads_outside(name, points_at):
            raise Refused(f"{_shown(name)}: a link that leads outside, to {_shown(points_at)}")
        self._place(name, "link")
        self._links.append((points_at, self._path(name)))

    def make_links(self) -> None:
        """Create the recorded symlinks."""
        for points_at, path in self._links:
            os.symlink(points_at, path)  # noqa: PTH211

    def _place(self, name: str, kind: str) -> None:
        """Register *name*, and create its parent directories."""
        if name in self._kinds:
            raise _twice(name)
        parent = name.rpartition("/")[0]
        if self._kinds.get(parent) not in {"directory", None}:
            raise Refused(f"{_shown(name)}: below {_shown(parent)}, which is not a directory")
        self.directory(parent)
        if len(self._kinds) > MAX_MEMBERS:
            raise _too_many()
        self._kinds[name] = kind

    def _path(self, name: str) -> str:
        return f"{self._target}/{name}"


def _extract_zip(archive: zipfile.ZipFile, file: IO[bytes], unpacked: _Unpacked) -> None:
    for info, name in _zip_members(archive, file, unpacked.limit):
        mode = info.external_attr >> 16
        if info.is_dir() or stat.S_ISDIR(mode):
            unpacked.directory(name)
        elif stat.S_ISLNK(mode):
            unpacked.link(name, _small(archive, info, name).decode("utf-8", "surrogateescape"))
        else:
            with archive.open(info) as content:
                unpacked.file(name, content, info.file_size, executable=bool(mode & 0o111))


def _zip_members(archive: zipfile.ZipFile, file: IO[bytes], limit: int) -> list[tuple[zipfile.ZipInfo, str]]:
    """Return the checked members of *archive* with their paths; nothing is unpacked."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise _too_many()
    if sum(info.file_size for info in infos) > limit:
        raise _too_large(limit)
    found = [(info, _checked_info(info)) for info in infos]
    files: set[str] = set()
    for info, name in found:
        if name in files:
            raise _twice(name)
        if not info.is_dir():
            files.add(name)
    _check_overlap(archive, file)
    return found


def _checked_info(info: zipfile.ZipInfo) -> str:
    # zipfile truncates names at the first NUL.
    name = checked_name(info.orig_filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.flag_bits & _ENCRYPTED:
        raise Refused(f"{_shown(name)}: is encrypted")
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}:
        raise _no_file(name)
    if not name and not info.is_dir():
        raise Refused(f"{_shown(info.orig_filename)}: a file without a name")
    return name


def _check_overlap(archive: zipfile.ZipFile, file: IO[bytes]) -> None:
    """Reject overlapping members, which let an archive unpack to the square of its size."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        file.seek(max(info.header_offset, 0))
        header = file.read(_LOCAL_HEADER)
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if info.header_offset < end or len(header) < _LOCAL_HEADER:
            raise Refused(f"{_shown(info.orig_filename)}: overlaps another file of the archive")
        end = info.header_offset + _LOCAL_HEADER + names + info.compress_size
    if end > archive.start_dir:
        raise Refused("its last file overlaps the central directory")


def _small(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytes:
    if info.file_size > MAX_MEMBER:
        raise Refused(f"{_shown(name)}: larger than {MAX_MEMBER:,} bytes")
    return archive.read(info)


def _extract_tar(archive: tarfile.TarFile, unpacked: _Unpacked) -> None:
    for number, info in enumerate(archive):
        if number >= MAX_MEMBERS:
            raise _too_many()
        if archive.offset > unpacked.limit + MAX_HEADERS or info.size > unpacked.limit:
            raise _too_large(unpacked.limit)
        _extract_member(archive, info, unpacked)


def _extract_member(archive: tarfile.TarFile, info: tarfile.TarInfo, unpacked: _Unpacked) -> None:
    name, executable = checked_name(info.name), bool(info.mode & 0o111)
    if info.isdir():
        unpacked.directory(name)
    elif not name:
        raise Refused(f"{_shown(info.name)}: a file without a name")
    elif info.issym():
        unpacked.link(name, info.linkname)
    elif info.islnk():
        unpacked.copy(name, checked_name(info.linkname), executable=executable)
    elif info.isreg() and not info.issparse() and info.size >= 0:
        content = archive.extractfile(info)
        assert content is not None  # noqa: S101 -- for the type checker: it is a file
        with closing(content):
            unpacked.file(name, content, info.size, executable=executable)
    else:
        raise _no_file(name)


def _is_zip(file: IO[bytes]) -> bool:
    """Return whether *file* begins like a zip file; its end is not a reliable sign."""
    start = file.read(4)
    file.seek(0)
    return start in _ZIP_MARKS


def _shown(name: str) -> str:
    """Return the untrusted *name* in a form that fits into one line of a message."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _no_file(name: str) -> Refused:
    return Refused(f"{_shown(name)}: neither a regular file, a directory nor a link")


def _twice(name: str) -> Refused:
    return Refused(f"{_shown(name)}: listed twice")


def _too_many() -> Refused:
    return Refused(f"it contains more than {MAX_MEMBERS:,} files and directories")


def _too_large(limit: int) -> Refused:
    return Refused(f"it unpacks to more than {limit >> 20:,} MiB, the limit for its size")


def _fault(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "reading it takes too much memory"
    if isinstance(error, tarfile.ReadError) and "could not be opened" in str(error):
        return "it is neither a zip file nor a tar file with a supported compression"
    said = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return said if isinstance(error, Refused) else f"it cannot be read: {_shown(said.splitlines()[0])}"


def _bind(what: int, most: int) -> None:
    """Limit a resource of this process; a lower existing limit is kept."""
    hard = resource.getrlimit(what)[1]
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (limit, limit))


def _main(arguments: list[str]) -> int:
    os.umask(0o022)
    _bind(resource.RLIMIT_AS, MEMORY)
    _bind(resource.RLIMIT_CPU, SECONDS)
    action, archive, other = arguments
    try:
        if action == "extract":
            extract(archive, other)
        else:
            sys.stdout.buffer.write(member(archive, other))
    except Exception as error:  # noqa: BLE001 - the readers raise many types for invalid files
        # Names can contain surrogates.
        sys.stderr.buffer.write(f"error: {_fault(error)}\n".encode(errors="backslashreplace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
