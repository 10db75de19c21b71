# SPDX-License-Identifier: LGPL-2.1-or-later
"""Standard streams that the caller closed."""

from __future__ import annotations

import os
import sys
from typing import Final

CLOSED: Final[set[int]] = set()
"""Those of 0, 1 and 2 that were closed when mcpctl started."""


def fill_closed() -> None:
    """Put ``/dev/null`` where a standard stream is closed, so that no socket gets its number and is taken for it."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            CLOSED.add(os.open(os.devnull, mode))
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")
