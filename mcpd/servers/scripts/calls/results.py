# SPDX-License-Identifier: LGPL-2.1-or-later
"""Conversion of a function's return value into MCP's content.

The worker's answer is ``{"value": JSON}`` for plain values, or ``{"content": [blocks], "mime_type"}`` with, if
present, ``structured``, ``value`` and ``error``; and ``result``, an object that may have ``_meta``, if a script
returned a whole result of MCP.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from mcpd.script import Content, Redirect

_MAGIC: Final = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
)
"""Magic numbers: offset, bytes and type of the data."""
_BINARY: Final = "application/octet-stream"
_NOWHERE: Final = "urn:mcpd:result"
"""URI of an embedded resource that has no other one."""
_KINDS: Final = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": (),
}
"""MCP's content blocks, and their members that have to be strings."""


_REDIRECTS: Final = {301, 302, 303, 307, 308}
"""Status codes of HTTP."""

DEEPEST: Final = 200
"""Maximum depth of arrays and objects; later parsers give up at 255."""
_LONGEST_NUMBER: Final = 13_000
"""Maximum size of an integer in bits; Python parses no more than 4,300 digits."""


class NotJson(Exception):
    """A value that JSON cannot represent."""


def message(value: Any) -> dict[str, Any]:
    """Return the worker's answer for *value*; raises :class:`NotJson` if there is none."""
    if isinstance(value, dict) and (found := _as_said(value)):
        return found
    if isinstance(value, bytes | bytearray | memoryview):
        return binary(bytes(value), "")
    if isinstance(value, Content):
        return {"content": [_block(value)], "mime_type": getattr(value, "mime_type", "")}
    if isinstance(value, list | tuple) and any(
        isinstance(item, Content | bytes | bytearray | memoryview) for item in value
    ):
        return {"content": [block for item in value for block in blocks(item)], "mime_type": ""}
    return {"value": plain(value)}


def blocks(value: Any) -> list[dict[str, Any]]:
    """Return the content blocks of *value*."""
    found = message(value)
    return list(found["content"]) if "content" in found else text_blocks(found["value"])


def text_blocks(value: Any) -> list[dict[str, Any]]:
    """Return the content of a plain JSON value: text unchanged, nothing for None, otherwise JSON."""
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [{"type": "text", "text": text}]


def binary(data: bytes, mime_type: str) -> dict[str, Any]:
    """Return the answer for bytes; without *mime_type*, the type is determined from the data."""
    kind = mime_type.partition(";")[0].strip().lower() or sniff(data)
    if kind.startswith("text/") or kind == "application/json":
        text = data.decode(errors="replace")
        return {"content": [{"type": "text", "text": text}], "mime_type": mime_type, "value": text}
    encoded = base64.b64encode(data).decode()
    family = kind.partition("/")[0]
    if family in {"image", "audio"}:
        block: dict[str, Any] = {"type": family, "data": encoded, "mimeType": kind}
    else:
        kind = kind or _BINARY
        block = {"type": "resource", "resource": {"uri": _NOWHERE, "mimeType": kind, "blob": encoded}}
    return {"content": [block], "mime_type": kind}


def sniff(data: bytes) -> str:
    """Return the MIME type of an image or audio, empty for other data."""
    for at, magic, kind in _MAGIC:
        if data[at : at + len(magic)] == magic and (at == 0 or data[:4] == b"RIFF"):
            return kind
    return ""


def _block(value: Content) -> dict[str, Any]:
    """Return the content block for *value*; raises :class:`NotJson` if it is invalid."""
    block: dict[str, Any] = plain(value.block())
    if not are_blocks([block]):
        raise NotJson(
            f"The result contains an object of the type {type(value).__qualname__}, which is not a content block of"
            " MCP."
        )
    return block


def _as_said(value: dict[Any, Any]) -> dict[str, Any] | None:
    """Return the answer for a dict that has the form of a result, without other keys; else None."""
    keys = set(value)
    if _is_result(value):
        return _result(value)
    if uri := _redirect(value):
        return {"content": [Redirect(uri).block()], "mime_type": ""}
    content_type = value.get("content_type")
    if {"output", "content_type"} <= keys <= {"output", "content_type", "status", "headers"} and isinstance(
        content_type, str
    ):
        return _viewed(value["output"], content_type)
    return None


def _is_result(value: dict[Any, Any]) -> bool:
    """Return True if *value* is a whole result of MCP (CallToolResult)."""
    return (
        set(value) <= {"content", "structuredContent", "isError", "_meta"}
        and isinstance(value.get("content"), list)
        and (bool(value["content"]) or len(value) > 1)
        and isinstance(value.get("structuredContent"), dict | None)
        and isinstance(value.get("isError", False), bool)
        and isinstance(value.get("_meta"), dict | None)
        and are_blocks(value["content"])
    )


