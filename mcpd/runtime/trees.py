# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the permission ``installed`` shows: what is installed, and how it is set up, without values or secrets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.paths import Scope
from mcpd.runtime import mounts

if TYPE_CHECKING:
    from mcpd.paths import Layout, Paths
    from mcpd.runtime.launch import Mount


def mounted(paths: Paths, scope: Scope) -> list[Mount]:
    """The mounts, all read-only; the guard covers what of it is hidden.

    A user's own directories are made if they are missing: a server that runs already is to see what comes into them.
    """
    system, user = paths.system, paths.user
    wanted = [paths.vendor.parent, system.settings.parent, *_trees(system)]
    if scope is Scope.USER:
        for own in (user.settings.parent, user.secrets.parent):
            with suppress(OSError):
                own.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted += [user.settings.parent, user.secrets.parent, *_trees(user)]
    found: dict[Path, Mount] = {}
    for path in sorted({path.resolve() for path in wanted}):
        if path.is_dir() and not any(path.is_relative_to(shown) for shown in (Path("/usr"), *found)):
            found[path] = mounts.bind(path)
    return list(found.values())


def _trees(layout: Layout) -> tuple[Path, ...]:
    return layout.installed, layout.generations, layout.scripts, layout.contents
