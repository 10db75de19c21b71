# SPDX-License-Identifier: LGPL-2.1-or-later
"""Releases: published, signed configurations, and their verification.

There is one file per payload, and one list per client and profile.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.errors import ArtifactNotFound, InvalidInput, SignatureError
from mcpd.clients.keys import MAX_KEY, Keys, check_signature, id_of_key, parse_public_key
from mcpd.clients.payload import ARTIFACT_ID, canonical, id_of, parse_payload, timestamp
from mcpd.clients.tree import NAME, mark
from mcpd.errors import InvalidConfig, InvalidManifest, McpdError, from_oserror
from mcpd.files import MAX_FILE, read_file
from mcpd.model import JsonValue, check_json, dump_json, load_json, printable
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    from mcpd.clients.tree import Tree
    from mcpd.files import Signature

MAX_DOCUMENT: Final = 2 * MAX_FILE
"""Maximum size of a configuration with its metadata, in bytes."""


@dataclass(frozen=True, slots=True)
class Signed:
    """The signed statements about an artifact."""

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    signature: str
    """Signature of the payload's canonical bytes."""
    signing_key_id: str
    """Key of both signatures."""
    release_signature: str
    """Signature of :func:`statement`."""


class Verifier(Protocol):
    """Verifies one signature, as :meth:`Keys.verify` does."""

    def __call__(self, data: bytes, signature: str, key_id: str) -> None:
        """Raise :class:`~mcpd.clients.errors.SignatureError` unless the key *key_id* signed *data*."""


@dataclass(frozen=True)
class Verified:
    """A verified configuration."""

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    signing_key_id: str
    servers: tuple[str, ...]
    """Names of its servers."""
    key_created_at: str | None = None
    key_expires_at: str | None = None
    """End of the validity of its signature; None for a key in use, and if unknown."""


class _Strict(BaseModel):
    """A model that refuses unknown members, because they are not signed but readers could assume that they are."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Metadata(_Strict):
    generator: str = ""
    generator_version: str = ""
    source: str = ""
    changelog: str = ""
    release_signature: str = ""


class _Document(_Strict):
    """Result of ``get_config`` and ``publish_config``."""

    artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")]
    client_id: str
    profile_id: str
    created_at: str
    payload: dict[str, JsonValue]
    signature: str
    signing_key_id: str
    metadata: _Metadata = _Metadata()
    published: bool = True
    warnings: list[str] = []

    def signed(self) -> Signed:
        return Signed(
            artifact_id=self.artifact_id,
            client_id=self.client_id,
            profile_id=self.profile_id,
            created_at=self.created_at,
            signature=self.signature,
            signing_key_id=self.signing_key_id,
            release_signature=self.metadata.release_signature,
        )


class _Text(_Strict):
    """A text block, which repeats ``structuredContent``."""

    type: Literal["text"]
    text: str


class _Result(_Strict):
    """Result of the call."""

    content: list[_Text] = []
    structured: dict[str, Any] = Field(alias="structuredContent")
    is_error: Literal[False] = Field(default=False, alias="isError")
    result_type: Literal["complete"] = Field(default="complete", alias="resultType")
    meta: dict[Annotated[str, Field(pattern="/")], JsonValue] = Field(default={}, alias="_meta")
    """Members of the protocol, whose names have a prefix; no configuration has such."""


class _Response(_Strict):
    """Message with the result."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int | str | None = None
    result: dict[str, Any]


def statement(artifact_id: str, client_id: str, profile_id: str, created_at: str, signing_key_id: str) -> bytes:
    """Return the bytes that a release signature signs: for whom and when an artifact was published."""
    return canonical(
        {
            "artifact_id": artifact_id,
            "client_id": client_id,
            "profile_id": profile_id,
            "created_at": created_at,
            "signing_key_id": signing_key_id,
        }
    )


def check_releases(releases: Iterable[Signed], content: bytes, verify: Verifier, origin: str) -> None:
    """Check the id and both signatures of *releases* from *origin*, whose payload's canonical bytes are *content*.

    A signature is verified once, however many releases share it. Raises :class:`~mcpd.clients.errors.SignatureError`
    that names the wrong one.
    """
    found = hashlib.sha256(content).hexdigest()
    good: set[tuple[str, str]] = set()
    for each in releases:
        if found != each.artifact_id:
            raise SignatureError(
                f"{origin}: the id is wrong: this is not the content published as "
                f"{printable(each.artifact_id)}, its SHA-256 is {found}"
            )
        key = each.signing_key_id
        if (each.signature, key) not in good:
            _hold("signature", content, each.signature, key, verify, origin)
            good.add((each.signature, key))
        about = statement(each.artifact_id, each.client_id, each.profile_id, each.created_at, key)
        what = "release signature (for whom and when it was published)"
        _hold(what, about, each.release_signature, key, verify, origin)


