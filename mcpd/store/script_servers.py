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
from dataclasses import astuple, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidManifest, McpdError
from mcpd.model import Manifest, check_id, load_json, printable
from mcpd.paths import Scope
from mcpd.store import contents
from mcpd.store.files import (
    Signature,
    is_missing,
    make_directory,
    read_file,
    settled,
    settled_signature,
    signature,
    write_atomic,
)
from mcpd.store.index import Kind, LayerServer
from mcpd.store.inspection import MAX_SCRIPT, SUFFIXES, Inspection, ScriptKind, inspect, kind_of
from mcpd.store.records import LayerName, ScriptFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.store.mcps import Definition, McpsMap

_log = logging.getLogger(__name__)

_DEAR: Final = 0.25
"""Seconds that reading a script may take without being kept at once."""
_OFTEN: Final = 1.0
"""Seconds between two times that the others are, while scripts are read."""
_NO_SIGNATURE: Final[Signature] = (-1, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class Script:
    """One script, read."""

    id: str
    """As it is listed; see ``found.problem`` for one that is no server id."""
    path: Path
    """Where it really lies."""
    root: Path
    """The directory that it is a script of; it lies elsewhere if a symlink in there leads to it."""
    kind: ScriptKind
    sha256: str
    """Of its content, in hexadecimal; empty if it cannot be read."""
    found: Inspection
    is_content: bool = False
    """Whether an entry names it by its content, so that it cannot become another one."""

    @property
    def key(self) -> str:
        """Under which :class:`Inspections` knows it."""
        return _key(self.kind, self.sha256)


def _key(kind: ScriptKind, digest: str) -> str:
    return f"{kind}:{digest}"


class Inspections:
    """What was found in scripts, by content; kept in a file, so that a start reads nothing twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Inspection] = {}
        self._loaded = False
        self._changed = False
        self._written = time.monotonic()
        self._lock = threading.Lock()

    def of(self, data: bytes, kind: ScriptKind) -> tuple[str, Inspection]:
        """The SHA-256 of *data*, and what is to be said of it. Raises what :func:`inspect` does."""
        digest = hashlib.sha256(data).hexdigest()
        key = _key(kind, digest)
        with self._lock:
            if not self._loaded:
                self._load()
            known = self._known.get(key)
        if known is None:
            # Without the lock: whoever asks for what is known does not wait for a shell to read a script.
            began = time.monotonic()
            known = inspect(data, kind)
            took = time.monotonic() - began
            with self._lock:
                self._known[key] = known
                self._changed = True
                is_due = took > _DEAR or time.monotonic() - self._written > _OFTEN
            if is_due:
                self._write()
        return digest, known

    def save(self, used: Iterable[Script]) -> None:
        """Write the file, with what was found in *used*, if that is not what it holds."""
        with self._lock:
            if not self._changed:
                return
            keys = {script.key for script in used}
            self._known = {key: found for key, found in self._known.items() if key in keys}
        self._write()

    def _write(self) -> None:
        """Keep what is known: a start after one that was cut short goes on where that ended."""
        with self._lock:
            self._changed, self._written = False, time.monotonic()
            kept = {key: list(astuple(found)) for key, found in self._known.items()}
        try:
            make_directory(self._path.parent)
            write_atomic(self._path, json.dumps({"by": _reader(), "scripts": kept}).encode())
        except McpdError as error:
            _log.debug("what was found in scripts is not kept: %s", error.message)

    def _load(self) -> None:
        self._loaded = True
        try:
            data = load_json(read_file(self._path), str(self._path))
        except InvalidManifest as error:
            _log.warning("%s; the scripts are read again", error.message)
            return
        except OSError:
            return
        if not isinstance(data, dict) or data.get("by") != _reader() or not isinstance(data.get("scripts"), dict):
            return
        for key, found in data["scripts"].items():
            if isinstance(found, list) and len(found) == 3 and all(isinstance(part, str) for part in found):
                self._known[key] = Inspection(*found)


def _reader() -> str:
    """What is an error to one Python may be none to the next."""
    return f"3 {sys.version}"


def _may_be_script(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return True  # That it cannot be looked at is told of it in the listing.


class ScriptDirectory:
    """The scripts in one directory. Looking again is cheap when nothing changed: one ``stat`` for each."""

    def __init__(self, root: Path, inspections: Inspections) -> None:
        self.root = root
        self._inspections = inspections
        self._cache: dict[str, tuple[Signature, Script]] = {}
        self._fault = ""
        self.hidden: dict[str, Path] = {}
        """Files of the last scan that are not used, as another one has the same stem."""

    def scan(self) -> dict[str, Script]:
        """The scripts, by id; those whose name is no id under what can be shown of it."""
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
        """Hidden files and those with ``_`` before their name are no servers: the latter others may import."""
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
            _log.warning("%s; its scripts are no servers until that is mended", fault)
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
        except Exception as error:  # noqa: BLE001 -- a boundary: no script takes the others away
            return self._broken(name, f"{path}: it cannot be looked at, by a fault of mcpd's own", error)
        # What is too new to be told from the next edit is not to be taken for unchanged.
        return self._kept(name, now if settled(status) else _NO_SIGNATURE, script)

    def _kept(self, name: str, now: Signature, script: Script) -> Script:
        """*script*, or the same object as before if it is the same."""
        known = self._cache.get(name)
        if known is not None and known[1] == script:
            script = known[1]
        self._cache[name] = (now, script)
        return script

    def _broken(self, name: str, problem: str, fault: Exception | None = None) -> Script:
        """It is read anew at each look; a *fault* of ours is logged once."""
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
        """All that were found by the last scan."""
        return (script for _, script in self._cache.values())


GRACE: Final = 5.0
"""Seconds by which the bridge waits longer, so that the server can tell of a time-out itself."""


@dataclass(frozen=True, slots=True)
class ScriptLayer:
    """Where a script server comes from."""

    name: LayerName
    scope: Scope


_Made: TypeAlias = tuple[ScriptLayer, LayerServer]
_Known: TypeAlias = "tuple[Script | None, Definition, _Made]"


class ScriptServers:
    """The script servers as one scope sees them. May be used by several threads."""

    def __init__(self, paths: Paths, scope: Scope, mcps: McpsMap) -> None:
        self._mcps = mcps
        self._inspections = Inspections(paths.layout(scope).cache / "scripts.json")
        # What an administrator names by its content is not looked for where a user can put something.
        self._contents = {each: tuple(paths.contents(each)) for each in (Scope.SYSTEM, scope)}
        self._homes = {layout.scope: layout.state for layout in (paths.system, paths.layout(scope))}
        layers = [("system", Scope.SYSTEM, paths.system.scripts), ("vendor", Scope.SYSTEM, paths.vendor_scripts)]
        if scope is Scope.USER:
            layers.insert(0, ("user", Scope.USER, paths.user.scripts))
        self._layers: list[tuple[ScriptLayer, ScriptDirectory]] = [
            (ScriptLayer(name, scope), ScriptDirectory(root, self._inspections))  # type: ignore[arg-type] # literals
            for name, scope, root in layers
        ]
        self._made: dict[str, _Known] = {}
        self._hidden: dict[str, Path] = {}
        self._files: dict[str, Path] = {}
        self._stored: dict[tuple[str, str], tuple[Signature | None, Script]] = {}
        self._lock = threading.Lock()
        self._scanned: dict[str, _Made] | None = None
        self.version = 0
        """Another number whenever :meth:`scan` found something else."""

    def scan(self, *, wait: bool = True) -> dict[str, _Made]:
        """All of them, by id. The map has to have been refreshed before.

        Another thread that looks may take its time, if scripts are new; who does not *wait* for it gets what was there
        before, which is nothing before the first look is done.
        """
        if not self._lock.acquire(blocking=wait):
            return self._scanned or {}
        try:
            self._scanned = self._scan()
        finally:
            self._lock.release()
        return self._scanned

    @property
    def seen(self) -> dict[str, _Made] | None:
        """What the last :meth:`scan` found; None before the first."""
        return self._scanned

    def _scan(self) -> dict[str, _Made]:
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
        is_same = made.keys() == self._made.keys() and all(made[key] is self._made[key] for key in made)
        if not is_same or hidden != self._hidden:
            self.version += 1
        self._made, self._hidden = made, hidden
        named = {(server_id, each[1].entry.definition_cid) for server_id, each in made.items()}
        self._stored = {key: stored for key, stored in self._stored.items() if key in named}
        stored = (script for _, script in self._stored.values())
        self._inspections.save(chain(stored, *(directory.scripts() for _, directory in self._layers)))
        # By the id that is shown, as a key of the map may be none.
        return {each[2][1].id: each[2] for each in made.values()}

    def clash(self, server_id: str, *, installed: bool) -> str:
        """Which script of the last scan is not used, as a server or another script has the id."""
        hidden = self._files.get(server_id) if installed else self._hidden.get(server_id)
        return f"{hidden} has the same id and is not used; rename one of them" if hidden is not None else ""

    def _server(self, server_id: str, layer: ScriptLayer, script: Script | None) -> _Known:
        definition = self._mcps.definition(server_id, layer.scope)
        if script is None and definition.entry.definition_cid:
            script = self._from_contents(server_id, definition.entry.definition_cid, self._contents[layer.scope])
        known = self._made.get(server_id)
        if known is not None and known[0] is script and known[1] is definition and known[2][0] == layer:
            return known
        return script, definition, (layer, self._found(server_id, layer, script, definition))

    def _from_contents(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> Script:
        """The script that an entry names by its content; read again only if its file changed."""
        before, known = self._stored.get((server_id, cid), (None, None))
        if known is not None and before is not None and settled_signature(known.path) == before:
            return known
        now, fault = None, None
        try:
            now, script = self._content(server_id, cid, directories)
        except McpdError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 -- a boundary: no entry takes the other servers away
            problem, fault = "it cannot be looked at, by a fault of mcpd's own", error
        else:
            problem = ""
        if problem:
            found = Inspection(problem=f"{printable(server_id)}: definition_cid: {problem}")
            script = Script(server_id, directories[0] / "nothing", directories[0], "", "", found, is_content=True)
            if fault is not None and known != script:
                _log.error("%s", found.problem, exc_info=fault)
        if known == script:
            script = known
        self._stored[server_id, cid] = now, script
        return script

    def _content(self, server_id: str, cid: str, directories: tuple[Path, ...]) -> tuple[Signature | None, Script]:
        data, path = contents.find(cid, directories, MAX_SCRIPT)
        if path is None:
            raise InvalidManifest(f"the content {cid} is in its id only; 'mcpctl mcps build' stores it")
        # Where a symlink leads is not looked at: what lies beside that is not the server's.
        root = path.parent.resolve()
        path = root / path.name
        signed = settled_signature(path)
        digest, found = self._inspections.of(data, kind_of(data))
        if found.problem:
            found = Inspection(found.summary, found.version, f"{path}:{found.problem}")
        return signed, Script(server_id, path, root, kind_of(data), digest, found, is_content=True)

    def _found(self, server_id: str, layer: ScriptLayer, script: Script | None, definition: Definition) -> LayerServer:
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
                problem = f"{printable(server_id)}: it cannot be made a server, by a fault of mcpd's own"
                _log.error("%s", problem, exc_info=error)
        return LayerServer(
            printable(server_id),
            Kind.SCRIPT,
            directory,
            directory,
            path or directory,
            manifest,
            problem,
            document=document,
            script=file,
        )


def _document(server_id: str, script: Script | None, definition: Definition, file: ScriptFile) -> dict[str, Any]:
    """The manifest of a script server: what an installed one would have, and what its process has to know."""
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
            "narrowed": bool(definition.said.policy),
            "entry": definition.raw,
            "contents": [str(directory) for directory in file.contents],
        },
    }
