# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool catalogs: what the active generation of each server answered to ``tools/list``."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.errors import InvalidManifest
from mcpd.model import ID_PATTERN, load_json
from mcpd.store.files import is_missing, make_directory, read_file, write_atomic
from mcpd.store.index import Kind, LayerServer

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

Tools: TypeAlias = list[dict[str, Any]]


class ToolFiles:
    """One file per generation, beside it where no file of the server can have its name; else in the cache."""

    def __init__(self, cache: Path) -> None:
        """*cache* is for servers whose generations are not ours to write to."""
        self._cache = cache

    def read(self, found: LayerServer) -> Tools | None:
        """The catalog of *found*, None if there is none."""
        if found.kind is Kind.MANAGED and (kept := _load(beside(found.generation), _origin(found))) is not None:
            return kept
        return _load(self._cached(found), _origin(found)) if ID_PATTERN.fullmatch(found.id) else None

    def write(self, found: LayerServer, tools: Tools, *, own: bool) -> None:
        """Keep *tools*; *own* if the generation may be written to."""
        managed = own and found.kind is Kind.MANAGED
        path = beside(found.generation) if managed else self._cached(found)
        make_directory(path.parent)
        _write(path, tools, _origin(found))

    def read_generation(self, generation: Path, version: str) -> Tools | None:
        """The catalog of the *version* in the directory *generation*, active or not; None if there is none."""
        return _load(beside(generation), _identity(generation, version))

    def write_generation(self, generation: Path, version: str, tools: Tools) -> None:
        """Keep *tools* for the *version* in the directory *generation* of ours."""
        _write(beside(generation), tools, _identity(generation, version))

    def remove(self, server_id: str) -> None:
        """Forget what the cache holds for *server_id*."""
        self._cache.joinpath(f"{server_id}.json").unlink(missing_ok=True)

    def _cached(self, found: LayerServer) -> Path:
        return self._cache / f"{found.id}.json"


def beside(generation: Path) -> Path:
    """The catalog beside the directory *generation*."""
    return generation.with_name(f"{generation.name}.tools.json")


def _write(path: Path, tools: Tools, origin: dict[str, str]) -> None:
    # Compact: indentation can make a large catalog several times the size that is read again.
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
