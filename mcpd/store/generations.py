# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations of servers and the links to them: ``installed/<id>`` → ``../generations/<id>/<n>``."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, NotFound, from_oserror
from mcpd.model import ID_PATTERN
from mcpd.store.config import conceal
from mcpd.store.files import TEMP_MARK, TEMP_NAME, Staged, make_directory, remove_tree, sync_directory
from mcpd.store.records import MANIFEST, Generation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.paths import Layout

_log = logging.getLogger(__name__)


@contextmanager
def contained(path: Path) -> Iterator[None]:
    """Log a fault while *path*, which a killed process left, is put in order: it must not keep mcpd from starting."""
    try:
        yield
    except (McpdError, OSError) as error:
        _log.warning("%s: could not be put in order, and stays: %s", path, error)
    except Exception:  # noqa: BLE001 - one leftover must not keep mcpd from starting
        _log.exception("%s: could not be put in order, and stays", path)


_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class Mark(StrEnum):
    """What is the matter with the generation."""

    HELD = "held"
    """It waits for approval. Void once its number, or a higher one, is active. Where it points at nothing it says
    which number was the last that waited: none may get it again while somebody could still approve of it."""
    BEFORE = "before"
    """It was active until now. The active one, still marked as unfinished, has not proved itself."""


def marked(directory: Path, mark: Mark) -> int | None:
    """The number of the generation in *directory*, that of a server, which has *mark*; it may be gone."""
    try:
        target = directory.joinpath(mark).readlink()
    except OSError:
        return None
    return int(target.name) if _NUMBER.fullmatch(str(target)) else None


def put(directory: Path, mark: Mark, number: int) -> None:
    """Give *mark* to generation *number*, and take it from any other."""
    with Staged(directory / mark, str(number)) as staged:
        staged.commit()


def take(directory: Path, mark: Mark) -> None:
    """No generation has *mark* from now on."""
    try:
        with suppress(FileNotFoundError):
            directory.joinpath(mark).unlink()
            sync_directory(directory)
    except OSError as error:
        raise from_oserror(error, f"removing {directory / mark}") from error


_NAME: Final = re.compile(r"\.([0-9]+)~building", re.ASCII)


class Unfinished:
    """The generations of one scope that are being built, by this process or by another one."""

    def __init__(self, generations: Path) -> None:
        self._generations = generations
        self._own: dict[tuple[str, int], int] = {}
        """Descriptors of the files that this process has locked."""

    def begin(self, server_id: str, number: int) -> None:
        """This process builds the generation from now on. Raises OSError, then :meth:`end` tidies up."""
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
        """Say of a finished generation that it is none. Raises OSError."""
        self._file(server_id, number).touch(0o600)

    def end(self, server_id: str, number: int) -> None:
        """The generation is complete, or gone."""
        with suppress(FileNotFoundError):
            self._file(server_id, number).unlink()
        descriptor = self._own.pop((server_id, number), None)
        if descriptor is not None:
            os.close(descriptor)

    def is_marked(self, server_id: str, number: int) -> bool:
        """Whether the generation is unfinished, be it that nobody builds it any more."""
        return self._file(server_id, number).exists()

    def is_own(self, server_id: str, number: int) -> bool:
        """Whether this process builds it."""
        return (server_id, number) in self._own

    def is_alive(self, server_id: str, number: int) -> bool:
        """Whether a living process builds it."""
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


