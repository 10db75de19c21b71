# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cache for functions of headers and paths, which anybody who can connect may send."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 1024
"""Maximum length of a cached argument; usual clients send no longer ones."""

_Text = TypeVar("_Text", str, bytes)
_Result = TypeVar("_Result")


def short_cache(function: Callable[[_Text], _Result]) -> Callable[[_Text], _Result]:
    """Return *function* with a cache of 256 results, without those of long arguments."""
    kept = lru_cache(maxsize=256)(function)

    @wraps(function)
    def call(argument: _Text) -> _Result:
        return kept(argument) if len(argument) <= LONGEST else function(argument)

    return call
