# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the files of keys hold: the keys themselves, and the list of those that are good."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.canonical import timestamp
from mcpd.clients.drafts import Moment  # noqa: TC001 - pydantic reads the annotations
from mcpd.clients.faults import SignatureFault
from mcpd.errors import InvalidManifest
from mcpd.model import dump_json, load_json, printable
from mcpd.model.base import first_fault
from mcpd.trust.signing import is_signature, load_public, load_secret

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OVERLAP: Final = timedelta(days=30)
"""How long signatures of a key are good after it was retired."""
MAX_KEY: Final = 16 * 1024
"""Bytes of a file that holds one key."""
MAX_LIST: Final = 1024 * 1024
"""Bytes of the list of keys."""
KEPT: Final = 1000
"""Keys that are listed, so that the list can always be read again; of more the oldest are dropped."""
ANEW: Final = "'mcpctl client keys rotate' makes a new one"

_RAW_SIZE: Final = 32
_SIGNATURE_SIZE: Final = 64


class Record(BaseModel):
    """One public key in the list."""

    model_config = ConfigDict(frozen=True)

    key_id: Annotated[str, Field(pattern=r"^orchestration-[0-9a-f]{16}$")]
    created_at: Moment
    retired_at: Moment | None = None
    """None for the one in use."""

    @property
    def expires_at(self) -> datetime | None:
        """Until when its signatures are good."""
        return self.retired_at + OVERLAP if self.retired_at else None

    def retired(self, now: datetime) -> Record:
        """This record, retired *now* unless it was before."""
        return self if self.retired_at else Record(key_id=self.key_id, created_at=self.created_at, retired_at=now)


class _List(BaseModel):
    model_config = ConfigDict(frozen=True)

    keys: tuple[Record, ...]


def key_id(public: Ed25519PublicKey) -> str:
    """The id of a key: it says which one to check a signature with, and whether it is the right one."""
    return "orchestration-" + hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def parse_public_key(data: bytes, origin: str) -> Ed25519PublicKey:
    """The public key in *data*, read from *origin*: PEM, or its 32 bytes.

    Raises :class:`~mcpd.clients.faults.SignatureFault` for anything else.
    """
    if len(data) == _RAW_SIZE:
        return Ed25519PublicKey.from_public_bytes(data)
    try:
        return load_public(data)
    except ValueError as error:
        raise SignatureFault(f"{origin}: {error}; PEM will do, or the {_RAW_SIZE} bytes of a key") from error


def parse_secret_key(data: bytes, path: Path) -> Ed25519PrivateKey:
    """The signing key in *data*, read from *path*.

    Raises :class:`~mcpd.clients.faults.SignatureFault` for anything else; nothing of *data* is said.
    """
    try:
        return load_secret(data)
    except ValueError as error:
        raise SignatureFault(f"{path}: {error}; put the right one back, or {ANEW}") from error


def check_signature(public: Ed25519PublicKey, data: bytes, signature: str, name: str) -> None:
    """Raise :class:`~mcpd.clients.faults.SignatureFault` unless *public*, called *name*, signed *data*.

    There is one way to write a *signature*: Base64 with its padding and nothing else.
    """
    if not signature:
        raise SignatureFault("there is none")
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError as error:
        raise SignatureFault("the signature is not Base64") from error
    if len(raw) != _SIGNATURE_SIZE or base64.b64encode(raw).decode("ascii") != signature:
        raise SignatureFault(f"the signature is not the Base64 of {_SIGNATURE_SIZE} bytes")
    if not is_signature(public.public_bytes_raw(), data, raw):
        raise SignatureFault(f"the signature is not one of the key '{printable(name)}' for this content")


def parse_list(data: bytes, path: Path) -> tuple[Record, ...]:
    """The keys in *data*, read from *path*, the newest first.

    Raises :class:`~mcpd.clients.faults.SignatureFault` for what is no such list.
    """
    try:
        records = _List.model_validate(load_json(data, str(path))).keys
    except InvalidManifest as error:
        fault = error.message
    except ValidationError as error:
        fault = f"{path}: {first_fault(error)}"
    else:
        if len({record.key_id for record in records}) == len(records):
            return records
        fault = f"{path}: lists a key twice"
    raise SignatureFault(
        f"{fault}. Put the right one back; or move it away, then 'mcpctl client keys init' writes it anew, without the "
        "keys of old"
    )


def dump_list(records: tuple[Record, ...]) -> bytes:
    """What :func:`parse_list` reads."""
    keys = [
        {
            "key_id": record.key_id,
            "created_at": timestamp(record.created_at),
            "retired_at": timestamp(record.retired_at) if record.retired_at else None,
        }
        for record in records
    ]
    return dump_json({"keys": keys})
