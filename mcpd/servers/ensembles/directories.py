# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where ensembles lie: for the server, which is told the projects, and for mcpctl, which stands in one."""

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
"""The server's id, and the name of its directories."""


def user_directories(paths: Paths) -> tuple[Path, Path]:
    """The user's own ensembles, and what runs leave that belong to no project.

    They are below the home whatever XDG variables say: the manifest names them so, and the sandbox shows no others.
    """
    return paths.home / ".config" / SERVER, paths.home / ".local/share" / SERVER


def shipped(paths: Paths) -> Path:
    """The ensembles that the system's packages bring; in a source tree they are in ``data/share``."""
    return paths.vendor.with_name("ensembles")


def nearest_project(directory: Path) -> Path | None:
    """The innermost of *directory* and those around it that has a :data:`.DIRECTORY` of the caller's own.

    Somebody else's counts for nothing, as anybody may make one in ``/tmp``.
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
    """The settings of a process that works on *projects*; a server of mcpd has its state directory for a home."""
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
        # A symlink of somebody else's may well lead to a directory of the caller's.
        return path.is_dir() and {path.stat().st_uid, path.lstat().st_uid} == {os.geteuid()}
    except OSError:
        return False
