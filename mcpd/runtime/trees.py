# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the permission ``installed`` shows: what is installed, and how it is set up, without secrets."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mcpd.paths import Scope
from mcpd.runtime.permissions import PathGrant

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Layout, Paths


def grants(paths: Paths, scope: Scope) -> list[PathGrant]:
    """The directories, read-only, symlinks on the way to them included; the guard covers what of it is hidden.

    A user's own directories are made if they are missing: a server that runs already is to see what comes into them.
    """
    system, user = paths.system, paths.user
    wanted = [paths.vendor.parent, system.settings.parent, *_trees(system)]
    if scope is Scope.USER:
        for own in (user.settings.parent, user.secrets.parent):
            with suppress(OSError):
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted += [user.settings.parent, user.secrets.parent, *_trees(user)]
    # os.path, as pathlib raises for what may not be looked at.
    shown = [path for path in dict.fromkeys(wanted) if os.path.isdir(path)]  # noqa: PTH112
    return [PathGrant(str(path), writable=False, permission=f"installed ({path})") for path in shown]


def _trees(layout: Layout) -> tuple[Path, ...]:
    return layout.installed, layout.generations, layout.scripts, layout.contents
