# SPDX-License-Identifier: LGPL-2.1-or-later
"""Operations on the configurations of one scope, for the MCP tools and ``mcpctl client``.

Answers are JSON objects. Methods block briefly on the disk. Only one thread may use an instance; several processes
exclude each other by the lock of the tree.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mcpd.clients import diff
from mcpd.clients.audit import Audit
from mcpd.clients.errors import ArtifactNotFound, InvalidInput, NothingPublished, SignatureError
from mcpd.clients.families import Families
from mcpd.clients.keys import Keys
from mcpd.clients.payload import ARTIFACT_ID, id_of, parse_payload
from mcpd.clients.profiles import Profiles
from mcpd.clients.publishing import FROM_DRAFT, FROM_NOBODY, Drafts, Publishing
from mcpd.clients.releases import Releases
from mcpd.clients.servers import Servers
from mcpd.clients.tree import Tree
from mcpd.clients.validation import Checks
from mcpd.errors import InvalidConfig, ReadOnly

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcpd.clients.families import Family
    from mcpd.clients.payload import Generated
    from mcpd.clients.profiles import Profile
    from mcpd.clients.releases import Release
    from mcpd.model import JsonValue
    from mcpd.paths import Paths, Scope

DEFAULT_CLIENT: Final = "claude-desktop"
DEFAULT_PROFILE: Final = "default"


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
        self._answers: dict[tuple[str, str], Release] = {}
        self.drafts = Drafts(self.tree, clock)
        self._publishing = Publishing(self.tree, self.servers, self.checks, self.releases, self.drafts, self.audit)

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
                "give exactly one of local_artifact_id and local_payload",
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
        :class:`~mcpd.clients.errors.SignatureError`, and :class:`~mcpd.clients.errors.NothingPublished` if the service
        is read-only.
        """
        family, profile = self._known(client_id, profile_id)
        if self.writable:
            return self._publishing.current(family, profile)
        found = self.releases.latest(family.id, profile_id)
        if found is None:
            raise NothingPublished(
                f"nothing is published for {family.id}/{profile.id} yet; root can do it with"
                f" 'mcpctl --system client publish {family.id} --profile {profile.id}'"
            )
        return found

    def keep(self, shown: Release) -> Release:
        """Store *shown* for a deployment and return it, signed if it was only made from the installed servers.

        Raises :class:`~mcpd.errors.Busy` if a release was published since it was shown, and the errors of writing.
        """
        known = self._known(shown.client_id, shown.profile_id)
        return self._publishing.keep(*known, shown) if self.writable else shown

    def generated(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> Generated:
        """Return the configuration made from the installed servers.

        Raises :class:`~mcpd.clients.errors.ClientNotFound`, :class:`~mcpd.clients.errors.ProfileNotFound`.
        """
        return self._publishing.generated(*self._known(client_id, profile_id))

    def is_stale(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> bool:
        """Return True if the latest release was made from the installed servers, and these have changed since."""
        newest = self.releases.latest(client_id, profile_id)
        if newest is None or newest.metadata.get("source") in {FROM_DRAFT, FROM_NOBODY}:
            return False
        try:
            made = self._publishing.admissible(*self._known(client_id, profile_id))
        except InvalidConfig:
            return False  # with an invalid policy nothing can be published
        return id_of(made.payload) != newest.artifact_id

    def view_draft(self, client_id: str, profile_id: str = DEFAULT_PROFILE) -> dict[str, JsonValue]:
        """Return the draft, or the content of a new draft, and its differences from the latest release."""
        return self._publishing.view(*self._known(client_id, profile_id))

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
        return self._publishing.add(
            family, profile, server_id, name=name or server_id, entry=entry, variables=variables
        )

    def remove_server(self, client_id: str, profile_id: str, name: str) -> dict[str, JsonValue]:
        """Remove *name* from the draft; return :meth:`view_draft`.

        Raises :class:`~mcpd.clients.errors.ServerNotFound`.
        """
        known = self._known(client_id, profile_id)
        self._require_writable()
        return self._publishing.remove(*known, name)

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
        known = self._known(client_id, profile_id)
        self._require_writable()
        return self._publishing.publish(*known, changelog, from_installed=from_installed)

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
