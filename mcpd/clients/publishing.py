# SPDX-License-Identifier: LGPL-2.1-or-later
"""Drafts of configurations, and their publication as signed releases."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from mcpd import __version__
from mcpd.clients import diff
from mcpd.clients.errors import (
    InvalidInput,
    PolicyViolation,
    ServerNotFound,
    SignatureError,
    ValidationFailed,
)
from mcpd.clients.payload import SERVERS, Generated, Moment, canonical, generate, id_of, parse_payload, timestamp
from mcpd.clients.releases import MAX_CHANGELOG
from mcpd.clients.validation import Report, validate
from mcpd.errors import Busy, InvalidConfig, InvalidManifest, McpdError
from mcpd.files import MAX_FILE
from mcpd.model import check_json, dump_json, load_json, printable
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from mcpd.clients.audit import Audit, Outcome
    from mcpd.clients.families import Family
    from mcpd.clients.profiles import Profile
    from mcpd.clients.releases import Release, Releases
    from mcpd.clients.servers import Servers
    from mcpd.clients.tree import Tree
    from mcpd.clients.validation import Checks

MAX_PAYLOAD: Final = MAX_FILE // 2
"""Maximum size of a draft's file, in bytes, so that it can always be read again."""


class _File(BaseModel):
    """A draft on disk."""

    model_config = ConfigDict(frozen=True)

    client_id: str
    profile_id: str
    payload: dict[str, JsonValue]
    base_artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")] | None = None
    created_at: Moment
    updated_at: Moment


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration that is being edited."""

    client_id: str
    profile_id: str
    payload: dict[str, JsonValue]
    base_artifact_id: str | None
    """The release that the draft is based on; None if there was none."""
    created_at: str
    """ISO 8601, in UTC."""
    updated_at: str
    """ISO 8601, in UTC."""


class Drafts:
    """The drafts in one tree."""

    def __init__(self, tree: Tree, clock: Callable[[], datetime]) -> None:
        """*clock* returns the time, with its zone."""
        self._tree = tree
        self._clock = clock

    def get(self, client_id: str, profile_id: str) -> Draft | None:
        """Return the draft for the client and profile; None if there is none.

        Raises :class:`~mcpd.errors.InvalidConfig` if its file is not as :meth:`put` wrote it, another
        :class:`~mcpd.errors.McpdError` if it cannot be read.
        """
        path = self._tree.draft(client_id, profile_id)
        data = self._tree.read(path)
        if data is None:
            return None
        way_out = f"'mcpctl client draft clear {client_id} --profile {profile_id}' removes the draft"
        try:
            found = _File.model_validate(_checked(load_json(data, str(path)), path))
            payload = parse_payload(found.payload, f"{path}: payload")
        except ValidationError as error:
            raise InvalidConfig(f"{path}: {first_fault(error)}; {way_out}") from error
        except (InvalidManifest, InvalidInput) as error:
            raise InvalidConfig(f"{error.message}; {way_out}") from error
        if (found.client_id, found.profile_id) != (client_id, profile_id):
            raise InvalidConfig(f"{path}: contains the draft of another client or profile; {way_out}")
        return Draft(
            client_id,
            profile_id,
            payload,
            found.base_artifact_id,
            timestamp(found.created_at),
            timestamp(found.updated_at),
        )

    def put(self, client_id: str, profile_id: str, payload: JsonValue, base: str | None) -> Draft:
        """Store *payload* as the draft, which is based on the release *base*.

        Raises :class:`~mcpd.clients.errors.InvalidInput` if it is not a payload or too large, and the errors of
        :meth:`get` for the draft that it would replace, and of writing.
        """
        checked = parse_payload(payload, "the draft")
        path = self._tree.draft(client_id, profile_id)
        with self._tree.lock():
            old = self.get(client_id, profile_id)
            now = timestamp(self._clock())
            draft = Draft(client_id, profile_id, checked, base, old.created_at if old is not None else now, now)
            data = dump_json(
                {
                    "client_id": client_id,
                    "profile_id": profile_id,
                    "base_artifact_id": base,
                    "created_at": draft.created_at,
                    "updated_at": draft.updated_at,
                    "payload": checked,
                }
            )
            if len(data) > MAX_PAYLOAD:
                raise InvalidInput(f"the draft is larger than {MAX_PAYLOAD} bytes; remove servers from it")
            self._tree.write(path, data)
        return draft

    def clear(self, client_id: str, profile_id: str) -> bool:
        """Delete the draft, even an invalid one; return True if there was one.

        Raises :class:`~mcpd.errors.McpdError` if that fails.
        """
        path = self._tree.draft(client_id, profile_id)
        if self._tree.status(path) is None:
            return False
        with self._tree.lock():
            self._tree.prepare(path.parent)
            return self._tree.remove(path)


def _checked(value: JsonValue, path: Path) -> JsonValue:
    try:
        check_json(value)
    except ValueError as error:
        raise InvalidManifest(f"{path}: {error}") from error
    return value


_log = logging.getLogger(__name__)

GENERATOR: Final = "mcpd"
FROM_INSTALLED: Final = "installed"
FROM_DRAFT: Final = "draft"
FROM_NOBODY: Final = "first"
"""``metadata.source`` of a release made from the installed servers, from a draft, or without a request."""
_LAYERS: Final = ("user", "system", "vendor")


@dataclass(frozen=True, slots=True)
class Publishing:
    """Changes to the drafts and releases of one scope."""

    tree: Tree
    servers: Servers
    checks: Checks
    releases: Releases
    drafts: Drafts
    audit: Audit
    _made: dict[tuple[str, str], tuple[object, Release]] = field(default_factory=dict, init=False, repr=False)
    """By client and profile, the last result of :meth:`current`, and what it was made from."""

    def generated(self, family: Family, profile: Profile) -> Generated:
        """Return the configuration made from the installed servers."""
        return generate(self.servers.all().values(), family, profile)

    def admissible(self, family: Family, profile: Profile) -> Generated:
        """Return :meth:`generated` without servers that the policy or a validation error keeps from publication.

        Raises :class:`~mcpd.errors.InvalidConfig` for an invalid policy.
        """
        made = self.generated(family, profile)
        report = self.checks.report(made.payload, family, may_be_empty=True)
        refused = {each.server_id for each in report.errors} | {each.server_id for each in report.violations}
        entries = {name: entry for name, entry in _entries(made.payload).items() if name not in refused}
        faults = [*(each.message for each in report.errors), *(each.message for each in report.violations)]
        return Generated({SERVERS: entries}, [*made.warnings, *(f"left out: {fault}" for fault in faults)])

    def current(self, family: Family, profile: Profile) -> Release:
        """Return the latest release or, if nobody published one, an unsigned one made from the installed servers.

        Nothing is kept. Raises :class:`~mcpd.errors.InvalidConfig` for an invalid policy.
        """
        newest = self.releases.latest(family.id, profile.id)
        if newest is not None and newest.metadata.get("source") != FROM_NOBODY:
            return newest
        before = newest.payload if newest is not None else {SERVERS: {}}
        # Everything that the release is made from; unchanged parts are the same objects.
        state = (family, profile, [*self.servers.all().values()], self.checks.state(), before)
        known = self._made.get((family.id, profile.id))
        if known is not None and known[0] == state:
            return known[1]
        made = self.admissible(family, profile)
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

    def keep(self, family: Family, profile: Profile, shown: Release) -> Release:
        """Return *shown* as a signed release; one that was only made from the installed servers is stored first.

        Raises :class:`~mcpd.errors.Busy` if a release was published since it was shown, and the errors of writing.
        """
        with self.tree.lock():
            if shown.is_signed and self.releases.has(family.id, profile.id, shown.artifact_id):
                return shown
            newest = self.releases.latest(family.id, profile.id)
            if newest is not None and newest.artifact_id == shown.artifact_id:
                return newest
            if newest is not None and newest.metadata.get("source") != FROM_NOBODY:
                raise Busy(f"{family.id}/{profile.id} was published in the meantime; review the difference again")
            return self._sign(
                family, profile, shown.payload, FROM_NOBODY, str(shown.metadata.get("changelog", ""))
            )  # fmt: skip

    def view(self, family: Family, profile: Profile) -> dict[str, JsonValue]:
        """Return the draft, or the content of a new draft, and its differences from the latest release."""
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
            "updated_at": draft.updated_at if draft is not None else None,
            "changes": diff.compare(before, payload),
        }

    def add(
        self,
        family: Family,
        profile: Profile,
        server_id: str,
        *,
        name: str,
        entry: JsonValue,
        variables: Sequence[str],
    ) -> dict[str, JsonValue]:
        """Add *entry*, or if None the installed server *server_id*, to the draft as *name*; return :meth:`view`."""
        warnings: list[str] = []
        if entry is None:
            server = self.servers.get(server_id)
            variables_by_id = {server.id: tuple(variables)} if variables else {}
            chosen = profile.model_copy(
                update={
                    "include": ("*",),
                    "exclude": (),
                    "layers": _LAYERS,
                    "scripts": True,
                    "variables": variables_by_id,
                }
            )
            made = generate([server], family, chosen)
            entries = _entries(made.payload)
            if server.id not in entries:
                why = server.problem or ("it is disabled" if server.entry.disabled else "it cannot be started")
                raise InvalidInput(f"{printable(server.id)} cannot be used: {why}", {"field": "server_id"})
            entry, warnings = entries[server.id], made.warnings
        elif variables:
            raise InvalidInput("give the variables of an entry in its env", {"field": "env_vars"})
        _refuse_faults(family, profile, name, entry)
        with self.tree.lock():
            payload, base = self._draft(family, profile)
            payload = parse_payload({**payload, SERVERS: {**_entries(payload), name: entry}}, "the draft")
            canonical(payload)
            self.drafts.put(family.id, profile.id, payload, base)
        return {**self.view(family, profile), "warnings": [*warnings]}

    def remove(self, family: Family, profile: Profile, name: str) -> dict[str, JsonValue]:
        """Remove *name* from the draft; return :meth:`view`."""
        with self.tree.lock():
            payload, base = self._draft(family, profile)
            entries = _entries(payload)
            if entries.pop(name, None) is None:
                raise ServerNotFound(f"the configuration of {family.id}/{profile.id} has no server {printable(name)!r}")
            self.drafts.put(family.id, profile.id, {**payload, SERVERS: entries}, base)
        return self.view(family, profile)

    def publish(
        self, family: Family, profile: Profile, changelog: str, *, from_installed: bool = False
    ) -> dict[str, JsonValue]:
        """Sign the draft or, if there is none, the configuration of the installed servers as the latest release.

        Raises :class:`~mcpd.clients.errors.InvalidInput` if that would replace a release made from a draft, unless
        *from_installed* is given, or if it is given while there is a draft.
        """
        about: dict[str, JsonValue] = {"client_id": family.id, "profile_id": profile.id}
        outcome: Outcome = "failed"
        details: dict[str, JsonValue] | None = None
        made: str | None = None
        try:
            with self.tree.lock():
                draft = self.drafts.get(family.id, profile.id)
                if draft is None:
                    generated = self.generated(family, profile)
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
        made = self.generated(family, profile).payload
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
    """Refuse an invalid entry, above all one with a secret: everybody may read the system's drafts."""
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
