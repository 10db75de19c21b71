# SPDX-License-Identifier: LGPL-2.1-or-later
"""State directories of servers, which are kept or removed before an id is installed again (docs/permissions.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcpd.errors import McpdError, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime import mounts, sandbox
from mcpd.runtime.launch import LaunchSpec, MountKind
from mcpd.runtime.run import run
from mcpd.runtime.self_check import INTERPRETER

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.runtime.launch import Launcher
    from mcpd.settings import Settings

TIMEOUT: Final = 120.0
"""Seconds for emptying one directory."""
REMOVED: Final = "~removed"
"""Suffix of the names of directories to be removed."""
KEPT: Final = "~kept"
"""Suffix of the marker file of a state directory that was kept on purpose, without a server."""
HOME: Final = "/tmp/home"  # noqa: S108 - inside the sandbox, private

EMPTY: Final = """
import itertools, os, sys

# Directories are moved up before they are emptied, so that no path gets too long.
os.chdir(sys.argv[1])
fresh = map((os.urandom(8).hex() + "-{}").format, itertools.count())
while found := os.listdir():
    for name in found:
        if os.path.islink(name) or not os.path.isdir(name):
            os.unlink(name)
            continue
        os.chmod(name, 0o700)
        for inner in os.listdir(name):
            path = os.path.join(name, inner)
            if os.path.islink(path) or not os.path.isdir(path):
                os.unlink(path)
            else:
                os.chmod(path, 0o700)
                os.rename(path, next(fresh))
        os.rmdir(name)
"""

log = logging.getLogger(__name__)


class States:
    """Removes the state of servers, as the user that they ran as.

    In the system scope mcpd may be unable to read all of it. It renames the directory to a name that no server gets,
    and starts a confined process, as the servers' user and with write access only to that directory, to empty it.
    """

    def __init__(self, launcher: Launcher, paths: Paths, scope: Scope, settings: Settings) -> None:
        """*launcher* is the launcher of servers."""
        self._launcher = launcher
        self._directory = paths.layout(scope).state
        self._scope = scope
        self._settings = settings
        self._clearing = asyncio.Lock()

    async def keep(self, server_id: str) -> None:
        """Keep the state of *server_id*, which is being removed, for its next installation."""
        await asyncio.to_thread(self._mark, server_id)

    async def drop(self, server_id: str) -> None:
        """Remove the state of *server_id*, which must not be running.

        Errors are logged once no server can get the state; before that, raises :class:`~mcpd.errors.SpawnFailed`.
        """
        if await asyncio.to_thread(self._set_aside, server_id):
            await self._clear()

    async def drop_unless_kept(self, server_id: str) -> None:
        """Like :meth:`drop`, unless the state was kept; used before a first installation, or after its failure."""
        if not await asyncio.to_thread(self.is_kept, server_id):
            await self.drop(server_id)

    def is_kept(self, server_id: str) -> bool:
        """Return whether the state of *server_id*, which was removed, is kept for its next installation."""
        return self._marker(server_id).exists()

    async def settle(self, server_id: str) -> None:
        """Remove the marker of a kept state: it belongs to an installed server again."""
        await asyncio.to_thread(self._unmark, server_id)

    def _mark(self, server_id: str) -> None:
        if (self._directory / server_id).is_dir():
            try:
                self._marker(server_id).touch(mode=0o600)
            except OSError as error:
                log.warning("%s: could not keep its state: %s", server_id, error)

    def _unmark(self, server_id: str) -> None:
        with suppress(OSError):
            self._marker(server_id).unlink()

    def _marker(self, server_id: str) -> Path:
        return self._directory / f".{server_id}{KEPT}"

    def _set_aside(self, server_id: str) -> bool:
        """Rename the directory to a name that no server gets; return whether it existed.

        Raises :class:`~mcpd.errors.SpawnFailed` if that fails: no server may get a state that was not kept.
        """
        self._unmark(server_id)
        place = self._directory / server_id
        try:
            place.rename(place.with_name(f".{server_id}.{secrets.token_hex(6)}{REMOVED}"))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SpawnFailed(f"{place}, left behind by an earlier server, cannot be renamed: {error}") from error
        return True

    async def _clear(self) -> None:
        """Remove all renamed directories, including those of earlier failed attempts."""
        async with self._clearing:
            for path in await asyncio.to_thread(self._aside):
                try:
                    await self._remove(path)
                except (McpdError, OSError) as error:
                    log.warning("%s could not be removed: %s", path, error)

    def _aside(self) -> list[Path]:
        try:
            return sorted(path for path in self._directory.iterdir() if path.name.endswith(REMOVED))
        except OSError:
            return []

    async def _remove(self, path: Path) -> None:
        if await asyncio.to_thread(_removed_at_once, path):
            return
        ended = await run(self._launcher, self._spec(path), timeout=TIMEOUT)
        if ended.code:
            raise SpawnFailed(ended.stderr_tail.strip().rpartition("\n")[2] or f"status {ended.code}")
        await asyncio.to_thread(path.rmdir)

    def _spec(self, path: Path) -> LaunchSpec:
        system = self._scope is Scope.SYSTEM
        confined = self._settings.runtime.sandbox == "on"
        runtime_dir = f"/run/{mounts.SYSTEM_USER}" if system else f"/run/user/{os.getuid()}"
        state = mounts.bind(path, kind=MountKind.BIND)
        shown = [*mounts.base(network=False, home=HOME, runtime_dir=runtime_dir, system=system), state]
        return LaunchSpec(
            id="mcpd-state",
            argv=(INTERPRETER, "-IS", "-c", EMPTY, state.target),
            cwd="/",
            env=sandbox.base_environment(HOME, runtime_dir),
            mounts=tuple(shown) if confined else (),
            network=False,
            manifest=None,
            confined=confined,
        )


def _removed_at_once(path: Path) -> bool:
    """Remove *path* if that is possible without emptying it first; return whether it is removed."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return True
    try:
        path.rmdir()
    except OSError:
        return False
    return True
