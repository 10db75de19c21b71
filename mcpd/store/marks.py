# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations that something is the matter with: symlinks ``generations/<id>/held`` and ``…/before`` to ``<n>``.

Put in place, or replaced, by one rename, so there is at most one of either and a kill leaves the old or the new one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mcpd.errors import from_oserror
from mcpd.store.files import Staged, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class Mark(StrEnum):
    """What is the matter with the generation."""

    HELD = "held"
    """It waits for approval. Void once its number, or a higher one, is active. Where it points at nothing it says
    which number was the last that waited: none may get it again while somebody could still approve of it."""
    BEFORE = "before"
    """It was active until now. The active one, still marked as unfinished, has not proved itself."""


def marked(directory: Path, mark: Mark) -> int | None:
    """The number of the generation in *directory*, that of a server, which has *mark*; it may be gone."""
    try:
        target = directory.joinpath(mark).readlink()
    except OSError:
        return None
    return int(target.name) if _NUMBER.fullmatch(str(target)) else None


def put(directory: Path, mark: Mark, number: int) -> None:
    """Give *mark* to generation *number*, and take it from any other."""
    with Staged(directory / mark, str(number)) as staged:
        staged.commit()


def take(directory: Path, mark: Mark) -> None:
    """No generation has *mark* from now on."""
    try:
        with suppress(FileNotFoundError):
            directory.joinpath(mark).unlink()
            sync_directory(directory)
    except OSError as error:
        raise from_oserror(error, f"removing {directory / mark}") from error
