# SPDX-License-Identifier: LGPL-2.1-or-later
"""Updates: comparison of the installed servers with the offers of their registries and with git branches."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from mcpd.errors import AlreadyInstalled, InvalidManifest, McpdError, NotFound
from mcpd.files import is_missing, make_directory, read_file, remove_tree, write_atomic
from mcpd.install.lockfile import read_lock
from mcpd.install.sources.git import GitRecipe
from mcpd.install.workbench import Workbench
from mcpd.model import COMMIT, SourceType, load_json, strip_credentials
from mcpd.store.config import origin_of
from mcpd.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from mcpd.catalog import Catalog, CatalogEntry
    from mcpd.install.job import Job
    from mcpd.install.workbench import Tools
    from mcpd.model import Entry, Manifest, Source
    from mcpd.store import InstalledServer, Store

_Key: TypeAlias = list[tuple[int, int, str]]

_DIGEST_PREFIX: Final = "1-"
"""Prefix of content digests: the version of the algorithm. Digests with other prefixes are ignored."""
_CONTENT_FIELDS: Final = (
    "source",
    "transports",
    "permissions",
    "env",
    "runtime",
    "manifest",
    "integrity",
)
_TEXT_FIELDS: Final = frozenset({"label", "title", "description", "placeholder"})
"""Fields of a configurable property that are only displayed."""


def is_pinned(manifest: Manifest) -> bool:
    """Return whether the installed version was requested explicitly, so that updates leave it alone."""
    return origin_of(manifest).get("pinned") is True


def recorded_registry(manifest: Manifest) -> str | None:
    """Return the URL of the server's registry; empty if it was user-supplied, None if another tool installed it."""
    registry = origin_of(manifest).get("registry")
    return registry if isinstance(registry, str) else None


