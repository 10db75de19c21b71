# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which launcher this instance uses (setting ``runtime.launcher``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.errors import NotSupported
from mcpd.runtime.plain import PlainLauncher
from mcpd.runtime.systemd_user import SystemdUserLauncher

if TYPE_CHECKING:
    from mcpd.runtime.launch import Launcher
    from mcpd.runtime.systemd_user import UnitManager
    from mcpd.settings import Settings


def launcher_for(settings: Settings, units: UnitManager | None = None) -> Launcher:
    """The launcher of *settings*: ``auto`` is the service manager *units* if there is one, else plain children.

    Raises :class:`~mcpd.errors.NotSupported` if ``systemd-user`` is wanted and there is none.
    """
    wanted = settings.runtime.launcher
    if units is not None and wanted in {"auto", "systemd-user"}:
        return SystemdUserLauncher(units)
    if wanted == "systemd-user":
        raise NotSupported('launcher = "systemd-user", but no systemd --user answers on the session bus; use "auto"')
    return PlainLauncher()
