# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package source ``local``: a copy of a directory on this machine."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, SourceUnavailable
from mcpd.install.sources.base import Resolution
from mcpd.install.sources.project import ProjectBuild
from mcpd.install.trees import EXCLUDED, copy_tree, overlap, pin, pinning, tree_bytes
from mcpd.paths import Scope
from mcpd.threads import ended, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.install.sources.base import Outcome
    from mcpd.install.trees import Identity, Pinned
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source
    from mcpd.paths import Paths

UNSEEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - never written to
"""Directories that ``ProtectHome=`` and ``PrivateTmp=`` hide from the system service."""


class LocalRecipe:
    """Recipe for a copy of the directory ``source.path``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._project = ProjectBuild(bench)

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        if source.sha256 or source.rev or source.version:
            raise InvalidManifest(f"{entry.id}: a local source cannot be pinned; omit rev, version and sha256")

    async def resolve(self) -> Resolution:
        """See :class:`~mcpd.install.sources.base.Recipe`; dependencies are known only after :meth:`fetch`."""
        return Resolution()

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        async with pinning(self._pin) as source:
            await copy_project(self._bench, source)
        await self._project.fetch()

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.sources.base.Recipe`."""
        return await self._project.build({"path": self._source.path})

    def _pin(self) -> Pinned:
        path, scope = Path(os.path.realpath(self._source.path)), self._bench.tools.scope
        try:
            source = pin(path)
        except (PermissionError, FileNotFoundError) as error:
            raise unreadable(path, scope) from error
        except OSError as error:
            raise SourceUnavailable(f"{path}: {error.strerror}") from error
        with ExitStack() as unless_refused:
            unless_refused.callback(os.close, source.fd)
            refuse_own(source.path, self._bench, source.way)
            unless_refused.pop_all()
        return source


def check_readable(source: Path, scope: Scope) -> None:
    """Raise :class:`~mcpd.errors.SourceUnavailable`, with the reason and a solution, if *source* is not readable."""
    if not os.access(source, os.R_OK) or (source.is_dir() and not os.access(source, os.X_OK)):
        raise unreadable(source, scope)


def unreadable(source: Path, scope: Scope) -> SourceUnavailable:
    """Return the error for a *source* that cannot be read, with the reason and a solution."""
    if scope is Scope.SYSTEM and any(source.is_relative_to(place) for place in UNSEEN):
        return SourceUnavailable(
            f"{source} cannot be read by the system's mcpd, whose service has no access to home directories and"
            " /tmp; copy it elsewhere, for example to /srv, or install it for yourself (mcpctl --user)"
        )
    whose = "the system's mcpd (user mcpd)" if scope is Scope.SYSTEM else "you"
    return SourceUnavailable(f"{source} cannot be read by {whose}; check that it exists and is readable")


async def copy_project(bench: Workbench, source: Pinned) -> None:
    """Copy *source* into the generation and report progress; stop when the task is cancelled."""
    loop = asyncio.get_running_loop()
    # A node project gets the modules in its lock file, not those in its directory.
    excluded = EXCLUDED | ({"node_modules"} if await in_thread(_holds_file, source, "package.json") else frozenset())
    total = await in_thread(tree_bytes, source, excluded)
    stop = threading.Event()

    def progress(done: int) -> None:
        loop.call_soon_threadsafe(_report, bench, done, total)

    copying = asyncio.ensure_future(
        asyncio.to_thread(copy_tree, source, bench.root, stop=stop, progress=progress, excluded=excluded)
    )
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await ended(copying)
        copying.exception()
        raise


def _report(bench: Workbench, done: int, total: int) -> None:
    bench.job.transferred(done, total)
    bench.progress(done / total if total else 1)


def _holds_file(source: Pinned, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(os.stat(name, dir_fd=source.fd, follow_symlinks=False).st_mode)
    return False


def refuse_own(path: Path, bench: Workbench, way: Sequence[Identity] = ()) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` for a source that contains mcpd's own files.

    *way* comes from a pinned source; it is not needed for a source that will be opened by its path.
    """
    own = overlap(path, way, _own_directories(bench.tools.paths))
    if own is not None:
        raise InvalidManifest(f"{path} contains mcpd's own files ({own}) and cannot be the source of a server")


def _own_directories(paths: Paths) -> Iterator[Path]:
    for layout in (paths.system, paths.user):
        yield from (layout.secrets.parent, layout.secrets, layout.overlay, layout.state, layout.runtime, layout.cache)
        yield from (layout.installed, layout.generations, layout.settings.parent)
