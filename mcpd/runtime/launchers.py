# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which launchers this instance uses (setting ``runtime.launcher``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.errors import NotSupported
from mcpd.paths import Scope
from mcpd.runtime.plain import PlainLauncher
from mcpd.runtime.systemd_socket import BUILD_SOCKET, BUILD_USER, SERVER_USER, SPAWN_SOCKET, SystemdSocketLauncher
from mcpd.runtime.systemd_user import SystemdUserLauncher

if TYPE_CHECKING:
    from mcpd.paths import Paths
    from mcpd.runtime.launch import Launcher
    from mcpd.runtime.systemd_user import UnitManager
    from mcpd.settings import Settings


@dataclass(frozen=True, slots=True)
class Launchers:
    """What starts servers, and what starts the commands of installations."""

    servers: Launcher
    builds: Launcher


def launchers_for(settings: Settings, scope: Scope, paths: Paths, units: UnitManager | None = None) -> Launchers:
    """The launchers of *settings* for the instance of *scope*.

    ``auto`` is the system's socket units where their sockets are, or the user's service manager *units*, else plain
    children.

    Raises :class:`~mcpd.errors.NotSupported` if what is wanted by name is not there.
    """
    wanted = settings.runtime.launcher
    spawn, build = (paths.layout(scope).runtime / name for name in (SPAWN_SOCKET, BUILD_SOCKET))
    if scope is Scope.SYSTEM and (wanted == "systemd-socket" or (wanted == "auto" and spawn.is_socket())):
        return Launchers(SystemdSocketLauncher(spawn, SERVER_USER), SystemdSocketLauncher(build, BUILD_USER))
    if units is not None and wanted in {"auto", "systemd-user"}:
        one: Launcher = SystemdUserLauncher(units)
    elif wanted == "systemd-user":
        raise NotSupported('launcher = "systemd-user", but no systemd --user answers on the session bus; use "auto"')
    elif wanted == "systemd-socket":
        raise NotSupported('launcher = "systemd-socket" is for the system\'s mcpd only; use "auto"')
    else:
        one = PlainLauncher()
    return Launchers(one, one)