def _hold(what: str, data: bytes, signature: str, key_id: str, verify: Verifier, origin: str) -> None:
    try:
        verify(data, signature, key_id)
    except SignatureError as fault:
        raise SignatureError(f"{origin}: the {what} is not valid: {fault.message}") from fault


def verify_document(
    data: bytes, origin: str, keys: Mapping[str, Ed25519PublicKey] | Ed25519PublicKey | Keys
) -> Verified:
    """Verify the result of ``get_config``, alone or within the message, as JSON in *data* from *origin*.

    *keys* are the trusted ones: by id, or a single one for any id. Raises :class:`~mcpd.clients.errors.SignatureError`
    that says what is wrong: the document, the id, the key, the signature or the release signature.
    """
    document = _parse(data, origin)
    verify = keys.verify if isinstance(keys, Keys) else _verifier(keys)
    try:
        check_releases([document.signed()], canonical(document.payload), verify, origin)
    except InvalidInput as fault:
        raise SignatureError(f"{origin}: {fault.message}") from fault
    servers = document.payload.get("mcpServers")
    known = {record.key_id: record for record in keys.listing()} if isinstance(keys, Keys) else {}
    record = known.get(document.signing_key_id)
    return Verified(
        artifact_id=document.artifact_id,
        client_id=document.client_id,
        profile_id=document.profile_id,
        created_at=document.created_at,
        signing_key_id=document.signing_key_id,
        servers=tuple(servers) if isinstance(servers, dict) else (),
        key_created_at=record.created_at if record else None,
        key_expires_at=record.expires_at if record else None,
    )


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in the file *path*: PEM, or its 32 bytes.

    Raises :class:`~mcpd.clients.errors.SignatureError` for anything else, another :class:`~mcpd.errors.McpdError` for a
    file that cannot be read.
    """
    try:
        return parse_public_key(read_file(path, MAX_KEY), str(path))
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    except InvalidManifest as error:
        raise SignatureError(error.message) from error


def _verifier(keys: Mapping[str, Ed25519PublicKey] | Ed25519PublicKey) -> Verifier:
    def verify(data: bytes, signature: str, key_id: str) -> None:
        if isinstance(keys, Ed25519PublicKey):
            check_signature(keys, data, signature, id_of_key(keys))
            return
        public = keys.get(key_id)
        if public is None:
            trusted = ", ".join(sorted(keys)) or "none"
            raise SignatureError(f"the key '{printable(key_id)}' is not trusted; trusted keys: {trusted}")
        check_signature(public, data, signature, key_id)

    return verify


def _parse(data: bytes, origin: str) -> _Document:
    if len(data) > MAX_DOCUMENT:
        raise SignatureError(f"{origin}: larger than {MAX_DOCUMENT} bytes")
    value = _json(data, origin)
    try:
        if isinstance(value, dict) and "result" in value:
            value = _Response.model_validate(value).result
        if isinstance(value, dict) and "structuredContent" in value:
            result = _Result.model_validate(value)
            value = result.structured
            if any(not _is_same(_json(block.text, origin), value) for block in result.content):
                raise SignatureError(f"{origin}: 'content' differs from 'structuredContent', which is signed")
        if not isinstance(value, dict) or "artifact_id" not in value:
            raise SignatureError(f"{origin}: contains no signed configuration; expected the result of get_config")
        return _Document.model_validate(value)
    except ValidationError as error:
        raise SignatureError(f"{origin}: not a signed configuration: {_fault(error)}") from error


def _json(data: bytes | str, origin: str) -> Any:
    try:
        value = load_json(data, origin)
        json.loads(data, object_pairs_hook=_once)
    except McpdError as error:
        raise SignatureError(f"{origin}: {error.message.removeprefix(f'{origin}: ')}") from error
    return value


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    try:
        return canonical(one) == canonical(other)
    except InvalidInput:
        return False


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "extra_forbidden":
        return f"'{printable('.'.join(str(part) for part in first['loc']))}' is not signed; remove it"
    return first_fault(error)


def _once(pairs: list[tuple[str, object]]) -> None:
    """Refuse two members with the same name: readers differ in which one they use."""
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SignatureError(f"the member '{printable(twice)}' occurs twice")


KEPT: Final = 1000
"""Maximum number of releases that are listed for one client and profile."""
MAX_INDEX: Final = 2 * MAX_FILE
"""Maximum size of a list of releases, in bytes; the oldest releases are dropped to fit."""


class Entry(BaseModel):
    """One release in a list; fields of later versions are kept."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    artifact_id: Annotated[str, Field(pattern=r"^[a-f0-9]{64}$")]
    created_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]
    signature: str
    signing_key_id: str
    release_signature: str
    generator: str = ""
    generator_version: str = ""
    source: str = ""
    changelog: str = ""


