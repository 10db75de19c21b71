# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers from a directory on this machine."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, SourceUnavailable
from mcpd.install.copytree import LEFT_OUT, copy_tree, tree_bytes
from mcpd.install.project import ProjectBuild
from mcpd.install.threads import in_thread
from mcpd.paths import Scope

if TYPE_CHECKING:
    from mcpd.install.outcome import Outcome
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, Source


UNSEEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - only named
"""What ``ProtectHome=`` and ``PrivateTmp=`` of the system's unit hide."""


class LocalRecipe:
    """A copy of the directory ``source.path``."""

    def __init__(self, bench: Workbench, source: Source) -> None:
        self._bench = bench
        self._source = source
        self._project = ProjectBuild(bench)

    @staticmethod
    def check(entry: Entry, source: Source) -> None:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        if source.sha256 or source.rev or source.version:
            raise InvalidManifest(f"{entry.id}: a local source cannot be pinned; drop rev, version and sha256")

    async def fetch(self) -> None:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        source = await in_thread(Path(self._source.path).resolve)
        refuse_own(source, self._bench)
        await in_thread(check_readable, source, self._bench.tools.scope)
        await copy_project(self._bench, source)
        await self._project.fetch()

    async def build(self) -> Outcome:
        """See :class:`~mcpd.install.outcome.Recipe`."""
        return await self._project.build({"path": self._source.path})


def check_readable(source: Path, scope: Scope) -> None:
    """Raise :class:`~mcpd.errors.SourceUnavailable` if mcpd cannot read *source*, which says why and what to do."""
    if os.access(source, os.R_OK | (os.X_OK if source.is_dir() else 0)):
        return
    if scope is Scope.SYSTEM and any(source.is_relative_to(place) for place in UNSEEN):
        raise SourceUnavailable(
            f"{source} cannot be read by the system's mcpd, whose service sees neither homes nor /tmp; copy it"
            " elsewhere, for example to /srv, or install it for yourself (mcpctl --user)"
        )
    whose = "the system's mcpd (user mcpd)" if scope is Scope.SYSTEM else "you"
    raise SourceUnavailable(f"{source} cannot be read by {whose}; see whether it exists, and who may read it")


async def copy_project(bench: Workbench, source: Path) -> None:
    """Copy *source* into the generation, reporting bytes; stops when the task is cancelled."""
    loop = asyncio.get_running_loop()
    # A node project gets the modules that its lock file names, not those that happen to lie there.
    left_out = LEFT_OUT | ({"node_modules"} if (source / "package.json").is_file() else frozenset())
    total = await in_thread(tree_bytes, source, left_out)
    stop = threading.Event()

    def progress(done: int) -> None:
        loop.call_soon_threadsafe(_report, bench, done, total)

    copying = asyncio.ensure_future(
        asyncio.to_thread(copy_tree, source, bench.root, stop=stop, progress=progress, left_out=left_out)
    )
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([copying])
        copying.exception()
        raise


def _report(bench: Workbench, done: int, total: int) -> None:
    bench.job.transferred(done, total)
    bench.progress(done / total if total else 1)


def refuse_own(path: Path, bench: Workbench) -> None:
    """Raise :class:`~mcpd.errors.InvalidManifest` for a source that would take mcpd's own files along."""
    layout = bench.tools.paths.layout(bench.tools.scope)
    for own in (layout.secrets, layout.overlay, layout.generations, layout.runtime, layout.state):
        mine = own.resolve()
        if path.is_relative_to(mine) or mine.is_relative_to(path):
            raise InvalidManifest(f"{path} holds mcpd's own files ({own}) and cannot be the source of a server")
