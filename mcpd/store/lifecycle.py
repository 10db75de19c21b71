# SPDX-License-Identifier: LGPL-2.1-or-later
"""Activation, rollback and removal of servers, recovery after a killed process, and tool catalogs."""

from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.errors import InvalidArgument, InvalidManifest, McpdError, NoSpace, NotFound, ReadOnly, from_oserror
from mcpd.files import TEMP_NAME, is_missing, make_directory, read_file, remove_tree, sync_tree, write_atomic
from mcpd.model import ID_PATTERN, JsonValue, Manifest, check_id, load_json
from mcpd.store import config
from mcpd.store.config import MANIFEST
from mcpd.store.generations import catalog_path, tolerant_cleanup
from mcpd.store.index import Kind, LayerServer, migrate_index

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.store.generations import Generation, Tree
    from mcpd.store.index import AnyLayer, View

_log = logging.getLogger(__name__)

Tools: TypeAlias = list[dict[str, Any]]


class ToolFiles:
    """Tool catalog files, one per generation: next to the generation if this scope may write there, else in a cache."""

    def __init__(self, cache: Path) -> None:
        """*cache* is the directory for tool catalogs of servers whose generations this scope does not write."""
        self._cache = cache

    def read(self, found: LayerServer) -> Tools | None:
        """Return the tool catalog of *found*, None if there is none."""
        if found.kind is Kind.MANAGED and (kept := _load(catalog_path(found.generation), _origin(found))) is not None:
            return kept
        return _load(self._cached(found), _origin(found)) if ID_PATTERN.fullmatch(found.id) else None

    def write(self, found: LayerServer, tools: Tools, *, own: bool) -> None:
        """Store *tools* as the tool catalog of *found*; *own* is True if this scope writes the generation."""
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


_NOTHING: Final[Mapping[str, JsonValue]] = MappingProxyType({})


