# SPDX-License-Identifier: LGPL-2.1-or-later
"""The definition of a script server: its script and its entry in the mcps map, from the manifest that mcpd wrote."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, from_oserror
from mcpd.files import is_missing, read_file
from mcpd.model import check_id, id_from_name, load_json
from mcpd.model.base import Document, Text, as_map
from mcpd.model.mcps import McpsEntry, parse_entry
from mcpd.scripts.inspection import MAX_SCRIPT, SUFFIXES, ScriptKind, inspect, kind_of
from mcpd.servers.scripts.calls import Limits
from mcpd.servers.scripts.discover import python

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MANIFEST: Final = 16 * 1024 * 1024
"""Maximum size of a manifest in bytes."""


class _Script(Document):
    path: Text = ""
    kind: Literal["python", "shell", ""] = ""
    sha256: Text = ""
    editable: bool = False
    """True for a file in a directory of scripts, which may have been edited since mcpd read it."""
    narrowed: bool = False
    """True if entries of the map filter or change what clients see."""
    entry: Annotated[dict[str, JsonValue], BeforeValidator(as_map)] = Field(default_factory=dict)
    contents: list[str] = Field(default_factory=list)


class _Manifest(Document):
    """The parts of a script server's private manifest that are used here."""

    id: str
    name: Text = ""
    description: Text = ""
    version: Text = ""
    config: Annotated[dict[str, JsonValue], BeforeValidator(as_map)] = Field(default_factory=dict)
    script: _Script


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one script server."""

    id: str
    title: str
    description: str
    version: str
    config: Mapping[str, Any]
    path: str
    """Path of the script; empty if there is none."""
    kind: ScriptKind
    """Empty if there is no script."""
    source: str
    entry: McpsEntry
    raw: Mapping[str, Any]
    """The entry as written, with its files merged."""
    contents: tuple[Path, ...]
    """The directories of the content store."""
    digest: str = ""
    """SHA-256 of the script in hexadecimal digits; empty if there is none."""
    managed: bool = False
    """True if mcpd has started the server, as there is a manifest."""
    narrowed: bool = False
    """True if entries of the map filter or change what clients see."""

    def limits(self) -> Limits:
        """Return the limits of a call."""
        runtime = self.entry.runtime
        return Limits(runtime.seconds, runtime.memory, runtime.processes, runtime.output)

    def context(self) -> dict[str, Any]:
        """Return the information about the server for functions with a parameter ``context``."""
        return {
            "server_name": self.id,
            "path": self.path,
            "config": dict(self.config),
            "variables": dict(self.entry.variables),
            "entry": dict(self.raw),
        }


def read(path: Path) -> Definition:
    """Return the definition in the manifest at *path*.

    Raises :class:`~mcpd.errors.InvalidManifest`, :class:`~mcpd.errors.NotFound` and the errors of reading.
    """
    manifest = _Manifest.parse(load_json(_bytes(path, MAX_MANIFEST), str(path)), str(path))
    script = manifest.script
    server_id = check_id(manifest.id)
    raw = script.entry
    entry = parse_entry(server_id, raw, str(path))
    data = _bytes(Path(script.path), MAX_SCRIPT) if script.path else b""
    digest = hashlib.sha256(data).hexdigest() if script.path else ""
    if script.path and entry.definition_cid and not script.editable and script.sha256 != digest:
        raise InvalidManifest(f"{script.path}: the content is not what its id {entry.definition_cid[:100]} says")
    kind: ScriptKind = (script.kind or kind_of(data)) if script.path else ""
    return Definition(
        id=server_id,
        title=manifest.name,
        description=manifest.description,
        version=manifest.version,
        config=manifest.config,
        path=script.path,
        kind=kind,
        source=_text(data, kind, script.path),
        entry=entry,
        raw=raw,
        contents=tuple(map(Path, script.contents)),
        digest=digest,
        managed=True,
        narrowed=script.narrowed,
    )


def alone(path: Path) -> Definition:
    """Return the definition of the script at *path* without a manifest or an entry.

    Raises :class:`~mcpd.errors.InvalidArgument` if its name is not that of a script,
    :class:`~mcpd.errors.InvalidManifest` if its interpreter cannot parse it, and the errors of reading.
    """
    kind = SUFFIXES.get(path.suffix)
    if kind is None:
        raise InvalidArgument(f"{path}: a script is a file .py or .sh")
    try:
        server_id = id_from_name(path.stem)
    except InvalidManifest as error:
        raise InvalidArgument(f"{path}: {error.message}") from error
    data = _bytes(path, MAX_SCRIPT)
    # For scripts started by mcpd, mcpd has reported this already.
    if problem := inspect(data, kind).problem:
        raise InvalidManifest(f"{path}:{problem}")
    return Definition(
        id=server_id,
        title="",
        description="",
        version="",
        config={},
        path=str(path.absolute()),
        kind=kind,
        source=_text(data, kind, str(path)),
        entry=McpsEntry(),
        raw={},
        contents=(),
        digest=hashlib.sha256(data).hexdigest(),
    )


def _bytes(path: Path, limit: int) -> bytes:
    try:
        return read_file(path, limit)
    except OSError as error:
        if is_missing(error):
            raise NotFound(f"{path}: there is no such file") from error
        raise from_oserror(error, f"reading {path}") from error


def _text(data: bytes, kind: ScriptKind, origin: str) -> str:
    """Decode *data*; in a shell script, invalid UTF-8 does not matter."""
    return python.decode(data, origin) if kind == "python" else data.decode(errors="replace")
