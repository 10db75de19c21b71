# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories and files of scripts, including unused ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from mcpd.paths import Scope
from mcpd.scripts.inspection import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcpd.paths import Paths

Place: TypeAlias = "tuple[str, Path]"
"""A layer (``user``, ``system`` or ``vendor``) and a path in it."""


def layers(paths: Paths, scope: Scope) -> list[Place]:
    """Return the directories of scripts, the one with the highest precedence first."""
    own = [("user", paths.user.scripts)] if scope is Scope.USER else []
    return [*own, ("system", paths.system.scripts), ("vendor", paths.vendor_scripts)]


def files(directory: Path, name: str) -> list[Path]:
    """Return the files of the script *name* in *directory*; the first of them is used."""
    return [path for suffix in SUFFIXES if os.path.lexists(path := directory / f"{name}{suffix}")]


def first(places: Iterable[Place], name: str) -> Place | None:
    """Return the script *name* that takes precedence among the directories *places*; None if there is none."""
    return next(((layer, path) for layer, directory in places for path in files(directory, name)), None)