def has_same_origin(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Return whether *entry* of *registry* has the same origin as the installed *manifest*.

    For servers that another tool installed, the package sources are compared, as no registry is recorded.
    """
    recorded = recorded_registry(manifest)
    if recorded is None:
        return (
            entry.source is not None
            and manifest.source is not None
            and _source_id(entry.source) == _source_id(manifest.source)
        )
    return recorded != "" and recorded == registry


def is_different_server(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Return whether *entry* describes a different server from the installed *manifest*.

    *registry* is empty for a user-supplied entry. For two user-supplied files, only the types are compared, since each
    version has a different name and hash. Without package sources, the commands are compared; a new address of a remote
    server is not a difference, since it requires consent.
    """
    if registry:
        return not has_same_origin(manifest, entry, registry)
    new, old = entry.source, manifest.source
    if new is None or old is None:
        return new is not old or _command(entry) != _command(manifest)
    if new.is_file and recorded_registry(manifest) == "":
        return new.type != old.type
    return _source_id(new) != _source_id(old)


def is_update(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Return whether *entry* of *registry* is an update of the installed *manifest*.

    That is an entry with the same origin and a higher version; or, in the same registry, with different content.
    """
    if is_pinned(manifest) or not has_same_origin(manifest, entry, registry):
        return False
    if entry.version and manifest.version and entry.version != manifest.version:
        return _key(entry.version) > _key(manifest.version)
    if recorded_registry(manifest) is None:
        return False
    known = origin_of(manifest).get("content")
    if isinstance(known, str) and known.startswith(_DIGEST_PREFIX):
        return known != content_digest(entry)
    return not entry.is_summary and _pins(entry) != _pins(manifest)


def is_installed_version(manifest: Manifest, entry: Entry) -> bool:
    """Return whether *entry* has the same version, and the same revision or version of its source, as *manifest*."""
    return entry.version == manifest.version and _requested(entry.source) == _requested(manifest.source)


def check_pin(manifest: Manifest, entry: Entry, *, reinstall: bool) -> None:
    """Raise :class:`~mcpd.errors.AlreadyInstalled` if *manifest* is pinned and *entry* would change its version.

    The pinned version itself may be installed again with *reinstall*.
    """
    if not is_pinned(manifest) or (reinstall and is_installed_version(manifest, entry)):
        return
    offered = f", and {entry.version} is offered" if entry.version not in {"", manifest.version} else ""
    raise AlreadyInstalled(
        f"{entry.id} is pinned to {manifest.version or 'the installed version'}{offered};"
        f" use 'mcpctl pin --remove {entry.id}' to unpin it"
    )


def is_older(entry: Entry, manifest: Manifest) -> bool:
    """Return whether *entry* has a lower version than the installed *manifest*."""
    return bool(entry.version and manifest.version) and _key(entry.version) < _key(manifest.version)


def is_made_from(manifest: Manifest, entry: Entry, registry: str) -> bool:
    """Return whether the pending update *manifest* was built from the current content of *entry* of *registry*."""
    return (
        has_same_origin(manifest, entry, registry)
        and origin_of(manifest).get("content") == content_digest(entry)
        and entry.version in {"", manifest.version}
    )


def content_digest(entry: Entry) -> str:
    """Return a digest of what *entry* installs and runs; descriptive texts do not change it.

    It is recorded as ``origin.content`` of the manifest, for the entry as it is in the registry.
    """
    document = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    content = {key: document[key] for key in _CONTENT_FIELDS if document.get(key) not in (None, "", [], {})}
    if isinstance(content.get("permissions"), list):
        content["permissions"] = sorted(content["permissions"])
    content["configurableProperties"] = [
        {key: value for key, value in prop.items() if key not in _TEXT_FIELDS}
        for prop in document.get("configurableProperties", ())
    ]
    if isinstance(content.get("source"), dict):
        content["source"] = {**content["source"], "url": strip_credentials(content["source"].get("url", ""))}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return _DIGEST_PREFIX + hashlib.sha256(data.encode()).hexdigest()


def is_same_version(manifest: Manifest, entry: Entry, wanted: str) -> bool:
    """Return whether *manifest* is *entry* as installed, at the version or revision *wanted* unless that is empty."""
    requested = wanted or _requested(entry.source)
    if requested and requested not in _installed_versions(manifest):
        return False
    return bool(wanted) or entry.version in {"", manifest.version}


def _source_id(source: Source) -> tuple[str, ...]:
    return (source.type, strip_credentials(source.url), source.package, source.path)


def _command(entry: Entry) -> tuple[str, ...]:
    return () if entry.stdio is None else (entry.stdio.command, *entry.stdio.args)


def _requested(source: Source | None) -> str:
    if source is None:
        return ""
    return source.rev if source.type is SourceType.GIT else source.version


def _installed_versions(manifest: Manifest) -> set[str]:
    """Return the names that a request for the installed version may use."""
    asked_for = _requested(manifest.source)
    if manifest.source is not None and manifest.source.type is SourceType.GIT:
        return {asked_for}
    # A tag such as npm's "next" was resolved to a version, which only a pinned manifest is sure to contain.
    return {asked_for, manifest.version} if is_pinned(manifest) else {asked_for or manifest.version}


def _pins(entry: Entry) -> tuple[str, ...]:
    source = entry.source
    if source is None:
        return ()
    url = strip_credentials(source.url)
    return (source.type, url, source.path, source.package, source.version, source.rev, source.sha256)


def _key(version: str) -> _Key:
    """Return a sort key for versions: numbers by value, ``1.0rc1`` before ``1.0`` before ``1.0.1``."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower().removeprefix("v"))
    return [*(_number(part) if part.isdigit() else (0, 0, part) for part in parts), (1, 0, "")]


def _number(digits: str) -> tuple[int, int, str]:
    """Return a key that sorts by value, without the limit of ``int`` on the number of digits."""
    significant = digits.lstrip("0")
    return (2, len(significant), significant)


PARALLEL: Final = 4
"""Number of repositories that are queried at the same time."""
_SHORT_COMMIT: Final = 12
"""Number of digits of a shortened commit id."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _BranchState:
    """The last known state of the branch that one server follows."""

    head: str
    """The commit at the tip of the branch."""
    made_from: tuple[str, ...]
    """The commits of the generations that existed at that time. Later generations are newer than this state, or from
    another branch."""


class Revisions:
    """The last known commits of the branches that servers follow."""

    def __init__(self, tools: Tools, store: Store) -> None:
        self._tools = tools
        self._store = store
        self._cache = tools.paths.layout(tools.scope).cache
        self._lock = asyncio.Lock()
        self._states: dict[str, _BranchState] | None = None
        """By server id; None until read from the cache."""

    async def refresh(self, job: Job, servers: Iterable[InstalledServer]) -> None:
        """Query the branches that *servers* follow; a failure leaves the last known state."""
        following = [
            one for one in servers if one.writable and one.manifest is not None and _follows_branch(one.manifest)
        ]
        async with self._lock:
            known = await in_thread(self._known)
            states = {one.id: known[one.id] for one in following if one.id in known}
            await in_thread(remove_tree, self._scratch)  # left by a killed mcpd
            limit = asyncio.Semaphore(PARALLEL)
            async with asyncio.TaskGroup() as group:
                for server in following:
                    group.create_task(self._refresh(job, server, limit, states))
            self._states = states
            await in_thread(self._keep, states)

    def new_commit(self, server: InstalledServer, generation: Path) -> str:
        """Return the shortened commit of *server*'s branch; empty if *generation* is built from it or from a newer one.

        Blocks on the disk.
        """
        state = self._known().get(server.id)
        if state is None or server.manifest is None or is_pinned(server.manifest):
            return ""
        installed = _commit(generation)
        return state.head[:_SHORT_COMMIT] if installed != state.head and installed in state.made_from else ""

    async def _refresh(
        self, job: Job, server: InstalledServer, limit: asyncio.Semaphore, states: dict[str, _BranchState]
    ) -> None:
        try:
            made_from = await in_thread(self._made_from, server)
            async with limit, asyncio.timeout(self._tools.settings.catalog.timeout):
                states[server.id] = _BranchState(await self._ask(job, server), made_from)
        except (McpdError, OSError) as error:  # TimeoutError is an OSError
            said = error.message if isinstance(error, McpdError) else str(error) or "timed out"
            log.warning("%s: could not check its branch for updates: %s", server.id, said)

    def _made_from(self, server: InstalledServer) -> tuple[str, ...]:
        numbers = [*self._store.generations(server.id), *filter(None, [server.pending_generation])]
        paths = [server.generation, *(server.generation.with_name(str(number)) for number in numbers)]
        return tuple(sorted({commit for path in paths if (commit := _commit(path))}))

    async def _ask(self, job: Job, server: InstalledServer) -> str:
        manifest = server.manifest
        assert manifest is not None  # noqa: S101 -- for the type checker: checked before
        assert manifest.source is not None  # noqa: S101 -- likewise
        root = self._scratch / secrets.token_hex(8)
        try:
            await in_thread(make_directory, root)
            bench = Workbench(self._tools, job, manifest, root)
            await in_thread(bench.prepare)
            return await GitRecipe(bench, manifest.source).head()
        finally:
            await in_thread(remove_tree, root)

    @property
    def _scratch(self) -> Path:
        return self._cache / "revisions"

    @property
    def _file(self) -> Path:
        return self._cache / "revisions.json"

    def _known(self) -> dict[str, _BranchState]:
        if self._states is None:
            self._states = self._read()
        return self._states

    def _read(self) -> dict[str, _BranchState]:
        try:
            document = load_json(read_file(self._file), str(self._file))
        except InvalidManifest as error:
            log.warning("%s; 'mcpctl update --check' rewrites it", error.message)
            return {}
        except OSError as error:
            if not is_missing(error):
                log.warning("%s: %s", self._file, error.strerror)
            return {}
        found = document.items() if isinstance(document, dict) else ()
        return {server_id: state for server_id, said in found if (state := _parsed(said)) is not None}

    def _keep(self, states: dict[str, _BranchState]) -> None:
        document = {server_id: asdict(state) for server_id, state in states.items()}
        try:
            make_directory(self._cache)
            write_atomic(self._file, json.dumps(document).encode())
        except (McpdError, OSError) as error:
            log.warning("%s: could not write it, so it is lost when mcpd stops: %s", self._file, error)


def _parsed(said: Any) -> _BranchState | None:
    head, made_from = (said.get("head"), said.get("made_from")) if isinstance(said, dict) else (None, None)
    if not isinstance(head, str) or not COMMIT.fullmatch(head) or not isinstance(made_from, list):
        return None
    return _BranchState(head, tuple(commit for commit in made_from if isinstance(commit, str)))


def _commit(generation: Path) -> str:
    """Return the commit that *generation* is built from; empty if it is not from git."""
    resolved = read_lock(generation).get("resolved")
    commit = resolved.get("rev") if isinstance(resolved, dict) else None
    return commit if isinstance(commit, str) else ""


def _follows_branch(manifest: Manifest) -> bool:
    """Return whether the server follows a git branch, so that it can have updates although its entry stays the same."""
    source = manifest.source
    return (
        source is not None
        and source.type is SourceType.GIT
        and not COMMIT.fullmatch(source.rev)
        and not is_pinned(manifest)
        and bool(recorded_registry(manifest))
    )


class Update(NamedTuple):
    """An available update of one server, as listed by ``mcpctl update --check``."""

    version: str
    """The offered version, with the commit if a branch has changed. Equal to the installed version if only the content
    differs; empty if the registry names no version."""
    registry: str
    """URL of the registry that offers it."""


class Updates:
    """Finds updates of the installed servers in registries and git branches. All methods block on the disk."""

    def __init__(self, store: Store, catalog: Catalog, revisions: Revisions) -> None:
        self._store = store
        self._catalog = catalog
        self._revisions = revisions

    def updates(self) -> dict[str, Update]:
        """Return the updates of this layer's servers, by id."""
        found: dict[str, Update] = {}
        for offer in self.find():
            with suppress(NotFound):  # removed since
                server = self._store.get(offer.entry.id)
                commit = self._revisions.new_commit(server, server.generation)
                version = f"{offer.entry.version} ({commit})".strip() if commit else offer.entry.version
                found[server.id] = Update(version, offer.origin)
        return found

    def find(self, servers: Collection[InstalledServer] = (), *, reinstall: bool = False) -> list[CatalogEntry]:
        """Return the offers that update *servers* (empty: all of this layer); with *reinstall*, even if not newer."""
        again = reinstall and bool(servers)
        servers = servers or [server for server in self._store.list() if server.writable]
        offers = self._catalog.offers([server.id for server in servers])
        found: list[CatalogEntry] = []
        for server in servers:
            for offer in offers.get(server.id, ()):
                if self._is_wanted(server, offer, again=again):
                    if again or not self._is_pending(server, offer):
                        found.append(offer)
                    break
        return found

    def _is_wanted(self, server: InstalledServer, offer: CatalogEntry, *, again: bool) -> bool:
        """Return whether an update would install *offer*; with *again*, even if it is not newer."""
        manifest = server.manifest
        if manifest is None:
            return again  # the origin of a broken server is unknown
        if is_update(manifest, offer.entry, offer.origin):
            return True
        if not has_same_origin(manifest, offer.entry, offer.origin):
            return False
        has_version = offer.entry.version in {"", manifest.version}
        return again or (has_version and bool(self._revisions.new_commit(server, server.generation)))

    def _is_pending(self, server: InstalledServer, offer: CatalogEntry) -> bool:
        """Return whether *offer* is already the pending update."""
        if not server.pending_generation:
            return False
        try:
            held = self._store.generation_manifest(server.id, server.pending_generation)
            path = self._store.generation_path(server.id, server.pending_generation)
        except McpdError as error:
            log.warning("%s: could not read the pending update: %s", server.id, error.message)
            return False
        return is_made_from(held, offer.entry, offer.origin) and not self._revisions.new_commit(server, path)
