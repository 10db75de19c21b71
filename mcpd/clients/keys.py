# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keys that sign configurations: created at first use, replaced on demand.

``keys/keys.json`` lists the public keys, newest first; ``retired_at`` is null for the one in use. A rotation lists the
new key, replaces the signing key, and only then retires the old one. So two keys without ``retired_at`` are an
interrupted rotation: the signing key tells how far it came, and the next signature completes it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpd.clients.errors import SignatureError
from mcpd.clients.payload import Moment, timestamp
from mcpd.clients.tree import mark
from mcpd.errors import InvalidConfig, InvalidManifest, from_oserror
from mcpd.model import dump_json, load_json, printable
from mcpd.model.base import first_fault
from mcpd.trust.signing import is_signature, load_public, load_secret, public_pem, secret_pem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from mcpd.clients.tree import Tree
    from mcpd.files import Signature

OVERLAP: Final = timedelta(days=30)
"""Time that signatures of a key stay valid after its retirement."""
MAX_KEY: Final = 16 * 1024
"""Maximum size of a file with one key, in bytes."""
MAX_LIST: Final = 1024 * 1024
"""Maximum size of the list of keys, in bytes."""
KEPT: Final = 1000
"""Maximum number of listed keys; the oldest are dropped, so that the list can always be read again."""
ANEW: Final = "'mcpctl client keys rotate' creates a new one"

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
        """End of the validity of its signatures."""
        return self.retired_at + OVERLAP if self.retired_at else None

    def retired(self, now: datetime) -> Record:
        """Return this record with *now* as the time of retirement, unless the key was retired earlier."""
        return self if self.retired_at else Record(key_id=self.key_id, created_at=self.created_at, retired_at=now)


class _List(BaseModel):
    model_config = ConfigDict(frozen=True)

    keys: tuple[Record, ...]


def id_of_key(public: Ed25519PublicKey) -> str:
    """Return the id of the key *public*, which is derived from its hash and so identifies the key reliably."""
    return "orchestration-" + hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def parse_public_key(data: bytes, origin: str) -> Ed25519PublicKey:
    """Return the public key in *data*, read from *origin*: PEM, or its 32 bytes.

    Raises :class:`~mcpd.clients.errors.SignatureError` for anything else.
    """
    if len(data) == _RAW_SIZE:
        return Ed25519PublicKey.from_public_bytes(data)
    try:
        return load_public(data)
    except ValueError as error:
        raise SignatureError(f"{origin}: {error}; expected PEM, or a raw key of {_RAW_SIZE} bytes") from error


def parse_secret_key(data: bytes, path: Path) -> Ed25519PrivateKey:
    """Return the signing key in *data*, read from *path*.

    Raises :class:`~mcpd.clients.errors.SignatureError` for anything else, whose message quotes nothing of *data*.
    """
    try:
        return load_secret(data)
    except ValueError as error:
        raise SignatureError(f"{path}: {error}; restore the correct one, or {ANEW}") from error


def check_signature(public: Ed25519PublicKey, data: bytes, signature: str, name: str) -> None:
    """Raise :class:`~mcpd.clients.errors.SignatureError` unless *public*, called *name*, signed *data*.

    Only one spelling of *signature* is accepted: Base64 with padding.
    """
    if not signature:
        raise SignatureError("it is missing")
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError as error:
        raise SignatureError("the signature is not Base64") from error
    if len(raw) != _SIGNATURE_SIZE or base64.b64encode(raw).decode("ascii") != signature:
        raise SignatureError(f"the signature is not Base64 for {_SIGNATURE_SIZE} bytes")
    if not is_signature(public.public_bytes_raw(), data, raw):
        raise SignatureError(f"the signature was not made by the key '{printable(name)}' for this content")


def parse_list(data: bytes, path: Path) -> tuple[Record, ...]:
    """Return the keys in *data*, read from *path*, newest first.

    Raises :class:`~mcpd.clients.errors.SignatureError` for an invalid list.
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
        fault = f"{path}: contains a key twice"
    raise SignatureError(
        f"{fault}. Restore the correct one, or move it away and run 'mcpctl client keys init', which writes a new one"
        " without the old keys"
    )


def dump_list(records: tuple[Record, ...]) -> bytes:
    """Return the list that :func:`parse_list` reads."""
    return dump_json(_List(keys=records).model_dump(mode="json"))


__all__ = ["OVERLAP", "KeyChange", "KeyRecord", "Keys", "id_of_key"]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Result of :meth:`Keys.initialize`."""

    key_id: str
    created: bool
    previous: str | None = None
    """Id of the key that was in use before; None if there was none."""
    expires_at: str | None = None
    """End of the validity of signatures of the previous key."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A current or former signing key."""

    key_id: str
    created_at: str
    retired_at: str | None
    """None for the one in use."""
    expires_at: str | None
    """End of the validity of its signatures; None for the one in use."""
    path: Path
    """File with its public key, as PEM."""


