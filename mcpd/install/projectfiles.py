# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that the author of a project or package wrote, read within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest
from mcpd.store.files import is_missing, read_file

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE: Final = 1024 * 1024
"""Bytes of ``package.json``, a file of requirements."""
MAX_LOCK: Final = 8 * 1024 * 1024
"""Bytes of ``package-lock.json``."""


def read_project_file(path: Path, limit: int = MAX_FILE) -> bytes | None:
    """The content of *path*; None if it is missing, a link or no file.

    Raises :class:`~mcpd.errors.InvalidManifest` for more than *limit* bytes, OSError for what cannot be read.
    """
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return read_file(path, limit)
    except InvalidManifest as error:
        raise InvalidManifest(f"{path.name} of the project is larger than {limit / 1024**2:g} MiB") from error
    except OSError as error:
        if is_missing(error):
            return None
        raise
