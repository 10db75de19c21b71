# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether servers are really confined: looked at from inside, through the launcher that starts them (design §6).

A service manager leaves out what it cannot do, an administrator's drop-in may take away what the sandbox needs, and
bubblewrap may be another program. So nothing is believed but what a process in there finds.
"""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import McpdError, SandboxUnavailable
from mcpd.paths import Scope
from mcpd.runtime import environment, mounts
from mcpd.runtime.guard import Guard
from mcpd.runtime.launch import LaunchSpec
from mcpd.runtime.run import run
from mcpd.runtime.systemd_socket import SystemdSocketLauncher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcpd.paths import Paths
    from mcpd.runtime.launch import Launcher
    from mcpd.settings import Settings

PROBE: Final = Path(__file__).with_name("probe.py")
INTERPRETER: Final = "/usr/bin/python3"
TIMEOUT: Final = 20.0
"""Seconds for the whole look."""
MAX_PROCESSES: Final = 3
"""The first one of the namespace, and the program; one more is nobody's harm."""
HOME: Final = "/tmp/home"  # noqa: S108 - inside the sandbox, private


async def verify_sandbox(launcher: Launcher, paths: Paths, scope: Scope, settings: Settings) -> None:
    """Start a probe with *launcher* as a server of *scope* without permissions, and judge what it finds.

    Nothing is looked at with ``sandbox = "off"``, which is the administrator's own word.

    Raises :class:`~mcpd.errors.SandboxUnavailable` that says what does not hold, or why that cannot be found out.
    """
    if settings.runtime.sandbox != "on":
        return
    hidden = _hidden(paths, scope)
    try:
        ended = await run(launcher, _spec(hidden, paths, scope), timeout=TIMEOUT, limit=64 * 1024)
    except SandboxUnavailable:
        raise
    except McpdError as error:
        raise SandboxUnavailable(f"the sandbox cannot be looked at: {error.message}") from error
    try:
        found = json.loads(ended.stdout)
        faults = list(_faults(found, _expected_uid(launcher)))
    except (ValueError, LookupError, TypeError):
        last = ended.stderr_tail.strip().rpartition("\n")[2][:500]
        raise SandboxUnavailable(f"the sandbox cannot be looked at: the probe failed ({ended.code}): {last}") from None
    if faults:
        raise SandboxUnavailable(
            f"the sandbox does not confine what runs in it: {'; '.join(faults)}. No server is started until that is"
            " mended; look for changed units (systemd-delta --type=extended,overridden) and another bwrap in PATH"
        )


def _hidden(paths: Paths, scope: Scope) -> tuple[str, ...]:
    """What no server may see: mcpd's own, and the homes."""
    own = Guard.of(paths, scope).hidden
    found = [*own, Path("/home"), Path("/root"), *([paths.home] if scope is Scope.USER else [])]
    # What is below a directory that every sandbox has of its own proves nothing.
    return tuple(str(path) for path in found if not any(path.is_relative_to(place) for place in ("/tmp", "/var/tmp")))  # noqa: S108


def _spec(hidden: tuple[str, ...], paths: Paths, scope: Scope) -> LaunchSpec:
    probe = mounts.bind(PROBE)
    runtime_dir = f"/run/user/{os.getuid()}" if scope is Scope.USER else f"/run/{mounts.SYSTEM_USER}"
    shown = mounts.base(network=False, home=HOME, runtime_dir=runtime_dir, system=scope is Scope.SYSTEM)
    if not PROBE.is_relative_to("/usr"):
        # A checkout is in somebody's home, which must not show.
        probe = mounts.bind(PROBE, Path("/tmp/probe.py"))  # noqa: S108 - inside the sandbox, private
        shown.append(probe)
    # A directory of the sandbox's own stands where the runtime directory of the session would show.
    looked_for = tuple(path for path in hidden if not Path(runtime_dir).is_relative_to(path))
    return LaunchSpec(
        id="mcpd-self-check",
        argv=(INTERPRETER, "-IS", probe.target, *looked_for),
        cwd="/",
        env=environment.base(HOME, runtime_dir),
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
        yield f"{', '.join(map(str, found['visible']))} can be seen"
    if set(found["devices"]) - {"lo"}:
        yield f"the network is reachable ({', '.join(map(str, found['devices']))})"
    if found["writable"]:
        yield f"{', '.join(map(str, found['writable']))} can be written"
    if found["capabilities"] or not found["no-new-privileges"]:
        yield "it has, or can get, privileges"
    if found["processes"] > MAX_PROCESSES:
        yield "processes outside can be seen"
    if found["user-namespaces"]:
        yield "it can make user namespaces"
