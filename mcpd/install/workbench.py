# SPDX-License-Identifier: LGPL-2.1-or-later
"""The build environment of one installation: its directories, and the sandboxed commands that run there."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, NotSupported, SourceUnavailable
from mcpd.files import remove_tree
from mcpd.install.complaints import ANY
from mcpd.install.proxy import PROXIED, PROXY_URL, PROXY_VARIABLES, SOCKET
from mcpd.model import strip_credentials
from mcpd.paths import make_private
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from mcpd.install.complaints import Program
    from mcpd.install.job import Job
    from mcpd.install.proxy import Proxy
    from mcpd.model import Entry
    from mcpd.paths import Paths, Scope
    from mcpd.runtime.launch import Launcher
    from mcpd.settings import Settings

SCRATCH: Final = ".mcpd-build"
"""Directory in a generation for temporary files of the build; removed before activation."""
SYSTEM_PYTHON: Final = "/usr/bin/python3"
CACHE: Final = "packages"
"""Directory in the scope's cache with the caches of package managers, and byte code."""
MAX_CACHE: Final = 1024**3
"""Maximum size of that directory in bytes; if it is larger, it is emptied before the next installation."""
PROGRAMS: Final = "/usr/bin:/usr/local/bin:/bin"
MAX_OUTPUT: Final = 64 * 1024 * 1024
"""Maximum size of a command's stdout in bytes; a report of pip contains the descriptions of all packages."""
WATCH_INTERVAL: Final = 0.5
"""Seconds between two measurements of a watched directory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tools:
    """The launcher, paths and settings that all installations of this instance share."""

    launcher: Launcher
    paths: Paths
    settings: Settings
    scope: Scope


class Workbench:
    """A generation that is being built, and its build sandbox."""

    def __init__(self, tools: Tools, job: Job, entry: Entry, root: Path) -> None:
        self.tools = tools
        self.job = job
        self.entry = entry
        self.root = root
        """The directory of the generation."""
        self.scratch = root / SCRATCH
        self.cache = tools.paths.layout(tools.scope).cache / CACHE
        self._span = (0.0, 0.0)
        self._received = 0

    def prepare(self) -> None:
        """Create the scratch directories."""
        for name in ("home", "tmp", "cwd"):
            (self.scratch / name).mkdir(parents=True)

    def clean(self) -> None:
        """Remove the scratch directory."""
        remove_tree(self.scratch)

    def stage(self, start: float, end: float) -> None:
        """Set the range of progress, in percent, of the following commands."""
        self._span = (start, end)
        if start:
            self.job.advance(start)

    def progress(self, part: float) -> None:
        """Report that *part* (0 to 1) of the current range is done."""
        start, end = self._span
        self.job.advance(start + (end - start) * max(0.0, min(part, 1.0)))

    async def run(  # noqa: PLR0913 - each says one thing about the command, by name
        self,
        argv: Sequence[str],
        *,
        doing: str,
        network: bool,
        writable: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        pinned: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        cache: str = "",
        on_line: Callable[[str], None] | None = None,
        watch: Path | None = None,
        proxy: Proxy | None = None,
        expected: int = 0,
        program: Program = ANY,
    ) -> bytes:
        """Run *argv* in the build sandbox and return its stdout.

        *writable* defaults to the whole generation; commands that run a package's code get less, so that they cannot
        tamper with later steps. *cache* is the subdirectory of :attr:`cache` that is also writable; it must be empty if
        code of a package may run. *pinned* is mounted like *readable*, unless a link replaced it since it was resolved.
        *doing* is a phrase for messages (``"downloading time-server"``). The size of *watch* is reported while the
        command runs. *proxy*, with *network*, is the only access to the network; it needs a *cwd* directly below
        :attr:`scratch`, and its address replaces :data:`~mcpd.install.proxy.PROXY_URL` in the values of *env*. Bytes
        received through it are reported as well, and as progress if *expected* is their total. *program* explains why
        the command failed.

        Raises :class:`~mcpd.errors.SourceUnavailable` or, without *network*, :class:`~mcpd.errors.BuildFailed` if the
        command fails, :class:`~mcpd.errors.IntegrityMismatch` if it reports a wrong hash, :class:`~mcpd.errors.NoSpace`
        if the disk is full, :class:`~mcpd.errors.InvalidManifest` if *proxy* refused a request, and the errors of
        :func:`mcpd.runtime.run.run`.
        """
        if cache:
            await in_thread(make_private, self.cache / cache)
        home = (writable[0] if writable else self.scratch) / "home"
        spec = build_spec(
            self.entry.id,
            tuple(argv),
            cwd=cwd or self.scratch / "cwd",
            writable=(*(writable or [self.root]), *([self.cache / cache] if cache else ())),
            readable=(
                *([self.root] if writable else ()),
                *readable,
                *([pinned] if pinned else ()),
                *([PROXIED] if proxy else ()),
            ),
            network=network,
            paths=self.tools.paths,
            scope=self.tools.scope,
            confined=self.tools.settings.runtime.sandbox == "on",
            proxied=(SYSTEM_PYTHON, "-IS", str(PROXIED), f"../{SOCKET}", PROXY_URL) if proxy else (),
            env={
                "HOME": str(home),
                "TMPDIR": str(home.with_name("tmp")),
                "LANG": "C.UTF-8",
                **(dict.fromkeys(PROXY_VARIABLES, PROXY_URL) if proxy else {}),
                **(env or {}),
            },
        )
        if pinned and spec.confined and str(pinned) not in {mount.source for mount in spec.mounts}:
            raise SourceUnavailable(f"{pinned} was replaced by a link during the installation; try again")
        log.debug("%s: %s: %s", self.entry.id, doing, strip_credentials(" ".join(argv)))
        serving = proxy.serving(self.scratch, self._counting(expected)) if proxy else nullcontext()
        async with self._watching(watch), serving:
            completed = await run(
                self.tools.launcher,
                spec,
                timeout=self.tools.settings.install.step_timeout,
                on_line=on_line,
                limit=MAX_OUTPUT,
            )
        if proxy is not None and proxy.refused:
            raise InvalidManifest(program.refusal(doing, proxy.refused))
        if completed.code != 0:
            raise program.explain(doing, self.root, network=network, code=completed.code, stderr=completed.stderr_tail)
        return completed.stdout

    def _counting(self, expected: int) -> Callable[[int], None]:
        """Return a callback for received bytes; *expected* is the number of bytes of this step, 0 if unknown."""
        before = self._received

        def arrived(count: int) -> None:
            self._received += count
            self.job.transferred(self._received, self.job.bytes_total)
            if expected:
                self.progress((self._received - before) / expected)

        return arrived

    @asynccontextmanager
    async def _watching(self, path: Path | None) -> AsyncIterator[None]:
        if path is None:
            yield
            return
        watcher = asyncio.create_task(self._watch(path))
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
        self.job.transferred(await in_thread(tree_size, path), self.job.bytes_total)

    async def _watch(self, path: Path) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            self.job.transferred(await in_thread(tree_size, path), self.job.bytes_total)


def find_program(name: str) -> str:
    """Return the path of the system's program *name*; raise :class:`~mcpd.errors.NotSupported` if it is missing."""
    found = shutil.which(name, path=PROGRAMS)
    if found is None:
        raise NotSupported(f"this server needs {name}; install its package and try again")
    return found


def tree_size(path: Path) -> int:
    """Return the total size in bytes of the files below *path*; files that vanish or cannot be read count as 0."""
    total, waiting = 0, [os.fspath(path)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def trim(cache: Path) -> None:
    """Empty the directory *cache* if it is larger than :data:`MAX_CACHE`; nothing may be using it."""
    if tree_size(cache) > MAX_CACHE:
        remove_tree(cache)
