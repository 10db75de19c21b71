# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plans: what an installation will do, decided before anything is fetched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mcpd.catalog.listing import obstacle
from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, SystemInstanceOnly
from mcpd.install.job import Need, PlanItem
from mcpd.install.options import Answers
from mcpd.install.sources.archive import ArchiveRecipe
from mcpd.install.sources.git import GitRecipe
from mcpd.install.sources.local import LocalRecipe
from mcpd.install.sources.mcpb import McpbRecipe
from mcpd.install.sources.npm import NpmRecipe
from mcpd.install.sources.pypi import PypiRecipe
from mcpd.install.updates import recorded_registry
from mcpd.model import Manifest, Source, SourceType, Target, strip_credentials
from mcpd.model.placeholders import as_text, expand, placeholders
from mcpd.model.steering import is_steering
from mcpd.package_sources import PACKAGE_SOURCES
from mcpd.paths import Scope
from mcpd.runtime import permissions
from mcpd.runtime.bundled import remote_program
from mcpd.store import config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mcpd.catalog import CatalogEntry
    from mcpd.install.options import InstallOptions
    from mcpd.install.sources.base import PackageTexts, Recipe, Resolution
    from mcpd.install.workbench import Workbench
    from mcpd.model import Entry, JsonValue, Transport
    from mcpd.runtime.guard import Guard
    from mcpd.store import Configuration, InstalledServer, Store

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def unverified(entry: Entry, *, is_trusted: bool, given: bool) -> Iterator[Need]:
    """Yield the need to confirm unsigned files of *entry*, unless they are trusted.

    *is_trusted*: a key covers them, or they update a server from the same registry. *given*: the caller supplied them.
    """
    source = entry.source
    if source is not None and source.is_file and not is_trusted:
        where = entry.id if given else strip_credentials(source.url).rpartition("/")[2] or entry.id
        yield Need("unverified", where, "not verified: no trusted key signed the hash of this file")


def required_consent(
    manifest: Manifest,
    installed: InstalledServer | None,
    values: Mapping[str, JsonValue],
    kept: Mapping[str, JsonValue] | None = None,
) -> tuple[Need, ...]:
    """Return the consent required: whatever goes beyond the plain sandbox and was not consented to before.

    *values* are those that the server will have, without its defaults. *kept* are the values, without secrets, that a
    removed server with the same id left behind; None if it left neither values nor secrets.
    """
    before = installed.manifest if installed and installed.writable and installed.manifest else None
    needs = [*_address_change(manifest, installed, kept)]
    needs += [
        Need("permission", text, filled_in(text, manifest, values), permissions.explain(text)[0])
        for text in granted(manifest)
        if not (before and text in before.all_permissions and _grants_the_same(text, before, manifest))
    ]
    known = steering(before, before.config) if before else {}
    needs += [
        Need("variable", f"{name}={strip_credentials(value)}", "decides which code runs, or where it connects to")
        for name, value in steering(manifest, values).items()
        if known.get(name) != value
    ]
    if manifest.runtime.run_as == "system" and not (before and before.runtime.run_as == "system"):
        needs.append(Need("run-as", "system", "runs as the system account mcp-server"))
    return tuple(needs)


def granted(manifest: Manifest) -> list[str]:
    """Return the permission strings of *manifest* that grant something, as written."""
    words = permissions.parse(manifest.id, manifest.all_permissions, {}).ignored
    return [text for text in manifest.all_permissions if text not in words]


def filled_in(text: str, manifest: Manifest, values: Mapping[str, JsonValue]) -> str:
    """Return *text* with its placeholders filled in from *values*, else from defaults, where these are not secret."""
    if any((prop := manifest.property(key)) and prop.sensitive for key in placeholders(text)):
        return text
    # An entry can contain a "config", which does not take effect.
    return ", ".join(expand(text, config.merge(manifest, [values]))) or text


