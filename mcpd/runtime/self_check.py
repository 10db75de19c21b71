# SPDX-License-Identifier: LGPL-2.1-or-later
"""The self-check of the sandbox: no server is started before it has succeeded."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError, SandboxUnavailable
from mcpd.paths import Scope
from mcpd.runtime import mounts, sandbox
from mcpd.runtime.guard import Guard
from mcpd.runtime.launch import LaunchSpec
from mcpd.runtime.launchers import SystemdSocketLauncher
from mcpd.runtime.run import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from mcpd.paths import Paths
    from mcpd.runtime.launch import Launcher, Leash
    from mcpd.settings import Settings

log = logging.getLogger(__name__)


class GatedLauncher:
    """A launcher that refuses to launch until :meth:`check` has succeeded."""

    def __init__(self, launcher: Launcher, verify: Callable[[Launcher], Awaitable[None]]) -> None:
        """*verify* raises an error if the sandbox of a launcher does not confine servers."""
        self._launcher = launcher
        self._verify = verify
        self._check: asyncio.Task[None] | None = None
        self._fault: McpdError | None = None

    @property
    def problem(self) -> str:
        """The error of the last check; empty if there was none."""
        return self._fault.message if self._fault else ""

    @property
    def name(self) -> str:
        """The name of the underlying launcher."""
        return self._launcher.name

    @property
    def checking(self) -> bool:
        """True while a check is in progress."""
        return self._check is not None and not self._check.done()

    async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """See :meth:`mcpd.runtime.launch.Launcher.launch`; waits for a check in progress.

        Also raises the error of the check, and :class:`~mcpd.errors.SandboxUnavailable` if there was no check.
        """
        await self._checked()
        if self._check is None or self._check.cancelled():
            raise SandboxUnavailable(f"{spec.id} was not started: the sandbox was not checked")
        if self._fault is not None:
            raise type(self._fault)(f"{spec.id} was not started: {self._fault.message}")
        return await self._launcher.launch(spec, fds)

    def check(self, on_done: Callable[[], None]) -> None:
        """Start the check (again), and call *on_done* when it is finished."""
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.create_task(self._run_check(on_done), name=f"self-check of {self.name}")

    async def _checked(self) -> None:
        """Wait until no check is in progress."""
        while self._check is not None and not self._check.done():
            await asyncio.wait([self._check])

    async def close(self) -> None:
        """Cancel the check."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    async def _run_check(self, on_done: Callable[[], None]) -> None:
        fault: McpdError | None = None
        try:
            await self._verify(self._launcher)
        except McpdError as error:
            fault = error
            log.error("No server will be started with the launcher %s: %s", self.name, error.message)  # noqa: TRY400 -- expected
        except Exception:
            fault = SandboxUnavailable("internal error in the check of the sandbox; see the journal of mcpd")
            log.exception("The check of the sandbox of the launcher %s failed", self.name)
        self._fault = fault
        on_done()


PROBE: Final = Path(__file__).with_name("probe.py")
INTERPRETER: Final = "/usr/bin/python3"
TIMEOUT: Final = 20.0
"""Seconds for the whole check."""
MAX_PROCESSES: Final = 3
"""Maximum number of visible processes: the namespace's first process, the program, and a margin of one."""
HOME: Final = "/tmp/home"  # noqa: S108 - inside the sandbox, private


async def verify_sandbox(launcher: Launcher, paths: Paths, scope: Scope, settings: Settings) -> None:
    """Start a probe with *launcher*, like a server of *scope* without permissions, and check its findings.

    With ``sandbox = "off"`` nothing is checked.

    Raises :class:`~mcpd.errors.SandboxUnavailable` that says what is not confined, or why that cannot be determined.
    """
    if settings.runtime.sandbox != "on":
        return
    hidden = _hidden(paths, scope)
    try:
        ended = await run(launcher, _spec(hidden, paths, scope), timeout=TIMEOUT, limit=64 * 1024)
    except SandboxUnavailable:
        raise
    except McpdError as error:
        raise SandboxUnavailable(f"the sandbox cannot be checked: {error.message}") from error
    try:
        found = json.loads(ended.stdout)
        faults = list(_faults(found, _expected_uid(launcher)))
    except (ValueError, LookupError, TypeError):
        last = ended.stderr_tail.strip().rpartition("\n")[2][:500]
        raise SandboxUnavailable(f"the sandbox cannot be checked: the probe failed ({ended.code}): {last}") from None
    if faults:
        raise SandboxUnavailable(
            f"the sandbox does not confine what runs in it: {'; '.join(faults)}. No server will be started until this"
            " is fixed; look for changed units (systemd-delta --type=extended,overridden) and another bwrap in PATH"
        )


def _hidden(paths: Paths, scope: Scope) -> tuple[str, ...]:
    """Return the paths that no server may see: mcpd's own, and home directories."""
    own = Guard.of(paths, scope).hidden
    found = [*own, Path("/home"), Path("/root"), *([paths.home] if scope is Scope.USER else [])]
    # Below a directory that every sandbox replaces, a missing path proves nothing.
    return tuple(str(path) for path in found if not any(path.is_relative_to(place) for place in ("/tmp", "/var/tmp")))  # noqa: S108


def _spec(hidden: tuple[str, ...], paths: Paths, scope: Scope) -> LaunchSpec:
    probe = mounts.bind(PROBE)
    runtime_dir = f"/run/user/{os.getuid()}" if scope is Scope.USER else f"/run/{mounts.SYSTEM_USER}"
    shown = mounts.base(network=False, home=HOME, runtime_dir=runtime_dir, system=scope is Scope.SYSTEM)
    if not PROBE.is_relative_to("/usr"):
        # A checkout may be in a home directory, which must not be visible.
        probe = mounts.bind(PROBE, Path("/tmp/probe.py"))  # noqa: S108 - inside the sandbox, private
        shown.append(probe)
    # The sandbox has a directory of its own at the path of the session's runtime directory.
    looked_for = tuple(path for path in hidden if not Path(runtime_dir).is_relative_to(path))
    return LaunchSpec(
        id="mcpd-self-check",
        argv=(INTERPRETER, "-IS", probe.target, *looked_for),
        cwd="/",
        env=sandbox.base_environment(HOME, runtime_dir),
        mounts=tuple(shown),
        network=False,
        manifest=None,
    )


def _expected_uid(launcher: Launcher) -> int:
    if isinstance(launcher, SystemdSocketLauncher) and launcher.user:
        try:
            return pwd.getpwnam(launcher.user).pw_uid
        except KeyError:
            raise SandboxUnavailable(
                f"there is no user {launcher.user} to run servers; see sysusers.d/mcpd.conf"
            ) from None
    return os.getuid()


def _faults(found: dict[str, Any], uid: int) -> Iterator[str]:
    if found["uid"] != uid:
        yield f"it runs as uid {int(found['uid'])}, not {uid}"
    if found["visible"]:
        yield f"it can see {', '.join(map(str, found['visible']))}"
    if set(found["devices"]) - {"lo"}:
        yield f"the network is reachable ({', '.join(map(str, found['devices']))})"
    if found["writable"]:
        yield f"it can write to {', '.join(map(str, found['writable']))}"
    if found["capabilities"] or not found["no-new-privileges"]:
        yield "it has, or can get, privileges"
    if found["processes"] > MAX_PROCESSES:
        yield "it can see processes outside"
    if found["user-namespaces"]:
        yield "it can create user namespaces"