class Lifecycle:
    """Changes to the set of installed servers. Callers hold the write lock of the store."""

    def __init__(self, view: View, tree: Tree, tools: ToolFiles) -> None:
        self._view = view
        self._tree = tree
        self._tools = tools

    def activate(self, generation: Generation, manifest: Manifest, *, on_trial: bool) -> None:
        """Make *generation* with *manifest* the active one; ``manifest.config`` overrides values set earlier.

        Unless *on_trial*, generations beyond the number to keep are removed.
        """
        _check_manifest(generation, manifest)
        replaced = self._tree.active(generation.server_id)
        self._tree.publish(generation.server_id, generation.number)
        if on_trial:
            self._tree.begin_trial(generation.server_id)
        document = self._still_pinned(generation.server_id, manifest.to_json())
        self._switch(generation.server_id, generation.number, document, manifest, given=manifest.config)
        if not on_trial:
            self._tree.finish(generation.server_id, generation.number)
            self._tree.prune(generation.server_id, replaced)

    def hold(self, generation: Generation, manifest: Manifest, tools: Tools | None) -> None:
        """Keep *generation* as the pending update, with *manifest* and, if known, its tool catalog *tools*."""
        _check_manifest(generation, manifest)
        server_id, number = generation.server_id, generation.number
        if self._tree.active(server_id) == number:
            raise InvalidArgument(f"{server_id}: generation {number} is active, so it cannot become a pending update")
        if not os.path.lexists(self._tree.installed / server_id):
            raise NotFound(f"{server_id} is not installed here, so it cannot have a pending update")
        shown, exposed = config.split(manifest, manifest.config)
        kept = self._view.secrets.read(server_id)
        if new := exposed.keys() - kept.keys():
            self._view.secrets.write(server_id, {**kept, **{key: exposed[key] for key in new}})
        document = {
            **self._still_pinned(server_id, manifest.to_json()),
            **self._scope_fields(server_id),
            "config": shown,
        }
        directory = self._tree.directory(server_id, number)
        write_atomic(directory / MANIFEST, config.dump(document))
        if tools is not None:
            self._tools.write_generation(directory, manifest.version, tools)
        self._tree.publish(server_id, number)
        sync_tree(directory)
        self._tree.hold(server_id, number)

    def approve(self, server_id: str, number: int) -> None:
        """Make the pending update *number* the active generation, on trial, with the current configuration."""
        held = self._tree.held(check_id(server_id))
        if held is None:
            raise NotFound(f"{server_id} has no pending update")
        if number != held:
            raise different_update_waits(server_id, held, number)
        document, manifest = self.read(server_id, held)
        unset = config.config_of(document)
        try:
            self._tree.begin_held_trial(server_id, held)
            self._switch(server_id, held, document, manifest, unset=unset)
        except BaseException:
            if self._tree.active(server_id) != held:
                self._tree.finish(server_id, held)  # it stays pending
            raise

    def read(self, server_id: str, number: int) -> tuple[dict[str, Any], Manifest]:
        """Return the manifest of generation *number*, as it is in the file and parsed."""
        path = self._tree.directory(server_id, number) / MANIFEST
        document = config.load(path)
        document.setdefault("id", server_id)
        return document, Manifest.parse(document, str(path))

    def rollback(self, server_id: str, number: int | None, *, keep_pin: bool = False) -> None:
        """Activate an earlier generation with the current configuration and, if *keep_pin*, the current pin."""
        number = self._tree.previous(check_id(server_id), number)
        document, manifest = self.read(server_id, number)
        if keep_pin and (pinned := self._pinned(server_id)) is not None:
            document = config.with_pin(document, pinned=pinned)
        self._switch(server_id, number, document, manifest)
        self._tree.end_trial(server_id)

    def pin_held(self, server_id: str, *, pinned: bool) -> None:
        """Pin or unpin the pending update, if there is one."""
        held = self._tree.held(server_id)
        if held is None:
            return
        path = self._tree.directory(server_id, held) / MANIFEST
        write_atomic(path, config.dump(config.with_pin(config.load(path), pinned=pinned)))

    def _still_pinned(self, server_id: str, document: dict[str, Any]) -> dict[str, Any]:
        """Return *document*, the manifest of a new version, pinned if the installed server is pinned."""
        return config.with_pin(document, pinned=True) if self._pinned(server_id) else document

    def _pinned(self, server_id: str) -> bool | None:
        """Return whether the server is pinned; None if its manifest is missing or broken."""
        found = self._view.own.find(server_id)
        if found is None or found.manifest is None:
            return None
        return config.origin_of(found.manifest).get("pinned") is True

    def _scope_fields(self, server_id: str) -> dict[str, str]:
        """Return the manifest fields that depend on the scope."""
        return {"scope": str(self._view.scope), "installDir": str(self._view.layout.installed / server_id)}

    def _switch(
        self,
        server_id: str,
        number: int,
        document: dict[str, Any],
        manifest: Manifest,
        *,
        given: Mapping[str, JsonValue] = _NOTHING,
        unset: Mapping[str, JsonValue] = _NOTHING,
    ) -> None:
        """Make generation *number* active: *given* values override those set earlier, *unset* ones fill gaps.

        All files are first written under temporary names, so that a full disk stops the change before its first step.
        """
        view = self._view
        migrate_index(view)
        carried = self._carried(server_id, config.config_of(document))
        shown, exposed = config.split(manifest, {**unset, **carried, **given})
        document = {**document, **self._scope_fields(server_id), "config": shown}
        kept = view.secrets.read(server_id)
        secrets = {**kept, **exposed}
        directory = self._tree.directory(server_id, number)
        write_atomic(directory / MANIFEST, config.dump(document))
        sync_tree(directory)
        with ExitStack() as stack:
            link = stack.enter_context(self._tree.link(server_id, number))
            index = view.stage_index(add=[server_id])
            if index is not None:
                stack.enter_context(index)
            if secrets != kept:
                stack.enter_context(view.secrets.stage(server_id, secrets)).commit()
            self._tree.activate(server_id, link)
            if index is not None:
                index.commit()
        try:
            view.overlay.remove(server_id)
        except McpdError as error:
            _log.warning("%s", error.message)

    def _carried(self, server_id: str, otherwise: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the values to carry over: those of the current manifest, or *otherwise* if that is unreadable.

        Values in the overlay, which are kept from an earlier installation, take precedence.
        """
        overlay = self._view.overlay.read(server_id)
        found = self._view.own.find(server_id)
        if found is None or not self._view.is_own(self._view.own, found):
            return overlay
        try:
            return {**config.config_of(found.load()), **overlay}
        except InvalidManifest as error:
            _log.warning("%s; its configuration cannot be carried over", error.message)
            return {**otherwise, **overlay}

    def remove(self, server_id: str, *, keep_config: bool) -> None:
        """Uninstall the server."""
        view = self._view
        layer, found = view.find(server_id)
        if layer is not view.own:
            raise ReadOnly(_not_ours(found, layer))
        migrate_index(view)
        layer, found = view.find(server_id)
        if keep_config:
            self._keep(layer, found)
        aside = None
        if found.directory.parent == view.layout.installed and os.path.lexists(found.directory):
            aside = self._tree.detach(found.directory.name, keep_config=keep_config)
        elif os.path.lexists(view.layout.installed / found.id) and ID_PATTERN.fullmatch(found.id):
            aside = self._tree.detach(found.id, keep_config=keep_config)
        try:
            self._finish_removal(found.id, aside, keep_config=keep_config)
        except OSError as error:
            raise from_oserror(error, f"removing the remains of {found.id}") from error

    def _keep(self, layer: AnyLayer, found: LayerServer) -> None:
        """Store the values of *found* where :meth:`activate` finds them if the server is installed again."""
        view = self._view
        if found.manifest is None or not view.is_own(layer, found):
            return
        values = {**config.config_of(found.load()), **view.overlay.read(found.id)}
        shown, exposed = config.split(found.manifest, values)
        if exposed:
            view.secrets.write(found.id, {**view.secrets.read(found.id), **exposed})
        if shown:
            view.overlay.write(found.id, shown)

    def _finish_removal(self, server_id: str, aside: Path | None, *, keep_config: bool) -> None:
        if ID_PATTERN.fullmatch(server_id):
            if not keep_config:
                self._view.secrets.remove(server_id)
                self._view.overlay.remove(server_id)
            self._tools.remove(server_id)
            self._tree.erase(server_id)
        try:
            self._forget(server_id)
        except NoSpace:
            # The disk may be full because of the directory that is being removed.
            if aside is None:
                raise
            remove_tree(aside)
            self._forget(server_id)
        if aside is not None:
            remove_tree(aside)

    def _forget(self, server_id: str) -> None:
        staged = self._view.stage_index(remove=[server_id])
        if staged is not None:
            with staged:
                staged.commit()

    def recover(self) -> None:
        """Finish or undo changes that killed processes left incomplete."""
        for aside, server_id, keep_config in list(self._tree.removals()):
            _log.info("%s: finishing an interrupted removal", server_id)
            with tolerant_cleanup(aside):
                self._finish_removal(server_id, aside, keep_config=keep_config)
        for server_id, before in list(self._tree.interrupted_trials()):
            _log.info(
                "%s: rolling back to generation %d because the trial of the next one was interrupted", server_id, before
            )
            with tolerant_cleanup(self._view.layout.installed / server_id):
                self.rollback(server_id, before)
        cut_off = self._tree.recover()
        for directory in (self._view.secrets.directory, self._view.overlay.directory):
            _remove_temporary(directory)
        for found in self._view.own.scan().values():
            if found.kind in (Kind.DIRECTORY, Kind.EMBEDDED):
                _remove_temporary(found.manifest_path.parent)
        for server_id in cut_off:
            with tolerant_cleanup(self._view.secrets.directory / server_id):
                self._drop_orphan(server_id)
        index = self._view.own.index
        if index is not None and index.path.exists() and not index.fault and not index.read().legacy:
            self._forget("")

    def _drop_orphan(self, server_id: str) -> None:
        """Remove the secrets given for a first installation that was interrupted."""
        try:
            self._view.find(server_id)
        except NotFound:
            if not self._view.overlay.path(server_id).exists():
                self._view.secrets.remove(server_id)


def different_update_waits(server_id: str, held: int, number: int | None) -> InvalidArgument:
    """Return the error for a caller that names *number* while *held* is the pending update."""
    return InvalidArgument(f"{server_id}: the pending update is generation {held}, not {number}; review it first")


def _check_manifest(generation: Generation, manifest: Manifest) -> None:
    if manifest.id != generation.server_id:
        raise InvalidManifest(f"the manifest of {generation.server_id!r} names {manifest.id!r}")


def _remove_temporary(directory: Path) -> None:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are enough
    except OSError:
        return
    for name in names:
        if TEMP_NAME.fullmatch(name):
            with tolerant_cleanup(directory / name):
                remove_tree(directory / name)


def _not_ours(found: LayerServer, layer: AnyLayer) -> str:
    server_id = found.id
    if found.script is not None:
        path = found.script.file.path
        is_file = path is not None and path.name.rpartition(".")[0] == server_id
        return f"{server_id} is a script server; remove {path if is_file else 'its entry in the mcps map'}"
    if layer.name == "vendor":
        return f"{server_id} belongs to a distribution package; remove that package"
    return f"{server_id} is installed for the whole system; remove it there (mcpctl --system remove {server_id})"