def steering(manifest: Manifest, values: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the environment variables that decide which code runs, with the values that the server gets.

    They are those in ``env``, with placeholders filled in except for secrets, and the defaults of properties that are
    not in *values*.
    """
    merged = config.merge(manifest, [values])
    secret = {prop.key for prop in manifest.configurable_properties if prop.sensitive}
    found = {
        name: text if secret.intersection(placeholders(text)) else ":".join(expand(text, merged)) or text
        for name, text in manifest.env.items()
    }
    found |= {
        prop.key: as_text(prop.default)
        for prop in manifest.configurable_properties
        if prop.target is Target.ENV and prop.default is not None and prop.key not in values
    }
    return {name: value for name, value in found.items() if is_steering(name)}


def _grants_the_same(text: str, before: Manifest, after: Manifest) -> bool:
    """Return whether *text* grants the same in both manifests; a changed default value can change the grant."""
    then, now = (
        permissions.parse(manifest.id, [text], config.merge(manifest, [before.config])) for manifest in (before, after)
    )
    return then == now


def _address_change(
    manifest: Manifest, installed: InstalledServer | None, kept: Mapping[str, JsonValue] | None
) -> Iterator[Need]:
    """Yield the need to confirm a remote server's new address, which receives the values set for the old one."""
    if (installed is None and kept is None) or manifest.stdio is not None or manifest.remote is None:
        return
    before = installed.manifest if installed else None
    if before is None:
        # A broken server may also have values, and the address that they were meant for is unknown.
        shown, _ = config.split(manifest, kept or {})
        yield Need(
            "remote",
            ", ".join(_origins(manifest.remote.address, config.merge(manifest, [shown]))),
            description="receives the requests of clients and the values kept from an earlier installation;"
            " their previous destination is unknown",
        )
        return
    now = _origins(manifest.remote.address, config.merge(manifest, [before.config]))
    then: list[str] = []
    if before.stdio is None and before.remote is not None:
        then = _origins(before.remote.address, config.merge(before, [before.config]))
    if now != then:
        past = f"so far, they went to {', '.join(then)}" if then else "so far, the server ran on this machine"
        yield Need(
            "remote", ", ".join(now), description=f"receives the requests of clients and the configured values; {past}"
        )


def _left_behind(
    manifest: Manifest, installed: InstalledServer | None, kept: Mapping[str, JsonValue] | None, *, has_state: bool
) -> Iterator[Need]:
    """Yield the need to confirm that a server on this machine gets what another server with its id left behind.

    *has_state* is true if the state of a removed server was kept.
    """
    is_broken = installed is not None and installed.manifest is None
    if manifest.remote is None and (is_broken or (installed is None and (kept is not None or has_state))):
        whose = "the broken server" if is_broken else "a removed server"
        yield Need("kept", manifest.id, description=f"gets the values, secrets and state of {whose} with this id")


def _origins(address: str, values: Mapping[str, JsonValue]) -> list[str]:
    """Return scheme, host and port of *address* for each expansion with *values*, sorted."""
    return sorted({_origin(text) for text in expand(address, values) or [address]})


def _origin(address: str) -> str:
    try:
        parts = urlsplit(address)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return strip_credentials(address)
    if not scheme or not host:
        return strip_credentials(address)
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port not in (None, _PORTS.get(scheme)) else "")


