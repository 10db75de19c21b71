# SPDX-License-Identifier: LGPL-2.1-or-later
"""The last look at a generation before it is activated."""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, from_oserror
from mcpd.install.python import VENV
from mcpd.install.unpack import leads_outside
from mcpd.install.walk import open_root, readable, walk

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.walk import Found

MAX_BYTES: Final = 16 * 1024**3
"""Bytes of a package and everything it needs; archives may unpack to any size."""
_INTERPRETER: Final = re.compile(r"/usr/bin/python3(\.[0-9]+)?")


def seal(root: Path) -> None:
    """Make everything in *root* readable for whoever runs the server, and writable for its owner only.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads out of *root* (an interpreter of the system in
    the virtual environment may), for anything that is neither file, directory nor link, and for more than the limits.
    """
    total = 0
    try:
        directory = open_root(root)
        try:
            with closing(walk(directory, "the package")) as found:
                for item in found:
                    total += _seal(item)
                    if total > MAX_BYTES:
                        raise InvalidManifest(f"the package is larger than {MAX_BYTES / 1024**3:g} GiB once unpacked")
        finally:
            os.close(directory)
    except OSError as error:
        raise from_oserror(error, f"checking {root}") from error


def _seal(item: Found) -> int:
    """Set the mode of *item*; returns its size in bytes."""
    mode = item.status.st_mode
    if stat.S_ISLNK(mode):
        _check_link(item.relative, os.readlink(item.name, dir_fd=item.parent))
        return 0
    if stat.S_ISDIR(mode):
        os.chmod(item.name, 0o755, dir_fd=item.parent)  # noqa: S103 - the account that runs it may be another
        return 0
    if not stat.S_ISREG(mode):
        what = readable(item.relative)
        raise InvalidManifest(f"the package holds {what}, which is neither a file, a directory nor a link")
    os.chmod(item.name, 0o755 if mode & 0o111 else 0o644, dir_fd=item.parent)
    return item.status.st_size


def _check_link(relative: str, points_at: str) -> None:
    interpreter = relative.startswith(f"{VENV}/bin/") and _INTERPRETER.fullmatch(points_at)
    if leads_outside(relative, points_at) and not interpreter:
        raise InvalidManifest(
            f"the package holds the link {readable(relative)}, which leads outside, to {readable(points_at)}"
        )
