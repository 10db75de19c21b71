# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations of servers, and the symlinks to the active ones: ``installed/<id>`` → ``../generations/<id>/<n>``."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, NotFound, from_oserror
from mcpd.files import TEMP_MARK, TEMP_NAME, Staged, make_directory, remove_tree, sync_directory
from mcpd.model import ID_PATTERN
from mcpd.store.config import MANIFEST, remove_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.paths import Layout

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that is being built in its final directory, until it is activated or discarded."""

    server_id: str
    number: int
    path: Path


@contextmanager
def tolerant_cleanup(path: Path) -> Iterator[None]:
    """Log errors in cleaning up *path* after a killed process instead of raising them, so that mcpd can start."""
    try:
        yield
    except (McpdError, OSError) as error:
        _log.warning("%s: could not be cleaned up: %s", path, error)
    except Exception:  # noqa: BLE001 - one leftover must not keep mcpd from starting
        _log.exception("%s: could not be cleaned up", path)


_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class Marker(StrEnum):
    """Name of a marker: a symlink next to the generations of a server whose target is a generation number."""

    HELD = "held"
    """Marks the pending update; ignored once that generation or a newer one is active.

    The marker stays if the pending update is removed, so that its number is not used again: somebody could still
    approve that number.
    """
    BEFORE = "before"
    """Marks the previously active generation, while the active one is on trial."""


def read_marker(directory: Path, marker: Marker) -> int | None:
    """Return the generation number that *marker* points to, even if that generation is gone; None if not set.

    *directory* contains the generations of one server.
    """
    try:
        target = directory.joinpath(marker).readlink()
    except OSError:
        return None
    return int(target.name) if _NUMBER.fullmatch(str(target)) else None


def set_marker(directory: Path, marker: Marker, number: int) -> None:
    """Point *marker* in *directory* to generation *number*."""
    with Staged(directory / marker, str(number)) as staged:
        staged.commit()


def remove_marker(directory: Path, marker: Marker) -> None:
    """Remove *marker* from *directory*, if it exists."""
    try:
        with suppress(FileNotFoundError):
            directory.joinpath(marker).unlink()
            sync_directory(directory)
    except OSError as error:
        raise from_oserror(error, f"removing {directory / marker}") from error


_BUILD_MARKER: Final = re.compile(r"\.([0-9]+)~building", re.ASCII)


class BuildMarkers:
    """Marker files of the generations that are being built, each locked by the process that builds the generation."""

    def __init__(self, generations: Path) -> None:
        self._generations = generations
        self._own: dict[tuple[str, int], int] = {}
        """Descriptors of the files that this process has locked, by server id and generation number."""

    def begin(self, server_id: str, number: int) -> None:
        """Mark a generation as being built by this process. Raises OSError, after which :meth:`end` must be called."""
        descriptor = os.open(
            self._file(server_id, number), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._own[server_id, number] = descriptor

    def mark(self, server_id: str, number: int) -> None:
        """Mark a finished generation as unfinished. Raises OSError."""
        self._file(server_id, number).touch(0o600)

    def end(self, server_id: str, number: int) -> None:
        """Remove the marker of a generation that is complete or gone."""
        with suppress(FileNotFoundError):
            self._file(server_id, number).unlink()
        descriptor = self._own.pop((server_id, number), None)
        if descriptor is not None:
            os.close(descriptor)

    def is_marked(self, server_id: str, number: int) -> bool:
        """Return whether the generation is unfinished, even if its builder is gone."""
        return self._file(server_id, number).exists()

    def is_own(self, server_id: str, number: int) -> bool:
        """Return whether this process is building the generation."""
        return (server_id, number) in self._own

    def is_alive(self, server_id: str, number: int) -> bool:
        """Return whether any running process is building the generation."""
        return self.is_own(server_id, number) or self._is_locked(server_id, number)

    def _is_locked(self, server_id: str, number: int) -> bool:
        try:
            descriptor = os.open(self._file(server_id, number), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _file(self, server_id: str, number: int) -> Path:
        return self._generations / server_id / f".{number}~building"


def number_being_built(name: str) -> int | None:
    """Return the generation number of the build marker *name*; None for any other file."""
    match = _BUILD_MARKER.fullmatch(name)
    return int(match[1]) if match else None


_REMOVED: Final = re.compile(r"\.(keep|drop)\.(.+)\.[0-9a-f]+~removed", re.DOTALL)
_TOOLS: Final = re.compile(r"([0-9]+)\.tools\.json", re.ASCII)


def catalog_path(generation: Path) -> Path:
    """Return the path of the tool catalog of *generation*: next to its directory, which has the server's files only."""
    return generation.with_name(f"{generation.name}.tools.json")


