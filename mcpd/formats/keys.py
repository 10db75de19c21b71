# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names in other formats: which can be variables and headers, and the keys of configurable properties made of them."""

from __future__ import annotations

import re
from typing import Final

ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}", re.ASCII)
"""What a variable of the environment can be called, so that it can be a key as well."""
HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_LONGEST: Final = 120
"""Characters of a key before the number that makes it unique; :data:`mcpd.model.base.NAME` allows 128."""


def scalar_text(value: object) -> str:
    """*value*, which is no list and no object, as an argument or a variable has it: truth values in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Keys:
    """Makes keys that a configuration can hold, each of them once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Whether :meth:`take` gives *name* itself for *name*."""
        return name not in self._taken and len(name) <= _LONGEST and not _FOREIGN.search(name)

    def take(self, name: str) -> str:
        """The key for *name*: itself where it is one and still free."""
        key = _FOREIGN.sub("_", name)[:_LONGEST]
        if not key or not (key[0].isalpha() or key[0] == "_"):
            key = f"_{key}"
        unique, number = key, 1
        while unique in self._taken:
            number += 1
            unique = f"{key}_{number}"
        self._taken.add(unique)
        return unique
