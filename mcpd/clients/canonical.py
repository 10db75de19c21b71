# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one spelling of a JSON value that is hashed and signed.

It is what ``json.dumps(value, sort_keys=True, separators=(",", ":"))`` gives: keys sorted by code point, no white
space, everything beyond ASCII escaped. ``jq -cSa`` writes the same, except for numbers such as ``1.0``.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC
from typing import TYPE_CHECKING, Final

from mcpd.clients.faults import InvalidInput
from mcpd.model import check_json
from mcpd.model.base import MAX_DEPTH

if TYPE_CHECKING:
    from datetime import datetime

    from mcpd.model import JsonValue

ARTIFACT_ID: Final = re.compile(r"[a-f0-9]{64}", re.ASCII)
"""What an artifact's id is; for ``fullmatch``."""

_LEAVES: Final = (str, int, float, type(None))


def canonical(value: JsonValue) -> bytes:
    """The bytes of *value* that are hashed and signed.

    Raises :class:`~mcpd.clients.faults.InvalidInput` for what has no such bytes, or none that every
    reader takes for the same value: numbers that are not finite or have thousands of digits, half a surrogate pair,
    NUL, keys that are no text, and whatever is nested deeper than :data:`mcpd.model.base.MAX_DEPTH` levels.
    """
    try:
        _check_types(value)
        check_json(value)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except ValueError as error:
        raise InvalidInput(f"This cannot be signed: {error}.") from error
    return text.encode("ascii")


def artifact_id(payload: JsonValue) -> str:
    """The id of *payload*: the SHA-256 of its :func:`canonical` bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(payload)).hexdigest()


def timestamp(moment: datetime) -> str:
    """*moment*, which knows its zone, as it is written and signed: ISO 8601 in UTC, microseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _check_types(value: object) -> None:
    """Raise ValueError for what is not JSON but would be written as if it were: ``{1: …}`` becomes ``{"1": …}``.

    It looks as deep as :func:`~mcpd.model.check_json`, which refuses what goes on below.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise ValueError(f"the key {str(key)[:40]!a} is no text")  # noqa: TRY004 - one kind of fault
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif not isinstance(item, _LEAVES):
                raise ValueError(f"{type(item).__name__} is no JSON")  # noqa: TRY004 - likewise
        level = below
