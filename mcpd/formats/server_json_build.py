# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generation of a server.json for an entry from another format, with the whole entry as metadata."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.seed import id_of, published_fields
from mcpd.model import SourceType, Target, TransportType, ValueType
from mcpd.model.placeholders import as_text, placeholders
from mcpd.package_sources import INDEXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcpd.model import ConfigProperty, Entry, JsonValue, Source, Transport

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
PUBLISHER: Final = "io.modelcontextprotocol.registry/publisher-provided"
SEED: Final = "org.mcpd/entry"
_MAX_TEXT: Final = 100
"""Maximum characters of a title or description."""
_NAME: Final = re.compile(r"(?=.{3,200}$)[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", re.ASCII)
_REPOSITORY_URL: Final = re.compile(r"https://([A-Za-z0-9.-]+)(?::\d+)?/[^\s@]+", re.ASCII)
_URL: Final = re.compile(r"https?://[^\s]+", re.ASCII)
_ICON_URL: Final = re.compile(r"https://[^\s]{1,240}", re.ASCII)
_WHOLE: Final = re.compile(r"\{config\.([A-Za-z0-9_.-]+)\}")
_FLAG: Final = re.compile(r"(?:\{config\.[A-Za-z0-9_.-]+\?\})*\{config\.([A-Za-z0-9_.-]+)\?([^{}]+)\}")
_JOINED: Final = re.compile(r"([^={}]+)=\{config\.([A-Za-z0-9_.-]+)\}")
_FORMATS: Final = {
    ValueType.PATH: "filepath",
    ValueType.NUMBER: "number",
    ValueType.INTEGER: "number",
    ValueType.BOOLEAN: "boolean",
}


def seed_of(entry: Entry) -> dict[str, Any]:
    """Return *entry* in the form for a registry, without the fields of an installed server."""
    return published_fields(entry.to_json())


def build(entry: Entry) -> dict[str, Any]:
    """Return the server.json for *entry*."""
    document: dict[str, Any] = {"$schema": SCHEMA, "name": _name(entry)}
    if entry.name not in (entry.id, document["name"]):
        document["title"] = _short(entry.name)
    document["description"] = _short(entry.summary or entry.description or entry.name)
    version = entry.version or (entry.source.version if entry.source is not None else "")
    document["version"] = version[:255] or "0.0.0"
    if repository := _repository(entry):
        document["repository"] = repository
    if _URL.fullmatch(entry.homepage):
        document["websiteUrl"] = entry.homepage
    if _ICON_URL.fullmatch(entry.icon):
        document["icons"] = [{"src": entry.icon}]
    package = _package(entry, entry.source) if entry.source is not None else None
    if package is not None:
        document["packages"] = [package]
    if remotes := [_remote(entry, transport) for transport in entry.transports if _is_remote(transport)]:
        document["remotes"] = remotes
    document["_meta"] = {PUBLISHER: {SEED: seed_of(entry)}}
    return document


def _name(entry: Entry) -> str:
    """Return a server.json name that maps to the entry's id, or ``local/ID`` if there is none.

    A name that maps to another id would let its publisher take the id of another server.
    """
    origin = (entry.model_extra or {}).get("origin")
    known = origin.get("name") if isinstance(origin, dict) else None
    left, _, right = entry.id.rpartition(".")
    for name in (known, f"{left}/{right}"):
        if isinstance(name, str) and _NAME.fullmatch(name) and _maps_to(name, entry.id):
            return name
    return f"local/{entry.id}"


def _maps_to(name: str, server_id: str) -> bool:
    try:
        return id_of(name, "") == server_id
    except InvalidManifest:
        return False


def _short(text: str) -> str:
    line = " ".join(text.split()) or "-"
    return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1].rstrip() + "…"


def _repository(entry: Entry) -> dict[str, Any]:
    source = entry.source
    if source is None or source.type is not SourceType.GIT:
        kept = (entry.model_extra or {}).get("repository")
        known = isinstance(kept, dict) and isinstance(kept.get("url"), str) and isinstance(kept.get("source"), str)
        return dict(kept) if isinstance(kept, dict) and known else {}
    found = _REPOSITORY_URL.fullmatch(source.url)
    if found is None:
        return {}
    host = found[1].lower()
    known_hosts = {"github.com": "github", "gitlab.com": "gitlab"}
    repository = {"url": source.url, "source": known_hosts.get(host, host)}
    return repository | ({"subfolder": source.path} if source.path else {})


def _package(entry: Entry, source: Source) -> dict[str, Any] | None:
    identifier = source.url if source.type is SourceType.MCPB else source.package
    if source.type in (SourceType.GIT, SourceType.ARCHIVE, SourceType.LOCAL) or not identifier:
        return None
    package: dict[str, Any] = {"registryType": str(source.type), "identifier": identifier}
    if source.version not in ("", "latest"):
        package["version"] = source.version[:255]
    if source.sha256:
        package["fileSha256"] = source.sha256
    package["transport"] = {"type": "stdio"}
    stdio = entry.stdio
    if stdio is None:
        return package
    arguments, index = list(stdio.args), INDEXES.get(source.type)
    after = index.arguments_after([stdio.command, *arguments], source.package) if index is not None else None
    if after is not None:
        package["runtimeHint"], arguments = stdio.command, after
    if made := list(_arguments(entry, arguments)):
        package["packageArguments"] = made
    if variables := list(_variables(entry)):
        package["environmentVariables"] = variables
    return package


