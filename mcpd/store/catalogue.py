# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool catalogues: what the active generation of each server answered to ``tools/list``."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.errors import InvalidManifest
from mcpd.model import ID_PATTERN, load_json
from mcpd.store.files import is_missing, make_directory, read_file, write_atomic
from mcpd.store.layers import Found, Kind

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

Tools: TypeAlias = list[dict[str, Any]]


class ToolFiles:
    """One file per generation, beside it where no file of the server can have its name; else in the cache."""

    def __init__(self, cache: Path) -> None:
        """*cache* is for servers whose generations are not ours to write to."""
        self._cache = cache

    def read(self, found: Found) -> Tools | None:
        """The catalogue of *found*, None if there is none."""
        if found.kind is Kind.MANAGED and (kept := self._load(beside(found), found)) is not None:
            return kept
        return self._load(self._cached(found), found) if ID_PATTERN.fullmatch(found.id) else None

    def write(self, found: Found, tools: Tools, *, own: bool) -> None:
        """Keep *tools*; *own* if the generation may be written to."""
        path = beside(found) if own and found.kind is Kind.MANAGED else self._cached(found)
        make_directory(path.parent)
        # Compact: indentation can make a large catalogue several times the size that is read again.
        data = json.dumps(
            {**_origin(found), "tools": tools}, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        write_atomic(path, data.encode())

    def remove(self, server_id: str) -> None:
        """Forget what the cache holds for *server_id*."""
        self._cache.joinpath(f"{server_id}.json").unlink(missing_ok=True)

    def _cached(self, found: Found) -> Path:
        return self._cache / f"{found.id}.json"

    def _load(self, path: Path, found: Found) -> Tools | None:
        try:
            data = load_json(read_file(path), str(path))
        except InvalidManifest as error:
            _log.warning("%s; asking the server again", error.message)
            return None
        except OSError as error:
            if not is_missing(error):
                _log.warning("%s: %s", path, error.strerror)
            return None
        if not isinstance(data, dict) or any(data.get(key) != value for key, value in _origin(found).items()):
            return None
        tools = data.get("tools")
        return tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else None


def beside(found: Found) -> Path:
    """The catalogue beside a generation."""
    return found.generation.with_name(f"{found.generation.name}.tools.json")


def _origin(found: Found) -> dict[str, str]:
    return {"generation": str(found.generation), "version": found.manifest.version if found.manifest else ""}
