# SPDX-License-Identifier: LGPL-2.1-or-later
"""``{config.KEY}`` in arguments, variables, permissions, URLs and headers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

_CONFIG: Final = re.compile(r"\{config\.([A-Za-z0-9_.-]+)\}")


def expand(text: str, values: Mapping[str, JsonValue]) -> list[str]:
    """*text* with each ``{config.KEY}`` filled in; one per element if KEY is a list, none if it is not set."""
    found = _CONFIG.search(text)
    if not found:
        return [text]
    value = values.get(found[1])
    elements = value if isinstance(value, list) else [value]
    rest = expand(text[found.end() :], values)
    head, given = text[: found.start()], [as_text(element) for element in elements if element not in (None, "")]
    return [head + filled + tail for filled in given for tail in rest]


def placeholders(text: str) -> list[str]:
    """The keys that *text* names as ``{config.KEY}``."""
    return _CONFIG.findall(text)


def as_text(value: JsonValue) -> str:
    """*value* as an argument or environment variable holds it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
