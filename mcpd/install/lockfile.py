# SPDX-License-Identifier: LGPL-2.1-or-later
"""``.mcpd-lock.json`` in a generation: what exactly was installed, and which eras the server speaks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model import SourceType, load_json, strip_credentials
from mcpd.store.files import read_file, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.health import Protocol
    from mcpd.install.sources.base import Outcome
    from mcpd.model import Entry, JsonValue

LOCK_FILE: Final = ".mcpd-lock.json"
"""Hidden and named after mcpd, so that no project has a file of that name."""
VERSION: Final = 1


def write_lock(
    root: Path, entry: Entry, outcome: Outcome, *, registry: str, verified: str = "", content: str = ""
) -> None:
    """Write the lock file of the generation in *root*.

    *registry* is where the *entry* came from, empty for a caller; *verified* the name of the trusted key that vouched
    for what is installed, empty if none did; *content* what :func:`mcpd.install.updates.content_digest` says of the
    entry as the registry has it.
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
    """Add the *sha256* of the list of files, how many *files* it has, and their *size* in bytes.

    *manifest* is the sha256 of what never changes of the manifest; empty if it is not known.
    """
    tree: dict[str, JsonValue] = {"sha256": sha256, "files": files, "bytes": size}
    if manifest:
        tree["manifest"] = manifest
    _write(root, {**_read(root), "tree": tree})


def record_protocol(root: Path, protocol: Protocol) -> None:
    """Add to the lock file which protocol eras the server speaks."""
    _write(root, {**_read(root), "protocol": protocol.to_json()})


def read_lock(root: Path) -> dict[str, Any]:
    """The lock file of the generation in *root*; empty if there is none, as for servers mcpd did not install."""
    try:
        return _read(root)
    except (OSError, InvalidManifest):
        return {}


def identity(root: Path) -> str:
    """What is the same for two generations that were made of the same; *root* is that of one.

    One that does not tell what it was made of is the same as itself only.
    """
    lock = read_lock(root)
    source, content = lock.get("source"), lock.get("content")
    is_local = isinstance(source, dict) and source.get("type") == SourceType.LOCAL
    if not isinstance(content, str) or not content or (is_local and not lock.get("tree")):
        return json.dumps(str(root))
    made_of = [lock.get(key) for key in ("source", "resolved", "content", "files")]
    if is_local:
        # A directory of somebody has no version of its own.
        made_of.append(lock.get("tree"))
    return json.dumps(made_of, sort_keys=True)


def _read(root: Path) -> dict[str, Any]:
    """As :func:`read_lock`; what cannot be read raises OSError or InvalidManifest, for it must not be written over."""
    try:
        found = load_json(read_file(root / LOCK_FILE), LOCK_FILE)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise InvalidManifest(f"{LOCK_FILE}: it is not an object")
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
