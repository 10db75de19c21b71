# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's own configuration of git: who commits, what is ignored, which filters are trusted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcpd.servers.workstation.git.safety import FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.servers.workstation.git.safety import Entry
    from mcpd.servers.workstation.settings import Settings

_MOST_FILES: Final = 32
_MOST: Final = 1024 * 1024
# More than what is included: what else is called so is the user's, too.
_PATH: Final = re.compile(r"^[ \t]*(?:\[[^\]\n]*\][ \t]*)?path[ \t]*=[ \t]*(.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def files(settings: Settings) -> tuple[str, ...]:
    """The files that git reads of the user's before it does anything, those that they include among them.

    It gives up at one that is there and cannot be read.
    """
    base = settings.home / ".config" / "git"
    found: list[Path] = []
    todo = [base / "config", settings.home / ".gitconfig"]
    while todo and len(found) < _MOST_FILES:
        path = todo.pop()
        text = None if path in found else _text(path)
        if text is not None:
            found.append(path)
            todo += [_resolved(value, path.parent, settings) for value in _PATH.findall(text)]
    return tuple(map(str, (*found, base / "ignore", base / "attributes")))


def named(entries: Sequence[Entry], settings: Settings) -> tuple[str, ...]:
    """Files besides :func:`files` that the user's configuration tells git to read."""
    values = (entry.value for entry in entries if entry.scope == "global" and entry.key in FILES)
    return tuple(str(settings.home / value.removeprefix("~/")) for value in values if value.startswith(("~/", "/")))


def _resolved(value: str, base: Path, settings: Settings) -> Path:
    value = value[1:].partition('"')[0] if value.startswith('"') else re.split("[#;]", value)[0].rstrip()
    home = value.startswith("~/")
    return Path(os.path.normpath((settings.home if home else base) / value.removeprefix("~/" if home else "")))


def _text(path: Path) -> str | None:
    """The content of *path*; None for what is no file that the user can read, of which git says more."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
