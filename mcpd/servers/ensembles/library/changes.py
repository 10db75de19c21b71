# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report changes of ensembles, profiles and artifacts, by inotify(7) without polling.

No directory is watched recursively: a project is as large as it likes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from asyncinotify import Inotify, Mask

from mcpd.servers.ensembles.artifacts.places import is_ensemble, names, opened
from mcpd.servers.ensembles.library.library import ARTIFACTS
from mcpd.servers.ensembles.library.tiers import CONFIG, ENSEMBLES, PROFILES, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from asyncinotify import Event, Watch

    from mcpd.servers.ensembles.library.library import Library, State
    from mcpd.servers.ensembles.library.tiers import Tier

MOST_RUN: Final = 5000
"""Maximum number of ensembles of one root whose artifacts are watched."""


@dataclass(slots=True)
class Interest:
    """The relevant changes in a directory."""

    names: set[str] | None = field(default_factory=set)
    """Relevant names in the directory; None for all."""
    contents: bool = False
    """True if writing to files is relevant, too, not only new names."""


class Interests(dict["Path", Interest]):
    """The relevant changes in all existing directories."""

    def __init__(self, tiers: Iterable[Tier], roots: Iterable[Path]) -> None:
        super().__init__()
        for tier in tiers:
            self._add_tier(tier)
        for root in roots:
            found = artifacts_of(root)
            if found is None:
                self._await(root)
            else:
                self._all([root, *(root / name for name in found)])

    def _add_tier(self, tier: Tier) -> None:
        if not _is_directory(tier, "."):
            self._await(tier.base)
            return
        base = self.setdefault(tier.base, Interest())
        base.contents = True
        if base.names is not None:
            base.names |= {CONFIG, ENSEMBLES, PROFILES, ARTIFACTS}
        self._all(Walk(tier).directories)
        if _is_directory(tier, PROFILES):
            self._all([tier.path(PROFILES)])

    def _all(self, directories: Iterable[Path]) -> None:
        for directory in directories:
            self[directory] = Interest(None, contents=True)

    def _await(self, path: Path) -> None:
        """Watch for *path* in its nearest existing parent directory."""
        for below, directory in zip((path, *path.parents), path.parents, strict=False):
            if directory.is_dir():
                interest = self.setdefault(directory, Interest())
                if interest.names is not None:
                    interest.names.add(below.name)
                return


def artifacts_of(root: Path) -> dict[str, int] | None:
    """Return the ensembles with artifacts in *root* and the time of the latest one; None if *root* does not exist."""
    found: dict[str, int] = {}
    try:
        with opened(root) as directory:
            for name in islice(filter(is_ensemble, names(directory)), MOST_RUN):
                try:
                    found[name] = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
                except FileNotFoundError:
                    continue
    except OSError:
        return None
    return found


def artifacts(roots: Sequence[Path]) -> dict[str, frozenset[tuple[Path, int]]]:
    """Return a value for each ensemble that differs after its artifacts have changed."""
    found: dict[str, frozenset[tuple[Path, int]]] = {}
    for root in roots:
        for name, modified in (artifacts_of(root) or {}).items():
            found[name] = found.get(name, frozenset()) | {(root, modified)}
    return found


def _is_directory(tier: Tier, relative: str) -> bool:
    try:
        with tier.directory(relative):
            return True
    except OSError:
        return False


SETTLE: Final = 0.2
"""Seconds in which changes are gathered, as editors and git make several at once."""
MOST_WATCHES: Final = 4096
"""Maximum number of watched directories; the kernel gives a user some ten thousand for all programs."""
_MOST_TOUCHED: Final = 10_000
_AT_ONCE: Final = 200
"""Events read from the kernel at once."""
_ROUNDS: Final = 10
"""Maximum number of times that directories which appeared meanwhile are added."""
_APPEARS: Final = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR | Mask.MASK_ADD
_CHANGES: Final = _APPEARS | Mask.DELETE | Mask.MOVED_FROM | Mask.CLOSE_WRITE | Mask.ATTRIB | Mask.EXCL_UNLINK

log = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class Changes:
    """A set of changes."""

    ensembles: set[str] = field(default_factory=set)
    """Names of the changed ensembles."""
    profiles: bool = False
    """True if any profile, or another part of a ``config.yaml``, has changed."""
    artifacts: set[str] = field(default_factory=set)
    """Names of the ensembles with new or changed artifacts."""
    listing: bool = False
    """True if the list of ensembles, or of those that have artifacts, has changed."""

    def __bool__(self) -> bool:
        """Return True if there are any changes."""
        return bool(self.ensembles or self.profiles or self.artifacts or self.listing)


