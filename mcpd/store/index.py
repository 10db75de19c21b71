# SPDX-License-Identifier: LGPL-2.1-or-later
"""The servers of each layer, and the combined view of all layers that one scope reads.

A layer is read from its ``index.json`` and by scanning its directory, in every layout that other tools use.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidConfig, InvalidManifest, NotFound
from mcpd.files import Signature, Staged, is_missing, make_directory, read_file, settled, signature, write_atomic
from mcpd.model import (
    ID_PATTERN,
    Index,
    JsonValue,
    Manifest,
    Pointer,
    check_id,
    dump_json,
    load_json,
    parse_index,
    printable,
)
from mcpd.paths import Layout, Paths, Scope
from mcpd.scripts.mcps import NO_ENTRY, McpsMap, ServerEntry
from mcpd.scripts.servers import ScriptFile, ScriptLayer, ScriptServer, ScriptServers
from mcpd.store import config
from mcpd.store.config import MANIFEST, Configuration, ValueFiles
from mcpd.store.generations import Marker, read_marker

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcpd.paths import LayerName

_log = logging.getLogger(__name__)


class IndexFile:
    """The ``index.json`` of one layer; without it, servers are found only by scanning the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        """Reason why the file cannot be used; it is then treated as missing."""
        self._read: tuple[Signature | None, Index] = (None, Index())

    def read(self) -> Index:
        """Return the index, parsed again only if the file changed."""
        try:
            status = self.path.stat()
            now = signature(status)
            if now == self._read[0]:
                return self._read[1]
            index = parse_index(load_json(read_file(self.path), str(self.path)), str(self.path))
            self.fault = ""
        except InvalidManifest as error:
            index = self._unusable(error.message)
        except OSError as error:
            if is_missing(error):
                self.fault = ""
                self._read = (None, Index())
                return self._read[1]
            index = self._unusable(f"{self.path}: {error.strerror}")
            now, status = None, None
        for problem in index.problems:
            _log.warning("%s", problem.message)
        self._read = (now if status is not None and settled(status) else None, index)
        return index

    def _unusable(self, fault: str) -> Index:
        if fault != self.fault:
            _log.warning("%s; ignoring the index and scanning the directory", fault)
        self.fault = fault
        return Index()

    def stage(self, index: Index) -> Staged:
        """Return a staged file with *index*; a broken existing file is first copied to ``*.broken``."""
        if self.fault:
            self._keep_broken()
        return Staged(self.path, dump_json(index.to_json()))

    def _keep_broken(self) -> None:
        try:
            write_atomic(self.path.with_name(f"{self.path.name}.broken"), read_file(self.path, 1 << 28), 0o600)
        except (InvalidManifest, OSError) as error:
            _log.warning("could not copy the broken index %s: %s", self.path, error)


class Kind(Enum):
    """Form in which a server is stored."""

    MANAGED = auto()
    """A symlink to a generation."""
    DIRECTORY = auto()
    """A plain directory, created by another tool."""
    LINKED = auto()
    """A directory elsewhere, named by a symlink or by the index; never written."""
    EMBEDDED = auto()
    """A manifest in an index of the older form, without a file of its own."""
    VENDOR = auto()
    """A directory of the read-only vendor layer."""
    SCRIPT = auto()
    """A script, or an entry of the mcps map, without a manifest file."""
    NOTHING = auto()
    """An index pointer to a missing file, or a key that is not a valid id."""


