# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changing values: in our own manifests, in overlays for the servers of other layers, and in the secrets."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, ReadOnly
from mcpd.model import check_id
from mcpd.store import configuration, documents
from mcpd.store.files import Staged
from mcpd.store.migrate import migrate_index
from mcpd.store.view import View, usable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.model import JsonValue
    from mcpd.store.layers import Found


def set_values(view: View, server_id: str, changes: Mapping[str, JsonValue | None]) -> None:
    """Set values that are not sensitive; None unsets. The caller holds the lock."""
    layer, found = view.find(server_id)
    changes = configuration.checked(usable(found), changes)
    kept = view.secrets.read(found.id)
    # A key that was sensitive in an earlier version of the server may still be here.
    secrets = {key: value for key, value in kept.items() if key not in changes}
    if view.is_own(layer, found):
        _write_own(view, found.id, changes, secrets, kept)
        return
    view.overlay.write(found.id, _changed(view.overlay.read(found.id), changes))
    if secrets != kept:
        view.secrets.write(found.id, secrets)


def set_secret(view: View, server_id: str, key: str, value: str | None) -> None:
    """Set a sensitive value; None unsets. The caller holds the lock."""
    layer, found = view.find(server_id)
    change = {key: configuration.checked_secret(usable(found), key, value)}
    kept = view.secrets.read(found.id)
    secrets = _changed(kept, change)
    if view.is_own(layer, found):
        _write_own(view, found.id, {key: None}, secrets, kept, chosen=key)
    else:
        view.secrets.write(found.id, secrets)


def set_pinned(view: View, server_id: str, *, pinned: bool) -> None:
    """Say in the manifest whether updates pass the server over. The caller holds the lock.

    Raises :class:`~mcpd.errors.ReadOnly` for a server of another layer, and for one that is elsewhere.
    """
    layer, found = view.find(server_id)
    if not view.is_own(layer, found):
        raise ReadOnly(f"{server_id} is not updated by this instance, so it cannot be pinned here")
    manifest = usable(found)
    origin = documents.origin_of(manifest)
    if not origin and (manifest.model_extra or {}).get("origin"):
        raise InvalidManifest(f"{found.manifest_path}: origin is not an object; reinstall {server_id} to pin it")
    kept = view.secrets.read(found.id)
    _write_own(view, found.id, {}, kept, kept, fields={"origin": {**origin, "pinned": pinned}})


def forget(view: View, server_id: str) -> None:
    """Drop all values and secrets of a script server, even if it is broken or gone. The caller holds the lock.

    Raises :class:`~mcpd.errors.InvalidArgument` for any other server.
    """
    try:
        _, found = view.find(check_id(server_id))
    except NotFound:
        pass
    else:
        if found.script is None:
            raise InvalidArgument(
                f"{server_id} is installed: what is kept for it is removed with it, and its values are unset by their"
                " keys"
            )
    view.secrets.remove(server_id)
    view.overlay.remove(server_id)


def _write_own(
    view: View,
    server_id: str,
    changes: Mapping[str, JsonValue | None],
    secrets: dict[str, JsonValue],
    kept: dict[str, JsonValue],
    *,
    chosen: str = "",
    fields: Mapping[str, JsonValue] | None = None,
) -> None:
    """Write the manifest with *changes*, and *secrets*, to which sensitive values in the manifest move.

    *chosen* is the key whose value in *secrets* counts, whatever the manifest holds; *fields* replace whole fields of
    the manifest.
    """
    migrate_index(view)
    _, found = view.find(server_id)
    document = found.load()
    values = _changed({**documents.config_of(document), **view.overlay.read(server_id)}, changes)
    shown, exposed = configuration.split(usable(found), values)
    exposed.pop(chosen, None)
    _commit(view, found, {**document, **(fields or {}), "config": shown}, {**secrets, **exposed}, kept)


def _commit(
    view: View, found: Found, document: dict[str, Any], secrets: dict[str, JsonValue], kept: dict[str, JsonValue]
) -> None:
    with ExitStack() as stack:
        manifest = stack.enter_context(Staged(found.manifest_path, documents.dump(document)))
        if secrets and secrets != kept:
            stack.enter_context(view.secrets.stage(found.id, secrets)).commit()
        manifest.commit()
    if kept and not secrets:
        view.secrets.remove(found.id)
    view.overlay.remove(found.id)


def _changed(values: Mapping[str, JsonValue], changes: Mapping[str, JsonValue | None]) -> dict[str, JsonValue]:
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if key not in changes or value is not None}
