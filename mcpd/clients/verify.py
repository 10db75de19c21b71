# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is checked of a configuration before anybody uses it, offline, by everybody who has the public key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.canonical import canonical
from mcpd.clients.faults import InvalidInput, SignatureFault
from mcpd.clients.keyfiles import MAX_KEY, check_signature, parse_public_key
from mcpd.clients.keyfiles import key_id as id_of
from mcpd.clients.keys import Keys
from mcpd.errors import InvalidManifest, McpdError, from_oserror
from mcpd.files import MAX_FILE, read_file
from mcpd.model import JsonValue, load_json, printable
from mcpd.model.base import first_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MAX_DOCUMENT: Final = 2 * MAX_FILE
"""Bytes of a configuration with what is said about it."""


@dataclass(frozen=True, slots=True)
class Signed:
    """What is said about an artifact, all of which is signed."""

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    signature: str
    """Of the payload's canonical bytes."""
    signing_key_id: str
    """The key of both signatures."""
    release_signature: str
    """Of :func:`statement`."""


class Verifier(Protocol):
    """Checks one signature, as :meth:`Keys.verify` does."""

    def __call__(self, data: bytes, signature: str, key_id: str) -> None:
        """Raise :class:`~mcpd.clients.faults.SignatureFault` unless that key signed *data*."""


@dataclass(frozen=True)
class Verified:
    """A configuration that is what was published."""

    artifact_id: str
    client_id: str
    profile_id: str
    created_at: str
    signing_key_id: str
    servers: tuple[str, ...]
    """The names of the servers in it."""
    key_created_at: str | None = None
    key_expires_at: str | None = None
    """Until when its signature is good; None for a key in use, and where that is not known."""


class _Strict(BaseModel):
    """Nothing but what is known: what is not signed would be taken for what is."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Metadata(_Strict):
    generator: str = ""
    generator_version: str = ""
    source: str = ""
    changelog: str = ""
    release_signature: str = ""


class _Document(_Strict):
    """What ``get_config`` and ``publish_config`` answer."""

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
    """A block of text, which says what ``structuredContent`` does."""

    type: Literal["text"]
    text: str


class _Result(_Strict):
    """The result of the call."""

    content: list[_Text] = []
    structured: dict[str, Any] = Field(alias="structuredContent")
    is_error: Literal[False] = Field(default=False, alias="isError")
    result_type: Literal["complete"] = Field(default="complete", alias="resultType")
    meta: dict[Annotated[str, Field(pattern="/")], JsonValue] = Field(default={}, alias="_meta")
    """What the protocol says of itself, under names with a prefix: no configuration has such."""


class _Response(_Strict):
    """The message that the result came in."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int | str | None = None
    result: dict[str, Any]


def statement(artifact_id: str, client_id: str, profile_id: str, created_at: str, signing_key_id: str) -> bytes:
    """The bytes of the release signature, which says for whom and when an artifact was published."""
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

    What a key signed is looked at once, however many releases say so. Raises
    :class:`~mcpd.clients.faults.SignatureFault` that says which of them is wrong.
    """
    found = hashlib.sha256(content).hexdigest()
    good: set[tuple[str, str]] = set()
    for each in releases:
        if found != each.artifact_id:
            raise SignatureFault(
                f"{origin}: the id is wrong: this is not the content that was published as "
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
    except SignatureFault as fault:
        raise SignatureFault(f"{origin}: the {what} does not hold: {fault.message}") from fault


def verify_document(
    data: bytes, origin: str, keys: Mapping[str, Ed25519PublicKey] | Ed25519PublicKey | Keys
) -> Verified:
    """Check what ``get_config`` answered, alone or within the result of the call, as JSON in *data* from *origin*.

    *keys* are those that are trusted: by id, or one, whatever the document calls it. Raises
    :class:`~mcpd.clients.faults.SignatureFault` that says what is wrong: the document, the id, the key,
    the signature or the release signature.
    """
    document = _parse(data, origin)
    verify = keys.verify if isinstance(keys, Keys) else _verifier(keys)
    try:
        check_releases([document.signed()], canonical(document.payload), verify, origin)
    except InvalidInput as fault:
        raise SignatureFault(f"{origin}: {fault.message}") from fault
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
    """The public key in the file *path*: PEM, or its 32 bytes.

    Raises :class:`~mcpd.clients.faults.SignatureFault` for anything else, another
    :class:`~mcpd.errors.McpdError` for what cannot be read.
    """
    try:
        return parse_public_key(read_file(path, MAX_KEY), str(path))
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    except InvalidManifest as error:
        raise SignatureFault(error.message) from error


def _verifier(keys: Mapping[str, Ed25519PublicKey] | Ed25519PublicKey) -> Verifier:
    def verify(data: bytes, signature: str, key_id: str) -> None:
        if isinstance(keys, Ed25519PublicKey):
            check_signature(keys, data, signature, id_of(keys))
            return
        public = keys.get(key_id)
        if public is None:
            trusted = ", ".join(sorted(keys)) or "none"
            raise SignatureFault(f"the key '{printable(key_id)}' is none of the trusted ones, which are: {trusted}")
        check_signature(public, data, signature, key_id)

    return verify


def _parse(data: bytes, origin: str) -> _Document:
    if len(data) > MAX_DOCUMENT:
        raise SignatureFault(f"{origin}: larger than {MAX_DOCUMENT} bytes")
    value = _json(data, origin)
    try:
        if isinstance(value, dict) and "result" in value:
            value = _Response.model_validate(value).result
        if isinstance(value, dict) and "structuredContent" in value:
            result = _Result.model_validate(value)
            value = result.structured
            if any(not _is_same(_json(block.text, origin), value) for block in result.content):
                raise SignatureFault(
                    f"{origin}: 'content' says something else than 'structuredContent', which is signed"
                )
        if not isinstance(value, dict) or "artifact_id" not in value:
            raise SignatureFault(f"{origin}: holds no signed configuration; give it what get_config answers")
        return _Document.model_validate(value)
    except ValidationError as error:
        raise SignatureFault(f"{origin}: not a signed configuration: {_fault(error)}") from error


def _json(data: bytes | str, origin: str) -> Any:
    try:
        value = load_json(data, origin)
        json.loads(data, object_pairs_hook=_once)
    except McpdError as error:
        raise SignatureFault(f"{origin}: {error.message.removeprefix(f'{origin}: ')}") from error
    return value


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    try:
        return canonical(one) == canonical(other)
    except InvalidInput:
        return False


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "extra_forbidden":
        return f"'{printable('.'.join(str(part) for part in first['loc']))}' is not signed; take it out"
    return first_fault(error)


def _once(pairs: list[tuple[str, object]]) -> None:
    """Readers differ in which of two members of one name they see, so what is checked may not be what is used."""
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SignatureFault(f"the member '{printable(twice)}' is there twice")
