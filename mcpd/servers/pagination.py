# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists in pages (T4.5): a cursor is good for the list that it was given for, also in another process."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = 100
"""Items of a page."""
_MARK: Final = 12
"""Bytes of a cursor that tell one list from others."""
_PLACE: Final = 4


_Item = TypeVar("_Item")


class Pages(Generic[_Item]):
    """The list of *items*, which are JSON and of *kind*, in pages of *size*."""

    def __init__(self, kind: str, items: Sequence[_Item], size: int = PAGE) -> None:
        self._kind = kind
        self._items = items
        self._size = size
        text = json.dumps([kind, items], sort_keys=True) if len(items) > size else ""
        self._mark = hashlib.sha256(text.encode()).digest()[:_MARK]

    def page(self, cursor: str | None) -> tuple[list[_Item], str | None]:
        """The page that begins at *cursor*, and the cursor of the rest, if there is any.

        Raises :class:`~mcpd.errors.InvalidArgument` for a cursor that was not given for this list.
        """
        start = 0 if cursor is None else _place(cursor, self._mark)
        if cursor is not None and not 0 < start < len(self._items):
            raise InvalidArgument(
                f"the cursor {cursor[:100]!r} belongs to no list of {self._kind}, or to one that has changed: "
                "begin without one"
            )
        end = start + self._size
        if end >= len(self._items):
            return list(self._items[start:]), None
        following = base64.urlsafe_b64encode(self._mark + end.to_bytes(_PLACE, "big"))
        return list(self._items[start:end]), following.decode()


def _place(cursor: str, mark: bytes) -> int:
    """Where *cursor* points to in the list of *mark*; 0 for none that was given for it."""
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except ValueError:
        return 0
    return int.from_bytes(data[_MARK:], "big") if data[:_MARK] == mark and len(data) == _MARK + _PLACE else 0
