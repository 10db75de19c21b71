# SPDX-License-Identifier: LGPL-2.1-or-later
"""server.json of the official registry (schemas 2025-07-09 to 2025-12-11) as an entry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.formats.seed import id_of, seed_entry
from mcpd.formats.server_json_build import PUBLISHER, SEED, built
from mcpd.formats.server_json_inputs import Inputs
from mcpd.formats.server_json_packages import Plan, plan_of
from mcpd.formats.server_json_schema import read
from mcpd.model import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcpd.formats.server_json_schema import Package, Server, Transport

ORIGINAL: Final = "serverJson"
"""The field of an entry that holds the document it was made from."""
_SCHEMA: Final = "server.schema.json"
_NAME: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", re.ASCII)
_WAYS: Final = ("id", "source", "transports", "env", "manifest", "unsupportedReason")
"""The fields of an entry that decide what is installed, and what is started of it."""
_SEED_FIELDS: Final = frozenset({"id", "transports", "transport", "source", "manifest"})


def is_server_json(document: object) -> bool:
    """Whether *document* is a server.json, of whatever schema, or an item of the official registry's API with one."""
    if not isinstance(document, dict):
        return False
    found: dict[str, Any] = document["server"] if _is_item(document) else document
    schema = found.get("$schema")
    if isinstance(schema, str) and _SCHEMA in schema:
        return True
    name = found.get("name")
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not _SEED_FIELDS & found.keys()


def entry_of(document: dict[str, Any], origin: str, *, published: bool = False) -> Entry:
    """The entry for the server.json *document*, or for that in the item *document*, read from *origin* (for messages).

    A document made by :func:`~mcpd.formats.server_json_out.server_json_of` and not changed since gives the entry that
    it was made of. With *published*, one that anybody may have written, it does so only if that has the id, the
    source and the ways to the server that the fields tell which every registry checks and every reader sees. What is in
    an item is published.

    Raises :class:`~mcpd.errors.InvalidManifest` that names *origin*, the field and the fault.
    """
    if _is_item(document):
        document, published = document["server"], True
    embedded = _embedded(document, origin)
    if embedded is not None and not published:
        return embedded
    converted = _converted(document, origin)
    return embedded if embedded is not None and _is_the_same(embedded, converted) else converted


def _is_item(document: dict[str, Any]) -> bool:
    """Whether *document* is one of a page of the official registry's API."""
    found = document.get("server")
    return isinstance(found, dict) and not {"name", *_SEED_FIELDS} & document.keys()


def original(entry: Entry) -> dict[str, Any] | None:
    """The server.json that *entry* was made from; None if there is none, or *entry* was changed since."""
    document = (entry.model_extra or {}).get(ORIGINAL)
    if not isinstance(document, dict):
        return None
    try:
        same = entry_of(document, entry.id).to_json() == entry.to_json()
    except InvalidManifest:
        return None
    return document if same else None


def _embedded(document: dict[str, Any], origin: str) -> Entry | None:
    found: Any = document
    for name in ("_meta", PUBLISHER, SEED):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return None
    try:
        entry = seed_entry(found, origin)
    except InvalidManifest:
        return None  # whoever wrote it: the visible fields say what the server is
    return entry if built(entry) == document and original(entry) is None else None


def _is_the_same(embedded: Entry, converted: Entry) -> bool:
    """Whether *embedded* and *converted* are one program, started alike; words and permissions may differ."""
    said, seen = embedded.to_json(), converted.to_json()
    return all(said.get(name) == seen.get(name) for name in _WAYS)


def _converted(document: dict[str, Any], origin: str) -> Entry:
    server = read(document, origin)
    made: dict[str, Any] = {
        "id": id_of(server.name, origin),
        "name": server.title or server.name,
        "origin": {"name": server.name},
    }
    texts = {"summary": server.description, "version": server.version, "homepage": server.website_url}
    icons = (icon.src for icon in server.icons or [])
    texts["icon"] = next((src for src in icons if src), None)
    made |= {name: text for name, text in texts.items() if text}
    if server.repository:
        made["repository"] = server.repository
    try:
        made |= _ways(server)
    except InvalidManifest as error:
        raise InvalidManifest(f"{origin}: {error.message}") from error
    return Entry.parse(made | {ORIGINAL: document}, origin)


def _ways(server: Server) -> dict[str, Any]:
    """How the server is installed or reached."""
    packages, remotes = server.packages or [], server.remotes or []
    chosen = _chosen(packages)
    if chosen is not None and not chosen.obstacle:
        # The transports of a bundle are known when it is here; any other would stand for all.
        transports = [] if chosen.transport is None else [chosen.transport]
        if transports:
            transports += _transports(remotes, chosen.inputs, required=False)
        return _made(chosen, transports, chosen.inputs)
    inputs = Inputs()
    transports = _transports(remotes, inputs, required=True)
    inputs.permissions.clear()
    made = _made(chosen, transports, inputs)
    if chosen is not None and not transports:
        made["unsupportedReason"] = chosen.obstacle
    elif chosen is None and not transports:
        made["unsupportedReason"] = "it names neither a package nor a URL"
    elif inputs.faults:
        made["unsupportedReason"] = inputs.faults[0]
    return made


def _chosen(packages: Iterable[Package]) -> Plan | None:
    """The first package that can be installed, else the first one."""
    first: Plan | None = None
    for package in packages:
        plan = plan_of(package)
        if not plan.obstacle:
            return plan
        first = first or plan
    return first


def _made(plan: Plan | None, transports: list[Any], inputs: Inputs) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "source": plan.source if plan is not None else None,
        "transports": transports,
        "env": plan.environment if plan is not None and not plan.obstacle else None,
        "permissions": inputs.permissions,
        "configurableProperties": inputs.properties,
    }
    return {name: part for name, part in parts.items() if part}


def _transports(remotes: Iterable[Transport], inputs: Inputs, *, required: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for remote in remotes:
        made: dict[str, Any] = {
            "type": remote.type,
            "url": inputs.address(remote.url or "", remote.variables or {}, required=required),
        }
        if headers := inputs.headers(remote.headers or [], required=required):
            made["headers"] = headers
        found.append(made)
    return found