class _Index(BaseModel):
    """The list for one client and profile, newest first."""

    model_config = ConfigDict(frozen=True, strict=True)

    releases: list[Entry]


def parse_index(data: bytes, path: Path, client_id: str, profile_id: str) -> list[Entry]:
    """Return the releases in *data*, read from *path*; at most :data:`KEPT`.

    Raises :class:`~mcpd.clients.errors.SignatureError` for an invalid list.
    """
    try:
        value = load_json(data, str(path))
        check_json(value)
        return _Index.model_validate(value).releases[:KEPT]
    except InvalidManifest as error:
        raise unusable(error.message, client_id, profile_id) from error
    except ValidationError as error:
        raise unusable(f"{path}: {first_fault(error)}", client_id, profile_id) from error
    except ValueError as error:
        raise unusable(f"{path}: {error}", client_id, profile_id) from error


def dump_index(entries: list[Entry]) -> bytes:
    """Return the list that :func:`parse_index` reads, with as many *entries* as fit."""
    kept = KEPT
    while True:
        data = dump_json(_Index(releases=entries[:kept]).model_dump(mode="json"))
        if len(data) <= MAX_INDEX:
            return data
        kept = min(kept, len(entries)) // 2


def unusable(fault: str, client_id: str, profile_id: str) -> SignatureError:
    """Return the error for a list with a *fault*, which is never overwritten."""
    again = publish_again(client_id, profile_id)
    return SignatureError(f"{fault}. Restore the correct list of releases, or move it away; then {again}")


def publish_again(client_id: str, profile_id: str) -> str:
    """Return advice for a release that cannot be trusted."""
    return f"'mcpctl client publish {client_id} --profile {profile_id}' re-signs it"


MAX_WORD: Final = 200
MAX_CHANGELOG: Final = 10_000
"""Maximum length of a release's generator, version and source (``MAX_WORD``) and of its changelog, in characters."""

_HELD: Final = 256
"""Maximum number of verified artifacts that are kept in memory."""
_HELD_SIZE: Final = 256 * 1024
"""Size of the largest artifact that is kept in memory, in bytes."""


