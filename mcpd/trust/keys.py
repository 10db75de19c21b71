# SPDX-License-Identifier: LGPL-2.1-or-later
"""The public keys whose signatures are trusted: the PEM files ``keys.d/NAME.pem`` of both scopes."""

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
from mcpd.model import printable
from mcpd.paths import Paths, Scope
from mcpd.store.files import is_missing, make_directory, read_file, settled, signature, sync_directory, write_atomic
from mcpd.store.lock import WriteLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcpd.store.files import Signature

_log = logging.getLogger(__name__)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""The name of a key, and of a file that describes a source."""
SUFFIX: Final = ".pem"
MAX_PEM: Final = 16 * 1024
"""Bytes of a file that holds one key."""
MAX_FILES: Final = 256
"""Files of one directory that are read."""
MAX_SIGNATURE: Final = 1024
"""Bytes of a ``.sig`` file."""

_SIZE: Final = 64
_OTHERS_WRITE: Final = 0o002


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A key, and where it is kept."""

    name: str
    fingerprint: str
    """``SHA256:`` and the base64, without padding, of the SHA-256 of the key's 32 bytes."""
    public: bytes
    """The 32 bytes."""
    file: Path
    scope: Scope
    read_only: bool
    """Whether the file is somebody else's to remove."""


@dataclass(frozen=True, slots=True)
class _State:
    """What was found when the directories were read."""

    stamp: tuple[object, ...] | None
    """None if they are too new to be told from the next edit."""
    keys: tuple[TrustedKey, ...] = ()
    problems: tuple[str, ...] = ()
    generation: str = ""


_Listed: TypeAlias = list[TrustedKey]
_Texts: TypeAlias = list[str]
_Scans: TypeAlias = "list[_Found]"


class Keys:
    """The keys that one instance trusts. Every question is answered by what the directories hold at that time.

    Safe to use from several threads.
    """

    def __init__(self, paths: Paths, scope: Scope) -> None:
        scopes = (Scope.USER, Scope.SYSTEM) if scope is Scope.USER else (Scope.SYSTEM,)
        self._directories = [(each, paths.layout(each).trusted_keys) for each in scopes]
        self._own = paths.layout(scope).trusted_keys
        self._scope = scope
        self._change = WriteLock(paths.layout(scope).cache / ".keys.lock")
        self._reading = Lock()
        self._state = _State(None)
        self._told: frozenset[str] = frozenset()

    def list(self) -> _Listed:
        """The trusted keys by scope, the user's first, and name.

        Of two with the same name the user's counts, even if its file holds no key: so a user can do without one of the
        system's. Other files that hold no key are left out, see :meth:`problems`.
        """
        return list(self._read().keys)

    def problems(self) -> _Texts:
        """What is wrong with the files that hold no key; each text names its file."""
        return list(self._read().problems)

    def generation(self) -> str:
        """What is different whenever :meth:`list` is, also from one process to another."""
        return self._read().generation

    def trusted(self, fingerprint: str, only: str = "") -> TrustedKey | None:
        """The key of that *fingerprint* if it is trusted and, where *only* is given, has that name."""
        candidates = (key for key in self._allowed(only) if key.fingerprint == fingerprint)
        return next(candidates, None)

    def has(self, name: str) -> bool:
        """Whether there is a key of that *name*."""
        return bool(self._allowed(name))

    def signer(self, data: bytes | memoryview, signature: bytes, only: str = "") -> TrustedKey | None:
        """Which trusted key (where *only* is given, of that name) made *signature* of *data*; None: none of them.

        *signature* is what a ``.sig`` file holds. Takes a fifth of a second for 64 MiB and a key, so it is for threads
        beside an event loop. Raises :class:`~mcpd.errors.SignatureInvalid` if *signature* is none at all.
        """
        made = _decoded(signature)
        keys = self._allowed(only)
        if not keys:
            return None
        from mcpd.trust.signing import is_signature  # noqa: PLC0415 - see there

        return next((key for key in keys if is_signature(key.public, data, made)), None)

    def add(self, name: str, pem: str) -> TrustedKey:
        """Trust the public key *pem*, called *name*; fine if it is trusted under that name already.

        Raises :class:`~mcpd.errors.InvalidArgument` for what is no name or no public Ed25519 key, and for a name that
        another key has; :class:`~mcpd.errors.ReadOnly` where this instance may not write.
        """
        from mcpd.trust.signing import load_public, public_pem  # noqa: PLC0415 - see there

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
                    f"key {name}: {known.file if known else file} has that name; choose another, or remove that first"
                )
        added = next((key for key in self.list() if key.name == name), None)
        if added is None:
            raise InvalidArgument(f"key {name}: {file} was changed meanwhile; look at it, and try again")
        return added

    def remove(self, name: str) -> None:
        """Trust the key *name* no longer, at once.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` if its file is not this instance's.
        """
        with self._change.hold():
            key = next((key for key in self.list() if key.name == name), None)
            if key is None:
                raise NotFound(f"there is no trusted key {printable(name)!r}; 'mcpctl key list' shows which there are")
            if key.read_only:
                raise ReadOnly(f"the key {name} is {key.file}, which is not mcpd's to change; remove that file")
            try:
                key.file.unlink(missing_ok=True)
                sync_directory(key.file.parent)
            except OSError as error:
                raise from_oserror(error, f"removing {key.file}") from error

    def _allowed(self, only: str) -> _Listed:
        return [key for key in self._read().keys if only in ("", key.name)]

    def _read(self) -> _State:
        with self._reading:
            found = [_scan(directory) for _, directory in self._directories]
            stamp = _stamp(found)
            if stamp is None or stamp != self._state.stamp:
                self._state = self._load(stamp, found)
                for problem in self._state.problems:
                    if problem not in self._told:
                        _log.warning("%s; nothing is trusted for it", problem)
                self._told = frozenset(self._state.problems)
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
        """Raises :class:`~mcpd.errors.InvalidManifest` that names *file*."""
        from mcpd.trust.signing import load_public  # noqa: PLC0415 - see there

        if status is not None and status.st_mode & _OTHERS_WRITE:
            raise InvalidManifest(f"{file}: everybody may write it, so it says nothing; chmod o-w makes it count")
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
    """The fingerprint of the public key *pem*; empty if it is none that :meth:`Keys.add` takes."""
    from mcpd.trust.signing import load_public  # noqa: PLC0415 - see there

    try:
        return fingerprint(load_public(pem.encode()).public_bytes_raw()) if len(pem) <= MAX_PEM else ""
    except ValueError:
        return ""