@dataclass(frozen=True, slots=True)
class LayerServer:
    """One server of one layer."""

    id: str
    kind: Kind
    directory: Path
    generation: Path
    manifest_path: Path
    manifest: Manifest | None = None
    """The manifest without sensitive values; None if the server is broken."""
    problem: str = ""
    exposed: frozenset[str] = frozenset()
    """Keys of sensitive values that another tool wrote into the manifest."""
    document: dict[str, Any] | None = field(default=None, repr=False)
    """The manifest as it is embedded in an index of the older form, or as generated for a script."""
    script: ScriptServer | None = None

    def load(self) -> dict[str, Any]:
        """Return the manifest as it is in the file, including sensitive values.

        Raises :class:`~mcpd.errors.InvalidManifest`.
        """
        if self.document is not None:
            return dict(self.document)
        return config.load(self.manifest_path)


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """An installed server, possibly a broken one."""

    id: str
    """Printable id. An invalid one (see ``problem``) is never used in a path."""
    scope: Scope
    layer: LayerName
    manifest: Manifest | None
    """None if the server is broken; ``config`` has no sensitive values."""
    directory: Path
    """``installDir``: the server's own path, the same for all its generations."""
    generation: Path
    """The real directory behind ``directory``."""
    problem: str
    """Reason why the server cannot be used; empty if it can."""
    writable: bool
    """True if this instance may update and remove the server."""
    configured: bool
    """True if all required values are set."""
    entry: ServerEntry = NO_ENTRY
    """The effect of the mcps map on the server."""
    values: tuple[Signature | None, ...] = ()
    """Signatures of the files with its values and secrets."""
    script: ScriptFile | None = None
    """The script of a script server; None for other servers."""
    manifest_path: Path | None = None
    """The manifest file, which may be outside ``directory``; None for a script server."""
    clash: str = ""
    """Message about a script that is ignored because it has the same id; else empty."""
    pending: str = ""
    """Version of the pending update; empty if there is no pending update, or if it has no version."""
    pending_generation: int = 0
    """Generation number of the pending update; 0 if there is none."""


