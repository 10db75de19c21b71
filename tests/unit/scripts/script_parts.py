# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.store import InstalledServer, Store

HELLO = '"""Greets.\n\nAt length.\n"""\n__version__ = "1.2"\n\ndef hello(name: str) -> str:\n    return name\n'


def put(directory: Path, name: str, text: str = HELLO) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path


def write(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def age(*paths: Path) -> None:
    """Make files so old that a later change is certain to show."""
    for path in paths:
        os.utime(path, (1, 1))


def listed(store: Store) -> dict[str, InstalledServer]:
    return {server.id: server for server in store.list()}


def said(server: InstalledServer) -> dict[str, Any]:
    """What a script server's own manifest tells its process."""
    assert server.manifest is not None
    found: dict[str, Any] = (server.manifest.model_extra or {})["script"]
    return found
