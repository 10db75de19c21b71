# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the files of scripts are, those that are not used among them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from mcpd.paths import Scope
from mcpd.store.inspection import SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcpd.paths import Paths

Place: TypeAlias = "tuple[str, Path]"
"""What the layer of something is called, and where it lies."""


def layers(paths: Paths, scope: Scope) -> list[Place]:
    """The directories of scripts, by falling precedence."""
    own = [("user", paths.user.scripts)] if scope is Scope.USER else []
    return [*own, ("system", paths.system.scripts), ("vendor", paths.vendor_scripts)]


def files(directory: Path, name: str) -> list[Path]:
    """What is called *name* in *directory*, the one that counts first."""
    return [path for suffix in SUFFIXES if os.path.lexists(path := directory / f"{name}{suffix}")]


def first(places: Iterable[Place], name: str) -> Place | None:
    """The file of the script *name* that counts in the directories *places*."""
    return next(((layer, path) for layer, directory in places for path in files(directory, name)), None)
