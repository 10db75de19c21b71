# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bearer tokens: what clients show that come over TCP, where the socket does not tell who they are.

Tokens are kept as they are, not as digests: their owner asks for them again for every client to be set up, and a
file that only the bridge can read says no more than what the bridge is shown with every request.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, McpdError, from_oserror

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

_OF_A_USER: Final = re.compile(rb"(0|[1-9][0-9]{0,9})\.[A-Za-z0-9_-]{16,128}")
"""A token of the system's bridge: the uid, so that one file has to be looked at, and the secret."""


class TokenFile:
    """The token in a file, looked at again whenever the file is another one: a new token holds at once."""

    __slots__ = ("_may_be_seen", "_seen", "_token", "path")

    def __init__(self, path: Path, *, may_be_seen: bool = False) -> None:
        self.path = path
        self._may_be_seen = may_be_seen
        self._seen: tuple[int, int, int] | None = None
        self._token = b""

    def matches(self, given: bytes) -> bool:
        """Return True if *given* is the token, compared in constant time; False if there is no usable token."""
        try:
            status = self.path.stat()
        except OSError:
            self._seen, self._token = None, b""
            return False
        seen = (status.st_ino, status.st_ctime_ns, status.st_size)
        if seen != self._seen:
            self._seen, self._token = seen, self._read()
        return bool(self._token) and hmac.compare_digest(given, self._token)

    def _read(self) -> bytes:
        try:
            return read_token(self.path, may_be_seen=self._may_be_seen).encode()
        except McpdError as error:
            log.warning("nobody gets in with the token: %s", error.message)
            return b""


class Tokens:
    """The tokens of all users of the system's bridge, a file for each uid in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, TokenFile] = {}

    def token(self, uid: int, *, renew: bool = False) -> str:
        """The token of *uid*, made if there is none yet, or another one with *renew*: the old one is void then.

        Raises the :class:`~mcpd.errors.McpdError` that tells why it cannot be written.
        """
        path = self._directory / str(uid)
        if not renew and path.exists():
            return load_token(path, prefix=f"{uid}.")
        return write_token(path, prefix=f"{uid}.")

    def owner(self, given: bytes) -> int | None:
        """The uid whose token *given* is, ``None`` if it is nobody's."""
        found = _OF_A_USER.fullmatch(given)
        if found is None:
            return None
        uid = int(found.group(1))
        file = self._files.get(uid) or TokenFile(self._directory / str(uid))
        if not file.matches(given):
            return None
        # Kept for those only who have a token, or guessing would fill the memory.
        self._files[uid] = file
        return uid


def load_token(path: Path, *, prefix: str = "") -> str:
    """The token in *path*, created with mode 0600 if there is none, replaced if others could have read it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        _put(path, prefix, lambda fresh: _link_unless_there(fresh, path))
        return read_token(path)
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        log.warning("%s could be read by others, so the token in it is replaced", path)
        return write_token(path, prefix=prefix)
    return read_token(path)


def _link_unless_there(fresh: Path, path: Path) -> None:
    # Another bridge, or mcpctl, may be quicker.
    with suppress(FileExistsError):
        path.hardlink_to(fresh)


def read_token(path: Path, *, may_be_seen: bool = False) -> str:
    """The token in *path*, which others cannot write, nor read unless it *may_be_seen*.

    Raises :class:`~mcpd.errors.InvalidConfig` if they can, or if there is no token that fits into a header.
    """
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read().strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
    if mode & (0o022 if may_be_seen else 0o077):
        raise InvalidConfig(f"{path} is open to others, who could use every server; run: chmod 600 {quote(str(path))}")
    if mode & 0o077:
        log.warning("%s can be read by others, who can then use every server: chmod 600 %s", path, quote(str(path)))
    if not token or not token.isprintable() or " " in token:
        raise InvalidConfig(f"{path} does not hold a token: one word of ASCII characters")
    return token


def write_token(path: Path, *, prefix: str = "") -> str:
    """Put a new token, which begins with *prefix*, in the place of the one in *path*; whoever shows that is refused."""
    return _put(path, prefix, lambda fresh: fresh.replace(path))


def remove_token(path: Path) -> None:
    """Remove the token in *path*, if there is one: nobody gets in with it, and no client finds another one there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise from_oserror(error, f"removing {path}") from error


def _put(path: Path, prefix: str, place: Callable[[Path], object]) -> str:
    """Have a new token put at *path* by *place*, which gets a file that holds it whole, also after a power cut."""
    token = prefix + secrets.token_urlsafe(32)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(fd)
        place(fresh)
    except OSError as error:
        raise from_oserror(error, f"writing {path}") from error
    finally:
        with suppress(OSError):
            fresh.unlink()
    return token
