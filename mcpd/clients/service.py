# SPDX-License-Identifier: LGPL-2.1-or-later
"""Operations on the configurations of one scope, for the MCP tools and ``mcpctl client``.

Answers are JSON objects. Methods block briefly on the disk. Only one thread may use an instance; several processes
exclude each other by the lock of the tree.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd import __version__
from mcpd.clients import diff
from mcpd.clients.audit import Audit
from mcpd.clients.drafts import Drafts
from mcpd.clients.errors import (
    ArtifactNotFound,
    InvalidInput,
    NothingPublished,
    PolicyViolation,
    ServerNotFound,
    SignatureError,
    ValidationFailed,
)
from mcpd.clients.families import Families
from mcpd.clients.keys import Keys
from mcpd.clients.payload import (
    ARTIFACT_ID,
    SERVERS,
    Generated,
    canonical,
    generate,
    id_of,
    parse_payload,
    timestamp,
)
from mcpd.clients.profiles import Profiles
from mcpd.clients.releases import MAX_CHANGELOG, Releases
from mcpd.clients.servers import Servers
from mcpd.clients.tree import Tree
from mcpd.clients.validation import Checks, Report, validate
from mcpd.errors import Busy, InvalidConfig, McpdError, ReadOnly
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcpd.clients.audit import Outcome
    from mcpd.clients.drafts import Draft
    from mcpd.clients.families import Family
    from mcpd.clients.profiles import Profile
    from mcpd.clients.releases import Release
    from mcpd.model import JsonValue
    from mcpd.paths import Paths, Scope

DEFAULT_CLIENT: Final = "claude-desktop"
DEFAULT_PROFILE: Final = "default"
GENERATOR: Final = "mcpd"
FROM_INSTALLED: Final = "installed"
FROM_DRAFT: Final = "draft"
FROM_NOBODY: Final = "first"
"""``metadata.source`` of a release made from the installed servers, from a draft, or without a request."""
_LAYERS: Final = ("user", "system", "vendor")

_log = logging.getLogger(__name__)


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


class Orchestration:
    """The signed configurations of one scope."""

    def __init__(
        self, paths: Paths, scope: Scope, *, writable: bool = True, clock: Callable[[], datetime] = now
    ) -> None:
        """If not *writable*, only published configurations are returned, and nothing is created or changed."""
        self.writable = writable
        self.scope = scope
        self.tree = Tree(paths.layout(scope).orchestration, scope)
        self.families = Families.of(paths, scope)
        self.profiles = Profiles.of(paths, scope)
        self.keys = Keys(self.tree, clock)
        self.releases = Releases(self.tree, self.keys, clock)
        self.servers = Servers(paths, scope)
        self.checks = Checks(paths, scope, self.servers)
        self.audit = Audit(self.tree, clock)
        self._listed: tuple[list[Family], dict[str, list[str]], dict[str, JsonValue]]
        self._listed = ([], {}, {"clients": [], "count": 0})
        self.drafts = Drafts(self.tree, clock)
        self._made: dict[tuple[str, str], tuple[object, Release]] = {}
        """By client and profile, the last unsigned result of :meth:`current`, and what it was made from."""
        self._answers: dict[tuple[str, str], Release] = {}
        """By client and profile, the last release that was signed for :meth:`release` only."""

    def list_clients(self) -> dict[str, JsonValue]:
        """Return the families of clients; callers must not change the result."""
        families = self.families.all()
        profiles = self.profiles.by_family(families)
        # Families are the same objects until a file changes.
        known, had, answer = self._listed
        if profiles != had or [*map(id, known)] != [*map(id, families)]:
            clients = [family.summary(profiles[family.id]) for family in families]
            answer = {"clients": [*clients], "count": len(clients)}
            self._listed = families, profiles, answer
        return answer

    def list_profiles(self, client_id: str) -> dict[str, JsonValue]:
        """Return the profiles of a client, each with the release of :meth:`current`; nothing is signed.

        Raises :class:`~mcpd.clients.errors.ClientNotFound`, and the errors of :meth:`current`.
        """
        family = self.families.get(client_id)
        found: list[JsonValue] = []
        for profile_id in self.profiles.available(family):
            profile = self.profiles.get(family, profile_id)
            try:
                release = self.current(client_id, profile_id)
            except NothingPublished:
                continue
            found.append(
                {
                    "profile_id": profile_id,
                    "display_name": profile.name,
                    "description": profile.description,
                    "latest_artifact_id": release.artifact_id,
                    "updated_at": release.created_at,
                }
            )
        return {"client_id": client_id, "profiles": found, "count": len(found)}

    def get_config(
        self, client_id: str, profile_id: str = DEFAULT_PROFILE, artifact_id: str | None = None
    ) -> dict[str, JsonValue]:
        """Return a signed configuration: the latest, or the one with *artifact_id*.

        Raises as :meth:`release` does.
        """
        return self.release(client_id, profile_id, artifact_id).to_json()

    def diff_config(
        self,
        client_id: str,
        profile_id: str = DEFAULT_PROFILE,
        *,
        local_artifact_id: str | None = None,
        local_payload: JsonValue = None,
    ) -> dict[str, JsonValue]:
        """Return how a local configuration, given by its id or its payload, differs from the latest release.

        The status is ``unknown`` for an id that was never published for the client and profile. Raises as
        :meth:`release` does, and :class:`~mcpd.clients.errors.InvalidInput`.
        """
        if (local_artifact_id is None) == (local_payload is None):
            raise InvalidInput(
                "pass exactly one of local_artifact_id and local_payload",
                {"field": "local_payload" if local_payload is not None else "local_artifact_id"},
            )
        newest = self.current(client_id, profile_id)
        if local_artifact_id == newest.artifact_id:
            local = newest.payload
        elif local_artifact_id is None:
            local = parse_payload(local_payload, "local_payload")
        else:
            try:
                local = self.releases.get(client_id, profile_id, local_artifact_id, expired=True).payload
            except ArtifactNotFound:
                if not ARTIFACT_ID.fullmatch(local_artifact_id):
                    raise
                last = self._answers.get((client_id, profile_id))
                if last is not None and last.artifact_id == local_artifact_id:
                    ids = local_artifact_id, newest.artifact_id
                    return diff.report(last.payload, newest.payload, *ids, published=True)
                return diff.unknown(local_artifact_id, newest.artifact_id)
        local_id = id_of(local)
        published = self.releases.has(client_id, profile_id, local_id)
        return diff.report(local, newest.payload, local_id, newest.artifact_id, published=published)

    def release(self, client_id: str, profile_id: str = DEFAULT_PROFILE, artifact_id: str | None = None) -> Release:
        """Return a signed release: the one with *artifact_id*, otherwise the result of :meth:`current`.

        A release that is not published is signed for this call only, and not stored. Raises
        :class:`~mcpd.clients.errors.ArtifactNotFound`, and the errors of :meth:`current` and of creating a key.
        """
        self._known(client_id, profile_id)
        if artifact_id is not None:
            try:
                return self.releases.get(client_id, profile_id, artifact_id)
            except ArtifactNotFound:
                if not self.writable or (found := self.current(client_id, profile_id)).artifact_id != artifact_id:
                    raise
        else:
            found = self.current(client_id, profile_id)
        return found if found.is_signed else self._answer(found)

    def current(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> Release:
        """Return the latest release or, if nobody published one, an unsigned one made from the installed servers.

        Servers that cannot be published, because of the policy or otherwise, are left out. Nothing is signed or kept.
        Raises :class:`~mcpd.clients.errors.ClientNotFound`, :class:`~mcpd.clients.errors.ProfileNotFound`,
        :class:`~mcpd.clients.errors.SignatureError`, :class:`~mcpd.errors.InvalidConfig` for an invalid policy, and
        :class:`~mcpd.clients.errors.NothingPublished` if the service is read-only.
        """
        family, profile = self._known(client_id, profile_id)
        newest = self.releases.latest(family.id, profile.id)
        if newest is None and not self.writable:
            raise NothingPublished(
                f"nothing is published for {family.id}/{profile.id} yet; root can publish it with"
                f" 'mcpctl --system client publish {family.id} --profile {profile.id}'"
            )
        if newest is not None and (not self.writable or newest.metadata.get("source") != FROM_NOBODY):
            return newest
        before = newest.payload if newest is not None else {SERVERS: {}}
        # Everything that the release is made from; unchanged parts are the same objects.
        state = (family, profile, [*self.servers.all().values()], self.checks.state(), before)
        known = self._made.get((family.id, profile.id))
        if known is not None and known[0] == state:
            return known[1]
        made = self._admissible(family, profile)
        if newest is not None and newest.artifact_id == id_of(made.payload):
            return newest
        for warning in made.warnings:
            _log.warning("%s/%s: %s", family.id, profile.id, warning)
        release = self.releases.prepare(
            family.id, profile.id, made.payload,
            generator=GENERATOR, generator_version=__version__, source=FROM_NOBODY,
            changelog=_summary(before, made.payload),
        )  # fmt: skip
        self._made[family.id, profile.id] = state, release
        return release

    def keep(self, shown: Release) -> Release:
        """Store *shown* for a deployment and return it, signed if it was only made from the installed servers.

        Raises :class:`~mcpd.errors.Busy` if a release was published since it was shown, and the errors of writing.
        """
        family, profile = self._known(shown.client_id, shown.profile_id)
        if not self.writable:
            return shown
        with self.tree.lock():
            if shown.is_signed and self.releases.has(family.id, profile.id, shown.artifact_id):
                return shown
            newest = self.releases.latest(family.id, profile.id)
            if newest is not None and newest.artifact_id == shown.artifact_id:
                return newest
            if newest is not None and newest.metadata.get("source") != FROM_NOBODY:
                raise Busy(f"{family.id}/{profile.id} was published in the meantime; review the difference again")
            return self._sign(family, profile, shown.payload, FROM_NOBODY, str(shown.metadata.get("changelog", "")))

    def generated(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> Generated:
        """Return the configuration made from the installed servers.

        Raises :class:`~mcpd.clients.errors.ClientNotFound`, :class:`~mcpd.clients.errors.ProfileNotFound`.
        """
        return self._generated(*self._known(client_id, profile_id))

    def is_stale(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> bool:
        """Return True if the latest release was made from the installed servers, and these have changed since."""
        newest = self.releases.latest(client_id, profile_id)
        if newest is None or newest.metadata.get("source") in {FROM_DRAFT, FROM_NOBODY}:
            return False
        try:
            made = self._admissible(*self._known(client_id, profile_id))
        except InvalidConfig:
            return False  # with an invalid policy nothing can be published
        return id_of(made.payload) != newest.artifact_id

    def view_draft(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> dict[str, JsonValue]:
        """Return the draft, or the content of a new draft, and its differences from the latest release."""
        family, profile = self._known(client_id, profile_id)
        draft = self.drafts.get(family.id, profile.id)
        newest = self.releases.latest(family.id, profile.id)
        before = newest.payload if newest is not None else {SERVERS: {}}
        payload, base = self._draft(family, profile)
        return {
            "client_id": family.id,
            "profile_id": profile.id,
            "exists": draft is not None,
            "draft": payload,
            "base_artifact_id": base,
            "updated_at": timestamp(draft.updated_at) if draft is not None else None,
            "changes": diff.compare(before, payload),
        }

    def add_server(
        self,
        client_id: str,
        profile_id: str,
        server_id: str,
        *,
        name: str | None = None,
        entry: JsonValue = None,
        variables: tuple[str, ...] = (),
    ) -> dict[str, JsonValue]:
        """Put an installed server, or *entry*, into the draft, as *name*; return :meth:`view_draft`.

        *variables* are passed to it by the client's own placeholders. Raises
        :class:`~mcpd.clients.errors.ServerNotFound` for a server that is not installed and has no *entry*, and
        :class:`~mcpd.clients.errors.ValidationFailed` for an *entry* with a secret in it.
        """
        family, profile = self._known(client_id, profile_id)
        self._require_writable()
        name = name or server_id
        warnings: list[str] = []
        if entry is None:
            entry, warnings = self._entry(family, profile, server_id, variables)
        elif variables:
            raise InvalidInput("put the variables of an entry in its env", {"field": "env_vars"})
        _refuse_faults(family, profile, name, entry)
        with self.tree.lock():
            payload, base = self._draft(family, profile)
            payload = parse_payload({**payload, SERVERS: {**_entries(payload), name: entry}}, "the draft")
            canonical(payload)
            self.drafts.put(family.id, profile.id, payload, base)
        return {**self.view_draft(client_id, profile_id), "warnings": [*warnings]}

    def remove_server(self, client_id: str, profile_id: str, name: str) -> dict[str, JsonValue]:
        """Remove *name* from the draft; return :meth:`view_draft`.

        Raises :class:`~mcpd.clients.errors.ServerNotFound`.
        """
        family, profile = self._known(client_id, profile_id)
        self._require_writable()
        with self.tree.lock():
            payload, base = self._draft(family, profile)
            entries = _entries(payload)
            if entries.pop(name, None) is None:
                raise ServerNotFound(f"the configuration of {family.id}/{profile.id} has no server {printable(name)!r}")
            self.drafts.put(family.id, profile.id, {**payload, SERVERS: entries}, base)
        return self.view_draft(client_id, profile_id)

    def clear_draft(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> dict[str, JsonValue]:
        """Delete the draft; the result says whether there was one."""
        self._known(client_id, profile_id)
        self._require_writable()
        cleared = self.drafts.clear(client_id, profile_id)
        return {"client_id": client_id, "profile_id": profile_id, "cleared": cleared}

    def validate(
        self, client_id: str, profile_id: str = DEFAULT_PROFILE, payload: JsonValue = None
    ) -> dict[str, JsonValue]:
        """Return errors, warnings and policy violations of *payload*, or of the draft, or of the installed servers."""
        family, _ = self._known(client_id, profile_id)
        generated = False
        if payload is None:
            draft = self.drafts.get(client_id, profile_id)
            generated = draft is None
            payload = draft.payload if draft is not None else self.generated(client_id, profile_id).payload
        report = self.checks.report(payload, family, may_be_empty=generated)
        return {"client_id": client_id, "profile_id": profile_id, **report.to_json()}

    def publish(
        self,
        client_id: str,
        profile_id: str = DEFAULT_PROFILE,
        changelog: str = "",
        *,
        from_installed: bool = False,
    ) -> dict[str, JsonValue]:
        """Sign the draft, or the installed servers if there is none, as the latest release.

        Installed servers replace a release that was made from a draft only with *from_installed*.

        Return :meth:`get_config` with ``published`` (false if nothing has changed), ``dropped`` (servers of a replaced
        draft) and ``warnings``. Raises :class:`~mcpd.clients.errors.InvalidInput` for a release that would be
        discarded, and for a draft together with *from_installed*, :class:`~mcpd.clients.errors.ValidationFailed`,
        :class:`~mcpd.clients.errors.PolicyViolation`, :class:`~mcpd.clients.errors.SignatureError`, and the errors of
        writing.
        """
        family, profile = self._known(client_id, profile_id)
        self._require_writable()
        about: dict[str, JsonValue] = {"client_id": family.id, "profile_id": profile.id}
        outcome: Outcome = "failed"
        details: dict[str, JsonValue] | None = None
        made: str | None = None
        try:
            with self.tree.lock():
                draft = self.drafts.get(family.id, profile.id)
                if draft is None:
                    generated = self._generated(family, profile)
                    payload, source, warnings = generated.payload, FROM_INSTALLED, generated.warnings
                else:
                    payload, source, warnings = draft.payload, FROM_DRAFT, []
                made = id_of(payload)
                newest = self._trusted(family, profile)
                is_curated = draft is None and self.releases.source(family.id, profile.id) == FROM_DRAFT
                if from_installed:
                    _refuse_draft(family, profile, draft)
                elif is_curated:
                    _keep_curated(family, profile, newest, payload)
                    source = FROM_DRAFT
                report = self.checks.report(payload, family, may_be_empty=draft is None)
                report.require(f"the configuration of {family.id}/{profile.id}", about)
                is_new = newest is None or newest.artifact_id != made or newest.metadata.get("source") != source
                before = newest.payload if newest is not None else {SERVERS: {}}
                dropped = _removed(before, payload) if is_curated else []
                if is_new and is_curated and newest is not None:
                    old = f"{newest.artifact_id[:12]}, which was made from a draft"
                    warnings = [*warnings, f"this replaces {old}: {_summary(before, payload)}"]
                if newest is None or is_new:
                    text = changelog.strip() or _summary(before, payload)
                    newest = self._sign(family, profile, payload, source, text)
                if draft is not None:
                    self.drafts.clear(family.id, profile.id)
            outcome = "ok"
        except (PolicyViolation, ValidationFailed, InvalidInput) as fault:
            outcome, details = "refused", fault.members
            raise
        except McpdError as fault:
            details = {"message": fault.message}
            raise
        finally:
            if outcome != "ok":
                self.audit.record(
                    "publish_config", client_id=family.id, profile_id=profile.id, artifact_id=made, outcome=outcome,
                    details=details,
                )  # fmt: skip
        warned = [*warnings, *(each.message for each in report.warnings)]
        return {**newest.to_json(), "published": is_new, "dropped": dropped, "warnings": [*warned]}

    def check_deploy(self, release: Release) -> None:
        """Check a release before its deployment; its signature was verified when it was read.

        Raises :class:`~mcpd.clients.errors.ValidationFailed`, :class:`~mcpd.clients.errors.PolicyViolation`.
        """
        family = self.families.get(release.client_id)
        details: dict[str, JsonValue] = {"client_id": family.id, "profile_id": release.profile_id}
        what = f"{family.id}/{release.profile_id}: {release.artifact_id[:12]}"
        self.checks.report(release.payload, family, may_be_empty=True).require(what, details)

    def initialize_keys(self, *, regenerate: bool = False) -> dict[str, JsonValue]:
        """Create the keys if there are none, or new ones; then sign the latest releases again with them.

        Raises :class:`~mcpd.clients.errors.SignatureError` for unusable keys, and for releases that cannot be trusted:
        the key is replaced nevertheless, and all others are signed again.
        """
        self._require_writable()
        with self.tree.lock():
            change = self.keys.initialize(regenerate=regenerate)
            if change.created:
                about: dict[str, JsonValue] = {"signing_key_id": change.key_id}
                self.audit.record("initialize_keys", client_id="", profile_id="", outcome="ok", details=about)
            # Also releases that an interrupted call left signed with another key.
            try:
                signed = self.releases.resign()
            except SignatureError as fault:
                raise SignatureError(f"The key {change.key_id} is in use. {fault.message}") from fault
        return {
            "signing_key_id": change.key_id,
            "created": change.created,
            "previous_key_id": change.previous,
            "previous_key_expires_at": change.expires_at,
            "releases_signed_again": signed,
            "verification_key": str(self.tree.verification_key),
        }

    def available_servers(self, search: str = "", transport: str = "") -> dict[str, JsonValue]:
        """Return the installed servers."""
        return self.servers.listing(search, transport)

    def describe_server(self, server_id: str) -> dict[str, JsonValue]:
        """Return the description of *server_id*. Raises :class:`~mcpd.clients.errors.ServerNotFound`."""
        return self.servers.describe(server_id)

    def _generated(self, family: Family, profile: Profile) -> Generated:
        return generate(self.servers.all().values(), family, profile)

    def _admissible(self, family: Family, profile: Profile) -> Generated:
        """Return :meth:`generated` without servers that the policy or a validation error keeps from publication.

        Raises :class:`~mcpd.errors.InvalidConfig` for an invalid policy.
        """
        made = self._generated(family, profile)
        report = self.checks.report(made.payload, family, may_be_empty=True)
        refused = {each.server_id for each in report.errors} | {each.server_id for each in report.violations}
        entries = {name: entry for name, entry in _entries(made.payload).items() if name not in refused}
        faults = [*(each.message for each in report.errors), *(each.message for each in report.violations)]
        return Generated({SERVERS: entries}, [*made.warnings, *(f"omitted: {fault}" for fault in faults)])

    def _entry(
        self, family: Family, profile: Profile, server_id: str, variables: Sequence[str]
    ) -> tuple[JsonValue, list[str]]:
        """Return the entry of an installed server with *variables*, and warnings about it."""
        server = self.servers.get(server_id)
        chosen = profile.model_copy(
            update={
                "include": ("*",),
                "exclude": (),
                "layers": _LAYERS,
                "scripts": True,
                "variables": {server.id: tuple(variables)} if variables else {},
            }
        )
        made = generate([server], family, chosen)
        entries = _entries(made.payload)
        if server.id not in entries:
            why = server.problem or ("it is disabled" if server.entry.disabled else "it cannot be started")
            raise InvalidInput(f"{printable(server.id)} cannot be used: {why}", {"field": "server_id"})
        return entries[server.id], made.warnings

    def _trusted(self, family: Family, profile: Profile) -> Release | None:
        """Return the latest release; None if there is none, or if it cannot be trusted and is to be replaced."""
        try:
            return self.releases.latest(family.id, profile.id)
        except SignatureError as fault:
            _log.warning("%s", fault.message)
            return None

    def _draft(self, family: Family, profile: Profile) -> tuple[dict[str, JsonValue], str | None]:
        """Return payload and base to edit: of the draft, the latest published release or the installed servers."""
        draft = self.drafts.get(family.id, profile.id)
        if draft is not None:
            return dict(draft.payload), draft.base_artifact_id
        newest = self.releases.latest(family.id, profile.id)
        made = self._generated(family, profile).payload
        if newest is None or (newest.metadata.get("source") == FROM_NOBODY and newest.artifact_id != id_of(made)):
            return made, None
        return dict(newest.payload), newest.artifact_id

    def _sign(
        self, family: Family, profile: Profile, payload: dict[str, JsonValue], source: str, changelog: str
    ) -> Release:
        # Audit first: a release that cannot be audited is not published.
        self.audit.record(
            "publish_config", client_id=family.id, profile_id=profile.id, artifact_id=id_of(payload), outcome="ok",
            details={"source": source},
        )  # fmt: skip
        return self.releases.publish(
            family.id, profile.id, payload,
            generator=GENERATOR, generator_version=__version__, source=source, changelog=changelog,
        )  # fmt: skip

    def _answer(self, made: Release) -> Release:
        """Return *made* with signatures: the previous ones if neither it nor the key has changed."""
        place = made.client_id, made.profile_id
        last = self._answers.get(place)
        if last is None or (last.artifact_id, last.signing_key_id) != (made.artifact_id, self.keys.current()):
            last = self._answers[place] = self.releases.sign(made)
        return replace(last, payload=made.payload)

    def _known(self, client_id: str, profile_id: str) -> tuple[Family, Profile]:
        family = self.families.get(client_id)
        return family, self.profiles.get(family, profile_id)

    def _require_writable(self) -> None:
        if not self.writable:
            raise ReadOnly(
                f"{self.tree.root}: only root can change the system's configurations, with 'mcpctl --system client'"
            )


def _refuse_draft(family: Family, profile: Profile, draft: Draft | None) -> None:
    """Refuse to ignore *draft* in favour of the installed servers."""
    if draft is not None:
        raise InvalidInput(
            f"{family.id}/{profile.id} has a draft, which from_installed would ignore; publish or clear it first",
            {"field": "from_installed"},
        )


def _keep_curated(family: Family, profile: Profile, newest: Release | None, payload: dict[str, JsonValue]) -> None:
    """Refuse to replace *newest*, made from a draft, by another *payload*; None is one that cannot be verified."""
    if newest is not None and newest.artifact_id == id_of(payload):
        return
    details: dict[str, JsonValue] = {"field": "from_installed"}
    what = "it cannot be verified"
    if newest is not None:
        details |= {"dropped": _removed(newest.payload, payload), "changes": diff.compare(newest.payload, payload)}
        what = _summary(newest.payload, payload)
    raise InvalidInput(
        f"{family.id}/{profile.id} was made from a draft, which publishing the installed servers would discard: {what}."
        f" 'mcpctl client publish {family.id} --profile {profile.id} --from-installed' (from_installed: true) does so",
        details,
    )


def _removed(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> list[JsonValue]:
    """Return the names of the servers that *after* does not have, sorted."""
    return [*sorted(_entries(before).keys() - _entries(after).keys())]


def _refuse_faults(family: Family, profile: Profile, name: str, entry: JsonValue) -> None:
    """Refuse an invalid entry, above all one with a secret: everyone may read the system's drafts."""
    findings = [each for each in validate({SERVERS: {name: entry}}, family) if each.severity == "error"]
    about: dict[str, JsonValue] = {"client_id": family.id, "profile_id": profile.id}
    Report(findings, (), ()).require(f"what is to be added to the draft of {family.id}/{profile.id}", about)


def _entries(payload: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy of the entries of *payload*, which was checked."""
    found = payload[SERVERS]
    return dict(found) if isinstance(found, dict) else {}


def _summary(before: dict[str, JsonValue], after: dict[str, JsonValue]) -> str:
    """Return the default changelog of a release."""
    found: dict[str, Any] = diff.compare(before, after)
    changed = [each["server_id"] for each in found["servers_modified"]]
    said = (("added", found["servers_added"]), ("removed", found["servers_removed"]), ("changed", changed))
    text = "; ".join(f"{word} {', '.join(names)}" for word, names in said if names)
    return (text[:1].upper() + text[1:])[:MAX_CHANGELOG] if text else "No change"