class Layer:
    """The servers below one directory. A scan without changes costs one ``stat`` per server."""

    def __init__(self, name: LayerName, scope: Scope, root: Path, generations: Path | None) -> None:
        """*generations* is the directory that the links below *root* point into; None for the vendor layer."""
        self.name = name
        self.scope = scope
        self.root = root
        self.index = IndexFile(root / "index.json") if generations is not None else None
        self._generations = generations
        self._cache: dict[str, tuple[Signature, str, LayerServer]] = {}
        self._embedded_cache: dict[str, LayerServer] = {}
        self._held_cache: dict[str, tuple[Signature, int, str]] = {}
        self._warned: dict[str, str] = {}

    def scan(self) -> dict[str, LayerServer]:
        """Return all servers by id."""
        index = self._index()
        names = self._names()
        found: dict[str, LayerServer] = {}
        for name in names:
            server = self._find(name, index.servers.get(name), listed=True)
            if server is not None:
                found[server.id] = server
        for name, pointer in index.servers.items():
            if name not in names:
                found[name] = self._find(name, pointer, listed=False) or self._nothing(name, pointer)
        for problem in index.problems:
            found.setdefault(problem.server_id, self._broken(problem.server_id, problem.message))
        for name in self._cache.keys() - found.keys():
            self._cache.pop(name, None)
        return found

    def find(self, server_id: str) -> LayerServer | None:
        """Return the server *server_id*, which may be the printable form of an invalid key."""
        index = self._index()
        if not ID_PATTERN.fullmatch(server_id):
            return self.scan().get(server_id)
        pointer = index.servers.get(server_id)
        found = self._find(server_id, pointer, listed=os.path.lexists(self.root / server_id))
        if found is None and pointer is not None:
            return self._nothing(server_id, pointer)
        if found is None:
            problem = next((p for p in index.problems if p.server_id == server_id), None)
            return self._broken(server_id, problem.message) if problem else None
        return found

    def held(self, found: LayerServer) -> tuple[int, str]:
        """Return the generation number and version of the pending update of *found*; 0 and empty if there is none.

        The version is also empty if the update does not state one.
        """
        if self._generations is None or not ID_PATTERN.fullmatch(found.id):
            return 0, ""
        home = self._generations / found.id
        try:
            status = os.stat(f"{home}/{Marker.HELD}/{MANIFEST}")  # noqa: PTH116 - for every server of a listing
        except OSError:
            self._held_cache.pop(found.id, None)
            return 0, ""
        cached = self._held_cache.get(found.id)
        if cached is None or cached[0] != signature(status):
            cached = signature(status), *_waiting(home)
            if settled(status):
                self._held_cache[found.id] = cached
        active = int(found.generation.name) if found.kind is Kind.MANAGED else 0
        return cached[1:] if cached[1] > active else (0, "")

    def present(self) -> set[str]:
        """Return the ids of servers whose manifest is below this layer's directory."""
        return {n for n in self._names() if ID_PATTERN.fullmatch(n) and os.path.exists(f"{self.root}/{n}/{MANIFEST}")}  # noqa: PTH110

    def _index(self) -> Index:
        return self.index.read() if self.index is not None else Index()

    def _names(self) -> set[str]:
        """Return the names that may be servers; names with a leading dot, of incomplete directories, are left out."""
        try:
            with os.scandir(self.root) as entries:
                return {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir(follow_symlinks=False))
                }
        except OSError as error:
            if not is_missing(error):
                _log.warning("%s: %s", self.root, error.strerror)
            return set()

    def _find(self, name: str, pointer: Pointer | None, *, listed: bool) -> LayerServer | None:
        """Return the server behind *name*, None if there is none."""
        places = [f"{self.root}/{name}/{MANIFEST}"] if listed else []
        if pointer is not None and pointer.location:
            places.append(pointer.location)
        for path in places:
            try:
                return self._cached(name, path, os.stat(path))  # noqa: PTH116 - for every server of a listing
            except OSError as error:
                if not is_missing(error):
                    return self._broken(name, f"{path}: {error.strerror}")
        if pointer is not None and pointer.embedded is not None:
            return self._embedded(name, pointer.embedded)
        if listed and os.path.islink(f"{self.root}/{name}"):  # noqa: PTH114
            return self._broken(name, f"{self.root / name}: points to a directory without {MANIFEST}; remove the link")
        return None

    def _cached(self, name: str, path: str, status: os.stat_result) -> LayerServer:
        now = signature(status)
        cached = self._cache.get(name)
        if cached is not None and cached[0] == now and cached[1] == path:
            return cached[2]
        found = self._read(name, Path(path))
        if settled(status):
            self._cache[name] = (now, path, found)
        else:
            self._cache.pop(name, None)
        return found

    def _read(self, name: str, path: Path) -> LayerServer:
        directory = path.parent
        kind, generation = self._behind(name, directory)
        shell = LayerServer(printable(name), kind, directory, generation, path)
        try:
            check_id(name)
            data = shell.load()
        except InvalidManifest as error:
            return self._broken(name, error.message, shell)
        return self._parsed(shell, data)

    def _parsed(self, shell: LayerServer, data: dict[str, Any]) -> LayerServer:
        try:
            manifest = Manifest.parse({**data, "id": data.get("id") or shell.id}, str(shell.manifest_path))
        except InvalidManifest as error:
            return self._broken(shell.id, error.message, shell)
        if manifest.id != shell.id:
            problem = f"{shell.manifest_path}: contains the manifest of {manifest.id!r}, not of {shell.id!r}"
            return self._broken(shell.id, problem, shell)
        sensitive = {p.key for p in manifest.configurable_properties if p.sensitive}
        exposed = frozenset(key for key in sensitive if manifest.config.pop(key, None) not in (None, ""))
        directory = shell.directory
        if shell.kind in (Kind.DIRECTORY, Kind.LINKED, Kind.EMBEDDED) and Path(manifest.install_dir).is_absolute():
            # Other tools may keep the manifest outside the server's directory.
            named = Path(manifest.install_dir)
            directory = named if named.is_dir() else directory
        return LayerServer(
            shell.id,
            shell.kind,
            directory,
            shell.generation if directory == shell.directory else directory.resolve(),
            shell.manifest_path,
            manifest,
            exposed=exposed,
            document=shell.document,
        )

    def _behind(self, name: str, directory: Path) -> tuple[Kind, Path]:
        """Return the kind of *directory*, and the real directory behind it."""
        if self._generations is None:
            return Kind.VENDOR, directory.resolve()
        if directory != self.root / name:
            return Kind.LINKED, directory.resolve()
        try:
            target = directory.readlink()
        except OSError:
            return Kind.DIRECTORY, directory.resolve()
        if target.name.isdecimal() and target.parent == Path("..", self._generations.name, name):
            return Kind.MANAGED, self._generations / name / target.name
        return Kind.LINKED, directory.resolve()

    def _embedded(self, name: str, data: dict[str, Any]) -> LayerServer:
        cached = self._embedded_cache.get(name)
        if cached is not None and cached.document is data:
            return cached
        directory = self.root / name
        shell = LayerServer(name, Kind.EMBEDDED, directory, directory, directory / MANIFEST, document=data)
        self._embedded_cache[name] = found = self._parsed(shell, data)
        return found

    def _nothing(self, name: str, pointer: Pointer) -> LayerServer:
        problem = f"the index points to {pointer.location or name}, which is missing; reinstall or remove the server"
        return self._broken(name, problem)

    def _broken(self, name: str, problem: str, shell: LayerServer | None = None) -> LayerServer:
        if self._warned.get(name) != problem:
            self._warned[name] = problem
            _log.warning("%s: %s", printable(name), problem)
        if shell is not None:
            return replace(shell, problem=problem)
        shown = printable(name)
        directory = self.root / shown if ID_PATTERN.fullmatch(shown) else self.root
        kind = Kind.LINKED if directory != self.root and directory.is_symlink() else Kind.NOTHING
        return LayerServer(shown, kind, directory, directory, directory / MANIFEST, problem=problem)


