# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changing ``manifest.json`` in place, field by field, so that what other tools keep in it stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.errors import InvalidManifest
from mcpd.model import Manifest, dump_json, load_json
from mcpd.store.configuration import split
from mcpd.store.files import read_file, write_atomic

if TYPE_CHECKING:
    from pathlib import Path


def load(path: Path) -> dict[str, Any]:
    """The manifest at *path* as it is.

    Raises :class:`~mcpd.errors.InvalidManifest`.
    """
    try:
        data = load_json(read_file(path), str(path))
    except OSError as error:
        raise InvalidManifest(f"{path}: {error.strerror}") from error
    if not isinstance(data, dict):
        raise InvalidManifest(f"{path}: not an object")
    return data


def config_of(document: dict[str, Any]) -> dict[str, Any]:
    """A copy of the values in *document*, empty where another tool wrote something else."""
    config = document.get("config")
    return dict(config) if isinstance(config, dict) else {}


def origin_of(manifest: Manifest) -> dict[str, Any]:
    """What *manifest* says of where it came from; empty where another tool wrote something else."""
    origin = (manifest.model_extra or {}).get("origin")
    return origin if isinstance(origin, dict) else {}


def with_pin(document: dict[str, Any], *, pinned: bool) -> dict[str, Any]:
    """*document*, which says that updates pass its server over if *pinned*, and else that they do not."""
    found = document.get("origin")
    origin = found if isinstance(found, dict) else {}
    if (origin.get("pinned") is True) == pinned:
        return document
    return {**document, "origin": {**origin, "pinned": pinned}}


def dump(document: dict[str, Any]) -> bytes:
    """The file for *document*."""
    return dump_json(document)


def conceal(path: Path, server_id: str) -> None:
    """Remove sensitive values from the manifest of *server_id* at *path*.

    Raises :class:`~mcpd.errors.McpdError` if that cannot be done.
    """
    document = load(path)
    manifest = Manifest.parse({**document, "id": server_id}, str(path))
    shown, hidden = split(manifest, config_of(document))
    if hidden:
        write_atomic(path, dump({**document, "config": shown}))
