# SPDX-License-Identifier: LGPL-2.1-or-later
"""The caller's home: whether it is theirs, and paths in it as people write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcpd.errors import NotAuthorized
from mcpd.paths import from_environment

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import Paths


def require_own() -> None:
    """Keep root out of somebody else's home: what root leaves there its owner cannot use, and links lead anywhere.

    Raises :class:`~mcpd.errors.NotAuthorized`.
    """
    home = from_environment().home
    owner = home.stat().st_uid if home.exists() else os.geteuid()
    if os.geteuid() == 0 and owner != 0:
        raise NotAuthorized(
            f"{home} belongs to uid {owner}, and root would leave files there that are not theirs: run this as that"
            " user, or with 'sudo -H' for what is root's and the system's"
        )


def tilde(path: Path | str, paths: Paths) -> str:
    """*path* as people write it, with ``~`` for the home."""
    text, home = str(path), str(paths.home)
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text
