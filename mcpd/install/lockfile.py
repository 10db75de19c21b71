# SPDX-License-Identifier: LGPL-2.1-or-later
"""``.mcpd-lock.json`` in a generation: what exactly was installed, and which eras the server speaks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd.install.workbench import strip_credentials
from mcpd.store.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.install.health import Protocol
    from mcpd.install.outcome import Outcome
    from mcpd.model import Entry, JsonValue

LOCK_FILE: Final = ".mcpd-lock.json"
"""Hidden and named after mcpd, so that no project has a file of that name."""
VERSION: Final = 1


def write_lock(root: Path, entry: Entry, outcome: Outcome, *, registry: str) -> None:
    """Write the lock file of the generation in *root*; *registry* is where the entry came from, empty for a caller."""
    source: dict[str, Any] = entry.source.to_json() if entry.source else {}
    document: dict[str, JsonValue] = {
        "version": VERSION,
        "id": entry.id,
        "installed": datetime.now(UTC).isoformat(timespec="seconds"),
        "registry": strip_credentials(registry),
        "source": {key: strip_credentials(value) if isinstance(value, str) else value for key, value in source.items()},
        "resolved": outcome.resolved,
        "files": [file.to_json() for file in outcome.files],
    }
    _write(root, document)


def record_protocol(root: Path, protocol: Protocol) -> None:
    """Add to the lock file which protocol eras the server speaks."""
    _write(root, {**read_lock(root), "protocol": protocol.to_json()})


def read_lock(root: Path) -> dict[str, Any]:
    """The lock file of the generation in *root*; empty if there is none, as for servers mcpd did not install."""
    try:
        found = json.loads((root / LOCK_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(root: Path, document: dict[str, Any]) -> None:
    write_atomic(root / LOCK_FILE, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