def number_of(name: str) -> int | None:
    """The number of the generation that a file called *name* marks; None if it marks none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


_REMOVED: Final = re.compile(r"\.(keep|drop)\.(.+)\.[0-9a-f]+~removed", re.DOTALL)
_TOOLS: Final = re.compile(r"([0-9]+)\.tools\.json", re.ASCII)


class Tree:
    """The generations of one scope. Callers hold the write lock of the store."""

    def __init__(self, layout: Layout, keep: int) -> None:
        """*keep* generations of a server stay, the active one among them."""
        self._layout = layout
        self._keep = max(1, keep)
        self._unfinished = Unfinished(layout.generations)

    @property
    def installed(self) -> Path:
        """Where the links are."""
        return self._layout.installed

    def directory(self, server_id: str, number: int) -> Path:
        """The real directory of a generation."""
        return self._layout.generations / server_id / str(number)

    def numbers(self, server_id: str) -> list[int]:
        """The finished generations that may be used, oldest first."""
        active, held = self.active(server_id), marked(self._home(server_id), Mark.HELD)
        numbers = [n for n in self._numbers(server_id) if n != held or n == active]
        return [n for n in numbers if not self._unfinished.is_marked(server_id, n)]

    def held(self, server_id: str) -> int | None:
        """The finished generation that waits for approval."""
        number = marked(self._home(server_id), Mark.HELD)
        if number is None or number <= (self.active(server_id) or 0):
            return None
        return number if self.directory(server_id, number).is_dir() else None

    def active(self, server_id: str) -> int | None:
        """The generation that ``installed/<id>`` points at."""
        try:
            target = self.installed.joinpath(server_id).readlink()
        except OSError:
            return None
        own = target.parent.name == server_id and target.parent.parent.name == "generations"
        return int(target.name) if own and target.name.isdecimal() else None

    def create(self, server_id: str) -> Generation:
        """An empty directory for a new generation, marked as unfinished and locked; nobody else sees it be filled."""
        for directory in (self.installed.resolve(), self._layout.generations, self._layout.generations / server_id):
            make_directory(directory)
        taken = [*self._numbers(server_id), marked(self._home(server_id), Mark.HELD) or 0]
        replaced = self.installed / server_id
        # A plain directory of another tool becomes the generation before this one.
        number = max(taken, default=0) + (2 if replaced.is_dir() and not replaced.is_symlink() else 1)
        try:
            self._unfinished.begin(server_id, number)
            path = self.directory(server_id, number)
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            sync_directory(path.parent)
        except OSError as error:
            self.finish(server_id, number)
            raise from_oserror(error, f"making a generation of {server_id}") from error
        return Generation(server_id, number, path)

    def publish(self, server_id: str, number: int) -> None:
        """Let everybody read the generation: another account may run the server."""
        path = self.directory(server_id, number)
        try:
            path.chmod(0o755)
        except OSError as error:
            raise from_oserror(error, f"opening {path} for its readers") from error

    def finish(self, server_id: str, number: int) -> None:
        """The generation is complete, or gone: its mark goes."""
        self._unfinished.end(server_id, number)

    def hold(self, server_id: str, number: int) -> None:
        """Let the generation, which is complete and not active, wait for approval instead of any other."""
        older = self.held(server_id)
        if older is not None and older != number:
            # Its mark gone it must not look like one to go back to.
            self._disown(server_id, older)
        put(self._home(server_id), Mark.HELD, number)
        self.finish(server_id, number)
        if older is not None and older != number:
            self.discard(server_id, older)

    def release(self, server_id: str) -> None:
        """What waited for approval is active now."""
        take(self._home(server_id), Mark.HELD)

    def try_out(self, server_id: str) -> None:
        """Go back to the active generation by :meth:`recover` unless the next one is finished."""
        before = self.active(server_id)
        if before is not None:
            put(self._home(server_id), Mark.BEFORE, before)

    def try_held(self, server_id: str, number: int) -> None:
        """The same of the generation that waits for approval: it is unfinished until it is proved again."""
        try:
            self._unfinished.begin(server_id, number)
        except OSError as error:
            raise from_oserror(error, f"trying generation {number} of {server_id}") from error
        self.try_out(server_id)

    def prove(self, server_id: str) -> None:
        """The active generation, if this process has it on trial, is the right one; needs no lock."""
        active = self.active(server_id)
        if active is not None and self._unfinished.is_own(server_id, active):
            self.finish(server_id, active)
            self.end_trial(server_id)

    def end_trial(self, server_id: str) -> None:
        """The active generation is finished: there is nothing to go back to by itself."""
        take(self._home(server_id), Mark.BEFORE)

    def unproved(self) -> Iterator[tuple[str, int]]:
        """Ids of servers whose active generation is unfinished, and the number of the one before."""
        for server_id in _names(self._layout.generations):
            before = marked(self._home(server_id), Mark.BEFORE) if ID_PATTERN.fullmatch(server_id) else None
            active = self.active(server_id) if before is not None else None
            if before is None or active is None:
                continue
            tried = active != before and self._unfinished.is_marked(server_id, active)
            if tried and not self._unfinished.is_alive(server_id, active):
                yield server_id, before

    def drop_superseded(self, server_id: str) -> None:
        """Remove what waits for approval and is older than the active generation."""
        waiting, active = marked(self._home(server_id), Mark.HELD), self.active(server_id)
        if waiting is None or active is None or waiting > active:
            return
        if waiting < active:
            self.discard(server_id, waiting)
        self.release(server_id)

    def _disown(self, server_id: str, number: int) -> None:
        """Mark a finished generation as unfinished."""
        try:
            self._unfinished.mark(server_id, number)
            sync_directory(self._home(server_id))
        except OSError as error:
            raise from_oserror(error, f"removing generation {number} of {server_id}") from error

    def discard(self, server_id: str, number: int) -> None:
        """Remove a generation that is not active."""
        path = self.directory(server_id, number)
        aside = path.with_name(f".{number}.{secrets.token_hex(6)}{TEMP_MARK}")
        try:
            with suppress(FileNotFoundError):
                # Half removed under its own name it would look like one to go back to.
                path.rename(aside)
                remove_tree(aside)
            remove_tree(self.tools(server_id, number))
        except OSError as error:
            raise from_oserror(error, f"removing {path}") from error
        self.finish(server_id, number)
        self._tidy(server_id)

    def link(self, server_id: str, number: int) -> Staged:
        """Prepare to make the generation the active one."""
        return Staged(self.installed / server_id, f"../{self._layout.generations.name}/{server_id}/{number}")

    def activate(self, server_id: str, staged: Staged) -> None:
        """Put the link made by :meth:`link` in place; a plain directory that is there becomes a generation."""
        place = self.installed / server_id
        if place.is_symlink() or not place.is_dir():
            staged.commit()
            return
        replaced = staged.exchange()
        if replaced is None:
            # The file system cannot exchange; recover() puts the directory back should this stop half-way.
            replaced = place.with_name(f".{server_id}.{secrets.token_hex(6)}{TEMP_MARK}")
            place.rename(replaced)
            staged.commit()
        self._adopt(server_id, replaced)

    def _adopt(self, server_id: str, replaced: Path) -> None:
        """Keep a plain directory as a generation, without the secrets other tools leave in manifests."""
        taken = set(self._numbers(server_id))
        newest = max(taken, default=1)
        number = next((n for n in range(newest - 1, 0, -1) if n not in taken), newest + 1)
        try:
            conceal(replaced / MANIFEST, server_id)
            replaced.rename(self.directory(server_id, number))
        except (McpdError, OSError) as error:
            _log.warning("%s: the replaced directory is removed, not kept: %s", server_id, error)
            remove_tree(replaced)

    def prune(self, server_id: str, spared: int | None = None) -> None:
        """Remove what is older than the generations to keep, except the active one and *spared*."""
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
        """The generation to go back to: *number*, or the newest before the active one.

        Raises :class:`~mcpd.errors.NotFound`.
        """
        active = self.active(server_id)
        kept = [
            n for n in self.numbers(server_id) if n != active and (self.directory(server_id, n) / MANIFEST).exists()
        ]
        if number is None:
            older = [n for n in kept if active is None or n < active]
            if not older:
                raise NotFound(f"{server_id}: there is nothing to go back to; no earlier generation is kept")
            return older[-1]
        if number not in kept:
            if number == self.held(server_id):
                raise NotFound(f"{server_id}: generation {number} waits for approval; use 'mcpctl approve {server_id}'")
            listed = ", ".join(map(str, kept)) or "none"
            raise NotFound(f"{server_id}: no generation {number} to go back to; kept are: {listed}")
        return number

    def detach(self, server_id: str, *, keep_config: bool) -> Path:
        """Take ``installed/<id>`` away in one step; what is left says what remains to be done."""
        place = self.installed / server_id
        aside = place.with_name(f".{'keep' if keep_config else 'drop'}.{server_id}.{secrets.token_hex(6)}~removed")
        try:
            place.rename(aside)
            sync_directory(self.installed)
        except OSError as error:
            raise from_oserror(error, f"removing {place}") from error
        return aside

    def removals(self) -> Iterator[tuple[Path, str, bool]]:
        """Removals that were begun: what :meth:`detach` returned, the id, whether the configuration stays."""
        for name in _names(self.installed):
            if match := _REMOVED.fullmatch(name):
                yield self.installed / name, match[2], match[1] == "keep"

    def erase(self, server_id: str) -> None:
        """Remove all generations of *server_id* that nobody is building."""
        for number in self._numbers(server_id):
            if not self._unfinished.is_alive(server_id, number):
                self.discard(server_id, number)
        self._tidy(server_id)

    def tools(self, server_id: str, number: int) -> Path:
        """The tool catalog of a generation; beside it, where no file of the server can have its name."""
        return self._layout.generations / server_id / f"{number}.tools.json"

    def recover(self) -> list[str]:
        """Undo or finish what killed processes left, removals apart; returns ids whose first install was cut off."""
        for name in _names(self.installed):
            if match := TEMP_NAME.fullmatch(name):
                with contained(self.installed / name):
                    self._recover_swap(match[1], self.installed / name)
        cut_off = []
        for server_id in _names(self._layout.generations):
            if ID_PATTERN.fullmatch(server_id):
                with contained(self._layout.generations / server_id):
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
            with contained(directory / name):
                if TEMP_NAME.fullmatch(name):
                    remove_tree(directory / name)
                elif (number := number_of(name)) is not None:
                    dropped |= self._recover_unfinished(server_id, number)
        self.drop_superseded(server_id)
        self._recover_trial(server_id)
        self._drop_tools(server_id)
        for number in self._numbers(server_id):
            for name in _names(self.directory(server_id, number)):
                if TEMP_NAME.fullmatch(name):
                    with contained(self.directory(server_id, number) / name):
                        remove_tree(self.directory(server_id, number) / name)
        self._relink(server_id)
        self._tidy(server_id)
        return dropped and not directory.exists()

    def _recover_unfinished(self, server_id: str, number: int) -> bool:
        """Remove a generation marked as unfinished, unless a living process builds it; says whether it is gone."""
        if self._unfinished.is_alive(server_id, number):
            return False
        unused = number not in (self.active(server_id), self.held(server_id))
        if unused:
            _log.info("%s: removing generation %d, which was never finished", server_id, number)
            remove_tree(self.directory(server_id, number))
        self.finish(server_id, number)
        return unused

    def _recover_trial(self, server_id: str) -> None:
        """No process of before is left to end the trial, unless it lives."""
        active = self.active(server_id)
        if active is None or not self._unfinished.is_alive(server_id, active):
            self.end_trial(server_id)

    def _drop_tools(self, server_id: str) -> None:
        """Remove the tool catalogs of generations that are gone."""
        directory, numbers = self._layout.generations / server_id, set(self._numbers(server_id))
        for name in _names(directory):
            match = _TOOLS.fullmatch(name)
            if match and int(match[1]) not in numbers:
                with contained(directory / name):
                    remove_tree(directory / name)

    def _relink(self, server_id: str) -> None:
        """Mend a link whose generation is gone."""
        active = self.active(server_id)
        if active is None or self.directory(server_id, active).is_dir():
            return
        kept = [n for n in self.numbers(server_id) if (self.directory(server_id, n) / MANIFEST).exists()]
        if kept:
            _log.warning("%s: generation %d is gone, going back to %d", server_id, active, kept[-1])
            with self.link(server_id, kept[-1]) as staged:
                staged.commit()

    def _home(self, server_id: str) -> Path:
        """What holds the generations of a server."""
        return self._layout.generations / server_id

    def _numbers(self, server_id: str) -> list[int]:
        names = _names(self._layout.generations / server_id)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _tidy(self, server_id: str) -> None:
        """Remove the directory of a server that has no generation left."""
        if not self._numbers(server_id) and not os.path.lexists(self.installed / server_id):
            for mark in Mark:
                take(self._home(server_id), mark)
        with suppress(OSError):
            (self._layout.generations / server_id).rmdir()


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are enough
    except OSError:
        return []
