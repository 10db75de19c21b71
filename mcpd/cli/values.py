# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values of properties, parsed from the command line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_EXAMPLES: Final = {"number": "1.5", "integer": "3", "boolean": "yes", "list": "a,b"}
"""Types whose values are not plain text, each with an example."""
_SWITCHES: Final = {
    "true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
"""Words for booleans, as in systemd."""


def parse_json(text: str) -> Any:
    """Parse *text* as JSON. Raises :class:`ValueError`, including for NaN and too deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def parse_value(key: str, text: str, kind: str) -> object:
    """Parse *text* as the value of a property of type *kind* (empty if it has none).

    Numbers are JSON; booleans are JSON or yes, no, on and off; lists are JSON or items separated by commas. Everything
    else is the text itself, except that a path that begins with . or .. becomes absolute. Raises
    :class:`~mcpd.errors.InvalidConfig` that names *key* and shows what is expected.
    """
    if kind not in _EXAMPLES:
        return _absolute(text) if kind == "path" else text
    if kind == "boolean" and text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    if kind == "list" and not text.lstrip().startswith("["):
        items = [_absolute(item.strip()) for item in text.split(",") if item.strip()]
        if not items:
            raise InvalidConfig(f"{key} is empty; for example: {key}={_EXAMPLES[kind]}, or {key}=[] for no item")
        return items
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    fits = {
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "list": isinstance(value, list),
    }[kind]
    if not fits:
        article = "an" if kind == "integer" else "a"
        raise InvalidConfig(f"{key} is {article} {kind}, not {text[:80]!r}; for example: {key}={_EXAMPLES[kind]}")
    return value


def _absolute(text: str) -> str:
    """Return *text* as an absolute path if it is ``.``, ``./x`` or ``../x``, else unchanged."""
    return os.path.abspath(text) if text.partition("/")[0] in {".", ".."} else text  # noqa: PTH100 - links stay


def guess_value(text: str) -> object:
    """Parse *text* without a known type: as JSON if it is valid JSON, else as the text itself."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def parse_pairs(pairs: Iterable[tuple[str, str]], properties: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Parse *pairs* with the types in *properties*; values of unknown keys remain text, which mcpd checks.

    Values of a repeated key are concatenated if its type is a list.
    """
    kinds = {str(known.get("key")): str(known.get("type") or "") for known in properties}
    values: dict[str, object] = {}
    for key, text in pairs:
        value, before = parse_value(key, text, kinds.get(key, "")), values.get(key)
        values[key] = [*before, *value] if isinstance(value, list) and isinstance(before, list) else value
    return values


def show_value(value: object) -> str:
    """Format *value* as on the command line: strings unquoted, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
