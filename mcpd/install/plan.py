# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an installation will do, decided before anything is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, SystemInstanceOnly
from mcpd.install.answers import Answers
from mcpd.install.git import GitRecipe
from mcpd.install.job import Need
from mcpd.install.local import LocalRecipe
from mcpd.install.npm import NpmRecipe
from mcpd.install.pypi import PypiRecipe
from mcpd.install.workbench import strip_credentials
from mcpd.model import Manifest, Source, SourceType
from mcpd.paths import Scope
from mcpd.runtime import permissions
from mcpd.runtime.bundled import remote_program
from mcpd.store import configuration

if TYPE_CHECKING:
    from mcpd.install.options import InstallOptions
    from mcpd.install.outcome import Recipe
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, JsonValue, Transport
    from mcpd.store import Configuration, InstalledServer, Store

RECIPES: Final[dict[SourceType, type[GitRecipe | LocalRecipe | NpmRecipe | PypiRecipe]]] = {
    SourceType.GIT: GitRecipe,
    SourceType.LOCAL: LocalRecipe,
    SourceType.NPM: NpmRecipe,
    SourceType.PYPI: PypiRecipe,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One installation."""

    entry: Entry
    """With the version that the caller asked for."""
    registry: str
    """Where the entry was found; empty if the caller brought it."""
    pinned: bool
    """Whether the caller asked for a version, which updates then leave alone."""
    needs: tuple[Need, ...]
    """What has to be consented to."""
    answers: Answers

    @property
    def remote(self) -> bool:
        """Whether the server runs elsewhere, so that its manifest is all there is."""
        return bool(self.entry.transports) and self.entry.stdio is None

    def recipe(self, bench: Workbench) -> Recipe | None:
        """How its files are made; None for a server that has none of its own."""
        source = self.entry.source
        if self.remote or source is None:
            return None
        return RECIPES[SourceType(source.type)](bench, source)

    def manifest(self, transports: list[Any], version: str) -> Manifest:
        """The manifest to activate, with the values given for this installation."""
        document = self.entry.to_json()
        found = document.get("origin")
        origin: dict[str, JsonValue] = dict(found) if isinstance(found, dict) else {}
        if self.entry.source is not None and self.entry.source.url:
            document["source"]["url"] = strip_credentials(self.entry.source.url)
        document |= {
            "transports": [transport.to_json() for transport in transports],
            "version": (version if self.pinned else "") or self.entry.version or version,
            "config": self.answers.given(),
            "origin": {**origin, "registry": self.registry, "pinned": self.pinned},
        }
        return Manifest.parse(document, self.entry.id)


def make_plan(entry: Entry, registry: str, options: InstallOptions, store: Store, scope: Scope) -> Plan:
    """Plan the installation of *entry* in *scope*.

    Raises :class:`~mcpd.errors.InvalidManifest` for an entry that cannot be installed,
    :class:`~mcpd.errors.InvalidConfig` and :class:`~mcpd.errors.InvalidArgument` for the options, and
    :class:`~mcpd.errors.SystemInstanceOnly`.
    """
    if options.version:
        entry = _at_version(entry, options.version)
    manifest = Manifest.parse(entry.to_json(), entry.id)
    _check(entry, manifest, scope)
    _check_reach(entry, registry)
    installed, held = _installed(store, entry.id)
    answers = Answers(manifest, held)
    answers.set_config(options.config)
    needs = () if options.consent else _needs(manifest, installed)
    return Plan(entry, registry, bool(options.version), needs, answers)


def _at_version(entry: Entry, version: str) -> Entry:
    source = entry.source
    if source is None or source.type is SourceType.LOCAL:
        raise InvalidArgument(f"{entry.id} has no versions to choose from")
    if source.sha256 and version != source.version:
        raise InvalidArgument(
            f"{entry.id} is pinned by its hash to {source.version or 'one version'}; drop the version"
        )
    key = "rev" if source.type is SourceType.GIT else "version"
    return entry.model_copy(update={"source": source.model_copy(update={key: version})})


def _check(entry: Entry, manifest: Manifest, scope: Scope) -> None:
    if scope is Scope.USER and (entry.scope == Scope.SYSTEM or manifest.runtime.run_as == "system"):
        raise SystemInstanceOnly(f"{entry.id} is a server for the whole system; install it with mcpctl --system")
    if not entry.runs_here:
        raise InvalidManifest(f"{entry.id} does not run on Linux (platforms: {entry.platforms!r})")
    permissions.parse(entry.id, manifest.permissions, {})
    if entry.remote is not None:
        _check_remote(entry, entry.remote)
    source = entry.source
    if source is None:
        if not entry.transports:
            raise InvalidManifest(f"{entry.id} has neither a source nor a transport")
    elif entry.stdio is not None or not entry.transports:
        _check_source(entry, source)


def _check_remote(entry: Entry, transport: Transport) -> None:
    try:
        transport.check_remote()
    except InvalidManifest as error:
        raise InvalidManifest(f"{entry.id}: {error.message}") from error
    remote_program(entry.id)


def _check_reach(entry: Entry, registry: str) -> None:
    """Refuse an entry by which a registry elsewhere would copy files of this machine into its server's sight."""
    source = entry.source
    if source is None or not registry or registry.startswith("file:"):
        return
    if source.type is SourceType.LOCAL or source.url.lower().startswith("file:"):
        raise InvalidManifest(f"{entry.id}: a registry on the network cannot name files of this machine as a source")


def _check_source(entry: Entry, source: Source) -> None:
    recipe = RECIPES.get(source.type) if isinstance(source.type, SourceType) else None
    if recipe is None:
        known = ", ".join(sorted(RECIPES))
        raise InvalidManifest(f"{entry.id}: sources of type {source.type} cannot be installed; there are {known}")
    recipe.check(entry, source)


def _installed(store: Store, server_id: str) -> tuple[InstalledServer | None, Configuration | None]:
    try:
        installed = store.get(server_id)
        return installed, store.config(server_id)
    except NotFound:
        return None, None
    except InvalidManifest:
        return None, None  # a broken installation is what gets replaced


def _needs(manifest: Manifest, installed: InstalledServer | None) -> tuple[Need, ...]:
    """What goes beyond the plain sandbox and was not consented to before."""
    before = installed.manifest if installed and installed.writable and installed.manifest else None
    words = set(permissions.parse(manifest.id, manifest.permissions, {}).ignored)
    needs = [
        Need("permission", text, text)
        for text in manifest.all_permissions
        if text not in words
        and not (before and text in before.all_permissions and _grants_the_same(text, before, manifest))
    ]
    if manifest.runtime.run_as == "system" and not (before and before.runtime.run_as == "system"):
        needs.append(Need("run-as", "system", "runs as the system's own account mcp-server"))
    return tuple(needs)


def _grants_the_same(text: str, before: Manifest, after: Manifest) -> bool:
    """Whether the permission *text* comes to what was consented to: a new default may make more of the same words."""
    then, now = (
        permissions.parse(manifest.id, [text], configuration.merge(manifest, [before.config]))
        for manifest in (before, after)
    )
    return then == now
