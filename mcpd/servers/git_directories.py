# SPDX-License-Identifier: LGPL-2.1-or-later
"""The names by which git recognizes its directories, including variants that some file systems treat as equal."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_DOT_GIT: Final = frozenset({".git", "git~1"})
_PARTS: Final = {part.casefold(): part for part in ("HEAD", "commondir", "objects", "refs")}


def folded(name: str) -> str:
    """Return *name* without the differences that some file systems ignore."""
    if not name.isascii():
        name = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return name.casefold().rstrip(". ").split(":")[0]


def is_dot_git(name: str) -> bool:
    """Return True if *name* is ``.git`` on some file system."""
    return folded(name) in _DOT_GIT


def git_part(name: str) -> str | None:
    """Return the part of a git directory that *name* is on some file system, or None."""
    return _PARTS.get(folded(name))


def is_git_directory(has: Callable[[str], bool]) -> bool:
    """Return True if git would accept a directory as a git directory (gitrepository-layout(5)); *has* checks for names.

    With ``commondir``, objects and refs are where that file says. The contents of the parts are not checked, as they
    may change.
    """
    return has("HEAD") and (has("commondir") or (has("objects") and has("refs")))
