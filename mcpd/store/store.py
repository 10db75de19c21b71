# SPDX-License-Identifier: LGPL-2.1-or-later
"""The store: what is installed, how it is configured, and every change to it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from mcpd.errors import ConfigMissing, InvalidArgument, InvalidManifest, NotFound, NotSupported, ReadOnly
from mcpd.model import ConfigProperty, check_id
from mcpd.store import config
from mcpd.store.files import Staged
from mcpd.store.generations import Tree, contained
from mcpd.store.index import migrate_index
from mcpd.store.lifecycle import Lifecycle, another_waits
from mcpd.store.lock import WriteLock
from mcpd.store.records import Configuration, Generation, InstalledServer, LaunchManifest
from mcpd.store.tool_catalog import ToolFiles, Tools
from mcpd.store.view import View, usable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mcpd.model import JsonValue, Manifest
    from mcpd.paths import Paths, Scope
    from mcpd.store.index import Found
    from mcpd.store.view import Place


def set_values(view: View, server_id: str, changes: Mapping[str, JsonValue | None]) -> None:
    """Set values that are not sensitive; None unsets. The caller holds the lock."""
    layer, found = view.find(server_id)
    changes = config.checked(usable(found), changes)
    kept = view.secrets.read(found.id)
    # A key that was sensitive in an earlier version of the server may still be here.
    secrets = {key: value for key, value in kept.items() if key not in changes}
    if view.is_own(layer, found):
        _write_own(view, found.id, changes, secrets, kept)
        return
    view.overlay.write(found.id, _changed(view.overlay.read(found.id), changes))
    if secrets != kept:
        view.secrets.write(found.id, secrets)


def set_secret(view: View, server_id: str, key: str, value: str | None) -> None:
    """Set a sensitive value; None unsets. The caller holds the lock."""
    layer, found = view.find(server_id)
    change = {key: config.checked_secret(usable(found), key, value)}
    kept = view.secrets.read(found.id)
    secrets = _changed(kept, change)
    if view.is_own(layer, found):
        _write_own(view, found.id, {key: None}, secrets, kept, chosen=key)
    else:
        view.secrets.write(found.id, secrets)


def set_pinned(view: View, server_id: str, *, pinned: bool) -> None:
    """Say in the manifest whether updates pass the server over. The caller holds the lock.

    Raises :class:`~mcpd.errors.ReadOnly` for a server of another layer, and for one that is elsewhere.
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
    """Drop all values and secrets of a script server, even if it is broken or gone. The caller holds the lock.

    Raises :class:`~mcpd.errors.InvalidArgument` for any other server.
    """
    try:
        _, found = view.find(check_id(server_id))
    except NotFound:
        pass
    else:
        if found.script is None:
            raise InvalidArgument(
                f"{server_id} is installed: what is kept for it is removed with it, and its values are unset by their"
                " keys"
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
    """Write the manifest with *changes*, and *secrets*, to which sensitive values in the manifest move.

    *chosen* is the key whose value in *secrets* counts, whatever the manifest holds; *fields* replace whole fields of
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
    view: View, found: Found, document: dict[str, Any], secrets: dict[str, JsonValue], kept: dict[str, JsonValue]
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
    """One scope's view of all layers, and the only writer of its own.

    The user scope reads user > system > vendor and writes the user's; the system scope reads system > vendor,
    writes the system's and never looks into a home. Methods block on the disk, briefly; those that write also wait
    for other writers (:class:`~mcpd.errors.Busy`). May be used by several threads.
    """

    def __init__(self, paths: Paths, scope: Scope, *, keep_generations: int = 3) -> None:
        """*keep_generations* is how many generations of a server stay, the active one among them."""
        self._view = View(paths, scope)
        layout = self._view.layout
        self._tree = Tree(layout, keep_generations)
        self._tools = ToolFiles(layout.cache / "tools")
        self._lifecycle = Lifecycle(self._view, self._tree, self._tools)
        self._lock = WriteLock(layout.generations / ".lock")

    def list(self, *, edits: bool = True) -> _Servers:
        """All servers, the layers merged, broken ones included, by id.

        Without *edits* the mcps map and the scripts are not looked at again, which takes its time if scripts are new:
        whoever cannot wait calls :meth:`edits` in a thread before.
        """
        return self._view.all(edits=edits)

    def get(self, server_id: str) -> InstalledServer:
        """The server *server_id*. Raises :class:`~mcpd.errors.NotFound`."""
        return self._view.show(*self._view.find(server_id))

    def edits(self) -> tuple[int, int]:
        """Something else whenever the mcps map or the scripts are, which are files for everybody to edit.

        Cheap to ask, but for new scripts, which are read.
        """
        return self._view.edits()

    def manifest_path(self, server_id: str) -> Path:
        """The path of the public ``manifest.json``.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.NotSupported` for a script server, which has
        none.
        """
        _, found = self._view.find(server_id)
        if found.script is not None:
            made_from = found.script.path or "its entry of the mcps map"
            raise NotSupported(f"{found.id} is a script server and has no manifest; it is made from {made_from}")
        return found.manifest_path

    def problems(self) -> tuple[str, ...]:
        """Faults of whole index files, which cost no server."""
        return tuple(layer.index.fault for layer in self._view.layers if layer.index is not None and layer.index.fault)

    def config(self, server_id: str) -> Configuration:
        """The configuration without sensitive values.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.InvalidManifest`,
        :class:`~mcpd.errors.InvalidConfig`.
        """
        return self._view.configuration(*self._view.find(server_id))

    def launch_manifest(self, server_id: str) -> LaunchManifest:
        """What the server gets at its start: all values, secrets among them.

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
        """The values that were set, secrets among them and defaults not; required ones may be missing.

        Raises as :meth:`config` does.
        """
        layer, found = self._view.find(server_id)
        usable(found)
        merged: dict[str, JsonValue] = {}
        for values in self._set(layer, found, found.load()):
            merged |= {key: value for key, value in values.items() if value is not None}
        return merged

    def kept(self, server_id: str) -> dict[str, JsonValue] | None:
        """The values kept apart from the manifest of *server_id*, secrets left out; None if not even a secret is.

        A server that is installed where none is now gets them. Raises :class:`~mcpd.errors.InvalidConfig`.
        """
        shown, hidden = (files.read(server_id) for files in (self._view.overlay, self._view.secrets))
        return shown if shown or hidden else None

    def _set(self, layer: Place, found: Found, document: dict[str, Any]) -> _Values:
        """Everything that was set for *found*, whose manifest is *document*, by rising precedence."""
        exposed = {key: value for key, value in config.config_of(document).items() if key in found.exposed}
        layers = [*self._view.values(layer, found), self._view.secrets.read(found.id)]
        # What another tool wrote into a manifest of ours is newer than what we keep apart from it.
        layers.insert(len(layers) if self._view.is_own(layer, found) else 0, exposed)
        return layers

    def set_config(self, server_id: str, changes: dict[str, JsonValue | None]) -> None:
        """Set values, or unset those that are None.

        Values for servers of another layer go to this scope's overlay. Raises :class:`~mcpd.errors.InvalidConfig`
        that names the key, and what writing raises; then nothing is changed.
        """
        with self.lock():
            set_values(self._view, server_id, changes)

    def set_secret(self, server_id: str, key: str, value: str | None) -> None:
        """Set the sensitive property *key*, or unset it. Raises as :meth:`set_config` does."""
        with self.lock():
            set_secret(self._view, server_id, key, value)

    def set_pinned(self, server_id: str, pinned: bool) -> None:
        """Have updates pass the server over, or no longer; an update that waits for approval is no exception.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.ReadOnly` for a server that this scope does not
        write, :class:`~mcpd.errors.InvalidManifest` for a broken one, and what writing raises.
        """
        with self.lock():
            set_pinned(self._view, server_id, pinned=pinned)
            self._lifecycle.pin_held(server_id, pinned=pinned)

    def forget(self, server_id: str) -> None:
        """Drop all values and secrets kept for a script server, be it broken or gone.

        Raises :class:`~mcpd.errors.InvalidArgument` for a server that is installed in this scope, and what writing
        raises.
        """
        with self.lock():
            forget(self._view, server_id)

    def new_generation(self, server_id: str) -> Generation:
        """An empty directory in its final place, to be filled and then activated or discarded."""
        with self.lock():
            return self._tree.create(check_id(server_id))

    def activate(self, generation: Generation, manifest: Manifest, *, on_trial: bool = False) -> InstalledServer:
        """Make *generation*, which is complete, the server; the one it replaces stays until :meth:`prune`.

        ``manifest.config`` holds values given for this install, sensitive ones too; all others are carried over, and a
        server that is pinned stays so. A failure, and a power cut, leave the previous generation active. *on_trial*:
        all generations stay until :meth:`prune`, and should this process end before that, :meth:`hold` or
        :meth:`discard`, :meth:`recover` brings the previous one back, too.
        """
        with self.lock():
            self._lifecycle.activate(generation, manifest, on_trial=on_trial)
            return self.get(generation.server_id)

    def prune(self, server_id: str) -> None:
        """The active generation has proved itself: remove the oldest over the number to keep, and what it supersedes.

        That is an older update that waits for approval.
        """
        # Before anything that may fail, or what is good would be taken back at the next start.
        self._tree.prove(check_id(server_id))
        with self.lock():
            self._tree.drop_superseded(server_id)
            self._tree.prune(server_id)

    def discard(self, generation: Generation) -> None:
        """Remove a generation that is not active and does not wait for approval."""
        server_id, number = generation.server_id, generation.number
        with self.lock():
            if number not in (self._tree.active(server_id), self._tree.held(server_id)):
                self._tree.discard(server_id, number)

    def hold(self, generation: Generation, manifest: Manifest, tools: Tools | None = None) -> None:
        """Keep *generation*, which is complete and not active, until :meth:`approve` or :meth:`drop_held`.

        Nothing goes back to it, and it replaces an older one that waits. *tools* is what it listed, if that is not kept
        yet. Of the values in ``manifest.config`` those will count that are not set by then; sensitive ones are set now.

        Raises :class:`~mcpd.errors.NotFound` if the server is not installed in this scope, and what writing raises.
        """
        with self.lock():
            self._lifecycle.hold(generation, manifest, tools)

    def held(self, server_id: str) -> int | None:
        """The number of the generation that waits for approval, None if none does."""
        return self._tree.held(check_id(server_id))

    def approve(self, server_id: str, number: int) -> InstalledServer:
        """Make the generation that waits the server, with the configuration as it is now, on trial until :meth:`prune`.

        Raises :class:`~mcpd.errors.NotFound` if none waits, :class:`~mcpd.errors.InvalidArgument` if it is another one
        than *number*.
        """
        with self.lock():
            self._lifecycle.approve(server_id, number)
            return self.get(server_id)

    def drop_held(self, server_id: str, number: int | None = None) -> None:
        """Remove the generation that waits for approval, if one does. Its number is not given again.

        Raises :class:`~mcpd.errors.InvalidArgument` if it is another one than *number*, and what removing raises.
        """
        with self.lock():
            held = self._tree.held(check_id(server_id))
            if held is None:
                return
            if number not in (None, held):
                raise another_waits(server_id, held, number)
            self._tree.discard(server_id, held)

    def previous(self, server_id: str, number: int | None = None) -> int:
        """The generation that :meth:`rollback` goes back to. Raises :class:`~mcpd.errors.NotFound` if there is none."""
        return self._tree.previous(check_id(server_id), number)

    def rollback(self, server_id: str, number: int | None = None, *, keep_pin: bool = False) -> InstalledServer:
        """Go back to generation *number*, or the one before; the configuration stays as it is now.

        With *keep_pin* it is pinned if it is now, else if it was then. Raises :class:`~mcpd.errors.NotFound` if there
        is none.
        """
        with self.lock():
            self._lifecycle.rollback(server_id, number, keep_pin=keep_pin)
            return self.get(server_id)

    def generations(self, server_id: str) -> _Numbers:
        """The numbers of the finished generations, oldest first; without the one that waits for approval."""
        return self._tree.numbers(check_id(server_id))

    def generation_path(self, server_id: str, number: int) -> Path:
        """The directory of a generation. Raises :class:`~mcpd.errors.NotFound`."""
        path = self._tree.directory(check_id(server_id), number)
        if not path.is_dir():
            raise NotFound(f"{server_id}: there is no generation {number}")
        return path

    def generation_manifest(self, server_id: str, number: int) -> Manifest:
        """The manifest of a generation, with the configuration it had when it was last active, secrets apart.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidManifest` where it has none or a broken
        one.
        """
        self.generation_path(server_id, number)
        return self._lifecycle.read(server_id, number)[1]

    def active_generation(self, server_id: str) -> int | None:
        """The number of the generation in use, None for a server that has none."""
        return self._tree.active(check_id(server_id))

    def remove(self, server_id: str, *, keep_config: bool = False) -> None:
        """Uninstall the server, all its generations, and unless *keep_config* its configuration and secrets.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` for a server of another layer.
        """
        with self.lock():
            self._lifecycle.remove(server_id, keep_config=keep_config)

    def recover(self) -> None:
        """Finish or undo what processes left that were killed; call it once at start."""
        layout = self._view.layout
        if not layout.installed.exists() and not layout.generations.exists():
            return
        with contained(layout.installed), self.lock():
            self._lifecycle.recover()

    def tools(self, server_id: str) -> Tools | None:
        """The tools the active generation listed when it was last asked, None if it was not."""
        return self._tools.read(self._view.find(server_id)[1])

    def set_tools(self, server_id: str, tools: Tools) -> None:
        """Keep *tools* as the catalog of the active generation."""
        with self.lock():
            layer, found = self._view.find(server_id)
            usable(found)
            self._tools.write(found, tools, own=layer is self._view.own)

    def generation_tools(self, server_id: str, number: int) -> Tools | None:
        """The tools that a generation listed when it was last asked, None if it was not.

        Raises as :meth:`generation_manifest` does.
        """
        version = self.generation_manifest(server_id, number).version
        return self._tools.read_generation(self.generation_path(server_id, number), version)

    def lock(self) -> AbstractContextManager[None]:
        """Keep all other writers of this scope out; what the holder calls may lock again.

        Raises :class:`~mcpd.errors.Busy`.
        """
        return self._lock.hold()


def _missing(server_id: str, missing: list[ConfigProperty]) -> str:
    named = ", ".join(f"{p.key} ({p.label})" if p.label not in ("", p.key) else p.key for p in missing)
    ways = dict.fromkeys("'mcpctl secret set'" if p.sensitive else "'mcpctl config set'" for p in missing)
    return f"{server_id} needs {named}; set it with {' and '.join(ways)}"
