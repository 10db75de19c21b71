# SPDX-License-Identifier: LGPL-2.1-or-later
"""The place where one installation is built, and the commands that run there."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import (
    BuildFailed,
    IntegrityMismatch,
    InvalidManifest,
    McpdError,
    NoSpace,
    NotSupported,
    SourceUnavailable,
)
from mcpd.install.proxy import PROXIED, SOCKET
from mcpd.model import strip_credentials
from mcpd.paths import make_private
from mcpd.runtime.run import run
from mcpd.runtime.sandbox import build_spec
from mcpd.store.files import remove_tree
from mcpd.store.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from mcpd.install.job import Job
    from mcpd.install.proxy import Proxy
    from mcpd.model import Entry
    from mcpd.paths import Paths, Scope
    from mcpd.runtime.launch import Launcher
    from mcpd.settings import Settings

MAX_LINES: Final = 4
MAX_LINE: Final = 300
"""Characters."""

_NPM: Final = re.compile(r"npm err(?:or|!) ?(.*)", re.IGNORECASE)
_NPM_NOISE: Final = re.compile(
    # its log, its stack, the fields of its error object, general advice, and words without a text after them
    r"A complete log|\s+at |\s+\w+: |[{}\s]*$|If you are behind a proxy|\w+$|(code|errno|syscall|path|dest) "
    r"|command (?!/bin/false )|(notarget|404)\s+(In most cases|a package version that|Note that|tarball,|\*)"
)
_FAULT: Final = re.compile(r"(error|fatal|cause)\b|[\w.]*(Error|Exception)\b|.*: (fatal )?error: ", re.IGNORECASE)
_WRAPPER: Final = re.compile(r"error: (subprocess-exited-with-error|metadata-generation-failed)|ERROR: Failed ")
_NOISE: Final = re.compile(r"note: |hint: |\[notice\]|\[end of output\]|╰─>|× |│ |[\s^~]*$")

_ABSENT: Final = (
    re.compile(r"Because (?P<name>\S+) was not found in the package registry"),
    re.compile(
        r"npm err(?:or|!) 404\s+(?:The requested resource )?"
        r"'(?P<name>@?[^'@]+)@[^']*' (?:is not in|could not be found)",
        re.IGNORECASE,
    ),
)
"""The words of uv and npm for a package that no registry has."""
_NO_WHEEL: Final = re.compile(r"requirement (?P<name>[\w.-]+)\S* \(from versions: none\)")
"""The words of pip for that, for a package without a suitable wheel, and for a registry that cannot be reached."""
_UNREACHED: Final = re.compile(r"WARNING: (?:Retrying|Could not fetch) ")


def absence(stderr: str) -> str:
    """Return a sentence that names the package which no registry has, according to *stderr*; empty if there is none."""
    for pattern in _ABSENT:
        if found := pattern.search(stderr):
            return f"there is no package {found['name']} in the configured registries"
    found = _NO_WHEEL.search(stderr)
    if found is None or _UNREACHED.search(stderr):
        return ""
    return f"there is no package {found['name']} in the configured registries, or it has no wheel for this system"


def condense(stderr: str, root: Path, *, last: bool) -> str:
    """At most :data:`MAX_LINES` lines of *stderr*, without the paths below *root*, the build directory.

    *last*: of many, the last ones, where a build tool says why it gave up; else the first. Credentials are the
    caller's to take out.
    """
    text = re.sub(re.escape(str(root)) + r"(?:/\.mcpd-build)?(/|\b)", lambda end: "" if end[1] else ".", stderr)
    lines = [line for line in text.splitlines() if not _NOISE.match(line.strip())]
    npm = [match[1] for line in lines if (match := _NPM.match(line))]
    if npm:
        codes = [line for line in npm if line.startswith("code ")]
        found = [line for line in npm if not _NPM_NOISE.match(line)] or codes
        last = False
    else:
        stripped = [line.strip() for line in lines]
        faults = [line for line in stripped if _FAULT.match(line)]
        found = [line for line in faults if not _WRAPPER.match(line)] or faults
        if not found:
            found, last = stripped, True
    chosen = found[-MAX_LINES:] if last else found[:MAX_LINES]
    return "\n".join(line.strip()[:MAX_LINE] for line in chosen)


SCRATCH: Final = ".mcpd-build"
"""Directory in a generation for what is only needed while it is built; gone before activation."""
SYSTEM_PYTHON: Final = "/usr/bin/python3"
CACHE: Final = "packages"
"""Directory in the scope's cache with what pip, npm and uv have fetched, in the form of each, and byte code."""
MAX_CACHE: Final = 1024**3
"""Bytes of it. What is more is too old as well, mostly, so all of it goes before the next installation."""
PROGRAMS: Final = "/usr/bin:/usr/local/bin:/bin"
MAX_OUTPUT: Final = 64 * 1024 * 1024
"""Bytes of a command's stdout; a report of pip holds the descriptions of all packages."""
WATCH_INTERVAL: Final = 0.5
"""Seconds between two looks at how much has arrived."""

