# SPDX-License-Identifier: LGPL-2.1-or-later
"""The caller's home directory: a check of its owner, and paths with ``~``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcpd.errors import NotAuthorized
from mcpd.paths import from_environment

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths


def require_own() -> None:
    """Raise :class:`~mcpd.errors.NotAuthorized` if root would work in the home directory of another user.

    The user could not use the files that root leaves there, and root would follow the user's symlinks.
    """
    home = from_environment().home
    owner = home.stat().st_uid if home.exists() else os.geteuid()
    if os.geteuid() == 0 and owner != 0:
        raise NotAuthorized(
            f"{home} belongs to uid {owner}, and root would leave files of its own there: run this as that user, or"
            " with 'sudo -H' for root and the system"
        )


def tilde(path: Path | str, paths: Paths) -> str:
    """Return *path* with the home directory abbreviated to ``~``."""
    text, home = str(path), str(paths.home)
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text
