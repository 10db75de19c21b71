# SPDX-License-Identifier: LGPL-2.1-or-later
"""Store of installed servers, their configuration, and every change to both."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.errors import ConfigMissing, InvalidArgument, InvalidManifest, NotFound, NotSupported, ReadOnly
from mcpd.files import Staged, WriteLock
from mcpd.model import ConfigProperty, check_id
from mcpd.store import config
from mcpd.store.generations import Generation, Tree, tolerant_cleanup
from mcpd.store.index import InstalledServer, View, migrate_index, usable
from mcpd.store.lifecycle import Lifecycle, ToolFiles, Tools, different_update_waits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mcpd.model import JsonValue, Manifest
    from mcpd.paths import Paths, Scope
    from mcpd.store.config import Configuration
    from mcpd.store.index import AnyLayer, LayerServer


@dataclass(frozen=True, slots=True)
class LaunchManifest:
    """Manifest and values with which a server is started. Contains secrets, so only the server itself may get it."""

    manifest: Manifest
    """The public manifest."""
    data: bytes = field(repr=False)
    """``manifest.json`` with all values whose target is the manifest (or a header, for remote servers)."""
    values: dict[str, JsonValue] = field(repr=False)
    """All values, for the targets ``env`` and ``arg``."""


def set_values(view: View, server_id: str, changes: Mapping[str, JsonValue | None]) -> None:
    """Set values that are not sensitive; None unsets a value. The caller holds the lock."""
    layer, found = view.find(server_id)
    changes = config.checked(usable(found), changes)
    kept = view.secrets.read(found.id)
    # A key that was sensitive in an earlier version of the server may still be among the secrets.
    secrets = {key: value for key, value in kept.items() if key not in changes}
    if view.is_own(layer, found):
        _write_own(view, found.id, changes, secrets, kept)
        return
    view.overlay.write(found.id, _changed(view.overlay.read(found.id), changes))
    if secrets != kept:
        view.secrets.write(found.id, secrets)


def set_secret(view: View, server_id: str, key: str, value: str | None) -> None:
    """Set the value of the sensitive property *key*; None unsets it. The caller holds the lock."""
    layer, found = view.find(server_id)
    change = {key: config.checked_secret(usable(found), key, value)}
    kept = view.secrets.read(found.id)
    secrets = _changed(kept, change)
    if view.is_own(layer, found):
        _write_own(view, found.id, {key: None}, secrets, kept, chosen=key)
    else:
        view.secrets.write(found.id, secrets)


def set_pinned(view: View, server_id: str, *, pinned: bool) -> None:
    """Record in the manifest whether updates skip the server. The caller holds the lock.

    Raises :class:`~mcpd.errors.ReadOnly` for a server of another layer or one whose directory is elsewhere.
    """
    layer, found = view.find(server_id)
    if not view.is_own(layer, found):
        raise ReadOnly(f"{server_id} is not updated by this instance, so it cannot be pinned here")
    manifest = usable(found)
    origin = config.origin_of(manifest)
    if not origin and (manifest.model_extra or {}).get("origin"):
        raise InvalidManifest(f"{found.manifest_path}: origin is not an object; reinstall {server_id} to pin it")
    kept = view.secrets.read(found.id)
    _write_own(view, found.id, {}, kept, kept, fields={"origin": {**origin, "pinned": pinned}})


def forget(view: View, server_id: str) -> None:
    """Delete all values and secrets of a script server, even a broken or missing one. The caller holds the lock.

    Raises :class:`~mcpd.errors.InvalidArgument` for any other server.
    """
    try:
        _, found = view.find(check_id(server_id))
    except NotFound:
        pass
    else:
        if found.script is None:
            raise InvalidArgument(
                f"{server_id} is installed; unset its values one by one, or remove the server to delete them all"
            )
    view.secrets.remove(server_id)
    view.overlay.remove(server_id)


def _write_own(
    view: View,
    server_id: str,
    changes: Mapping[str, JsonValue | None],
    secrets: dict[str, JsonValue],
    kept: dict[str, JsonValue],
    *,
    chosen: str = "",
    fields: Mapping[str, JsonValue] | None = None,
) -> None:
    """Write the manifest with *changes*, moving sensitive values from it to *secrets*.

    *chosen* is the key whose value in *secrets* takes precedence over the manifest's; *fields* replace whole fields of
    the manifest.
    """
    migrate_index(view)
    _, found = view.find(server_id)
    document = found.load()
    values = _changed({**config.config_of(document), **view.overlay.read(server_id)}, changes)
    shown, exposed = config.split(usable(found), values)
    exposed.pop(chosen, None)
    _commit(view, found, {**document, **(fields or {}), "config": shown}, {**secrets, **exposed}, kept)


def _commit(
    view: View, found: LayerServer, document: dict[str, Any], secrets: dict[str, JsonValue], kept: dict[str, JsonValue]
) -> None:
    with ExitStack() as stack:
        manifest = stack.enter_context(Staged(found.manifest_path, config.dump(document)))
        if secrets and secrets != kept:
            stack.enter_context(view.secrets.stage(found.id, secrets)).commit()
        manifest.commit()
    if kept and not secrets:
        view.secrets.remove(found.id)
    view.overlay.remove(found.id)


def _changed(values: Mapping[str, JsonValue], changes: Mapping[str, JsonValue | None]) -> dict[str, JsonValue]:
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if key not in changes or value is not None}


_Servers: TypeAlias = list[InstalledServer]
_Numbers: TypeAlias = list[int]
_Values: TypeAlias = "list[dict[str, JsonValue]]"


class Store:
    """One scope's view of all layers, and the only writer of the scope's own layer.

    The user scope reads user > system > vendor and writes the user's layer; the system scope reads system > vendor,
    writes the system's and never reads a home directory. Methods block on the disk, briefly; those that write also wait
    for other writers (:class:`~mcpd.errors.Busy`). Thread-safe.
    """

    def __init__(self, paths: Paths, scope: Scope, *, keep_generations: int = 3) -> None:
        """*keep_generations* is the number of generations kept of each server, including the active one."""
        self._view = View(paths, scope)
        layout = self._view.layout
        self._tree = Tree(layout, keep_generations)
        self._tools = ToolFiles(layout.cache / "tools")
        self._lifecycle = Lifecycle(self._view, self._tree, self._tools)
        self._lock = WriteLock(layout.generations / ".lock")

    def list(self, *, edits: bool = True) -> _Servers:
        """Return all servers of the merged layers, sorted by id, broken ones included.

        Without *edits* the mcps map and the scripts are not read again, which can take long if scripts are new. A
        caller that must not block calls :meth:`edits` in a thread first.
        """
        return self._view.all(edits=edits)

    def get(self, server_id: str) -> InstalledServer:
        """Return the server *server_id*. Raises :class:`~mcpd.errors.NotFound`."""
        return self._view.show(*self._view.find(server_id))

    def edits(self) -> tuple[int, int]:
        """Return version numbers of the mcps map and of the scripts, which change whenever somebody edits those files.

        Cheap unless there are new scripts, which are read.
        """
        return self._view.edits()

    def manifest_path(self, server_id: str) -> Path:
        """Return the path of the public ``manifest.json``.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.NotSupported` for a script server, which has
        none.
        """
        _, found = self._view.find(server_id)
        if found.script is not None:
            made_from = found.script.file.path or "its entry in the mcps map"
            raise NotSupported(f"{found.id} is a script server and has no manifest; it is made from {made_from}")
        return found.manifest_path

    def problems(self) -> tuple[str, ...]:
        """Return error messages about unreadable index files; their servers are found by scanning instead."""
        return tuple(layer.index.fault for layer in self._view.layers if layer.index is not None and layer.index.fault)

    def config(self, server_id: str) -> Configuration:
        """Return the configuration without sensitive values.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.InvalidManifest`,
        :class:`~mcpd.errors.InvalidConfig`.
        """
        return self._view.configuration(*self._view.find(server_id))

    def launch_manifest(self, server_id: str) -> LaunchManifest:
        """Return the manifest and all values, including secrets, that the server is started with.

        Raises as :meth:`config` does, and :class:`~mcpd.errors.ConfigMissing`.
        """
        layer, found = self._view.find(server_id)
        manifest = usable(found)
        document = found.load()
        merged = config.merge(manifest, self._set(layer, found, document))
        missing = config.public(manifest, merged).missing
        if missing:
            raise ConfigMissing(_missing(found.id, missing))
        values = config.for_manifest(manifest, merged)
        document = {**document, "id": found.id, "installDir": str(found.directory), "config": values}
        return LaunchManifest(manifest, config.dump(document), merged)

    def values(self, server_id: str) -> dict[str, JsonValue]:
        """Return the values that were set, including secrets but not defaults; required ones may be missing.

        Raises as :meth:`config` does.
        """
        layer, found = self._view.find(server_id)
        usable(found)
        merged: dict[str, JsonValue] = {}
        for values in self._set(layer, found, found.load()):
            merged |= {key: value for key, value in values.items() if value is not None}
        return merged

    def kept(self, server_id: str) -> dict[str, JsonValue] | None:
        """Return the values, except secrets, stored outside the manifest; None if neither values nor secrets are."""
        shown, hidden = (files.read(server_id) for files in (self._view.overlay, self._view.secrets))
        return shown if shown or hidden else None

    def _set(self, layer: AnyLayer, found: LayerServer, document: dict[str, Any]) -> _Values:
        """Return the values set for *found*, whose manifest is *document*, in order of rising precedence."""
        exposed = {key: value for key, value in config.config_of(document).items() if key in found.exposed}
        layers = [*self._view.values(layer, found), self._view.secrets.read(found.id)]
        # A value that another tool wrote into a manifest of this scope is newer than the stored secret.
        layers.insert(len(layers) if self._view.is_own(layer, found) else 0, exposed)
        return layers

    def set_config(self, server_id: str, changes: dict[str, JsonValue | None]) -> None:
        """Set values, or unset those that are None.

        Values for servers of another layer go to this scope's overlay. Raises :class:`~mcpd.errors.InvalidConfig` that
        names the key, or an error of writing; then nothing is changed.
        """
        with self.lock():
            set_values(self._view, server_id, changes)

    def set_secret(self, server_id: str, key: str, value: str | None) -> None:
        """Set the sensitive property *key*, or unset it. Raises as :meth:`set_config` does."""
        with self.lock():
            set_secret(self._view, server_id, key, value)

    def set_pinned(self, server_id: str, pinned: bool) -> None:
        """Pin or unpin the server: updates skip a pinned server. This also applies to a pending update.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly` for a server that this scope does not
        write, :class:`~mcpd.errors.InvalidManifest` for a broken one, and errors of writing.
        """
        with self.lock():
            set_pinned(self._view, server_id, pinned=pinned)
            self._lifecycle.pin_held(server_id, pinned=pinned)

    def forget(self, server_id: str) -> None:
        """Delete all values and secrets of a script server, even a broken or missing one.

        Raises :class:`~mcpd.errors.InvalidArgument` for a server that is installed in this scope, and errors of
        writing.
        """
        with self.lock():
            forget(self._view, server_id)

    def new_generation(self, server_id: str) -> Generation:
        """Create an empty directory in its final place, to be filled and then activated or discarded."""
        with self.lock():
            return self._tree.create(check_id(server_id))

    def activate(self, generation: Generation, manifest: Manifest, *, on_trial: bool = False) -> InstalledServer:
        """Make the complete *generation* the active one; the previous one stays until :meth:`prune`.

        ``manifest.config`` holds the values given for this installation, including sensitive ones; all others are
        carried over, as is the pin. A failure or power loss leaves the previous generation active. With *on_trial* all
        generations stay until :meth:`prune`; if this process ends before :meth:`prune`, :meth:`hold` or
        :meth:`discard`, :meth:`recover` reactivates the previous one.
        """
        with self.lock():
            self._lifecycle.activate(generation, manifest, on_trial=on_trial)
            return self.get(generation.server_id)

    def prune(self, server_id: str) -> None:
        """End the trial of the active generation as passed, and remove generations beyond the number to keep.

        A pending update that is older than the active generation is removed, too.
        """
        # End the trial first: if a later step failed, the next start would otherwise roll back a good generation.
        self._tree.pass_trial(check_id(server_id))
        with self.lock():
            self._tree.drop_superseded(server_id)
            self._tree.prune(server_id)

    def discard(self, generation: Generation) -> None:
        """Remove a generation that is neither active nor pending."""
        server_id, number = generation.server_id, generation.number
        with self.lock():
            if number not in (self._tree.active(server_id), self._tree.held(server_id)):
                self._tree.discard(server_id, number)

    def hold(self, generation: Generation, manifest: Manifest, tools: Tools | None = None) -> None:
        """Keep the complete, inactive *generation* as the pending update until :meth:`approve` or :meth:`drop_held`.

        It cannot be the target of a rollback, and it replaces an older pending update. *tools* is its tool catalog, if
        that is not stored yet. On approval, values in ``manifest.config`` apply to properties that have no value by
        then; sensitive ones are set now.

        Raises :class:`~mcpd.errors.NotFound` if the server is not installed in this scope, and errors of writing.
        """
        with self.lock():
            self._lifecycle.hold(generation, manifest, tools)

    def held(self, server_id: str) -> int | None:
        """Return the generation number of the pending update, or None."""
        return self._tree.held(check_id(server_id))

    def approve(self, server_id: str, number: int) -> InstalledServer:
        """Activate the pending update on trial until :meth:`prune`, with the current configuration.

        Raises :class:`~mcpd.errors.NotFound` if there is no pending update, and
        :class:`~mcpd.errors.InvalidArgument` if it is not generation *number*.
        """
        with self.lock():
            self._lifecycle.approve(server_id, number)
            return self.get(server_id)

    def drop_held(self, server_id: str, number: int | None = None) -> None:
        """Remove the pending update, if there is one. Its number is not used again.

        Raises :class:`~mcpd.errors.InvalidArgument` if it is not generation *number*, and errors of removing.
        """
        with self.lock():
            held = self._tree.held(check_id(server_id))
            if held is None:
                return
            if number not in (None, held):
                raise different_update_waits(server_id, held, number)
            self._tree.discard(server_id, held)

    def previous(self, server_id: str, number: int | None = None) -> int:
        """Return the generation that :meth:`rollback` activates. Raises :class:`~mcpd.errors.NotFound`."""
        return self._tree.previous(check_id(server_id), number)

    def rollback(self, server_id: str, number: int | None = None, *, keep_pin: bool = False) -> InstalledServer:
        """Activate generation *number*, or the one before the active one; the configuration stays.

        With *keep_pin* the server stays pinned or unpinned, otherwise the pin of that generation applies. Raises
        :class:`~mcpd.errors.NotFound` if there is no such generation.
        """
        with self.lock():
            self._lifecycle.rollback(server_id, number, keep_pin=keep_pin)
            return self.get(server_id)

    def generations(self, server_id: str) -> _Numbers:
        """Return the numbers of the finished generations, oldest first, without the pending update."""
        return self._tree.numbers(check_id(server_id))

    def generation_path(self, server_id: str, number: int) -> Path:
        """Return the directory of a generation. Raises :class:`~mcpd.errors.NotFound`."""
        path = self._tree.directory(check_id(server_id), number)
        if not path.is_dir():
            raise NotFound(f"{server_id}: there is no generation {number}")
        return path

    def generation_manifest(self, server_id: str, number: int) -> Manifest:
        """Return the manifest of a generation with the configuration it was last active with, without secrets.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidManifest` if the manifest is missing or
        broken.
        """
        self.generation_path(server_id, number)
        return self._lifecycle.read(server_id, number)[1]

    def active_generation(self, server_id: str) -> int | None:
        """Return the number of the active generation, None for a server without generations."""
        return self._tree.active(check_id(server_id))

    def remove(self, server_id: str, *, keep_config: bool = False) -> None:
        """Uninstall the server with all its generations and, unless *keep_config*, its configuration and secrets.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` for a server of another layer.
        """
        with self.lock():
            self._lifecycle.remove(server_id, keep_config=keep_config)

    def recover(self) -> None:
        """Finish or undo changes that killed processes left incomplete; call it once at start."""
        layout = self._view.layout
        if not layout.installed.exists() and not layout.generations.exists():
            return
        with tolerant_cleanup(layout.installed), self.lock():
            self._lifecycle.recover()

    def tools(self, server_id: str) -> Tools | None:
        """Return the tool catalog of the active generation, None if there is none."""
        return self._tools.read(self._view.find(server_id)[1])

    def set_tools(self, server_id: str, tools: Tools) -> None:
        """Store *tools* as the tool catalog of the active generation."""
        with self.lock():
            layer, found = self._view.find(server_id)
            usable(found)
            self._tools.write(found, tools, own=layer is self._view.own)

    def generation_tools(self, server_id: str, number: int) -> Tools | None:
        """Return the tool catalog of a generation, None if there is none.

        Raises as :meth:`generation_manifest` does.
        """
        version = self.generation_manifest(server_id, number).version
        return self._tools.read_generation(self.generation_path(server_id, number), version)

    def lock(self) -> AbstractContextManager[None]:
        """Return a context manager that excludes all other writers of this scope; reentrant.

        Raises :class:`~mcpd.errors.Busy`.
        """
        return self._lock.hold()


def _missing(server_id: str, missing: list[ConfigProperty]) -> str:
    named = ", ".join(f"{p.key} ({p.label})" if p.label not in ("", p.key) else p.key for p in missing)
    ways = dict.fromkeys("'mcpctl secret set'" if p.sensitive else "'mcpctl config set'" for p in missing)
    return f"{server_id} needs {named}; set it with {' and '.join(ways)}"
