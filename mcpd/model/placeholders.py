# SPDX-License-Identifier: LGPL-2.1-or-later
"""Placeholders ``{config.KEY}`` and ``{config.KEY?TEXT}`` in arguments, variables, permissions, URLs and headers."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

_CONFIG: Final = re.compile(r"\{config\.([A-Za-z0-9_.-]+)(?:\?([^{}]*))?\}")
MAX_ELEMENTS: Final = 10_000
"""Maximum number of values that one text may expand to; the lengths of several lists in it multiply."""


def expand(text: str, values: Mapping[str, JsonValue]) -> list[str]:
    """Return *text* with its placeholders filled in: one string per element of a list, none if a KEY is not set.

    ``{config.KEY?TEXT}`` becomes TEXT if KEY is set to anything but an empty value or ``false``; otherwise the result
    is empty. Raises :class:`~mcpd.errors.InvalidManifest` for more than :data:`MAX_ELEMENTS` texts.
    """
    parts: list[list[str]] = []
    end, total = 0, 1
    for found in _CONFIG.finditer(text):
        value = values.get(found[1])
        given = _elements(value)
        if found[2] is not None:
            given = [found[2]] if given and value is not False else []
        total *= len(given)
        if total > MAX_ELEMENTS:
            raise InvalidManifest(f"{text[:200]!r} expands to more than {MAX_ELEMENTS} values")
        parts += ([text[end : found.start()]], given)
        end = found.end()
    return ["".join(filled) for filled in product(*parts, [text[end:]])]


def _elements(value: JsonValue) -> list[str]:
    return [as_text(item) for item in (value if isinstance(value, list) else [value]) if item not in (None, "")]


def placeholders(text: str) -> list[str]:
    """Return the keys of the placeholders in *text*."""
    return [found[1] for found in _CONFIG.finditer(text)]


def as_text(value: JsonValue) -> str:
    """Return *value* as an argument or the value of an environment variable: strings unchanged, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
