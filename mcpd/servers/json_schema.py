# SPDX-License-Identifier: LGPL-2.1-or-later
"""JSON Schemas for clients, from pydantic models: without references, titles and nullable values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from pydantic import BaseModel

_REFERENCE: Final = "#/$defs/"


def schema_of(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the schema of *model*, which must not be recursive.

    Some clients' models support neither ``$ref`` nor alternative types; so optional members are omitted instead of
    being null.
    """
    schema = model.model_json_schema(mode=mode)
    found: dict[str, Any] = _plain(schema, schema.get("$defs", {}))
    found.pop("$defs", None)
    found.pop("description", None)
    found.setdefault("properties", {})
    if mode == "serialization":
        optional = {name for name, part in schema.get("properties", {}).items() if _may_be_null(part)}
        found["required"] = [name for name in found.get("required", ()) if name not in optional]
    return found


def _may_be_null(part: dict[str, Any]) -> bool:
    return {"type": "null"} in part.get("anyOf", ())


def _plain(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_plain(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    merged = dict(part)
    reference = merged.pop("$ref", None)
    if reference is not None:
        merged = {**definitions[reference.removeprefix(_REFERENCE)], **merged}
        return _plain(merged, definitions)
    if _may_be_null(merged):
        others = [each for each in merged.pop("anyOf") if each != {"type": "null"}]
        merged = {**(others[0] if len(others) == 1 else {"anyOf": others}), **merged}
        if merged.get("default", "") is None:
            del merged["default"]
        return _plain(merged, definitions)
    if isinstance(merged.get("title"), str):
        del merged["title"]
    if isinstance(merged.get("properties"), dict):
        merged["properties"] = {name: _plain(each, definitions) for name, each in merged["properties"].items()}
        rest = {key: _plain(value, definitions) for key, value in merged.items() if key != "properties"}
        return {**rest, "properties": merged["properties"]}
    return {
        key: value if key in {"default", "const", "enum", "examples"} else _plain(value, definitions)
        for key, value in merged.items()
    }
