# SPDX-License-Identifier: LGPL-2.1-or-later
"""Confinement of the programs of ensembles: scripts, and the Plexus server that is notified of runs.

They can read the system's directories and those of their tier, and write to the project, to their own home and to a
directory for temporary files. They cannot access other projects, the user's home or the server's environment. Of
other processes they can only reach network services, if they may use the network: no Unix sockets, limits or memory.
Git directories of the project are read-only. As a project's scripts can change its ensembles, running them means
trusting the project with itself.

A directory for temporary files is locked (flock(2)) by the server that made it; the next server removes those of
killed servers. The parent directory is locked while one is made or its lock is checked. On a file system without
locks, none is removed.
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
    """Descriptor of the lock."""


class TemporaryDirectories:
    """Directories for temporary files that one server makes in *parent*."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._cleared = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Path]:
        """Yield a new directory, which is removed with its content afterwards. Raises McpdError if that fails."""
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
        """Remove all directories that are not locked."""
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
    """Hold a lock of *directory*, if its file system supports that; others hold it only for moments."""
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
    """The confinement of the programs of one process, and the runner for them."""

    def __init__(self, settings: Settings) -> None:
        self.runner = Runner(log)
        self.temporary = TemporaryDirectories(settings.state / "tmp")
        self._settings = settings
        self._offline = not settings.script_network
        self._repositories = Repositories()

    def close(self) -> None:
        """Release the runner; nothing is run any more."""
        self.runner.close()

    def start(
        self, stack: ExitStack, origin: Origin, argv: tuple[str, ...], temporary: Path, env: Mapping[str, str]
    ) -> Start:
        """Return how to start *argv* for an ensemble of *origin*; *stack* closes the descriptors. Blocks.

        The first of *argv* is a path, relative to the project, or a name to look up. The program gets *temporary* for
        files, and the variables *env* besides the usual ones. Raises :class:`~mcpd.errors.NotFound` if the program or
        the project does not exist.
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
        # A project's base is within the project, where a symlink must not lead outside.
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
        """Return the writable project: that of the ensemble, or if it has none, the first existing one."""
        return origin.project or next((each for each in self._settings.projects if each.is_dir()), None)

    def _home(self, origin: Origin) -> Path:
        """Return the home for programs of *origin*; each project has its own."""
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
