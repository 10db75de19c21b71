# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script servers: scripts and entries of the mcps map, each a server without a manifest of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidManifest, McpdError
from mcpd.files import (
    Signature,
    is_missing,
    make_directory,
    read_file,
    settled,
    settled_signature,
    signature,
    write_atomic,
)
from mcpd.model import Manifest, check_id, load_json, printable
from mcpd.paths import Scope
from mcpd.scripts import contents
from mcpd.scripts.inspection import MAX_SCRIPT, SUFFIXES, Inspection, ScriptKind, inspect, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mcpd.paths import LayerName, Paths
    from mcpd.scripts.mcps import Definition, McpsMap

_log = logging.getLogger(__name__)

_SLOW_READ: Final = 0.25
"""An inspection that took longer than this is saved at once, in seconds."""
_SAVE_INTERVAL: Final = 1.0
"""Minimum time between saves of faster inspections during a scan, in seconds."""
_NO_SIGNATURE: Final[Signature] = (-1, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class Script:
    """An inspected script."""

    id: str
    """Printable form of the server id; if the id is invalid, ``found.problem`` says so."""
    path: Path
    """Path with symlinks resolved."""
    root: Path
    """The directory in which the script was found; ``path`` is outside it if the script is a symlink."""
    kind: ScriptKind
    sha256: str
    """Digest of its content, hexadecimal; empty if it cannot be read."""
    found: Inspection
    is_content: bool = False
    """True if an entry of the mcps map names the script by content id, so that it cannot change."""

    @property
    def key(self) -> str:
        """Key of the script in :class:`Inspections`."""
        return _key(self.kind, self.sha256)


def _key(kind: ScriptKind, digest: str) -> str:
    return f"{kind}:{digest}"


class Inspections:
    """Cache of inspections by content, kept in a file, so that a restart does not inspect the same scripts again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Inspection] = {}
        self._loaded = False
        self._changed = False
        self._written = time.monotonic()
        self._lock = threading.Lock()

    def of(self, data: bytes, kind: ScriptKind) -> tuple[str, Inspection]:
        """Return the SHA-256 of *data*, and its inspection. Raises as :func:`inspect` does."""
        digest = hashlib.sha256(data).hexdigest()
        key = _key(kind, digest)
        with self._lock:
            if not self._loaded:
                self._load()
            known = self._known.get(key)
        if known is None:
            # Release the lock, so that callers with cached scripts do not wait until this one is inspected.
            began = time.monotonic()
            known = inspect(data, kind)
            took = time.monotonic() - began
            with self._lock:
                self._known[key] = known
                self._changed = True
                is_due = took > _SLOW_READ or time.monotonic() - self._written > _SAVE_INTERVAL
            if is_due:
                self._write()
        return digest, known

    def save(self, used: Iterable[Script]) -> None:
        """Write the inspections of the scripts *used* to the file, if anything changed, and forget all others."""
        with self._lock:
            if not self._changed:
                return
            keys = {script.key for script in used}
            self._known = {key: found for key, found in self._known.items() if key in keys}
        self._write()

    def _write(self) -> None:
        """Write the file, so that the next start continues an interrupted scan."""
        with self._lock:
            self._changed, self._written = False, time.monotonic()
            kept = {key: list(astuple(found)) for key, found in self._known.items()}
        try:
            make_directory(self._path.parent)
            write_atomic(self._path, json.dumps({"by": _interpreter_version(), "scripts": kept}).encode())
        except McpdError as error:
            _log.debug("cannot save the inspections of scripts: %s", error.message)

    def _load(self) -> None:
        self._loaded = True
        try:
            data = load_json(read_file(self._path), str(self._path))
        except InvalidManifest as error:
            _log.warning("%s; reading the scripts again", error.message)
            return
        except OSError:
            return
        if (
            not isinstance(data, dict)
            or data.get("by") != _interpreter_version()
            or not isinstance(data.get("scripts"), dict)
        ):
            return
        for key, found in data["scripts"].items():
            if isinstance(found, list) and len(found) == 3 and all(isinstance(part, str) for part in found):
                self._known[key] = Inspection(*found)


def _interpreter_version() -> str:
    """Return the version of cache and Python: a syntax error in one Python version may be valid in the next."""
    return f"3 {sys.version}"


def _may_be_script(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return True  # The error is reported with the server.


class ScriptDirectory:
    """The scripts in one directory. A scan without changes costs one ``stat`` per script."""

    def __init__(self, root: Path, inspections: Inspections) -> None:
        self.root = root
        self._inspections = inspections
        self._cache: dict[str, tuple[Signature, Script]] = {}
        self._fault = ""
        self.hidden: dict[str, Path] = {}
        """Files that the last scan ignored because another file has the same stem, by id."""

    def scan(self) -> dict[str, Script]:
        """Return the scripts by printable id."""
        found: dict[str, Script] = {}
        hidden: dict[str, Path] = {}
        names = set(self._names())
        for name in sorted(names, key=lambda each: (each.rpartition(".")[0], each)):
            script = self._script(name)
            if script is not None and found.setdefault(script.id, script) is not script:
                hidden[script.id] = script.path
        for name in self._cache.keys() - names:
            self._cache.pop(name, None)
        self.hidden = hidden
        return found

    def _names(self) -> Iterator[str]:
        """Yield the names of scripts. Names that begin with ``.`` or ``_`` are skipped; the latter are for modules."""
        fault = ""
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    stem, dot, suffix = entry.name.rpartition(".")
                    if dot and stem and "." + suffix in SUFFIXES and stem[0] not in "._" and _may_be_script(entry):
                        yield entry.name
        except OSError as error:
            if not is_missing(error):
                fault = f"{self.root}: {error.strerror}"
        if fault and fault != self._fault:
            _log.warning("%s; ignoring its scripts until this is fixed", fault)
        self._fault = fault

    def _script(self, name: str) -> Script | None:
        path = f"{self.root}/{name}"
        try:
            status = os.stat(path)  # noqa: PTH116 - for every script of a listing
        except OSError as error:
            return None if is_missing(error) else self._broken(name, f"{path}: {error.strerror}")
        now = signature(status)
        known = self._cache.get(name)
        if known is not None and known[0] == now:
            return known[1]
        try:
            script = self._read(name)
        except McpdError as error:
            return self._broken(name, f"{path}: {error.message}")
        except Exception as error:  # noqa: BLE001 -- a boundary: one script must not hide the others
            return self._broken(name, f"{path}: internal error while reading it; see the journal", error)
        # A file that changed just now must be read again: the next edit could leave the same signature.
        return self._kept(name, now if settled(status) else _NO_SIGNATURE, script)

    def _kept(self, name: str, now: Signature, script: Script) -> Script:
        """Cache and return *script*, or the equal object cached before."""
        known = self._cache.get(name)
        if known is not None and known[1] == script:
            script = known[1]
        self._cache[name] = (now, script)
        return script

    def _broken(self, name: str, problem: str, fault: Exception | None = None) -> Script:
        """Return a script with *problem*, which each scan reads again; an internal error *fault* is logged once."""
        known = self._cache.get(name)
        if fault is not None and (known is None or known[1].found.problem != problem):
            _log.error("%s", printable(problem), exc_info=fault)
        stem, _, suffix = name.rpartition(".")
        place = self.root / name
        script = Script(printable(stem), place, self.root, SUFFIXES["." + suffix], "", Inspection(problem=problem))
        return self._kept(name, _NO_SIGNATURE, script)

    def _read(self, name: str) -> Script:
        path, root = (self.root / name).resolve(), self.root.resolve()
        stem, _, suffix = name.rpartition(".")
        kind = SUFFIXES["." + suffix]
        try:
            check_id(stem)
            digest, found = self._inspections.of(read_file(path, MAX_SCRIPT), kind)
        except InvalidManifest as error:
            return Script(printable(stem), path, root, kind, "", Inspection(problem=error.message))
        except OSError as error:
            return Script(stem, path, root, kind, "", Inspection(problem=f"{path}: {error.strerror}"))
        if found.problem:
            found = Inspection(found.summary, found.version, f"{path}:{found.problem}")
        return Script(stem, path, root, kind, digest, found)

    def scripts(self) -> Iterator[Script]:
        """Yield all scripts that the last scan found."""
        return (script for _, script in self._cache.values())


GRACE: Final = 5.0
"""Seconds that the bridge waits beyond the server's own time-out, so that the server can report it."""


@dataclass(frozen=True, slots=True)
class ScriptLayer:
    """Layer and scope of a script server."""

    name: LayerName
    scope: Scope


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The script of a script server, and the places of the content that it uses."""

    path: Path | None
    """None for an entry of the mcps map that has no script."""
    sha256: str
    """Digest of its content, hexadecimal."""
    contents: tuple[Path, ...]
    """Directories where the content ids of its entry are looked up."""


@dataclass(frozen=True, slots=True)
class ScriptServer:
    """A script server, possibly a broken one."""

    id: str
    """Printable id."""
    layer: ScriptLayer
    directory: Path
    """Directory of its script or, without one, its state directory."""
    file: ScriptFile
    manifest: Manifest | None
    """None if the server is broken."""
    problem: str
    document: dict[str, Any] = field(repr=False)
    """The generated manifest."""


_CachedServer: TypeAlias = "tuple[Script | None, Definition, ScriptServer]"


class ScriptServers:
    """All script servers that are visible in one scope. Thread-safe."""

    def __init__(self, paths: Paths, scope: Scope, mcps: McpsMap) -> None:
        self._mcps = mcps
        self._inspections = Inspections(paths.layout(scope).cache / "scripts.json")
        # Content that the administrator's files name is only read from directories that users cannot write.
        self._contents = {each: tuple(paths.contents(each)) for each in (Scope.SYSTEM, scope)}
        self._homes = {layout.scope: layout.state for layout in (paths.system, paths.layout(scope))}
        layers = [("system", Scope.SYSTEM, paths.system.scripts), ("vendor", Scope.SYSTEM, paths.vendor_scripts)]
        if scope is Scope.USER:
            layers.insert(0, ("user", Scope.USER, paths.user.scripts))
        self._layers: list[tuple[ScriptLayer, ScriptDirectory]] = [
            (ScriptLayer(name, scope), ScriptDirectory(root, self._inspections))  # type: ignore[arg-type] # literals
            for name, scope, root in layers
        ]
        self._servers: dict[str, _CachedServer] = {}
        self._hidden: dict[str, Path] = {}
        self._files: dict[str, Path] = {}
        self._by_content: dict[tuple[str, str], tuple[Signature | None, Script]] = {}
        self._lock = threading.Lock()
        self._scanned: dict[str, ScriptServer] | None = None
        self.version = 0
        """Changes whenever :meth:`scan` finds a difference."""

    def scan(self, *, wait: bool = True) -> dict[str, ScriptServer]:
        """Return all script servers by id. The mcps map has to be refreshed first.

        If another thread is scanning, which can take long for new scripts, this call waits for it. Without *wait*, it
        returns the last result instead, which is empty before the first scan.
        """
        if not self._lock.acquire(blocking=wait):
            return self._scanned or {}
        try:
            self._scanned = self._scan()
        finally:
            self._lock.release()
        return self._scanned

    @property
    def seen(self) -> dict[str, ScriptServer] | None:
        """Result of the last :meth:`scan`; None before the first."""
        return self._scanned

    def _scan(self) -> dict[str, ScriptServer]:
        found: dict[str, tuple[ScriptLayer, Script | None]] = {}
        hidden: dict[str, Path] = {}
        for layer, directory in self._layers:
            for server_id, script in directory.scan().items():
                if found.setdefault(server_id, (layer, script))[1] is script and server_id in directory.hidden:
                    hidden[server_id] = directory.hidden[server_id]
        self._files = {server_id: script.path for server_id, (_, script) in found.items() if script is not None}
        for server_id, scope in self._mcps.servers().items():
            name: LayerName = "user" if scope is Scope.USER else "system"
            found.setdefault(server_id, (ScriptLayer(name, scope), None))
        made = {server_id: self._server(server_id, *each) for server_id, each in found.items()}
        is_same = made.keys() == self._servers.keys() and all(made[key] is self._servers[key] for key in made)
        if not is_same or hidden != self._hidden:
            self.version += 1
        self._servers, self._hidden = made, hidden
        named = {(server_id, each[1].entry.definition_cid) for server_id, each in made.items()}
        self._by_content = {key: stored for key, stored in self._by_content.items() if key in named}
        stored = (script for _, script in self._by_content.values())
        self._inspections.save(chain(stored, *(directory.scripts() for _, directory in self._layers)))
        # Key the result by printable id, because a key of the map may be invalid.
        return {each[2].id: each[2] for each in made.values()}

    def clash(self, server_id: str, *, installed: bool) -> str:
        """Return a message about a script that is ignored because another server or script has its id; else empty."""
        hidden = self._files.get(server_id) if installed else self._hidden.get(server_id)
        return f"{hidden} has the same id and is not used; rename one of them" if hidden is not None else ""

    def _server(self, server_id: str, layer: ScriptLayer, script: Script | None) -> _CachedServer:
        definition = self._mcps.definition(server_id, layer.scope)
        if script is None and definition.entry.definition_cid:
            script = self._from_contents(server_id, definition.entry.definition_cid, self._contents[layer.scope])
        known = self._servers.get(server_id)
        if known is not None and known[0] is script and known[1] is definition and known[2].layer == layer:
            return known
        return script, definition, self._found(server_id, layer, script, definition)

    def _from_contents(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> Script:
        """Return the script with the content id *cid*, which an entry names; read again only if its file changed."""
        before, known = self._by_content.get((server_id, cid), (None, None))
        if known is not None and before is not None and settled_signature(known.path) == before:
            return known
        now, fault = None, None
        try:
            now, script = self._content(server_id, cid, directories)
        except McpdError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 -- a boundary: one entry must not hide the other servers
            problem, fault = "internal error while reading it; see the journal", error
        else:
            problem = ""
        if problem:
            found = Inspection(problem=f"{printable(server_id)}: definition_cid: {problem}")
            script = Script(server_id, directories[0] / "nothing", directories[0], "", "", found, is_content=True)
            if fault is not None and known != script:
                _log.error("%s", found.problem, exc_info=fault)
        if known == script:
            script = known
        self._by_content[server_id, cid] = now, script
        return script

    def _content(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> tuple[Signature | None, Script]:
        data, path = contents.find(cid, directories, MAX_SCRIPT)
        if path is None:
            raise InvalidManifest(
                f"the content is not stored, only contained in its id {cid}; 'mcpctl mcps build' stores it"
            )
        # Do not follow a symlink: the files next to its target do not belong to the server.
        root = path.parent.resolve()
        path = root / path.name
        signed = settled_signature(path)
        digest, found = self._inspections.of(data, kind_of(data))
        if found.problem:
            found = Inspection(found.summary, found.version, f"{path}:{found.problem}")
        return signed, Script(server_id, path, root, kind_of(data), digest, found, is_content=True)

    def _found(self, server_id: str, layer: ScriptLayer, script: Script | None, definition: Definition) -> ScriptServer:
        inspection = script.found if script is not None else Inspection()
        path = script.path if script is not None else None
        directory = script.root if script is not None else self._homes[layer.scope] / server_id
        file = ScriptFile(path, script.sha256 if script is not None else "", self._contents[layer.scope])
        document = _document(server_id, script, definition, file)
        manifest, problem = None, inspection.problem
        if not problem:
            try:
                check_id(server_id)
                manifest = Manifest.parse(document, str(path or printable(server_id)))
            except InvalidManifest as error:
                problem = error.message
            except Exception as error:  # noqa: BLE001 -- the same boundary
                problem = f"{printable(server_id)}: internal error while creating its server; see the journal"
                _log.error("%s", problem, exc_info=error)
        return ScriptServer(printable(server_id), layer, directory, file, manifest, problem, document)


def _document(server_id: str, script: Script | None, definition: Definition, file: ScriptFile) -> dict[str, Any]:
    """Return the manifest of a script server, with the ``script`` field that its process needs."""
    entry, inspection = definition.entry, script.found if script is not None else Inspection()
    runtime = entry.runtime.to_json()
    runtime["callTimeout"] = entry.runtime.seconds + GRACE
    if "sharing" not in runtime:
        runtime["sharing"] = "caller"
    kept = {
        key: definition.raw[key] for key in ("permissions", "env", "configurableProperties") if key in definition.raw
    }
    return {
        "id": server_id,
        "name": server_id,
        "summary": entry.summary or inspection.summary,
        "description": entry.description,
        "version": inspection.version,
        "transports": [{"type": "stdio", "command": "mcpctl", "args": ["run", server_id]}],
        **kept,
        "runtime": runtime,
        "origin": {"source": str(file.path)} if file.path is not None else {},
        "script": {
            "path": str(file.path or ""),
            "kind": script.kind if script is not None else "",
            "sha256": file.sha256,
            "editable": script is not None and not script.is_content,
            "narrowed": bool(definition.effective.policy),
            "entry": definition.raw,
            "contents": [str(directory) for directory in file.contents],
        },
    }
