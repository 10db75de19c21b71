# SPDX-License-Identifier: LGPL-2.1-or-later
"""All layers as one scope sees them, and the files of the layer it writes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import InvalidConfig, InvalidManifest, NotFound
from mcpd.files import Signature, Staged, make_directory
from mcpd.model import JsonValue, Manifest, Pointer, printable
from mcpd.paths import Layout, Paths, Scope
from mcpd.scripts.mcps import McpsMap
from mcpd.scripts.servers import ScriptLayer, ScriptServer, ScriptServers
from mcpd.store import config
from mcpd.store.config import ValueFiles
from mcpd.store.index import Kind, Layer, LayerServer
from mcpd.store.records import MANIFEST, Configuration, InstalledServer

if TYPE_CHECKING:
    from collections.abc import Collection

_log = logging.getLogger(__name__)

AnyLayer: TypeAlias = Layer | ScriptLayer
"""Layer that a server belongs to."""
_OWN: Final = frozenset({Kind.MANAGED, Kind.DIRECTORY, Kind.EMBEDDED})
"""Kinds whose manifest this scope may write."""


class View:
    """The layers by falling precedence, with the overlays and secrets applied to them."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self.scope: Final = scope
        self.layout: Final[Layout] = paths.layout(scope)
        layers = [
            Layer("system", Scope.SYSTEM, paths.system.installed, paths.system.generations),
            Layer("vendor", Scope.SYSTEM, paths.vendor, None),
        ]
        # Users read the values that the administrator set for vendor servers.
        overlays = [ValueFiles(paths.system.overlay, mode=0o644, directory_mode=0o755, own=scope is Scope.SYSTEM)]
        if scope is Scope.USER:
            layers.insert(0, Layer("user", Scope.USER, paths.user.installed, paths.user.generations))
            overlays.append(ValueFiles(paths.user.overlay, mode=0o600, directory_mode=0o700))
        self.layers: Final = layers
        self.secrets: Final = ValueFiles(self.layout.secrets, mode=0o600, directory_mode=0o700)
        self.overlay: Final = overlays[-1]
        """This scope's values for servers it does not own, and those kept of removed servers."""
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
        """Return every server once, sorted by id; without *edits*, scripts and the mcps map as last read."""
        merged: dict[str, tuple[AnyLayer, LayerServer]] = {}
        for layer in self.layers:
            for server_id, found in layer.scan().items():
                # A pointer to nothing hides no server of a lower layer.
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
            raise NotFound(f"no server {printable(server_id)!r} is installed; 'mcpctl list' names those that are")
        return nothing

    def show(self, layer: AnyLayer, found: LayerServer) -> InstalledServer:
        """Return the public record of *found*, which was just found."""
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
        """Return the public values of *found* by rising precedence. Raises :class:`~mcpd.errors.InvalidConfig`."""
        overlays = [self.overlay] if layer.scope is Scope.USER else self._overlays
        config = found.manifest.config if found.manifest is not None else {}
        return [config, *(overlay.read(found.id) for overlay in overlays)]

    def configuration(self, layer: AnyLayer, found: LayerServer) -> Configuration:
        """Return the public configuration of *found*. Raises errors of reading it."""
        manifest = usable(found)
        merged = config.merge(manifest, self.values(layer, found))
        return config.public(manifest, merged, [*self.secrets.read(found.id), *found.exposed])

    def stage_index(self, *, add: Collection[str] = (), remove: Collection[str] = ()) -> Staged | None:
        """Prepare an index with all present servers and *add*, but without *remove*.

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
        """Return layer and server of *made*; the same object as long as its script and its entry do not change."""
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
