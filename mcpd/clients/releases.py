# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was published, for whom and when, signed: one file per payload, one list per client and profile."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from mcpd.clients.canonical import ARTIFACT_ID, canonical, timestamp
from mcpd.clients.canonical import artifact_id as id_of
from mcpd.clients.drafts import parse_payload
from mcpd.clients.faults import ArtifactNotFound, InvalidInput, SignatureFault
from mcpd.clients.indexes import MAX_INDEX, Entry, dump_index, parse_index, publish_again, unusable
from mcpd.clients.tree import NAME, mark
from mcpd.clients.verify import Signed, check_releases, statement
from mcpd.errors import InvalidConfig, InvalidManifest
from mcpd.files import MAX_FILE
from mcpd.model import JsonValue, check_json, load_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from mcpd.clients.keys import Keys
    from mcpd.clients.tree import Tree
    from mcpd.files import Signature

MAX_WORD: Final = 200
MAX_CHANGELOG: Final = 10_000
"""Characters of what a release says of its generator, and of its changes."""

_HELD: Final = 256
"""Artifacts that are kept in memory once they were verified."""
_HELD_SIZE: Final = 256 * 1024
"""Bytes of the largest of them."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is said of a release, without its payload, which may be large; both signatures were checked."""

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    signature: str
    signing_key_id: str
    metadata: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Release:
    """An artifact as it was published for one client and profile; both signatures were checked.

    One that is made of what is installed, and was not published, is not signed before it is handed out.
    """

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    payload: dict[str, JsonValue]
    signature: str
    signing_key_id: str
    metadata: dict[str, JsonValue]

    @property
    def is_signed(self) -> bool:
        """Return whether there are signatures."""
        return bool(self.signature)

    def to_json(self) -> dict[str, JsonValue]:
        """What ``get_config`` answers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Releases:
    """The releases in *tree*, signed with *keys*; *clock* gives the time, with its zone.

    What is handed out was verified when it was read. As long as its files stay as they are, getting it again costs a
    ``lstat`` of each: list, artifact and list of keys.
    """

    def __init__(self, tree: Tree, keys: Keys, clock: Callable[[], datetime]) -> None:
        self._tree = tree
        self._keys = keys
        self._clock = clock
        self._lists: dict[Path, tuple[Signature, list[Entry]]] = {}
        self._held: dict[Signed, tuple[Signature, bytes]] = {}

    def latest(self, client_id: str, profile_id: str) -> Release | None:
        """The newest release, None if there is none.

        Raises :class:`~mcpd.clients.faults.SignatureFault` if a file is not what was written, or the key
        is not good any more.
        """
        entries = self._entries(client_id, profile_id)
        return self._release(client_id, profile_id, entries[0]) if entries else None

    def get(self, client_id: str, profile_id: str, artifact_id: str, *, expired: bool = False) -> Release:
        """The newest release of an artifact for exactly this client and profile.

        Raises :class:`~mcpd.clients.faults.ArtifactNotFound`, and
        :class:`~mcpd.clients.faults.SignatureFault` as :meth:`latest` does, but not for a key that has
        *expired* if such ones will do (to compare with, never to use).
        """
        if not ARTIFACT_ID.fullmatch(artifact_id):
            raise ArtifactNotFound(printable(artifact_id), "an id is 64 of 0-9 a-f")
        for entry in self._entries(client_id, profile_id):
            if entry.artifact_id == artifact_id:
                return self._release(client_id, profile_id, entry, expired=expired)
        raise ArtifactNotFound(artifact_id, f"it was not published for {client_id}/{profile_id}")

    def has(self, client_id: str, profile_id: str, artifact_id: str) -> bool:
        """Return whether the artifact is listed as published for exactly this client and profile."""
        return any(entry.artifact_id == artifact_id for entry in self._entries(client_id, profile_id))

    def source(self, client_id: str, profile_id: str) -> str | None:
        """Return what the newest release says it was made from, without verifying it; None if there is none."""
        entries = self._entries(client_id, profile_id)
        return entries[0].source if entries else None

    def history(self, client_id: str, profile_id: str) -> list[Published]:
        """All releases, the newest first, also those whose key has expired.

        One artifact at a time is in memory, and each is read once. Raises
        :class:`~mcpd.clients.faults.SignatureFault` if a file is not what was written.
        """
        entries = self._entries(client_id, profile_id)
        listed: dict[str, list[Signed]] = {}
        for entry in entries:
            listed.setdefault(entry.artifact_id, []).append(_signed(client_id, profile_id, entry))
        for releases in listed.values():
            self._load(releases, expired=True)
        return [
            Published(
                artifact_id=entry.artifact_id,
                client_id=client_id,
                profile_id=profile_id,
                created_at=entry.created_at,
                signature=entry.signature,
                signing_key_id=entry.signing_key_id,
                metadata=_metadata(entry),
            )
            for entry in entries
        ]

    def published(self) -> list[tuple[str, str]]:
        """The clients and profiles that have releases, sorted."""
        found = []
        for client in self._tree.names(self._tree.indexes):
            if NAME.fullmatch(client):
                for name in self._tree.names(self._tree.indexes / client):
                    profile = name.removesuffix(".json")
                    if profile != name and NAME.fullmatch(profile):
                        found.append((client, profile))
        return sorted(found)

    def publish(
        self,
        client_id: str,
        profile_id: str,
        payload: dict[str, JsonValue],
        *,
        generator: str,
        generator_version: str,
        changelog: str,
        source: str = "",
    ) -> Release:
        """Sign *payload* as the newest release; *source* says what it was made from.

        The artifact is written first, and only if it is not there; so a crash leaves the old list or the new one, and
        nothing in either that is missing. Raises :class:`~mcpd.clients.faults.InvalidInput` for what
        cannot be signed or is too large, :class:`~mcpd.clients.faults.SignatureFault` for keys and lists
        that cannot be used, and what writing raises.
        """
        about = {"generator": generator, "generator_version": generator_version, "source": source}
        path = self._tree.index(client_id, profile_id)
        made = self.prepare(client_id, profile_id, payload, changelog=changelog, **about)
        with self._tree.lock():
            before = self._entries(client_id, profile_id)
            release = self.sign(replace(made, created_at=timestamp(self._clock())))
            entry = Entry.model_validate(
                {
                    "artifact_id": release.artifact_id,
                    "created_at": release.created_at,
                    "signature": release.signature,
                    "signing_key_id": release.signing_key_id,
                    **release.metadata,
                }
            )
            self._store(release.artifact_id, canonical(payload))
            self._tree.write(path, dump_index([entry, *before]))
            return self._release(client_id, profile_id, entry)

    def prepare(
        self,
        client_id: str,
        profile_id: str,
        payload: dict[str, JsonValue],
        *,
        generator: str,
        generator_version: str,
        changelog: str,
        source: str = "",
    ) -> Release:
        """Return *payload* as a release that is neither signed nor kept.

        Raises :class:`~mcpd.clients.faults.InvalidInput` for what cannot be signed or is too large.
        """
        content = canonical(payload)
        parse_payload(payload, "the configuration")
        if len(content) > MAX_FILE:
            raise InvalidInput(f"The configuration has {len(content)} bytes, more than {MAX_FILE}.")
        about = {"generator": generator, "generator_version": generator_version, "source": source}
        _check_words(about, changelog)
        return Release(
            artifact_id=id_of(payload),
            client_id=client_id,
            profile_id=profile_id,
            created_at=timestamp(self._clock()),
            payload=payload,
            signature="",
            signing_key_id="",
            metadata={**about, "changelog": changelog},
        )

    def sign(self, release: Release) -> Release:
        """Return *release* signed with the key in use, which is made if there is none; the release is not kept.

        Raises :class:`~mcpd.clients.faults.SignatureFault` for keys that cannot be used.
        """
        with self._tree.lock():
            signature, key = self._keys.sign(canonical(release.payload))
            about = statement(release.artifact_id, release.client_id, release.profile_id, release.created_at, key)
            release_signature, _ = self._keys.sign(about)
        metadata: dict[str, JsonValue] = {**release.metadata, "release_signature": release_signature}
        return replace(release, signature=signature, signing_key_id=key, metadata=metadata)

    def resign(self) -> int:
        """Publish again every newest release that is not signed with the key in use; returns how many.

        One that cannot be trusted is left as it is and reported, by
        :class:`~mcpd.clients.faults.SignatureFault`, when all others are done.
        """
        done, faults = 0, []
        with self._tree.lock():
            key = self._keys.initialize().key_id
            for client_id, profile_id in self.published():
                try:
                    done += self._resign(client_id, profile_id, key)
                except SignatureFault as fault:
                    faults.append(fault.message)
        if faults:
            raise SignatureFault(f"Not signed again: {'; '.join(faults)}")
        return done

    def _resign(self, client_id: str, profile_id: str, key: str) -> int:
        entries = self._entries(client_id, profile_id)
        if not entries or entries[0].signing_key_id == key:
            return 0
        old, entry = self._release(client_id, profile_id, entries[0], expired=True), entries[0]
        self.publish(
            client_id,
            profile_id,
            old.payload,
            generator=entry.generator,
            generator_version=entry.generator_version,
            changelog=entry.changelog,
            source=entry.source,
        )
        return 1

    def _store(self, name: str, content: bytes) -> None:
        """Write the artifact, unless it is there and right."""
        path = self._blob(name)
        try:
            is_there = self._tree.read(path) == content
        except InvalidConfig:
            is_there = False
        if not is_there:
            self._tree.write(path, content)

    def _entries(self, client_id: str, profile_id: str) -> list[Entry]:
        path = self._tree.index(client_id, profile_id)
        now, seen = mark(path), self._lists.get(path)
        if seen is not None and seen[0] == now:
            return seen[1]
        self._lists.pop(path, None)
        try:
            data = self._tree.read(path, MAX_INDEX)
        except InvalidConfig as error:
            raise unusable(error.message, client_id, profile_id) from error
        if data is None:
            return []
        entries = parse_index(data, path, client_id, profile_id)
        if now is not None:
            self._lists[path] = (now, entries)
        return entries

    def _release(self, client_id: str, profile_id: str, entry: Entry, *, expired: bool = False) -> Release:
        """The release of *entry*; its payload is new each time, so that no caller changes what another one gets."""
        return Release(
            artifact_id=entry.artifact_id,
            client_id=client_id,
            profile_id=profile_id,
            created_at=entry.created_at,
            payload=self._payload(_signed(client_id, profile_id, entry), expired=expired),
            signature=entry.signature,
            signing_key_id=entry.signing_key_id,
            metadata=_metadata(entry),
        )

    def _payload(self, signed: Signed, *, expired: bool) -> dict[str, JsonValue]:
        """The artifact, verified."""
        now, held = mark(self._blob(signed.artifact_id)), self._held.get(signed)
        if held is not None and held[0] == now:
            if not expired:
                self._keys.check(signed.signing_key_id)
            found: dict[str, JsonValue] = json.loads(held[1])
            return found
        self._held.pop(signed, None)
        content, payload = self._load([signed], expired=expired)
        if now is not None and len(content) <= _HELD_SIZE:
            while len(self._held) >= _HELD:
                del self._held[next(iter(self._held))]
            self._held[signed] = (now, content)
        return payload

    def _load(self, releases: list[Signed], *, expired: bool) -> tuple[bytes, dict[str, JsonValue]]:
        """Read the one artifact of *releases*, and verify it for each of them."""
        first = releases[0]
        path = self._blob(first.artifact_id)
        origin = f"{path} ({first.client_id}/{first.profile_id})"
        way_out = publish_again(first.client_id, first.profile_id)
        try:
            content = self._tree.read(path)
        except InvalidConfig as error:
            raise SignatureFault(f"{error.message}, then {way_out}") from error
        if content is None:
            raise SignatureFault(f"{origin}: missing; put it back, or {way_out}")

        def verify(data: bytes, signature: str, key_id: str) -> None:
            self._keys.verify(data, signature, key_id, expired=expired)

        try:
            check_releases(releases, content, verify, origin)
            return content, _parse_payload(content, origin)
        except SignatureFault as fault:
            raise SignatureFault(f"{fault.message}; {way_out}") from fault

    def _blob(self, name: str) -> Path:
        return self._tree.artifacts / f"{name}.json"


def _signed(client_id: str, profile_id: str, entry: Entry) -> Signed:
    return Signed(
        artifact_id=entry.artifact_id,
        client_id=client_id,
        profile_id=profile_id,
        created_at=entry.created_at,
        signature=entry.signature,
        signing_key_id=entry.signing_key_id,
        release_signature=entry.release_signature,
    )


def _metadata(entry: Entry) -> dict[str, JsonValue]:
    return {
        "generator": entry.generator,
        "generator_version": entry.generator_version,
        "source": entry.source,
        "changelog": entry.changelog,
        "release_signature": entry.release_signature,
    }


def _parse_payload(content: bytes, origin: str) -> dict[str, JsonValue]:
    """The payload in *content*, whose signature holds: who has the key may have signed anything with it."""
    try:
        payload = parse_payload(load_json(content, origin), origin)
        is_canonical = canonical(payload) == content
    except (InvalidInput, InvalidManifest) as error:
        raise SignatureFault(f"{error.message}; it is signed, and no configuration") from error
    if not is_canonical:
        raise SignatureFault(f"{origin}: it is signed, and not spelled as configurations are")
    return payload


def _check_words(about: dict[str, str], changelog: str) -> None:
    """Bound what a release says of itself, so that a full list of releases can still be read."""
    for what, text, limit in (
        *((what, text, MAX_WORD) for what, text in about.items()),
        ("changelog", changelog, MAX_CHANGELOG),
    ):
        if len(text) > limit:
            raise InvalidInput(f"The {what} has {len(text)} characters, more than {limit}.", {"field": what})
        try:
            check_json(text)
        except ValueError as error:
            raise InvalidInput(f"The {what}: {error}.", {"field": what}) from error