class Tree:
    """The generations of one scope. Callers hold the write lock of the store."""

    def __init__(self, layout: Layout, keep: int) -> None:
        """*keep* is the number of generations kept of each server, including the active one."""
        self._layout = layout
        self._keep = max(1, keep)
        self._builds = BuildMarkers(layout.generations)

    @property
    def installed(self) -> Path:
        """Directory of the links to the active generations."""
        return self._layout.installed

    def directory(self, server_id: str, number: int) -> Path:
        """Return the directory of a generation, whether it exists or not."""
        return self._layout.generations / server_id / str(number)

    def numbers(self, server_id: str) -> list[int]:
        """Return the numbers of the finished generations, oldest first, without the pending update."""
        active, held = self.active(server_id), read_marker(self._server_directory(server_id), Marker.HELD)
        numbers = [n for n in self._numbers(server_id) if n != held or n == active]
        return [n for n in numbers if not self._builds.is_marked(server_id, n)]

    def held(self, server_id: str) -> int | None:
        """Return the generation number of the pending update; None if there is none."""
        number = read_marker(self._server_directory(server_id), Marker.HELD)
        if number is None or number <= (self.active(server_id) or 0):
            return None
        return number if self.directory(server_id, number).is_dir() else None

    def active(self, server_id: str) -> int | None:
        """Return the number of the generation that ``installed/<id>`` points to; None if it is not such a symlink."""
        try:
            target = self.installed.joinpath(server_id).readlink()
        except OSError:
            return None
        own = target.parent.name == server_id and target.parent.parent.name == "generations"
        return int(target.name) if own and target.name.isdecimal() else None

    def create(self, server_id: str) -> Generation:
        """Create an empty directory for a new generation, marked as being built and accessible to its owner only."""
        for directory in (self.installed.resolve(), self._layout.generations, self._layout.generations / server_id):
            make_directory(directory)
        taken = [*self._numbers(server_id), read_marker(self._server_directory(server_id), Marker.HELD) or 0]
        replaced = self.installed / server_id
        # Leave a number for a plain directory of another tool, which becomes the generation before this one.
        number = max(taken, default=0) + (2 if replaced.is_dir() and not replaced.is_symlink() else 1)
        try:
            self._builds.begin(server_id, number)
            path = self.directory(server_id, number)
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            sync_directory(path.parent)
        except OSError as error:
            self.finish(server_id, number)
            raise from_oserror(error, f"creating a generation of {server_id}") from error
        return Generation(server_id, number, path)

    def publish(self, server_id: str, number: int) -> None:
        """Make the generation readable by all users, because the server may run under another account."""
        path = self.directory(server_id, number)
        try:
            path.chmod(0o755)
        except OSError as error:
            raise from_oserror(error, f"making {path} readable") from error

    def finish(self, server_id: str, number: int) -> None:
        """Remove the build marker of a generation that is complete or gone."""
        self._builds.end(server_id, number)

    def hold(self, server_id: str, number: int) -> None:
        """Make a complete, inactive generation the pending update, and remove the previous pending update."""
        older = self.held(server_id)
        if older is not None and older != number:
            # Once the marker "held" has moved on, the older update must not look like a target of a rollback.
            self._mark_as_unfinished(server_id, older)
        set_marker(self._server_directory(server_id), Marker.HELD, number)
        self.finish(server_id, number)
        if older is not None and older != number:
            self.discard(server_id, older)

    def clear_held(self, server_id: str) -> None:
        """Remove the marker of the pending update."""
        remove_marker(self._server_directory(server_id), Marker.HELD)

    def begin_trial(self, server_id: str) -> None:
        """Mark the active generation as the one to return to unless the next one passes its trial."""
        before = self.active(server_id)
        if before is not None:
            set_marker(self._server_directory(server_id), Marker.BEFORE, before)

    def begin_held_trial(self, server_id: str, number: int) -> None:
        """Begin a trial of the pending update, which counts as unfinished until it passes."""
        try:
            self._builds.begin(server_id, number)
        except OSError as error:
            raise from_oserror(error, f"starting the trial of generation {number} of {server_id}") from error
        self.begin_trial(server_id)

    def pass_trial(self, server_id: str) -> None:
        """End the trial of the active generation, if this process began it. Needs no lock."""
        active = self.active(server_id)
        if active is not None and self._builds.is_own(server_id, active):
            self.finish(server_id, active)
            self.end_trial(server_id)

    def end_trial(self, server_id: str) -> None:
        """Remove the marker of the previously active generation."""
        remove_marker(self._server_directory(server_id), Marker.BEFORE)

    def interrupted_trials(self) -> Iterator[tuple[str, int]]:
        """Yield the ids of servers whose trial was interrupted, with the number of the previously active generation."""
        for server_id in _names(self._layout.generations):
            before = (
                read_marker(self._server_directory(server_id), Marker.BEFORE)
                if ID_PATTERN.fullmatch(server_id)
                else None
            )
            active = self.active(server_id) if before is not None else None
            if before is None or active is None:
                continue
            tried = active != before and self._builds.is_marked(server_id, active)
            if tried and not self._builds.is_alive(server_id, active):
                yield server_id, before

    def drop_superseded(self, server_id: str) -> None:
        """Remove a pending update that is older than the active generation."""
        waiting, active = read_marker(self._server_directory(server_id), Marker.HELD), self.active(server_id)
        if waiting is None or active is None or waiting > active:
            return
        if waiting < active:
            self.discard(server_id, waiting)
        self.clear_held(server_id)

    def _mark_as_unfinished(self, server_id: str, number: int) -> None:
        """Mark a finished generation as unfinished."""
        try:
            self._builds.mark(server_id, number)
            sync_directory(self._server_directory(server_id))
        except OSError as error:
            raise from_oserror(error, f"removing generation {number} of {server_id}") from error

    def discard(self, server_id: str, number: int) -> None:
        """Remove a generation that is not active."""
        path = self.directory(server_id, number)
        aside = path.with_name(f".{number}.{secrets.token_hex(6)}{TEMP_MARK}")
        try:
            with suppress(FileNotFoundError):
                # Rename it first: a partly removed generation must not look like a target of a rollback.
                path.rename(aside)
                remove_tree(aside)
            remove_tree(catalog_path(path))
        except OSError as error:
            raise from_oserror(error, f"removing {path}") from error
        self.finish(server_id, number)
        self._tidy(server_id)

    def link(self, server_id: str, number: int) -> Staged:
        """Return a staged symlink that, when committed, makes the generation active."""
        return Staged(self.installed / server_id, f"../{self._layout.generations.name}/{server_id}/{number}")

    def activate(self, server_id: str, staged: Staged) -> None:
        """Put *staged*, the symlink from :meth:`link`, in place; a plain directory there becomes a generation."""
        place = self.installed / server_id
        if place.is_symlink() or not place.is_dir():
            staged.commit()
            return
        replaced = staged.exchange()
        if replaced is None:
            # The file system cannot exchange names; if interrupted here, recover() puts the directory back.
            replaced = place.with_name(f".{server_id}.{secrets.token_hex(6)}{TEMP_MARK}")
            place.rename(replaced)
            staged.commit()
        self._adopt(server_id, replaced)

    def _adopt(self, server_id: str, replaced: Path) -> None:
        """Turn the plain directory *replaced* into a generation, and remove secrets that its manifest contains."""
        taken = set(self._numbers(server_id))
        newest = max(taken, default=1)
        number = next((n for n in range(newest - 1, 0, -1) if n not in taken), newest + 1)
        try:
            remove_secrets(replaced / MANIFEST, server_id)
            replaced.rename(self.directory(server_id, number))
        except (McpdError, OSError) as error:
            _log.warning("%s: cannot keep the replaced directory, removing it: %s", server_id, error)
            remove_tree(replaced)

    def prune(self, server_id: str, spared: int | None = None) -> None:
        """Remove the generations beyond the number to keep, oldest first, except the active one and *spared*."""
        active = self.active(server_id)
        others = [n for n in self.numbers(server_id) if n != active]
        for number in others[: max(0, len(others) - self._keep + 1)]:
            if number == spared:
                continue
            try:
                self.discard(server_id, number)
            except McpdError as error:
                _log.warning("%s", error.message)

    def previous(self, server_id: str, number: int | None) -> int:
        """Return the generation number for a rollback: *number* or, if None, the newest before the active one.

        Raises :class:`~mcpd.errors.NotFound` if there is no such generation.
        """
        active = self.active(server_id)
        kept = [
            n for n in self.numbers(server_id) if n != active and (self.directory(server_id, n) / MANIFEST).exists()
        ]
        if number is None:
            older = [n for n in kept if active is None or n < active]
            if not older:
                raise NotFound(f"{server_id}: there is nothing to roll back to; no earlier generation is kept")
            return older[-1]
        if number not in kept:
            if number == self.held(server_id):
                raise NotFound(
                    f"{server_id}: generation {number} is pending approval; use 'mcpctl approve {server_id}'"
                )
            listed = ", ".join(map(str, kept)) or "none"
            raise NotFound(f"{server_id}: no generation {number} to roll back to; kept generations: {listed}")
        return number

    def detach(self, server_id: str, *, keep_config: bool) -> Path:
        """Rename ``installed/<id>`` and return the new path, whose name tells :meth:`removals` what to finish."""
        place = self.installed / server_id
        aside = place.with_name(f".{'keep' if keep_config else 'drop'}.{server_id}.{secrets.token_hex(6)}~removed")
        try:
            place.rename(aside)
            sync_directory(self.installed)
        except OSError as error:
            raise from_oserror(error, f"removing {place}") from error
        return aside

    def removals(self) -> Iterator[tuple[Path, str, bool]]:
        """Yield unfinished removals: the path from :meth:`detach`, the id, and whether the configuration stays."""
        for name in _names(self.installed):
            if match := _REMOVED.fullmatch(name):
                yield self.installed / name, match[2], match[1] == "keep"

    def erase(self, server_id: str) -> None:
        """Remove all generations of *server_id* that no process is building."""
        for number in self._numbers(server_id):
            if not self._builds.is_alive(server_id, number):
                self.discard(server_id, number)
        self._tidy(server_id)

    def recover(self) -> list[str]:
        """Undo or finish incomplete changes, except removals; return servers whose first installation was cut off."""
        for name in _names(self.installed):
            if match := TEMP_NAME.fullmatch(name):
                with tolerant_cleanup(self.installed / name):
                    self._recover_swap(match[1], self.installed / name)
        cut_off = []
        for server_id in _names(self._layout.generations):
            if ID_PATTERN.fullmatch(server_id):
                with tolerant_cleanup(self._layout.generations / server_id):
                    if self._recover_generations(server_id):
                        cut_off.append(server_id)
        return cut_off

    def _recover_swap(self, server_id: str, aside: Path) -> None:
        place = self.installed / server_id
        if aside.is_symlink() or not aside.is_dir():
            remove_tree(aside)
        elif os.path.lexists(place):
            make_directory(self._layout.generations / server_id)
            self._adopt(server_id, aside)
        else:
            aside.rename(place)

    def _recover_generations(self, server_id: str) -> bool:
        directory = self._layout.generations / server_id
        dropped = False
        for name in _names(directory):
            with tolerant_cleanup(directory / name):
                if TEMP_NAME.fullmatch(name):
                    remove_tree(directory / name)
                elif (number := number_being_built(name)) is not None:
                    dropped |= self._recover_unfinished(server_id, number)
        self.drop_superseded(server_id)
        self._recover_trial(server_id)
        self._drop_tools(server_id)
        for number in self._numbers(server_id):
            for name in _names(self.directory(server_id, number)):
                if TEMP_NAME.fullmatch(name):
                    with tolerant_cleanup(self.directory(server_id, number) / name):
                        remove_tree(self.directory(server_id, number) / name)
        self._relink(server_id)
        self._tidy(server_id)
        return dropped and not directory.exists()

    def _recover_unfinished(self, server_id: str, number: int) -> bool:
        """Remove an unfinished generation unless a living process builds it; return whether it was removed."""
        if self._builds.is_alive(server_id, number):
            return False
        unused = number not in (self.active(server_id), self.held(server_id))
        if unused:
            _log.info("%s: removing generation %d, which was never finished", server_id, number)
            remove_tree(self.directory(server_id, number))
        self.finish(server_id, number)
        return unused

    def _recover_trial(self, server_id: str) -> None:
        """End the trial of the active generation unless a living process builds it."""
        active = self.active(server_id)
        if active is None or not self._builds.is_alive(server_id, active):
            self.end_trial(server_id)

    def _drop_tools(self, server_id: str) -> None:
        """Remove the tool catalogs of generations that are gone."""
        directory, numbers = self._layout.generations / server_id, set(self._numbers(server_id))
        for name in _names(directory):
            match = _TOOLS.fullmatch(name)
            if match and int(match[1]) not in numbers:
                with tolerant_cleanup(directory / name):
                    remove_tree(directory / name)

    def _relink(self, server_id: str) -> None:
        """Point ``installed/<id>`` to the newest generation if the active one is gone."""
        active = self.active(server_id)
        if active is None or self.directory(server_id, active).is_dir():
            return
        kept = [n for n in self.numbers(server_id) if (self.directory(server_id, n) / MANIFEST).exists()]
        if kept:
            _log.warning("%s: generation %d is missing, rolling back to %d", server_id, active, kept[-1])
            with self.link(server_id, kept[-1]) as staged:
                staged.commit()

    def _server_directory(self, server_id: str) -> Path:
        """Return the directory with the generations of a server."""
        return self._layout.generations / server_id

    def _numbers(self, server_id: str) -> list[int]:
        names = _names(self._layout.generations / server_id)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _tidy(self, server_id: str) -> None:
        """Remove the directory of a server that has no generation left."""
        if not self._numbers(server_id) and not os.path.lexists(self.installed / server_id):
            for marker in Marker:
                remove_marker(self._server_directory(server_id), marker)
        with suppress(OSError):
            (self._layout.generations / server_id).rmdir()


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are enough
    except OSError:
        return []
