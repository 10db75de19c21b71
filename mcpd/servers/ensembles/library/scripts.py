# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the script of an agent is: below the base of its ensemble, whatever its name and symlinks say."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mcpd.errors import InvalidConfig, McpdError, NotFound
from mcpd.model import printable

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import Origin


def locate(origin: Origin, script: str) -> Path:
    """The file *script* of an ensemble of *origin*, without symlinks.

    Raises :class:`~mcpd.errors.InvalidConfig` for one that is not, or does not stay, below the base of *origin* and
    :class:`~mcpd.errors.NotFound` if there is none; both name it and the base.
    """
    shown = f'script "{printable(script)}"'
    pure = PurePosixPath(script)
    if not script or "\0" in script or pure.is_absolute() or ".." in pure.parts:
        raise InvalidConfig(f'{shown}: write its path from {origin.base}, such as "scripts/x.py", and without ".."')
    try:
        real = _below(origin, script)
        if real is None:
            raise InvalidConfig(f"{shown} leads out of {origin.base} by a symlink; put the file itself there")
        if real.is_file():
            return real
        is_there = real.exists()
    except (OSError, ValueError) as error:  # A name that is too long, half a surrogate pair.
        raise InvalidConfig(f"{shown} in {origin.base}: {getattr(error, 'strerror', None) or error}") from error
    if is_there:
        raise InvalidConfig(f"{shown} in {origin.base} is not a regular file")
    raise NotFound(f"there is no {shown} in {origin.base}")


def _below(origin: Origin, script: str) -> Path | None:
    """*script* without symlinks; None if it is not below the base of *origin*, or that not in its project."""
    base = Path(os.path.realpath(origin.base))
    real = Path(os.path.realpath(origin.base / script))
    project = origin.project
    stays = project is None or base.is_relative_to(os.path.realpath(project))
    return real if stays and real.is_relative_to(base) else None


def problem(origin: Origin, script: str) -> str | None:
    """What :func:`locate` would have to say against *script*."""
    try:
        locate(origin, script)
    except McpdError as error:
        return error.message
    return None
