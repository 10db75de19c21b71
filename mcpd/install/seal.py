# SPDX-License-Identifier: LGPL-2.1-or-later
"""The last look at a generation before it is activated."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, from_oserror
from mcpd.install.copytree import leads_outside
from mcpd.install.python import VENV

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERPRETER: Final = re.compile(r"/usr/bin/python3(\.[0-9]+)?")


def seal(root: Path) -> None:
    """Make everything in *root* readable for whoever runs the server, and writable for its owner only.

    Raises :class:`~mcpd.errors.InvalidManifest` for a link that leads out of *root* (an interpreter of the system in
    the virtual environment may) and for anything that is neither file, directory nor link.
    """
    try:
        for path, entry in _walk(root):
            mode = entry.stat(follow_symlinks=False).st_mode
            relative = str(path.relative_to(root))
            if stat.S_ISLNK(mode):
                _check_link(relative, str(path.readlink()))
            elif stat.S_ISDIR(mode):
                path.chmod(0o755)
            elif stat.S_ISREG(mode):
                path.chmod(0o755 if mode & 0o111 else 0o644)
            else:
                raise InvalidManifest(f"the package holds {relative}, which is neither a file, a directory nor a link")
    except OSError as error:
        raise from_oserror(error, f"checking {root}") from error


def _check_link(relative: str, points_at: str) -> None:
    interpreter = relative.startswith(f"{VENV}/bin/") and _INTERPRETER.fullmatch(points_at)
    if leads_outside(relative, points_at) and not interpreter:
        raise InvalidManifest(f"the package holds the link {relative}, which leads outside, to {points_at}")


def _walk(directory: Path) -> Iterator[tuple[Path, os.DirEntry[str]]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            path = Path(entry.path)
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(path)
