# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists in pages: a cursor is valid for the list for which it was created, even in another process."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mcpd.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = 100
"""Default number of items in a page."""
_MARK: Final = 12
"""Bytes of a cursor that identify its list."""
_PLACE: Final = 4


_Item = TypeVar("_Item")


class Pages(Generic[_Item]):
    """The list of *items*, JSON values of the given *kind*, in pages of *size*."""

    def __init__(self, kind: str, items: Sequence[_Item], size: int = PAGE) -> None:
        self._kind = kind
        self._items = items
        self._size = size
        text = json.dumps([kind, items], sort_keys=True) if len(items) > size else ""
        self._mark = hashlib.sha256(text.encode()).digest()[:_MARK]

    def page(self, cursor: str | None) -> tuple[list[_Item], str | None]:
        """Return the page at *cursor*, and the cursor of the next one, or None at the end.

        Raises :class:`~mcpd.errors.InvalidArgument` for a cursor of a different list.
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
    """Return the index in *cursor* for the list of *mark*, or 0 if it belongs to another list."""
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True)
    except ValueError:
        return 0
    return int.from_bytes(data[_MARK:], "big") if data[:_MARK] == mark and len(data) == _MARK + _PLACE else 0
