# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the programs of ensembles may access: scripts, and the Plexus server that hears of runs.

They read the system's directories and those of the tier they belong to, and change the project, their own home and a
directory for temporary files. They do not see other projects, the user's home and the server's environment, and of
processes elsewhere they reach those of a network, if they have one: no Unix socket, no limits, no memory. Git
directories of the project are read-only. A project's own scripts can change its ensembles: who runs the programs of a
project trusts it with itself.

A directory for temporary files is locked (flock(2)) by the server that made it; the next server removes those that a
killed one left. Whoever makes one, or looks whether one is locked, locks the parent directory meanwhile. On a file
system without such locks, no directory counts as left.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import NotFound, from_oserror
from mcpd.files import remove_tree
from mcpd.model import printable
from mcpd.paths import make_private
from mcpd.servers.commands import system
from mcpd.servers.commands.repositories import Protected, Repositories
from mcpd.servers.commands.running import Runner, Start
from mcpd.servers.commands.waiting import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from contextlib import ExitStack

    from mcpd.servers.ensembles.engine.types import Origin
    from mcpd.servers.ensembles.settings import Settings

log = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class _Made:
    path: Path
    lock: int
    """A descriptor."""


class TemporaryDirectories:
    """Those that one server makes in *parent*."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._cleared = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Path]:
        """A directory that is gone with all in it when the context ends. Raises McpdError if there cannot be one."""
        made, cancelled = await to_its_end(self._make)
        try:
            if cancelled is not None:
                raise cancelled
            yield made.path
        finally:
            _, cancelled = await to_its_end(_remove, made)
            if cancelled is not None:
                raise cancelled

    def _make(self) -> _Made:
        try:
            make_private(self._parent)
            if not self._cleared:
                self._cleared = True
                self._clear()
            with _held(self._parent, fcntl.LOCK_SH):
                path = Path(tempfile.mkdtemp(prefix="", dir=self._parent))
                try:
                    lock = _opened(path)
                except OSError:
                    path.rmdir()
                    raise
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _Made(path, lock)
        except OSError as error:
            raise from_oserror(error, "making a directory for temporary files") from error

    def _clear(self) -> None:
        """Remove what nobody has locked."""
        for path in list(self._parent.iterdir()):
            with suppress(OSError):
                with _held(self._parent, fcntl.LOCK_EX):
                    lock = _opened(path)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BaseException:
                        os.close(lock)
                        raise
                _remove(_Made(path, lock))


def _opened(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _held(directory: Path, how: int) -> Iterator[None]:
    """Hold *directory*, as far as its file system has locks; others hold it for no longer than it takes to look."""
    fd = _opened(directory)
    try:
        with suppress(OSError):
            fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _remove(made: _Made) -> None:
    try:
        remove_tree(made.path)
    except OSError as error:
        log.warning("%s was not removed: %s", made.path, error.strerror)
    finally:
        os.close(made.lock)


_PYTHON: Final = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}


class Confinement:
    """The rules of one process, and what runs programs by them."""

    def __init__(self, settings: Settings) -> None:
        self.runner = Runner(log)
        self.temporary = TemporaryDirectories(settings.state / "tmp")
        self._settings = settings
        self._offline = not settings.script_network
        self._repositories = Repositories()

    def close(self) -> None:
        """Let go of what runs programs; nothing is run any more."""
        self.runner.close()

    def start(
        self, stack: ExitStack, origin: Origin, argv: tuple[str, ...], temporary: Path, env: Mapping[str, str]
    ) -> Start:
        """How *argv* is started for an ensemble of *origin*; *stack* closes what that needs. Waits for the disk.

        The first of *argv* is a path, from the project if it is relative, or a name to look up. It has *temporary* for
        its files and, besides the usual variables, those of *env*. Raises :class:`~mcpd.errors.NotFound` if it or the
        project is not there.
        """
        project = self._project(origin)
        where = project or temporary
        program = argv[0]
        found = shutil.which(str(where / program) if "/" in program else program, path=system.PROGRAMS)
        if found is None:
            raise NotFound(
                f"{printable(program)} is not there, or cannot be executed; programs are in {system.PROGRAMS}"
            )
        try:
            directory = os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise from_oserror(error, f"opening {printable(str(where))}") from error
        stack.callback(os.close, directory)
        home = self._home(origin)
        # A project's base is within it, where a symlink is to lead nowhere else.
        base = () if origin.tier == "project" else (str(origin.base),)
        own = (str(home), str(temporary), *system.devices(confined=self._settings.confined))
        protected = Protected()
        if project is not None and not self._settings.commands_write_git:
            real = os.readlink(f"/proc/self/fd/{directory}")  # noqa: PTH115 - pathlib would change the text
            protected = self._repositories.find([real], real)
        usual = system.variables(home=str(home), temporary=str(temporary), network=self._settings.script_network)
        return Start(
            argv=argv,
            program=found,
            env={**usual, **_PYTHON, **env},
            directory=directory,
            readable=system.descriptors(stack, (*system.READABLE, *base)),
            writable=[*system.descriptors(stack, own), *([directory] if project is not None else ())],
            protected=protected,
            offline=self._offline,
            unheld=self._settings.confined,
            apart=True,
        )

    def _project(self, origin: Origin) -> Path | None:
        """What may be changed: the project of the ensemble, or for one of no project the first that is there."""
        return origin.project or next((each for each in self._settings.projects if each.is_dir()), None)

    def _home(self, origin: Origin) -> Path:
        """The home for programs of *origin*; no project leaves anything in that of another."""
        owner: str = origin.tier
        if origin.project is not None:
            digest = hashlib.sha256(os.fsencode(origin.project)).hexdigest()[:16]
            owner = f"{origin.project.name[:64]}-{digest}"
        home = self._settings.state / "home" / owner
        try:
            make_private(home)
        except OSError as error:
            raise from_oserror(error, f"making {printable(str(home))}") from error
        return home