class Keys:
    """The keys of one *tree*; *clock* returns the time, with its zone."""

    def __init__(self, tree: Tree, clock: Callable[[], datetime]) -> None:
        self._tree = tree
        self._clock = clock
        self._secret = tree.keys / "signing_key.pem"
        self._list = tree.keys / "keys.json"
        self._seen: tuple[Signature, tuple[Record, ...]] | None = None
        self._publics: dict[str, Ed25519PublicKey] = {}

    def sign(self, data: bytes) -> tuple[str, str]:
        """Return the signature of *data* as Base64, and the id of the key, which is created if there is none.

        Raises :class:`~mcpd.clients.errors.SignatureError` for a signing key that is invalid, that others may read, or
        that does not match the public files; :class:`~mcpd.errors.ReadOnly` if the caller may not sign.
        """
        with self._tree.lock():
            secret = self._usable()
            return base64.b64encode(secret.sign(data)).decode("ascii"), id_of_key(secret.public_key())

    def current(self) -> str | None:
        """Return the id of the key in use, None before the first use."""
        live = _live(self._records())
        return live[-1] if live else None

    def check(self, key_id: str) -> None:
        """Raise :class:`~mcpd.clients.errors.SignatureError` if signatures of the key *key_id* are not valid now.

        This takes one ``lstat``.
        """
        self._record(key_id, expired=False)

    def verify(self, data: bytes, signature: str, key_id: str, *, expired: bool = False) -> None:
        """Raise :class:`~mcpd.clients.errors.SignatureError` unless the key *key_id* signed *data*.

        The key must be known and, unless *expired* ones are accepted, in use or retired less than :data:`OVERLAP` ago.
        """
        self._record(key_id, expired=expired)
        check_signature(self._public(key_id), data, signature, key_id)

    def initialize(self, *, regenerate: bool = False) -> KeyChange:
        """Create the signing key and the public files that are missing; *regenerate* replaces the key.

        Signatures of the old one stay valid for :data:`OVERLAP`. Raises as :meth:`sign` does; *regenerate* is the way
        out of a signing key that cannot be used.
        """
        with self._tree.lock():
            if regenerate:
                return self._rotate()
            is_new = self._load_secret() is None
            return KeyChange(id_of_key(self._usable().public_key()), created=is_new)

    def listing(self) -> list[KeyRecord]:
        """Return all keys, newest first."""
        return [
            KeyRecord(
                key_id=record.key_id,
                created_at=timestamp(record.created_at),
                retired_at=timestamp(record.retired_at) if record.retired_at else None,
                expires_at=timestamp(record.expires_at) if record.expires_at else None,
                path=self._path(record.key_id),
            )
            for record in self._records()
        ]

    def _usable(self) -> Ed25519PrivateKey:
        """Return the signing key, created if there is none, with the public files that belong to it."""
        secret = self._load_secret()
        if secret is None:
            live = _live(self._records())
            if live:
                raise SignatureError(f"{self._secret}: missing, although {live[-1]} is in use; restore it, or {ANEW}")
            self._check_published(())
            secret = Ed25519PrivateKey.generate()
            self._tree.write(self._secret, secret_pem(secret), private=True)
        self._settle(secret.public_key())
        return secret

    def _settle(self, public: Ed25519PublicKey) -> None:
        """Complete an interrupted rotation, and write missing public files."""
        name = id_of_key(public)
        records = self._records()
        live = _live(records)
        if name not in live and (live or any(record.key_id == name for record in records)):
            why = f"but {live[-1]} is in use" if live else "which was retired"
            raise SignatureError(
                f"{self._secret}: contains the key {name}, {why} ({self._list}); restore the correct one, or {ANEW}"
            )
        self._check_published({name, *live})
        files = {
            self._path(name): public_pem(public),
            self._tree.verification_key: public_pem(public),
            self._tree.verification_key_raw: public.public_bytes_raw(),
        }
        for path, content in files.items():
            if self._read(path) != content:
                self._tree.write(path, content)
        settled = self._settled(records, name)
        if settled != records:
            self._tree.write(self._list, dump_list(settled))
        self._link("signing.key", "signing_key.pem")
        self._link("signing.pub", f"../{self._tree.verification_key.name}")

    def _settled(self, records: tuple[Record, ...], name: str) -> tuple[Record, ...]:
        """Return *records* with only *name* in use: newer ones never signed, and it has replaced older ones."""
        now = self._clock()
        at = next((index for index, record in enumerate(records) if record.key_id == name), None)
        if at is None:
            return (Record(key_id=name, created_at=now), *records)
        return (records[at], *(record.retired(now) for record in records[at + 1 :]))

    def _rotate(self) -> KeyChange:
        """Replace the signing key, whatever its state; a full disk stops this before its first step."""
        tree, now = self._tree, self._clock()
        records = (self._records() or self._adopted(now))[: KEPT - 1]
        live = _live(records)
        secret = Ed25519PrivateKey.generate()
        public = secret.public_key()
        new = Record(key_id=id_of_key(public), created_at=now)
        for directory in (tree.root, tree.keys):
            tree.prepare(directory)
        with ExitStack() as stack:
            steps = [
                stack.enter_context(tree.stage(path, data, private=path == self._secret))
                for path, data in (
                    (self._path(new.key_id), public_pem(public)),
                    (self._list, dump_list((new, *records))),
                    (self._secret, secret_pem(secret)),
                    (tree.verification_key, public_pem(public)),
                    (tree.verification_key_raw, public.public_bytes_raw()),
                    (self._list, dump_list((new, *(record.retired(now) for record in records)))),
                )
            ]
            for step in steps:
                step.commit()
        self._settle(public)
        if not live:
            return KeyChange(new.key_id, created=True)
        return KeyChange(new.key_id, created=True, previous=live[-1], expires_at=timestamp(now + OVERLAP))

    def _adopted(self, now: datetime) -> tuple[Record, ...]:
        """Return the record of an unlisted signing key; an invalid one has signed nothing that could be verified."""
        try:
            secret = self._load_secret()
        except SignatureError:
            return ()
        if secret is None:
            return ()
        public = secret.public_key()
        self._tree.write(self._path(id_of_key(public)), public_pem(public))
        return (Record(key_id=id_of_key(public), created_at=now),)

    def _load_secret(self) -> Ed25519PrivateKey | None:
        data = self._read(self._secret, private=True)
        if data is None:
            return None
        status = self._tree.status(self._tree.keys)
        if status is None:
            return None
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o022:
            raise SignatureError(
                f"{self._tree.keys}: other users can write to it (mode {mode:04o}); run 'chmod go-w {self._tree.keys}'"
            )
        return parse_secret_key(data, self._secret)

    def _check_published(self, names: Collection[str]) -> None:
        """Raise an error for a published verification key that is not in *names*, as it would verify nothing."""
        for path in (self._tree.verification_key, self._tree.verification_key_raw):
            data = self._read(path)
            if data is None:
                continue
            way_out = "remove it, then 'mcpctl client keys init' writes the correct one"
            try:
                found = id_of_key(parse_public_key(data, str(path)))
            except SignatureError as fault:
                raise SignatureError(f"{fault.message}; {way_out}") from fault
            if found not in names:
                raise SignatureError(f"{path}: contains {found}, which is not the key in {self._secret}; {way_out}")

    def _records(self) -> tuple[Record, ...]:
        now = mark(self._list)
        if self._seen is not None and self._seen[0] == now:
            return self._seen[1]
        data = self._read(self._list)
        records = () if data is None else parse_list(data, self._list)
        self._seen = None if now is None else (now, records)
        return records

    def _record(self, name: str, *, expired: bool) -> Record:
        record = next((record for record in self._records() if record.key_id == name), None)
        if record is None:
            raise SignatureError(f"the key '{printable(name)}' is not in {self._list}")
        end = record.expires_at
        if not expired and end is not None and self._clock() > end:
            raise SignatureError(
                f"the key '{name}' was replaced, and its signatures were valid until {timestamp(end)}; publish again"
            )
        return record

    def _public(self, name: str) -> Ed25519PublicKey:
        """Return the public key with the id *name*, cached: the id is a hash of the key, so it never changes."""
        public = self._publics.get(name)
        if public is None:
            path = self._path(name)
            data = self._read(path)
            if data is None:
                raise SignatureError(
                    f"{path}: missing; restore it ('mcpctl client keys init' does if it is the one in use)"
                )
            public = parse_public_key(data, str(path))
            if id_of_key(public) != name:
                raise SignatureError(f"{path}: contains another key, {id_of_key(public)}; restore the correct one")
            self._publics[name] = public
        return public

    def _path(self, name: str) -> Path:
        return self._tree.keys / f"{name}.pem"

    def _link(self, alias: str, target: str) -> None:
        """Create a link under a name that other implementations use; keep an existing one."""
        path = self._tree.keys / alias
        try:
            with self._tree.directory(self._tree.keys) as directory, suppress(FileExistsError):
                os.symlink(target, alias, dir_fd=directory)
        except OSError as error:
            raise from_oserror(error, f"writing {path}") from error

    def _read(self, path: Path, *, private: bool = False) -> bytes | None:
        try:
            return self._tree.read(path, MAX_LIST if path == self._list else MAX_KEY, private=private)
        except InvalidConfig as error:
            raise SignatureError(error.message) from error


def _live(records: tuple[Record, ...]) -> list[str]:
    """Return the ids of keys that are not retired: one or, during a rotation, two, the newer first."""
    return [record.key_id for record in records if record.retired_at is None]
