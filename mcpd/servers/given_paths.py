# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories given by users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.errors import InvalidConfig
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def expanded(paths: Sequence[str], home: Path) -> tuple[Path, ...]:
    """Return *paths* with ``~`` expanded.

    Raises :class:`~mcpd.errors.InvalidConfig` for one that is then not absolute, or contains ``..``: after a symlink
    that does not lead to the directory that it seems to.
    """
    found = []
    for path in paths:
        whole = home / path.removeprefix("~").lstrip("/") if path == "~" or path.startswith("~/") else Path(path)
        if not whole.is_absolute() or "\0" in path or ".." in whole.parts:
            raise InvalidConfig(
                f"{printable(path)}: a directory is given as an absolute path, or one that begins with ~/, without '..'"
            )
        found.append(whole)
    return tuple(found)