async def watch(
    library: Library,
    artifacts_roots: Sequence[Path],
    on_change: Callable[[Changes], None],
    ready: asyncio.Event | None = None,
) -> None:
    """Call *on_change* in the loop's thread for changes in *library* and *artifacts_roots*, until cancelled.

    *ready* is set when changes are reported from then on. Directories need not exist yet. A directory that cannot be
    watched is logged once; if none can be, this returns.
    """
    try:
        inotify = Inotify(cache_size=_AT_ONCE)
    except OSError as error:
        log.warning("changes of ensembles are not noticed: %s", error.strerror)
        if ready is not None:
            ready.set()
        return
    with inotify:
        await _Watcher(library, list(artifacts_roots), inotify).run(on_change, ready)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state at one time."""

    state: State
    artifacts: Mapping[str, frozenset[tuple[Path, int]]]


class _Watcher:
    """The watches, which are used in the loop's thread only. Directories are read in other threads."""

    def __init__(self, library: Library, roots: list[Path], inotify: Inotify) -> None:
        self._library = library
        self._roots = roots
        self._inotify = inotify
        self._interests = Interests([], [])
        self._watches: dict[Path, tuple[Watch, Mask]] = {}
        self._paths: dict[Watch, set[Path]] = {}
        """Paths of the directory of each watch, of which there may be several."""
        self._touched: set[Path] = set()
        self._stirred = asyncio.Event()
        self._complained = False

    async def run(self, on_change: Callable[[Changes], None], ready: asyncio.Event | None) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            before = await self._look()
            if ready is not None:
                ready.set()
            while True:
                await self._stirred.wait()
                await asyncio.sleep(SETTLE)
                self._stirred.clear()
                touched, self._touched = self._touched, set()
                now = await self._look()
                if changes := self._difference(before, now, touched):
                    on_change(changes)
                before = now

    async def _read(self) -> None:
        async for event in self._inotify:
            if self._matters(event):
                self._stirred.set()

    def _matters(self, event: Event) -> bool:
        if event.watch is None:  # The queue has overflowed, or the directory is no longer watched.
            return Mask.Q_OVERFLOW in event.mask
        paths = list(self._paths.get(event.watch, ()))
        if event.mask & (Mask.IGNORED | Mask.MOVE_SELF | Mask.DELETE_SELF):
            for path in paths:
                self._forget(path)
            return bool(paths)
        touched = {path / event.name for path in paths if event.name is not None and self._awaits(path, event.name)}
        if len(self._touched) < _MOST_TOUCHED:
            self._touched |= touched
        return bool(touched)

    def _awaits(self, directory: Path, name: Path) -> bool:
        interest = self._interests.get(directory)
        return interest is not None and (interest.names is None or str(name) in interest.names)

    async def _look(self) -> _Seen:
        """Update the watches and then return the state, so that no change in between is missed."""
        for _ in range(_ROUNDS):
            interests = await asyncio.to_thread(Interests, self._library.tiers, self._roots)
            if not self._apply(interests):
                break
        return await asyncio.to_thread(lambda: _Seen(self._library.state(), artifacts(self._roots)))

    def _apply(self, interests: Interests) -> bool:
        """Watch exactly what *interests* name; return True if any watch was added."""
        if len(interests) > MOST_WATCHES:
            self._complain(f"there are more than {MOST_WATCHES} directories")
        wanted = {
            path: _CHANGES if interest.contents else _APPEARS
            for path, interest in islice(interests.items(), MOST_WATCHES)
        }
        for path, (_, mask) in list(self._watches.items()):
            if wanted.get(path) != mask:
                self._forget(path)
        self._interests = interests
        missing = [path for path in wanted if path not in self._watches]
        for path in missing:
            self._add(path, wanted[path])
        return any(path in self._watches for path in missing)

    def _add(self, path: Path, mask: Mask) -> None:
        try:
            watch = self._inotify.add_watch(path, mask)
        except OSError as error:
            # If it was removed meanwhile, the watch of the directory above it reports that.
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                self._complain(f"{path}: {os.strerror(error.errno or 0)}")
        else:
            self._watches[path] = watch, mask
            self._paths.setdefault(watch, set()).add(path)

    def _forget(self, path: Path) -> None:
        watch, _ = self._watches.pop(path)
        self._paths[watch].discard(path)
        if not self._paths[watch]:
            del self._paths[watch]
            with suppress(OSError):  # The kernel may have removed it already.
                self._inotify.rm_watch(watch)

    def _complain(self, fault: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning("not all changes of ensembles are noticed: %s", fault)

    def _difference(self, before: _Seen, now: _Seen, touched: set[Path]) -> Changes:
        """Return the differences, and the *touched* files: two changes within a clock tick have the same time."""
        tiers = self._library.tiers
        files = {
            path: name for seen in (before, now) for name, those in seen.state.ensembles.items() for path, _ in those
        }
        settings = {tier.path(CONFIG) for tier in tiers}
        profiles = {tier.path(PROFILES) for tier in tiers}
        runs = {path.parent.name for path in touched if path.parent.parent in self._roots}
        return Changes(
            ensembles=_different(before.state.ensembles, now.state.ensembles)
            | {files[path] for path in touched if path in files},
            profiles=before.state.profiles != now.state.profiles
            or any(path in settings or path.parent in profiles for path in touched),
            artifacts=_different(before.artifacts, now.artifacts) | (runs & now.artifacts.keys()),
            listing=before.state.listed != now.state.listed or before.artifacts.keys() != now.artifacts.keys(),
        )


def _different(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
