# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``archive``: a tar or zip file, whose hash the entry pins."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.registries import check_entry_url
from mcpd.errors import BuildFailed, IntegrityMismatch, InvalidArgument, InvalidManifest
from mcpd.install.sources.base import LockedFile, Resolution
from mcpd.install.sources.local import copy_project, refuse_own
from mcpd.install.sources.project import ProjectBuild, project_directory
from mcpd.install.trees import pin, pinning, readable
from mcpd.install.workbench import find_program
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from mcpd.install.sources.base import Outcome
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source

MAX_ARCHIVE: Final = 512 * 1024 * 1024
"""Maximum size of an archive in bytes, as downloaded."""
UNPACK: Final = Path(__file__).resolve().parents[1] / "unpack.py"
"""The program that unpacks archives."""
RESERVED: Final = ".mcpd-"
"""Prefix of the names of mcpd's own files in a generation."""


class ArchiveFile:
    """The archive at ``source.url``; it is read and unpacked in a sandbox without network, never in mcpd."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._url = check_url(bench.entry, source)
        self._source = source
        self._path = bench.scratch / "archive"
        self.name = readable(unquote(urlsplit(self._url).path).rpartition("/")[2]) or bench.entry.id

    async def download(self) -> str:
        """Download the archive and return its SHA-256 in hexadecimal, which equals the pinned one.

        Raises :class:`~mcpd.errors.IntegrityMismatch`, and the errors of
        :meth:`Fetcher.download <mcpd.catalog.fetch.Fetcher.download>`.
        """
        parts = urlsplit(self._url)
        if parts.scheme == "file":
            await in_thread(_refuse_own, unquote(parts.path), self._bench)
        seconds = self._bench.tools.settings.install.step_timeout
        async with Fetcher(seconds=seconds, max_bytes=MAX_ARCHIVE) as fetcher:
            found = await fetcher.download(
                self._url, self._path, max_bytes=MAX_ARCHIVE, seconds=seconds, progress=self._report
            )
        if self._source.sha256 and found != self._source.sha256:
            # The hash of a local file must not be shown to users who may not read the file.
            shown = "another hash" if parts.scheme == "file" else f"sha256:{found}"
            raise IntegrityMismatch(
                f"{self._url} has {shown}, but the entry pins sha256:{self._source.sha256}; nothing was installed"
            )
        return found

    def size(self) -> int:
        """Return the size of the archive in bytes; only after :meth:`download`."""
        return self._path.stat().st_size

    async def extract(self) -> Path:
        """Unpack the archive and return the directory with its files.

        Raises :class:`~mcpd.errors.InvalidManifest` that names the member at fault.
        """
        workspace = self._bench.scratch / "unpacked"
        for name in ("home", "tmp"):
            (workspace / name).mkdir(parents=True)
        files = workspace / "files"
        await self._run("extract", str(files), writable=(workspace,))
        return files

    async def member(self, name: str) -> bytes:
        """Return the content of the file *name* in the archive, which has to be a zip file.

        Raises the same errors as :meth:`extract`.
        """
        return await self._run("member", name, writable=(self._bench.scratch / "tmp",))

    def refuse_reserved(self, directory: Path) -> None:
        """Raise :class:`~mcpd.errors.InvalidManifest` if a name in *directory* is reserved for mcpd's own files."""
        for path in directory.iterdir():
            if path.name.startswith(RESERVED):
                what = f"{self._bench.entry.id}: {self.name} contains {readable(path.name)}"
                raise InvalidManifest(f"{what}, a name reserved by mcpd")

    async def _run(self, action: str, argument: str, writable: tuple[Path, ...]) -> bytes:
        try:
            return await self._bench.run(
                [find_program("python3"), "-I", "-S", str(UNPACK), action, str(self._path), argument],
                doing=f"unpacking {self.name}",
                network=False,
                writable=writable,
                readable=() if UNPACK.is_relative_to("/usr") else (UNPACK,),
            )
        except BuildFailed as error:
            said = error.message.partition(" failed: error: ")[2]
            if not said:  # the program could not be started
                raise
            raise InvalidManifest(f"{self._bench.entry.id}: {self._url} cannot be unpacked: {said}") from error

    def _report(self, done: int, total: int) -> None:
        self._bench.job.transferred(done, total)
        if total:
            self._bench.progress(done / total)


class ArchiveRecipe:
    """Recipe for the directory ``source.path`` of the archive ``source.url``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._archive = ArchiveFile(bench, source)
        self._project = ProjectBuild(bench)

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        check_url(entry, source)

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`; dependencies are known only after :meth:`fetch`."""
        return Resolution((self._locked(),))

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        self._bench.stage(10, 30)
        await self._archive.download()
        self._bench.stage(30, 40)
        unpacked = await self._archive.extract()
        root = await in_thread(self._root, unpacked)
        async with pinning(lambda: pin(root)) as pinned:
            await copy_project(self._bench, pinned)
        await self._project.fetch()

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        outcome = await self._project.build({"sha256": self._source.sha256})
        return replace(outcome, files=(self._locked(), *outcome.files))

    def _locked(self) -> LockedFile:
        return LockedFile(self._archive.name, self._source.version, f"sha256:{self._source.sha256}")

    def _root(self, unpacked: Path) -> Path:
        """Return the project's directory in *unpacked*, skipping the single top directory that forges add.

        Raises :class:`~mcpd.errors.InvalidManifest` if it does not exist, or if a link in its path leaves the archive.
        """
        top = unpacked.resolve()
        entries = [entry for entry in os.scandir(top) if not entry.is_symlink()]
        if len(entries) == 1 and entries[0].is_dir():
            top = Path(entries[0].path)
        root = project_directory(top, self._source.path, self._bench.entry.id, self._archive.name)
        self._archive.refuse_reserved(root)
        return root


def check_url(entry: Entry, source: Source) -> str:
    """Return ``source.url`` in normal form; https, file, and http on this machine are allowed.

    Whether the entry's registry may name it is checked elsewhere. Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    try:
        return check_entry_url(source.url, "")
    except InvalidArgument as error:
        raise InvalidManifest(f"{entry.id}: source.url: {error.message}") from error


def _refuse_own(name: str, bench: Workbench) -> None:
    """Refuse archives that are mcpd's own files, except user-supplied bundles."""
    path = Path(os.path.realpath(name))
    if path.parent != (bench.tools.paths.layout(bench.tools.scope).cache / "bundles").resolve():
        refuse_own(path, bench)