def _result(value: dict[Any, Any]) -> dict[str, Any]:
    """Return the answer for a whole result. Raises :class:`NotJson` for data that is not base64."""
    content = plain(value["content"])
    for at, block in enumerate(content):
        if not _is_encoded(block):
            raise NotJson(f"The result's content[{at}] is no {block['type']}: its data is not base64.")
    found: dict[str, Any] = {"content": content, "mime_type": "", "result": {}}
    if value.get("_meta") is not None:
        found["result"]["_meta"] = plain(value["_meta"])
    if value.get("structuredContent") is not None:
        found["structured"] = plain(value["structuredContent"])
    if value.get("isError"):
        found["error"] = "\n".join(block["text"] for block in content if block["type"] == "text") or "failed"
    return found


def _redirect(value: dict[Any, Any]) -> str:
    if set(value) == {"redirect"} and isinstance(value["redirect"], str):
        return value["redirect"]
    status = value.get("status")
    for key in ("location", "Location"):
        if set(value) == {"status", key} and isinstance(status, int) and status in _REDIRECTS:
            return value[key] if isinstance(value[key], str) else ""
    return ""


def _viewed(output: Any, content_type: str) -> dict[str, Any]:
    """Return the answer for ``{"output": …, "content_type": …}``."""
    if isinstance(output, bytes | bytearray):
        return binary(bytes(output), content_type)
    value = plain(output)
    return {"content": text_blocks(value), "mime_type": content_type, "value": value}


def _is_encoded(block: dict[str, Any]) -> bool:
    """Return True if the base64 members of a content block are valid."""
    data = block["resource"].get("blob", "") if block["type"] == "resource" else block.get("data", "")
    if block["type"] in {"text", "resource_link"}:
        return True
    try:
        base64.b64decode(data, validate=True)
    except (TypeError, ValueError):
        return False
    return True


def are_encoded(content: list[dict[str, Any]]) -> bool:
    """Return True if all data in the blocks *content* is base64."""
    return all(map(_is_encoded, content))


def are_blocks(content: Any) -> bool:
    """Return True if *content* looks like a list of MCP's content blocks."""
    return isinstance(content, list) and all(
        isinstance(block, dict)
        and isinstance(block.get("type"), str)
        and block["type"] in _KINDS
        and all(isinstance(block.get(member), str) for member in _KINDS[block["type"]])
        and (block["type"] != "resource" or _is_resource(block.get("resource")))
        for block in content
    )


def _is_resource(resource: Any) -> bool:
    return (
        isinstance(resource, dict)
        and isinstance(resource.get("uri"), str)
        and (isinstance(resource.get("text"), str) or isinstance(resource.get("blob"), str))
    )


def plain(value: Any) -> Any:
    """Return *value* as plain JSON values. Raises :class:`NotJson`."""
    return _plain(value, set())


def _plain(value: Any, above: set[int]) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, above)
    if value is None or isinstance(value, bool):
        return value
    if (leaf := _leaf(value)) is not None:
        return leaf
    if id(value) in above:
        raise NotJson("The result contains itself, which JSON cannot represent.")
    if len(above) >= DEEPEST:
        raise NotJson("The result is nested too deeply for JSON.")
    above.add(id(value))
    try:
        return _nested(value, above)
    finally:
        above.remove(id(value))


_UNNUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Texts for numbers that JSON lacks."""


def _text(text: str) -> str:
    """Return *text* with single surrogates, which UTF-8 cannot represent, escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _leaf(value: Any) -> str | float | None:  # noqa: PLR0911 -- one line for each type there is
    """Return the JSON value for *value*, if it is not a container."""
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, int):
        if value.bit_length() > _LONGEST_NUMBER:
            raise NotJson("The result contains a number of more than 4,000 digits.")
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _UNNUMBERS[str(float(value))]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(value))
    if type(value).__module__.partition(".")[0] in {"uuid", "decimal", "_decimal", "fractions", "ipaddress"}:
        return str(value)
    return None


def _nested(value: Any, above: set[int]) -> Any:
    if isinstance(value, Mapping):
        found = {_key(key): _plain(item, above) for key, item in value.items()}
        if len(found) < len(value):
            twice = next(key for key, count in Counter(map(_key, value)).items() if count > 1)
            raise NotJson(f"The result has two members that are both called {twice!r} in JSON.")
        return found
    if isinstance(value, list | tuple | AbstractSet | Iterator):
        return [_plain(item, above) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), above) for field in dataclasses.fields(value)}
    pydantic = sys.modules.get("pydantic")
    if pydantic and isinstance(value, pydantic.BaseModel):
        return _plain(value.model_dump(mode="json", by_alias=True), above)
    raise NotJson(f"The result contains an object of the type {type(value).__qualname__}, which JSON cannot represent.")


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, bool) or key is None:
        return json.dumps(key)
    return _text(key if isinstance(key, str) else str(key))
