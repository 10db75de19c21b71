# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of variables and headers in other formats, and the keys of configurable properties made from them."""

from __future__ import annotations

import re
from typing import Final

ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}", re.ASCII)
"""Name of an environment variable that is short enough to be used as a key."""
HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_INVALID: Final = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_LONGEST: Final = 120
"""Maximum characters of a key without the number that makes it unique; :data:`mcpd.model.base.NAME` allows 128."""


def scalar_text(value: object) -> str:
    """Return the scalar *value* as text for an argument or a variable; booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class UniqueKeys:
    """Generator of valid and unique configuration keys."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Return whether :meth:`take` would return *name* unchanged."""
        return name not in self._taken and len(name) <= _LONGEST and not _INVALID.search(name)

    def take(self, name: str) -> str:
        """Return the key for *name*: *name* itself if it is valid and free."""
        key = _INVALID.sub("_", name)[:_LONGEST]
        if not key or not (key[0].isalpha() or key[0] == "_"):
            key = f"_{key}"
        unique, number = key, 1
        while unique in self._taken:
            number += 1
            unique = f"{key}_{number}"
        self._taken.add(unique)
        return unique
