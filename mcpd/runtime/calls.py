# SPDX-License-Identifier: LGPL-2.1-or-later
"""Access to other servers for a server with the permission ``mcp``: a socket of the bridge, and a pass.

The socket is in a directory of its own, which is mounted in the sandbox, so that the server sees a new socket after a
restart of the bridge. Clients of the socket need a pass: it contains the server's id and the ids that it may call,
signed with a key that mcpd and the bridge of the same user share. Passes therefore need not be stored, and stay valid
when mcpd or the bridge is restarted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from mcpd.errors import SpawnFailed
from mcpd.paths import calls_key, calls_socket

if TYPE_CHECKING:
    from pathlib import Path

_KEY_SIZE: Final = 32
_MAX_PASS: Final = 64 * 1024
"""Maximum size of a pass in bytes."""


class Access(NamedTuple):
    """The access of one server to other servers."""

    directory: Path
    """Directory that contains the socket."""
    token: str


class Pass(NamedTuple):
    """The content of a pass."""

    uid: int
    server: str
    allowed: tuple[str, ...]
    """Ids of the servers that the server may call; empty for all."""


class Calls:
    """Creates the access for the servers of the user with the runtime directory *runtime*."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime

    def __call__(self, server_id: str, allowed: tuple[str, ...]) -> Access:
        """Return the access of *server_id* to *allowed* (empty: all). Raises :class:`~mcpd.errors.SpawnFailed`."""
        directory = calls_socket(self._runtime).parent
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = _make_key(calls_key(self._runtime))
        except OSError as error:
            raise SpawnFailed(
                f"{server_id} may call other servers (permission mcp), but its access cannot be set up in "
                f"{self._runtime}: {error.strerror}"
            ) from error
        return Access(directory, issue(Pass(os.getuid(), server_id, allowed), key))


def _make_key(path: Path) -> bytes:
    """Return the key at *path*; create it if it is missing or invalid. Safe to call concurrently."""
    with suppress(FileNotFoundError):
        if len(key := path.read_bytes()) == _KEY_SIZE:
            return key
        path.unlink()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_SIZE))
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return path.read_bytes()


def issue(about: Pass, key: bytes) -> str:
    """Return the token for the pass *about*, signed with *key*."""
    body = _encode(json.dumps(about).encode())
    return (body + b"." + _encode(_sign(body, key))).decode()


def read(token: bytes, key: bytes) -> Pass | None:
    """Return the pass in *token*; ``None`` if it was not issued with *key*."""
    body, _, mark = token.partition(b".")
    if len(token) > _MAX_PASS or len(key) != _KEY_SIZE or not hmac.compare_digest(_encode(_sign(body, key)), mark):
        return None
    try:
        uid, server, allowed = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
    except (ValueError, binascii.Error):
        return None
    return Pass(uid, server, tuple(allowed))


def _sign(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"mcpd calls\0" + body, hashlib.sha256)


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