@dataclass(frozen=True, slots=True)
class Release:
    """An artifact as it was published for one client and profile; both signatures were verified.

    A release that was only made from the installed servers is not signed yet.
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
        """True if it has signatures."""
        return bool(self.signature)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the result of ``get_config``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Releases:
    """The releases in *tree*, signed with *keys*; *clock* returns the time, with its zone.

    Releases are verified when they are read. As long as the files do not change, getting one again costs an ``lstat``
    of each: list, artifact and list of keys.
    """

    def __init__(self, tree: Tree, keys: Keys, clock: Callable[[], datetime]) -> None:
        self._tree = tree
        self._keys = keys
        self._clock = clock
        self._lists: dict[Path, tuple[Signature, list[Entry]]] = {}
        self._held: dict[Signed, tuple[Signature, bytes]] = {}

    def latest(self, client_id: str, profile_id: str) -> Release | None:
        """Return the latest release, None if there is none.

        Raises :class:`~mcpd.clients.errors.SignatureError` if a file is not as it was written, or the key has expired.
        """
        entries = self._entries(client_id, profile_id)
        return self._release(client_id, profile_id, entries[0]) if entries else None

    def get(self, client_id: str, profile_id: str, artifact_id: str, *, expired: bool = False) -> Release:
        """Return the latest release of an artifact for exactly this client and profile.

        Raises :class:`~mcpd.clients.errors.ArtifactNotFound`, and :class:`~mcpd.clients.errors.SignatureError` as
        :meth:`latest` does, except for a key that has *expired* if that is accepted (to compare with, never to use).
        """
        if not ARTIFACT_ID.fullmatch(artifact_id):
            raise ArtifactNotFound(printable(artifact_id), "an id is 64 of 0-9 a-f")
        for entry in self._entries(client_id, profile_id):
            if entry.artifact_id == artifact_id:
                return self._release(client_id, profile_id, entry, expired=expired)
        raise ArtifactNotFound(artifact_id, f"it was not published for {client_id}/{profile_id}")

    def has(self, client_id: str, profile_id: str, artifact_id: str) -> bool:
        """Return True if the artifact is listed as published for exactly this client and profile."""
        return any(entry.artifact_id == artifact_id for entry in self._entries(client_id, profile_id))

    def source(self, client_id: str, profile_id: str) -> str | None:
        """Return the source that the latest release states, without verifying it; None if there is none."""
        entries = self._entries(client_id, profile_id)
        return entries[0].source if entries else None

    def history(self, client_id: str, profile_id: str) -> list[Entry]:
        """Return all releases without their payloads, newest first, including those whose key has expired.

        Both signatures are verified. One artifact at a time is in memory, and each is read once. Raises
        :class:`~mcpd.clients.errors.SignatureError` if a file is not as it was written.
        """
        entries = self._entries(client_id, profile_id)
        listed: dict[str, list[Signed]] = {}
        for entry in entries:
            listed.setdefault(entry.artifact_id, []).append(_signed(client_id, profile_id, entry))
        for releases in listed.values():
            self._load(releases, expired=True)
        return [*entries]

    def published(self) -> list[tuple[str, str]]:
        """Return the clients and profiles that have releases, sorted."""
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
        """Sign *payload* as the latest release; *source* states what it was made from.

        The artifact is written first, and only if it is missing; so a crash leaves the old list or the new one, and no
        list names a missing artifact. Raises :class:`~mcpd.clients.errors.InvalidInput` for a payload that cannot be
        signed or is too large, :class:`~mcpd.clients.errors.SignatureError` for unusable keys and lists, and the errors
        of writing.
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

        Raises :class:`~mcpd.clients.errors.InvalidInput` for a payload that cannot be signed or is too large.
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
        """Return *release* signed with the key in use, which is created if there is none; the release is not kept.

        Raises :class:`~mcpd.clients.errors.SignatureError` for unusable keys.
        """
        with self._tree.lock():
            signature, key = self._keys.sign(canonical(release.payload))
            about = statement(release.artifact_id, release.client_id, release.profile_id, release.created_at, key)
            release_signature, _ = self._keys.sign(about)
        metadata: dict[str, JsonValue] = {**release.metadata, "release_signature": release_signature}
        return replace(release, signature=signature, signing_key_id=key, metadata=metadata)

    def resign(self) -> int:
        """Publish every latest release again that is not signed with the key in use; return their number.

        One that cannot be trusted is left and reported, by :class:`~mcpd.clients.errors.SignatureError`, after all
        others are done.
        """
        done, faults = 0, []
        with self._tree.lock():
            key = self._keys.initialize().key_id
            for client_id, profile_id in self.published():
                try:
                    done += self._resign(client_id, profile_id, key)
                except SignatureError as fault:
                    faults.append(fault.message)
        if faults:
            raise SignatureError(f"Not re-signed: {'; '.join(faults)}")
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
        """Write the artifact *name*, unless it exists with the right *content*."""
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
        """Return the release of *entry*, with a new payload each time, so that callers cannot affect each other."""
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
        """Return the verified artifact."""
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
            raise SignatureError(f"{error.message}, then {way_out}") from error
        if content is None:
            raise SignatureError(f"{origin}: missing; restore it, or {way_out}")

        def verify(data: bytes, signature: str, key_id: str) -> None:
            self._keys.verify(data, signature, key_id, expired=expired)

        try:
            check_releases(releases, content, verify, origin)
            return content, _parse_payload(content, origin)
        except SignatureError as fault:
            raise SignatureError(f"{fault.message}; {way_out}") from fault

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
    """Return the payload in *content*, whose signature is valid: the owner of the key may have signed anything."""
    try:
        payload = parse_payload(load_json(content, origin), origin)
        is_canonical = canonical(payload) == content
    except (InvalidInput, InvalidManifest) as error:
        raise SignatureError(f"{error.message}; signed, but not a configuration") from error
    if not is_canonical:
        raise SignatureError(f"{origin}: signed, but not in canonical form")
    return payload


def _check_words(about: dict[str, str], changelog: str) -> None:
    """Limit the metadata of a release, so that a full list of releases can still be read."""
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
