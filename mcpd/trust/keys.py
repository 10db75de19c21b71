# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trusted public keys: the PEM files ``keys.d/NAME.pem`` of both scopes."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, ReadOnly, SignatureInvalid, from_oserror
from mcpd.files import (
    WriteLock,
    is_missing,
    make_directory,
    read_file,
    settled,
    signature,
    sync_directory,
    write_atomic,
)
from mcpd.model import printable
from mcpd.paths import Paths, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.files import Signature

_log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""Name of a key, and of a file that describes a registry."""
SUFFIX: Final = ".pem"
MAX_PEM: Final = 16 * 1024
"""Maximum bytes of a key file."""
MAX_FILES: Final = 256
"""Maximum number of key files read from one directory."""
MAX_SIGNATURE: Final = 1024
"""Maximum bytes of a ``.sig`` file."""

_SIZE: Final = 64
_OTHERS_WRITE: Final = 0o002


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A trusted key and its file."""

    name: str
    fingerprint: str
    """``SHA256:`` and the base64, without padding, of the SHA-256 of the key's 32 bytes."""
    public: bytes
    """The 32 bytes of the key."""
    file: Path
    scope: Scope
    read_only: bool
    """True if this instance must not remove the file."""


@dataclass(frozen=True, slots=True)
class _State:
    """Result of reading the directories."""

    stamp: tuple[object, ...] | None
    """Signatures of directories and files; None if a file is too new to detect the next change."""
    keys: tuple[TrustedKey, ...] = ()
    problems: tuple[str, ...] = ()
    generation: str = ""


_KeyList: TypeAlias = list[TrustedKey]
_Texts: TypeAlias = list[str]
_Scans: TypeAlias = "list[_Scan]"