def _waiting(home: Path) -> tuple[int, str]:
    """Return number and version of the pending update in *home*, the directory of a server's generations."""
    number = read_marker(home, Marker.HELD)
    if number is None:
        return 0, ""
    try:
        version = config.load(home / str(number) / MANIFEST).get("version")
    except InvalidManifest as error:
        _log.warning("%s", error.message)
        return 0, ""
    return number, version if isinstance(version, str) else ""


def migrate_index(view: View) -> None:
    """Replace an index of the older form with pointers, after writing a ``manifest.json`` for each of its servers.

    The caller holds the lock. If interrupted, the old index still applies and the manifests agree with it.
    """
    if view.own.index is None:
        return
    index = view.own.index.read()
    if not index.legacy:
        return
    servers: dict[str, Pointer] = {}
    for server_id, found in view.own.scan().items():
        pointer = index.servers.get(server_id)
        if pointer is not None and pointer.embedded is not None and found.kind is Kind.EMBEDDED:
            _write_manifest(view, found, pointer.embedded)
        servers[server_id] = Pointer(str(view.layout.installed / server_id / MANIFEST))
    for key in index.broken:
        servers.pop(key, None)
    new: Index = replace(index, servers=servers, legacy=False, problems=[])
    with view.own.index.stage(new) as staged:
        staged.commit()
    _log.info("%s: rewritten with pointers to %d manifests", view.own.index.path, len(servers))


def _write_manifest(view: View, found: LayerServer, embedded: dict[str, Any]) -> None:
    document = dict(embedded)
    if found.manifest is not None:
        shown, hidden = config.split(found.manifest, config.config_of(document))
        if hidden:
            view.secrets.write(found.id, {**view.secrets.read(found.id), **hidden})
            document["config"] = shown
    make_directory(found.manifest_path.parent)
    write_atomic(found.manifest_path, config.dump(document))


AnyLayer: TypeAlias = Layer | ScriptLayer
"""Layer that a server belongs to."""
_OWN: Final = frozenset({Kind.MANAGED, Kind.DIRECTORY, Kind.EMBEDDED})
"""Kinds whose manifest this scope may write."""


