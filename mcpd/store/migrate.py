# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rewriting an index of the older form (S-35) before the first change to its tree."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcpd.model import Index, Pointer
from mcpd.store import configuration, documents
from mcpd.store.files import make_directory, write_atomic
from mcpd.store.layers import MANIFEST, Found, Kind

if TYPE_CHECKING:
    from mcpd.store.view import View

_log = logging.getLogger(__name__)


def migrate_index(view: View) -> None:
    """Give every server of a list-shaped index its ``manifest.json``, then write pointers. The caller holds the lock.

    Stopped half-way, the old index still counts, and the manifests say what it says.
    """
    if view.own.index is None:
        return
    index = view.own.index.read()
    if not index.legacy:
        return
    servers: dict[str, Pointer] = {}
    for server_id, found in view.own.scan().items():
        pointer = index.servers.get(server_id)
        if pointer is not None and pointer.embedded is not None and found.kind is Kind.EMBEDDED:
            _write_manifest(view, found, pointer.embedded)
        servers[server_id] = Pointer(str(view.layout.installed / server_id / MANIFEST))
    for key in index.broken:
        servers.pop(key, None)
    new: Index = replace(index, servers=servers, legacy=False, problems=[])
    with view.own.index.stage(new) as staged:
        staged.commit()
    _log.info("%s: rewritten with pointers to %d manifests", view.own.index.path, len(servers))


def _write_manifest(view: View, found: Found, embedded: dict[str, Any]) -> None:
    document = dict(embedded)
    if found.manifest is not None:
        shown, hidden = configuration.split(found.manifest, documents.config_of(document))
        if hidden:
            view.secrets.write(found.id, {**view.secrets.read(found.id), **hidden})
            document["config"] = shown
    make_directory(found.manifest_path.parent)
    write_atomic(found.manifest_path, documents.dump(document))