def _arguments(entry: Entry, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    used = {key for text in arguments for key in placeholders(text)}
    flag: tuple[str, str] = ("", "")
    for text in arguments:
        if found := _FLAG.fullmatch(text):
            flag = (found[1], found[2])
            continue
        yield _argument(entry, text, flag)
        flag = ("", "")
    for item in entry.configurable_properties:
        if item.target is Target.ARG and item.key not in used:
            yield {"type": "named", "name": f"--{item.key}"} | _repeated(entry, item) | _input(item)


def _argument(entry: Entry, text: str, flag: tuple[str, str]) -> dict[str, Any]:
    if found := _WHOLE.fullmatch(text):
        item = entry.property(found[1])
        asked = (_repeated(entry, item) | _input(item)) if item is not None else {}
        if found[1] == flag[0]:
            return {"type": "named", "name": flag[1]} | asked
        return {"type": "positional", "valueHint": found[1]} | asked
    if (joined := _JOINED.fullmatch(text)) and (item := entry.property(joined[2])) is not None:
        return {"type": "named", "name": joined[1]} | _repeated(entry, item) | _input(item)
    if flag[0] in placeholders(text)[-1:]:
        return {"type": "named", "name": flag[1]} | _valued(entry, text)
    return {"type": "positional"} | _valued(entry, text)


def _repeated(entry: Entry, item: ConfigProperty) -> dict[str, Any]:
    if item.type is not ValueType.LIST:
        return {}
    paths = any(text.startswith("filesystem:") and item.key in placeholders(text) for text in entry.permissions)
    return {"isRepeated": True} | ({"format": "filepath"} if paths else {})


def _variables(entry: Entry) -> Iterator[dict[str, Any]]:
    fixed = (entry.model_extra or {}).get("env", getattr(entry, "env", None))
    for name, text in (fixed if isinstance(fixed, dict) else {}).items():
        if isinstance(text, str):
            yield {"name": name} | _valued(entry, text)
    for item in entry.configurable_properties:
        if item.target is Target.ENV:
            yield {"name": item.key} | _input(item)


def _is_remote(transport: Transport) -> bool:
    return transport.type in (TransportType.SSE, TransportType.STREAMABLE_HTTP)


def _remote(entry: Entry, transport: Transport) -> dict[str, Any]:
    address = _valued(entry, transport.url)
    remote: dict[str, Any] = {"type": str(transport.type), "url": address.pop("value")} | address
    texts = transport.headers if isinstance(transport.headers, dict) else {}
    headers = [_header(entry, name, text) for name, text in texts.items() if isinstance(text, str)]
    used = {key for each in entry.transports for text in _header_texts(each) for key in placeholders(text)}
    headers += [
        {"name": item.key} | _input(item)
        for item in entry.configurable_properties
        if item.target is Target.HEADER and item.key not in used
    ]
    return remote | ({"headers": headers} if headers else {})


def _header_texts(transport: Transport) -> list[str]:
    texts = transport.headers.values() if isinstance(transport.headers, dict) else ()
    return [text for text in texts if isinstance(text, str)]


def _header(entry: Entry, name: str, text: str) -> dict[str, Any]:
    found = _WHOLE.fullmatch(text)
    item = entry.property(found[1]) if found else None
    return {"name": name} | (_input(item) if item is not None else _valued(entry, text))


def _valued(entry: Entry, text: str) -> dict[str, Any]:
    """Return *text* as a server.json value: placeholders become ``{KEY}``, with a declaration of each variable."""
    variables = {}
    for key in placeholders(text):
        item = entry.property(key)
        variables[key] = _input(item) if item is not None else {}
    value = {"value": _WHOLE.sub(r"{\1}", text)}
    return value | ({"variables": variables} if variables else {})


def _input(item: ConfigProperty) -> dict[str, Any]:
    extra: dict[str, JsonValue] = item.model_extra or {}
    made: dict[str, Any] = {}
    if text := item.description or item.label.lstrip("-"):
        made["description"] = text
    if item.required:
        made["isRequired"] = True
    if item.sensitive:
        made["isSecret"] = True
    if isinstance(item.type, ValueType) and item.type in _FORMATS:
        made["format"] = _FORMATS[item.type]
    default = item.default[0] if isinstance(item.default, list) and len(item.default) == 1 else item.default
    if default is not None and not item.sensitive and not isinstance(default, (list, dict)):
        made["default"] = as_text(default)
    choices = extra.get("choices")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        made["choices"] = choices
    if isinstance(placeholder := extra.get("placeholder"), str) and placeholder:
        made["placeholder"] = placeholder
    return made