class View:
    """The layers that one scope reads, highest precedence first, with their overlays and secrets."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self.scope: Final = scope
        self.layout: Final[Layout] = paths.layout(scope)
        layers = [
            Layer("system", Scope.SYSTEM, paths.system.installed, paths.system.generations),
            Layer("vendor", Scope.SYSTEM, paths.vendor, None),
        ]
        # Users may read this overlay: it has the administrator's values for vendor servers.
        overlays = [ValueFiles(paths.system.overlay, mode=0o644, directory_mode=0o755, own=scope is Scope.SYSTEM)]
        if scope is Scope.USER:
            layers.insert(0, Layer("user", Scope.USER, paths.user.installed, paths.user.generations))
            overlays.append(ValueFiles(paths.user.overlay, mode=0o600, directory_mode=0o700))
        self.layers: Final = layers
        self.secrets: Final = ValueFiles(self.layout.secrets, mode=0o600, directory_mode=0o700)
        self.overlay: Final = overlays[-1]
        """This scope's values for servers of other layers, and the kept values of removed servers."""
        self._overlays: Final = overlays
        self._valued: frozenset[str] = frozenset()
        """Ids of servers with values in an overlay or with secrets."""
        self._mcps: Final = McpsMap(paths, scope)
        self._scripts: Final = ScriptServers(paths, scope, self._mcps)
        self._shown: dict[str, tuple[LayerServer, tuple[Signature | None, ...], InstalledServer]] = {}

    @property
    def own(self) -> Layer:
        """Layer that this scope writes."""
        return self.layers[0]

    def all(self, *, edits: bool) -> list[InstalledServer]:
        """Return every server once, sorted by id; without *edits*, scripts and the mcps map are not read again."""
        merged: dict[str, tuple[AnyLayer, LayerServer]] = {}
        for layer in self.layers:
            for server_id, found in layer.scan().items():
                # An index pointer to a missing file does not hide a server of a lower layer.
                if server_id not in merged or merged[server_id][1].kind is Kind.NOTHING:
                    merged[server_id] = (layer, found)
        self._refresh_values()
        scripts = None if edits else self._scripts.seen
        if scripts is None:
            self._mcps.refresh()
            scripts = self._scripts.scan(wait=False)
        for server_id, made in scripts.items():
            # An installed server takes precedence over a script with its id.
            if server_id not in merged or merged[server_id][1].kind is Kind.NOTHING:
                merged[server_id] = self._from_script(made)
        shown = {server_id: self._show(layer, found) for server_id, (layer, found) in merged.items()}
        for server_id in list(self._shown):  # a copy: other threads add to it
            if server_id not in shown:
                self._shown.pop(server_id, None)
        return [shown[server_id] for server_id in sorted(shown)]

    def find(self, server_id: str) -> tuple[AnyLayer, LayerServer]:
        """Return the server *server_id* of the highest layer that has it. Raises :class:`~mcpd.errors.NotFound`."""
        nothing: tuple[Layer, LayerServer] | None = None
        for layer in self.layers:
            found = layer.find(server_id)
            if found is not None and found.kind is not Kind.NOTHING:
                return layer, found
            if found is not None and nothing is None:
                nothing = layer, found
        self._mcps.refresh()
        made = self._scripts.scan().get(server_id)
        if made is not None:
            return self._from_script(made)
        if nothing is None:
            raise NotFound(
                f"no server {printable(server_id)!r} is installed; 'mcpctl list' lists the installed servers"
            )
        return nothing

    def show(self, layer: AnyLayer, found: LayerServer) -> InstalledServer:
        """Return the public record of *found*, a result of :meth:`find`."""
        self._refresh_values()
        if found.script is None:
            self._mcps.refresh()
            self._scripts.scan(wait=False)  # to report a script with the same id
        return self._show(layer, found)

    def edits(self) -> tuple[int, int]:
        """Return version numbers of the mcps map and of the scripts, after reading them again if they changed."""
        self._mcps.refresh()
        self._scripts.scan()
        return self._mcps.version, self._scripts.version

    def is_own(self, layer: AnyLayer, found: LayerServer) -> bool:
        """Return whether this scope writes the manifest of *found*; otherwise values go to the overlay."""
        return layer is self.own and found.kind in _OWN

    def values(self, layer: AnyLayer, found: LayerServer) -> list[dict[str, JsonValue]]:
        """Return the public values of *found*, lowest precedence first. Raises :class:`~mcpd.errors.InvalidConfig`."""
        overlays = [self.overlay] if layer.scope is Scope.USER else self._overlays
        config = found.manifest.config if found.manifest is not None else {}
        return [config, *(overlay.read(found.id) for overlay in overlays)]

    def configuration(self, layer: AnyLayer, found: LayerServer) -> Configuration:
        """Return the public configuration of *found*. Raises :class:`~mcpd.errors.McpdError` if it cannot be read."""
        manifest = usable(found)
        merged = config.merge(manifest, self.values(layer, found))
        return config.public(manifest, merged, [*self.secrets.read(found.id), *found.exposed])

    def stage_index(self, *, add: Collection[str] = (), remove: Collection[str] = ()) -> Staged | None:
        """Return a staged index with all present servers and *add*, but without *remove*.

        Returns None if the file is already the same. An index of the older form must be migrated first.
        """
        if self.own.index is None:
            return None
        old = self.own.index.read()
        servers = {key: pointer for key, pointer in old.servers.items() if key not in remove}
        for key in sorted({*add, *self.own.present()} - servers.keys() - set(remove)):
            servers[key] = Pointer(str(self.layout.installed / key / MANIFEST))
        for key in add:
            servers[key] = replace(servers[key], location=str(self.layout.installed / key / MANIFEST), embedded=None)
        broken = {key: raw for key, raw in old.broken.items() if printable(key) not in remove and key not in servers}
        new = replace(old, servers=servers, broken=broken)
        if new.to_json() == old.to_json() and self.own.index.path.exists() and not self.own.index.fault:
            return None
        make_directory(self.layout.installed.resolve())
        return self.own.index.stage(new)

    def _from_script(self, made: ScriptServer) -> tuple[ScriptLayer, LayerServer]:
        """Return the layer and the record of *made*; the record is the same object until *made* changes."""
        shown = self._shown.get(made.id)
        if shown is not None and shown[0].script is made:
            return made.layer, shown[0]
        found = LayerServer(
            made.id,
            Kind.SCRIPT,
            made.directory,
            made.directory,
            made.file.path or made.directory,
            made.manifest,
            made.problem,
            document=made.document,
            script=made,
        )
        return made.layer, found

    def _refresh_values(self) -> None:
        files = (self.secrets, *self._overlays)
        self._valued = frozenset().union(*(each.ids() for each in files))

    def _show(self, layer: AnyLayer, found: LayerServer) -> InstalledServer:
        signatures: tuple[Signature | None, ...] = ()
        if found.id in self._valued:
            signatures = tuple(files.signature(found.id) for files in (self.secrets, *self._overlays))
        is_script = found.kind is Kind.SCRIPT
        entry = self._mcps.definition(found.id, layer.scope).effective if is_script else self._mcps.entry(found.id)
        clash = self._scripts.clash(found.id, installed=not is_script)
        waiting = layer.held(found) if isinstance(layer, Layer) else (0, "")
        cached = self._shown.get(found.id)
        if cached is not None and cached[0] is found and cached[1] == signatures:
            known = cached[2]
            if known.entry is entry and known.clash == clash and (known.pending_generation, known.pending) == waiting:
                return known
        configured, problem = False, found.problem
        if found.manifest is not None:
            try:
                configured = not self.configuration(layer, found).missing
            except InvalidConfig as error:
                problem = error.message
        shown = InstalledServer(
            id=found.id,
            scope=layer.scope,
            layer=layer.name,
            manifest=found.manifest,
            directory=found.directory,
            generation=found.generation,
            problem=problem,
            writable=layer is self.own,
            configured=configured,
            entry=entry,
            values=signatures,
            script=found.script.file if found.script is not None else None,
            manifest_path=None if is_script else found.manifest_path,
            clash=clash,
            pending=waiting[1],
            pending_generation=waiting[0],
        )
        self._shown[found.id] = (found, signatures, shown)
        return shown


def usable(found: LayerServer) -> Manifest:
    """Return the manifest of *found*. Raises :class:`~mcpd.errors.InvalidManifest` with the reason if there is none."""
    if found.manifest is None:
        raise InvalidManifest(f"{found.id} cannot be used: {found.problem}")
    return found.manifest