RECIPES: Final[dict[str, type[Recipe]]] = {
    SourceType.ARCHIVE: ArchiveRecipe,
    SourceType.GIT: GitRecipe,
    SourceType.LOCAL: LocalRecipe,
    SourceType.MCPB: McpbRecipe,
    SourceType.NPM: NpmRecipe,
    SourceType.PYPI: PypiRecipe,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one installation."""

    entry: Entry
    """The entry, at the version that the caller asked for."""
    registry: str
    """URL of the entry's registry; empty for a user-supplied entry."""
    pinned: bool
    """True if the caller asked for a version; updates then leave the server alone."""
    needs: tuple[Need, ...]
    """The consent required."""
    answers: Answers
    values: Mapping[str, JsonValue] = field(repr=False)
    """The values, without secrets, that are set already and stay in force unless :attr:`answers` has others."""
    verified: str
    """Name of the trusted key that covers exactly this version; empty if there is none."""
    is_dry_run: bool
    """True to stop once the plan is shown."""
    is_user_supplied: bool
    """True if the files are user-supplied, so that they cannot be fetched again."""
    content: str
    """Digest of the entry in its registry, to recognise updates."""
    is_checked: bool = True
    """True to run the health check before activation is final."""
    may_be_offline: bool = False
    """True for the first installation of a remote server, which may be installed even if it does not answer."""
    is_agreed: bool = False
    """True if the caller consented to everything beforehand and expects no question."""
    completed: Callable[[Entry], Plan] = field(kw_only=True)
    """Function that returns the plan for the entry found in the package; raises the errors of :func:`make_plan`."""

    @property
    def remote(self) -> bool:
        """True for a remote server, which has no files except its manifest."""
        return bool(self.entry.transports) and self.entry.stdio is None

    @property
    def is_complete(self) -> bool:
        """True if the entry declares all properties; the properties of a bundle are known once it has been fetched."""
        return not describes_itself(self.entry)

    @property
    def recorded(self) -> Entry:
        """The entry to record, without the URL of user-supplied files, which are removed after the job."""
        source = self.entry.source
        if not self.is_user_supplied or source is None:
            return self.entry
        return self.entry.model_copy(update={"source": source.model_copy(update={"url": ""})})

    def with_texts(self, texts: PackageTexts) -> Plan:
        """Return the plan with the package's name and summary filled in where the entry has none."""
        entry, source = self.entry, self.entry.source
        given = {"summary": entry.summary or texts.summary}
        if texts.name and source is not None and entry.name in {entry.id, source.package}:
            given["name"] = texts.name
        return replace(self, entry=entry.model_copy(update=given))

    def recipe(self, bench: Workbench) -> Recipe | None:
        """Return the recipe that builds the files; None for a server without files."""
        source = self.entry.source
        if self.remote or source is None:
            return None
        return RECIPES[source.type](bench, source)

    def items(self, resolution: Resolution) -> Iterator[PlanItem]:
        """Yield the items of the plan, for the user to consent to; *resolution* lists the files to fetch."""
        entry = self.entry
        if self.verified:
            yield PlanItem("verified", self.verified)
        if entry.source is not None and not self.remote:
            yield from self._source_items(entry.source, resolution)
        for transport in entry.transports:
            if transport.runs_here and (transport is entry.stdio or transport is entry.remote):
                command = " ".join([transport.command, *transport.args]).strip()
                yield PlanItem("command", command or transport.address, str(transport.type))
        manifest = Manifest.parse(entry.to_json(), entry.id)
        values = {**self.values, **self.answers.given()}
        for text in granted(manifest):
            yield PlanItem("permission", text, filled_in(text, manifest, values))
        for name, value in {**manifest.env, **steering(manifest, values)}.items():
            yield PlanItem("variable", f"{name}={strip_credentials(value)}")
        if manifest.runtime.run_as == "system":
            yield PlanItem("run-as", "system")
        for prop in self.answers.missing():
            yield PlanItem("setting", prop.key, prop.label)

    def _source_items(self, source: Source, resolution: Resolution) -> Iterator[PlanItem]:
        """Yield items for *source* and the files to fetch; the size is the entry's if the resolution has none."""
        where = ("" if self.is_user_supplied else strip_credentials(source.url)) or source.package or source.path
        integrity = f"sha256:{source.sha256}" if source.sha256 else ""
        version = source.rev or resolution.version or source.version or self.entry.version
        yield PlanItem("source", where, str(source.type), version, integrity)
        stated = self.entry.size
        size = resolution.size or (stated if isinstance(stated, int) else 0)
        if 0 < size < 1 << 64:
            yield PlanItem("size", str(int(size)))
        for file in resolution.files:
            yield PlanItem("package", file.name, file.file, file.version, file.integrity)

    def manifest(self, transports: list[Any], version: str) -> Manifest:
        """Return the manifest to activate, without the values given for this installation."""
        document = self.recorded.to_json()
        found = document.get("origin")
        origin: dict[str, JsonValue] = dict(found) if isinstance(found, dict) else {}
        if self.entry.source is not None and self.entry.source.url and not self.is_user_supplied:
            document["source"]["url"] = strip_credentials(self.entry.source.url)
        document |= {
            "transports": [transport.to_json() for transport in transports],
            "version": (version if self.pinned else "") or self.entry.version or version,
            "config": {},
            "origin": {
                **origin,
                "registry": self.registry,
                "pinned": self.pinned,
                "verified": self.verified,
                "content": self.content,
            },
        }
        return Manifest.parse(document, self.entry.id)


def make_plan(
    offer: CatalogEntry,
    options: InstallOptions,
    store: Store,
    guard: Guard | None,
    scope: Scope,
    *,
    content: str,
    is_user_supplied: bool = False,
    has_state: bool = False,
) -> Plan:
    """Plan the installation of *offer* in *scope*.

    *guard* checks the requested paths, None without a sandbox. *content* is the digest of the entry in the registry,
    from which *offer* may have been completed. *is_user_supplied* is true if the caller supplied the files, *has_state*
    if the state of a removed server with the same id was kept.

    Raises :class:`~mcpd.errors.InvalidManifest` for an entry that cannot be installed,
    :class:`~mcpd.errors.InvalidConfig` for invalid values, or if the values left by a removed server cannot be read,
    :class:`~mcpd.errors.InvalidArgument` for other invalid options, and :class:`~mcpd.errors.SystemInstanceOnly`.
    """

    def completed(entry: Entry) -> Plan:
        found = replace(whole, entry=entry, verified=bool(verified), signer=verified)
        return make_plan(
            found,
            replace(asked, version=""),
            store,
            guard,
            scope,
            content=content,
            is_user_supplied=is_user_supplied,
            has_state=has_state,
        )

    whole, asked = offer, options
    offer = at_version(offer, options.version)
    entry, registry = offer.entry, offer.origin
    manifest = Manifest.parse(entry.to_json(), entry.id)
    _check(entry, manifest, guard, scope, "" if is_user_supplied else registry)
    installed, held = _installed(store, entry.id)
    if not options.check and (manifest.remote is None or installed is not None):
        raise InvalidArgument(f"{entry.id}: the check can be skipped only at the first installation of a remote server")
    answers = Answers(manifest, held)
    if describes_itself(entry):
        options = replace(options, config={})  # the properties are not known yet
    answers.set_config(options.config)
    verified = offer.signer if offer.verified else ""
    before = installed.manifest if installed is not None and installed.writable else None
    # Activation carries these over, too.
    left = store.kept(entry.id) if before is None else None
    values = config.split(before, store.values(entry.id))[0] if before is not None else left or {}
    is_upgrade = before is not None and registry != "" and recorded_registry(before) == registry
    needs: tuple[Need, ...] = ()
    if not options.consent:
        is_trusted = bool(verified) or is_upgrade
        is_orphan = installed is None or installed.manifest is None
        kept = left if is_orphan else None
        needs = (
            *unverified(entry, is_trusted=is_trusted, given=is_user_supplied),
            *_left_behind(manifest, installed, kept, has_state=has_state),
            *required_consent(manifest, installed, {**values, **answers.given()}, kept),
        )
    return Plan(
        entry,
        registry,
        bool(options.version),
        needs,
        answers,
        values,
        verified,
        options.dry_run,
        is_user_supplied,
        content,
        is_checked=options.check,
        may_be_offline=manifest.remote is not None and installed is None,
        is_agreed=options.consent,
        completed=completed,
    )


def describes_itself(entry: Entry) -> bool:
    """Return whether the transports and properties of *entry* are known only once its files have been fetched."""
    return entry.source is not None and entry.source.type is SourceType.MCPB and not entry.transports


def at_version(offer: CatalogEntry, version: str) -> CatalogEntry:
    """Return *offer* at *version* (or revision) of its package; unchanged if *version* is empty.

    A version other than the entry's does not count as verified. Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    if not version:
        return offer
    entry, source = offer.entry, offer.entry.source
    pin = PACKAGE_SOURCES[source.type].pin if source is not None and source.type in PACKAGE_SOURCES else ""
    if source is None or pin not in {"rev", "version"}:
        raise InvalidArgument(f"{entry.id} has no versions to choose from")
    if source.sha256 and version != source.version:
        raise InvalidArgument(
            f"{entry.id} is pinned by its hash to {source.version or 'one version'}; omit the version"
        )
    if version == getattr(source, pin):
        return offer
    chosen = entry.model_copy(update={"source": source.model_copy(update={pin: version})})
    return replace(offer, entry=chosen, verified=False, signer="")


def _check(entry: Entry, manifest: Manifest, guard: Guard | None, scope: Scope, registry: str) -> None:
    if scope is Scope.USER and (entry.is_for_system or manifest.runtime.run_as == "system"):
        raise SystemInstanceOnly(f"{entry.id} is a server for the whole system; install it with mcpctl --system")
    if why_not := obstacle(entry, registry):
        raise InvalidManifest(f"{entry.id} cannot be installed: {why_not}")
    granted = permissions.parse(entry.id, manifest.permissions, {})
    if guard is not None:
        guard.check_grants(entry.id, granted.paths)
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


def _check_source(entry: Entry, source: Source) -> None:
    recipe = RECIPES.get(source.type)
    if recipe is None:
        known = ", ".join(sorted(RECIPES))
        raise InvalidManifest(f"{entry.id}: sources of type {source.type} cannot be installed; known types: {known}")
    recipe.check(entry, source)


def _installed(store: Store, server_id: str) -> tuple[InstalledServer | None, Configuration | None]:
    try:
        installed = store.get(server_id)
        return installed, None if installed.manifest is None else store.config(server_id)
    except (NotFound, InvalidManifest):
        return None, None
