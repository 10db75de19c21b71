# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lock file ``.mcpd-lock.json`` in a generation: what exactly was installed, and the server's protocol eras."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.files import read_file, write_atomic
from mcpd.model import SourceType, load_json, strip_credentials

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.health import Protocol
    from mcpd.install.sources.base import Outcome
    from mcpd.model import Entry, JsonValue

LOCK_FILE: Final = ".mcpd-lock.json"
"""Name of the lock file; hidden, and chosen so that no project has a file of that name."""
VERSION: Final = 1


def write_lock(
    root: Path, entry: Entry, outcome: Outcome, *, registry: str, verified: str = "", content: str = ""
) -> None:
    """Write the lock file of the generation in *root*.

    *registry* is the URL of the *entry*'s registry, empty if it was user-supplied; *verified* is the name of the
    trusted key that covers the installed version, empty if there is none; *content* is
    :func:`mcpd.install.updates.content_digest` of the entry in the registry.
    """
    entry_document = _without_credentials(entry.to_json())
    document: dict[str, JsonValue] = {
        "version": VERSION,
        "id": entry.id,
        "installed": datetime.now(UTC).isoformat(timespec="seconds"),
        "registry": strip_credentials(registry),
        "verified": verified,
        "content": content,
        "source": entry_document.get("source") or {},
        "resolved": outcome.resolved,
        "files": [file.to_json() for file in outcome.files],
        "entry": entry_document,
    }
    _write(root, document)


def record_tree(root: Path, *, sha256: str, files: int, size: int, manifest: str = "") -> None:
    """Add the *sha256* of the list of files, the number of *files*, and their *size* in bytes to the lock file.

    *manifest* is the SHA-256 of the constant part of the manifest; empty if it is not known.
    """
    tree: dict[str, JsonValue] = {"sha256": sha256, "files": files, "bytes": size}
    if manifest:
        tree["manifest"] = manifest
    _write(root, {**_read(root), "tree": tree})


def record_protocol(root: Path, protocol: Protocol) -> None:
    """Add the protocol eras that the server speaks to the lock file."""
    _write(root, {**_read(root), "protocol": protocol.to_json()})


def read_lock(root: Path) -> dict[str, Any]:
    """Return the lock file of the generation in *root*; empty if it is missing or broken."""
    try:
        return _read(root)
    except (OSError, InvalidManifest):
        return {}


def identity(root: Path) -> str:
    """Return a string that is equal for generations with the same content; *root* is a generation's directory.

    A generation without a record of its content is equal only to itself.
    """
    lock = read_lock(root)
    source, content = lock.get("source"), lock.get("content")
    is_local = isinstance(source, dict) and source.get("type") == SourceType.LOCAL
    if not isinstance(content, str) or not content or (is_local and not lock.get("tree")):
        return json.dumps(str(root))
    made_of = [lock.get(key) for key in ("source", "resolved", "content", "files")]
    if is_local:
        # A local directory has no version, so its files are compared.
        made_of.append(lock.get("tree"))
    return json.dumps(made_of, sort_keys=True)


def _read(root: Path) -> dict[str, Any]:
    """Like :func:`read_lock`, but raise OSError or InvalidManifest for a broken file, so that it is not overwritten."""
    try:
        found = load_json(read_file(root / LOCK_FILE), LOCK_FILE)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise InvalidManifest(f"{LOCK_FILE}: not an object")
    return found


def _without_credentials(value: Any) -> Any:
    if isinstance(value, str):
        return strip_credentials(value)
    if isinstance(value, list):
        return [_without_credentials(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_credentials(item) for key, item in value.items()}
    return value


def _write(root: Path, document: dict[str, Any]) -> None:
    write_atomic(root / LOCK_FILE, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