class Keys:
    """The keys that one instance trusts, reread whenever their files change. Thread-safe."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        scopes = (Scope.USER, Scope.SYSTEM) if scope is Scope.USER else (Scope.SYSTEM,)
        self._directories = [(each, paths.layout(each).trusted_keys) for each in scopes]
        self._own = paths.layout(scope).trusted_keys
        self._scope = scope
        self._change = WriteLock(paths.layout(scope).cache / ".keys.lock")
        self._reading = Lock()
        self._state = _State(None)
        self._logged: frozenset[str] = frozenset()

    def list(self) -> _KeyList:
        """Return the trusted keys by scope, the user's first, and name.

        The user's file overrides the system's file with the same name, even if it contains no valid key, so that a user
        can disable a system key. Other invalid files are left out; see :meth:`problems`.
        """
        return list(self._read().keys)

    def problems(self) -> _Texts:
        """Return a message for each invalid key file, which names the file."""
        return list(self._read().problems)

    def generation(self) -> str:
        """Return a value that changes whenever :meth:`list` does, comparable between processes."""
        return self._read().generation

    def trusted(self, fingerprint: str, only: str = "") -> TrustedKey | None:
        """Return the trusted key with *fingerprint* (and the name *only*, if given); None if there is none."""
        candidates = (key for key in self._allowed(only) if key.fingerprint == fingerprint)
        return next(candidates, None)

    def has(self, name: str) -> bool:
        """Return whether there is a key called *name*."""
        return bool(self._allowed(name))

    def signer(self, data: bytes | memoryview, signature: bytes, only: str = "") -> TrustedKey | None:
        """Return the trusted key (with the name *only*, if given) that made *signature* of *data*, None if none did.

        *signature* is the content of a ``.sig`` file. Call this in a thread: 64 MiB take 0.2 s per key.
        Raises :class:`~mcpd.errors.SignatureInvalid` if *signature* is malformed.
        """
        made = _decoded(signature)
        keys = self._allowed(only)
        if not keys:
            return None
        from mcpd.trust.signing import is_signature

        return next((key for key in keys if is_signature(key.public, data, made)), None)

    def add(self, name: str, pem: str) -> TrustedKey:
        """Trust the public key *pem* under *name*; adding it twice is fine.

        Raises :class:`~mcpd.errors.InvalidArgument` if *name* is invalid or belongs to another key, or *pem* is not a
        public Ed25519 key; :class:`~mcpd.errors.ReadOnly` if this instance may not write.
        """
        from mcpd.trust.signing import load_public, public_pem

        _check_name(name)
        if len(pem) > MAX_PEM:
            raise InvalidArgument(f"key {name}: larger than {MAX_PEM} bytes")
        try:
            public = load_public(pem.encode())
        except ValueError as error:
            raise InvalidArgument(f"key {name}: {error}") from error
        file = self._own / f"{name}{SUFFIX}"
        with self._change.hold():
            known = next((key for key in self.list() if key.name == name), None)
            if known is None and not os.path.lexists(file):
                make_directory(self._own)
                write_atomic(file, public_pem(public))
            elif known is None or known.public != public.public_bytes_raw():
                raise InvalidArgument(
                    f"key {name}: {known.file if known else file} already has that name; choose another name, or remove"
                    " it"
                )
        added = next((key for key in self.list() if key.name == name), None)
        if added is None:
            raise InvalidArgument(f"key {name}: {file} was changed in the meantime; check it, and try again")
        return added

    def remove(self, name: str) -> None:
        """Stop trusting the key *name*, effective immediately.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` if this instance must not remove its
        file.
        """
        with self._change.hold():
            key = next((key for key in self.list() if key.name == name), None)
            if key is None:
                raise NotFound(f"there is no trusted key {printable(name)!r}; 'mcpctl key list' lists the trusted keys")
            if key.read_only:
                raise ReadOnly(f"the key {name} is {key.file}, which mcpd does not manage; remove that file")
            try:
                key.file.unlink(missing_ok=True)
                sync_directory(key.file.parent)
            except OSError as error:
                raise from_oserror(error, f"removing {key.file}") from error

    def _allowed(self, only: str) -> _KeyList:
        return [key for key in self._read().keys if only in ("", key.name)]

    def _read(self) -> _State:
        with self._reading:
            found = [_scan(directory) for _, directory in self._directories]
            stamp = _stamp(found)
            if stamp is None or stamp != self._state.stamp:
                self._state = self._load(stamp, found)
                for problem in self._state.problems:
                    if problem not in self._logged:
                        _log.warning("%s; ignoring it", problem)
                self._logged = frozenset(self._state.problems)
            return self._state

    def _load(self, stamp: tuple[object, ...] | None, found: _Scans) -> _State:
        keys: dict[str, TrustedKey | None] = {}
        problems = [directory.problem for directory in found if directory.problem]
        for (scope, _), directory in zip(self._directories, found, strict=True):
            for file, status in directory.files:
                if file.stem in keys:
                    continue
                try:
                    keys[file.stem] = self._key(file, status, scope)
                except InvalidManifest as error:
                    keys[file.stem] = None
                    problems.append(error.message)
        trusted = tuple(key for key in keys.values() if key is not None)
        seen = repr([(key.name, key.fingerprint, str(key.file), key.scope.value, key.read_only) for key in trusted])
        return _State(stamp, trusted, tuple(problems), hashlib.sha256(seen.encode()).hexdigest())

    def _key(self, file: Path, status: os.stat_result | None, scope: Scope) -> TrustedKey:
        """Read a key file. Raises :class:`~mcpd.errors.InvalidManifest` that names *file*."""
        from mcpd.trust.signing import load_public

        if status is not None and status.st_mode & _OTHERS_WRITE:
            raise InvalidManifest(
                f"{file}: writable by everyone, so it is not trusted; remove that permission (chmod o-w)"
            )
        try:
            name = _check_name(file.stem)
            public = load_public(read_file(file, MAX_PEM)).public_bytes_raw()
            owner = file.lstat().st_uid
        except InvalidArgument as error:
            raise InvalidManifest(f"{printable(str(file))}: {error.message}") from error
        except OSError as error:
            raise InvalidManifest(f"{file}: {error.strerror or error}") from error
        except ValueError as error:
            raise InvalidManifest(f"{file}: {error}") from error
        read_only = scope is not self._scope or owner != os.geteuid()
        return TrustedKey(name, fingerprint(public), public, file, scope, read_only)


def fingerprint_of(pem: str) -> str:
    """Return the fingerprint of the public key *pem*; empty if :meth:`Keys.add` would not accept it."""
    from mcpd.trust.signing import load_public

    try:
        return fingerprint(load_public(pem.encode()).public_bytes_raw()) if len(pem) <= MAX_PEM else ""
    except ValueError:
        return ""


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of the 32-byte key *public*."""
    digest = base64.b64encode(hashlib.sha256(public).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


@dataclass(frozen=True, slots=True)
class _Scan:
    """The files of one directory by name, each with its status (None if it is missing)."""

    directory: Signature | None
    files: tuple[tuple[Path, os.stat_result | None], ...] = ()
    problem: str = ""
    is_settled: bool = True


def _scan(directory: Path) -> _Scan:
    try:
        status = directory.stat()
        if status.st_mode & _OTHERS_WRITE:
            fault = "writable by everyone, so its keys are not trusted; remove that permission (chmod o-w)"
            return _Scan(signature(status), problem=f"{directory}: {fault}", is_settled=settled(status))
        names = sorted(_names(directory))
    except OSError as error:
        return _Scan(None, problem="" if is_missing(error) else f"{directory}: {error.strerror or error}")
    problem = (
        f"{directory}: contains more than {MAX_FILES} keys; the rest are ignored" if len(names) > MAX_FILES else ""
    )
    files = tuple((directory / name, _status(directory / name)) for name in names[:MAX_FILES])
    is_settled = settled(status) and all(each is None or settled(each) for _, each in files)
    return _Scan(signature(status), files, problem, is_settled)


def _names(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                yield entry.name


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _stamp(found: list[_Scan]) -> tuple[object, ...] | None:
    if not all(directory.is_settled for directory in found):
        return None
    return tuple(
        (
            directory.directory,
            directory.problem,
            tuple((path.name, status and (*signature(status), status.st_mode)) for path, status in directory.files),
        )
        for directory in found
    )


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"{printable(name)!r} is not a key name: use 1 to 64 characters from A-Z a-z 0-9 . _ -, beginning with"
            " a letter or digit"
        )
    return name


def _decoded(text: bytes) -> bytes:
    """Return the 64 bytes in a ``.sig`` file, whose base64 may be broken into lines."""
    packed = b"".join(text[: MAX_SIGNATURE + 1].split())
    try:
        made = base64.b64decode(packed, validate=True)
    except ValueError:
        made = b""
    if len(text) > MAX_SIGNATURE or len(made) != _SIZE or base64.b64encode(made) != packed:
        raise SignatureInvalid(f"the signature is not a base64-encoded Ed25519 signature ({_SIZE} bytes)")
    return made