def fingerprint(public: bytes) -> str:
    """How a key of these 32 bytes is told from others."""
    digest = base64.b64encode(hashlib.sha256(public).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of one directory, by name, each with its status (None if there is none)."""

    directory: Signature | None
    files: tuple[tuple[Path, os.stat_result | None], ...] = ()
    problem: str = ""
    is_settled: bool = True


def _scan(directory: Path) -> _Found:
    try:
        status = directory.stat()
        if status.st_mode & _OTHERS_WRITE:
            fault = "everybody may write it, so its keys say nothing; chmod o-w makes them count"
            return _Found(signature(status), problem=f"{directory}: {fault}", is_settled=settled(status))
        names = sorted(_names(directory))
    except OSError as error:
        return _Found(None, problem="" if is_missing(error) else f"{directory}: {error.strerror or error}")
    problem = f"{directory}: holds more than {MAX_FILES} keys; the rest is not read" if len(names) > MAX_FILES else ""
    files = tuple((directory / name, _status(directory / name)) for name in names[:MAX_FILES])
    calm = settled(status) and all(each is None or settled(each) for _, each in files)
    return _Found(signature(status), files, problem, calm)


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


def _stamp(found: list[_Found]) -> tuple[object, ...] | None:
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
            f"{printable(name)!r} is no name for a key: use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or "
            "digit"
        )
    return name


def _decoded(text: bytes) -> bytes:
    """The 64 bytes that a ``.sig`` file stands for; tools break its base64 into lines."""
    packed = b"".join(text[: MAX_SIGNATURE + 1].split())
    try:
        made = base64.b64decode(packed, validate=True)
    except ValueError:
        made = b""
    if len(text) > MAX_SIGNATURE or len(made) != _SIZE or base64.b64encode(made) != packed:
        raise SignatureInvalid(f"the signature is not the base64 of the {_SIZE} bytes that one of Ed25519 has")
    return made
