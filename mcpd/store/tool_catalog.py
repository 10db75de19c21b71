# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tool catalogs: the answers of the active generations to ``tools/list``."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.errors import InvalidManifest
from mcpd.files import is_missing, make_directory, read_file, write_atomic
from mcpd.model import ID_PATTERN, load_json
from mcpd.store.index import Kind, LayerServer

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

Tools: TypeAlias = list[dict[str, Any]]


class ToolFiles:
    """Tool catalog files, one per generation: beside it if this scope may write there, otherwise in a cache."""

    def __init__(self, cache: Path) -> None:
        """*cache* is the directory for servers whose generations this scope does not write."""
        self._cache = cache

    def read(self, found: LayerServer) -> Tools | None:
        """Return the tool catalog of *found*, None if there is none."""
        if found.kind is Kind.MANAGED and (kept := _load(catalog_path(found.generation), _origin(found))) is not None:
            return kept
        return _load(self._cached(found), _origin(found)) if ID_PATTERN.fullmatch(found.id) else None

    def write(self, found: LayerServer, tools: Tools, *, own: bool) -> None:
        """Store *tools*; *own* if the generation may be written."""
        managed = own and found.kind is Kind.MANAGED
        path = catalog_path(found.generation) if managed else self._cached(found)
        make_directory(path.parent)
        _write(path, tools, _origin(found))

    def read_generation(self, generation: Path, version: str) -> Tools | None:
        """Return the tool catalog of *version* in the directory *generation*; None if there is none."""
        return _load(catalog_path(generation), _identity(generation, version))

    def write_generation(self, generation: Path, version: str, tools: Tools) -> None:
        """Store *tools* for *version* in the directory *generation*, which this scope writes."""
        _write(catalog_path(generation), tools, _identity(generation, version))

    def remove(self, server_id: str) -> None:
        """Remove the cached tool catalog of *server_id*."""
        self._cache.joinpath(f"{server_id}.json").unlink(missing_ok=True)

    def _cached(self, found: LayerServer) -> Path:
        return self._cache / f"{found.id}.json"


def catalog_path(generation: Path) -> Path:
    """Return the path of the tool catalog beside the directory *generation*."""
    return generation.with_name(f"{generation.name}.tools.json")


def _write(path: Path, tools: Tools, origin: dict[str, str]) -> None:
    # Compact: indentation could make a large catalog larger than the limit for reading it.
    data = json.dumps({**origin, "tools": tools}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomic(path, data.encode())


def _load(path: Path, origin: dict[str, str]) -> Tools | None:
    try:
        data = load_json(read_file(path), str(path))
    except InvalidManifest as error:
        _log.warning("%s; asking the server again", error.message)
        return None
    except OSError as error:
        if not is_missing(error):
            _log.warning("%s: %s", path, error.strerror)
        return None
    if not isinstance(data, dict) or any(data.get(key) != value for key, value in origin.items()):
        return None
    tools = data.get("tools")
    return tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else None


def _origin(found: LayerServer) -> dict[str, str]:
    return _identity(found.generation, found.manifest.version if found.manifest else "")


def _identity(generation: Path, version: str) -> dict[str, str]:
    return {"generation": str(generation), "version": version}
