# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories of ensembles: for the server, which is given the projects, and for mcpctl, which runs in one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.paths import HOME_VARIABLE
from mcpd.servers.ensembles.settings import DIRECTORY, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcpd.paths import Paths

SERVER: Final = "llm-orc"
"""Id of the server, and name of its directories."""


def user_directories(paths: Paths) -> tuple[Path, Path]:
    """Return the directory of the user's own ensembles, and of the artifacts that belong to no project.

    Both are in the home directory, whatever XDG variables say: the manifest names them, and the sandbox has no others.
    """
    return paths.home / ".config" / SERVER, paths.home / ".local/share" / SERVER


def shipped(paths: Paths) -> Path:
    """Return the directory of the ensembles installed by packages; ``data/share`` in a source tree."""
    return paths.vendor.with_name("ensembles")


def nearest_project(directory: Path) -> Path | None:
    """Return the innermost of *directory* and its parents that has a :data:`.DIRECTORY` owned by the caller, or None.

    One owned by another user is ignored, as anybody can create one in ``/tmp``.
    """
    absolute = directory.absolute()
    return next((each for each in (absolute, *absolute.parents) if _is_own(each / DIRECTORY)), None)


def settings(
    paths: Paths,
    projects: Sequence[Path],
    *,
    confined: bool = False,
    script_network: bool = False,
    keys: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of a process that works on *projects*; a server of mcpd has its state directory as HOME."""
    user, data = user_directories(paths)
    return Settings(
        projects=tuple(projects),
        user=user,
        data=data,
        shipped=shipped(paths),
        cache=paths.user.cache / SERVER,
        state=Path.home() if os.environ.get(HOME_VARIABLE) else paths.user.state / SERVER,
        home=paths.home,
        confined=confined,
        script_network=script_network,
        keys={} if keys is None else keys,
    )


def _is_own(path: Path) -> bool:
    try:
        # A symlink of another user may lead to a directory of the caller.
        return path.is_dir() and {path.stat().st_uid, path.lstat().st_uid} == {os.geteuid()}
    except OSError:
        return False