_FULL: Final = ("No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT")
_MISMATCH: Final = ("DO NOT MATCH THE HASHES", "EINTEGRITY", "Hashes are required", "Hash mismatch for ")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tools:
    """What every installation of this instance works with."""

    launcher: Launcher
    paths: Paths
    settings: Settings
    scope: Scope


class Workbench:
    """One generation while it is built."""

    def __init__(self, tools: Tools, job: Job, entry: Entry, root: Path) -> None:
        self.tools = tools
        self.job = job
        self.entry = entry
        self.root = root
        """The generation: empty at first, the install directory in the end."""
        self.scratch = root / SCRATCH
        self.cache = tools.paths.layout(tools.scope).cache / CACHE
        self._span = (0.0, 0.0)
        self._received = 0

    def prepare(self) -> None:
        """Make the scratch directories."""
        for name in ("home", "tmp", "cwd"):
            (self.scratch / name).mkdir(parents=True)
        for name in ("pip", "npm", "uv", "python"):
            make_private(self.cache / name)

    def clean(self) -> None:
        """Remove what is no longer needed."""
        remove_tree(self.scratch)

    def stage(self, start: float, end: float) -> None:
        """Say that the next command takes the job from *start* to *end* percent."""
        self._span = (start, end)
        if start:
            self.job.advance(start)

    def progress(self, part: float) -> None:
        """Report that *part* (0 to 1) of the current stage is done."""
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
    ) -> bytes:
        """Run *argv* in the build sandbox and return its stdout.

        *writable* defaults to the whole generation; package code gets less, so that it cannot lay traps for the steps
        after it. *cache* is the part of :attr:`cache` that is writable as well, never while code of a package may run.
        *pinned* is shown like *readable*, unless a link took its place since it was resolved. *doing* is a
        phrase for messages (``"downloading time-server"``). The size of *watch* is reported while the command runs.
        *proxy*, with *network*, is the only way there; it takes a *cwd* right below :attr:`scratch`. What comes through
        it is reported too, and as progress if *expected* says how many bytes will.

        Raises :class:`~mcpd.errors.SourceUnavailable` (with network) or :class:`~mcpd.errors.BuildFailed` if the
        command fails, :class:`~mcpd.errors.IntegrityMismatch` if it says that a hash is wrong,
        :class:`~mcpd.errors.NoSpace` if the disk is full, :class:`~mcpd.errors.InvalidManifest` if the *proxy* refused
        anything, and what :func:`mcpd.runtime.run.run` raises.
        """
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
            proxied=(SYSTEM_PYTHON, "-IS", str(PROXIED), f"../{SOCKET}") if proxy else (),
            env={"HOME": str(home), "TMPDIR": str(home.with_name("tmp")), "LANG": "C.UTF-8", **(env or {})},
        )
        if pinned and spec.confined and str(pinned) not in {mount.source for mount in spec.mounts}:
            raise SourceUnavailable(f"{pinned} was replaced by a link while it was used; install it again")
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
            raise InvalidManifest(refusal(doing, proxy.refused))
        if completed.code != 0:
            raise explain(doing, self.root, network=network, code=completed.code, stderr=completed.stderr_tail)
        return completed.stdout

    def _counting(self, expected: int) -> Callable[[int], None]:
        """Return what is called with the size of everything that arrives; *expected* are the bytes of a step."""
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


def program(name: str) -> str:
    """The system's *name*; :class:`~mcpd.errors.NotSupported` if it is not installed."""
    found = shutil.which(name, path=PROGRAMS)
    if found is None:
        raise NotSupported(f"this server needs {name} to be installed on the system; install its package and try again")
    return found


def tree_size(path: Path) -> int:
    """Bytes of the files below *path*; what vanishes meanwhile, or cannot be read, counts nothing."""
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
    """Empty the directory *cache* if it holds more than :data:`MAX_CACHE`; nothing may be at work with it."""
    if tree_size(cache) > MAX_CACHE:
        remove_tree(cache)


def refusal(doing: str, refused: Sequence[str]) -> str:
    """The message for a command that wanted to go to *refused* while *doing*."""
    places = ", ".join(place[:200] for place in list(dict.fromkeys(refused))[:3])
    return (
        f"{doing} failed: it, or a package that it needs, comes from {places}, and packages are installed from the"
        " configured registries only; if one keeps its files there, name that host in the configuration of pip or npm"
    )


def explain(doing: str, root: Path, *, network: bool, code: int, stderr: str) -> McpdError:
    """The error for a command that failed with *code* while *doing*; *root* is the build directory."""
    said = absence(stderr) or condense(strip_credentials(stderr), root, last=not network)
    text = f"{doing} failed: {said or f'the command ended with status {code}'}"
    if any(mark in stderr for mark in _FULL):
        return NoSpace(f"{doing} failed: the disk is full. Free some space and try again.")
    if any(mark in stderr for mark in _MISMATCH):
        return IntegrityMismatch(text)
    return SourceUnavailable(text) if network else BuildFailed(text)
