# SPDX-License-Identifier: LGPL-2.1-or-later
"""Content store: scripts, transforms and resources of an mcps map, each in a file named by its content id.

A content id is either the SHA-256 of the content, as 64 hex digits, or an id in the format of 256t.org: the length of
the content, followed by the content itself if it is short, otherwise by its SHA-512. Both may have the prefix
``cid://``. Each file of the store is named by its SHA-256; a symlink named by its 256t id points to it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded, NotFound, from_oserror
from mcpd.files import Staged, is_missing, make_directory, read_file, write_atomic
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcpd.errors import McpdError

SCHEME: Final = "cid://"
MAX_CONTENT: Final = 16 * 1024 * 1024
"""Maximum size of one content, in bytes."""

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)
_LENGTH_CHARS: Final = 8
_MOST_INLINE: Final = 64
"""Size of the largest content that a 256t id contains itself, in bytes."""
_LONGEST: Final = _LENGTH_CHARS + 86
_256T: Final = re.compile(rf"[A-Za-z0-9_-]{{{_LENGTH_CHARS},{_LONGEST}}}", re.ASCII)


def content_id(data: bytes) -> str:
    """Return the content id of *data*: its SHA-256, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def content_id_256t(data: bytes) -> str:
    """Return the content id of *data* in the form of 256t.org, at most 94 characters."""
    rest = data if len(data) <= _MOST_INLINE else hashlib.sha512(data).digest()
    return _encode(len(data).to_bytes(6, "big")) + _encode(rest)


def is_content_id(text: str) -> bool:
    """Return whether :func:`parse` accepts *text*."""
    bare = text.removeprefix(SCHEME)
    return _SHA256.fullmatch(bare) is not None or _decode_256t(bare) is not None


def parse(text: str) -> str:
    """Return the content id *text* as a file name: without ``cid://``, and a SHA-256 in lower case.

    Raises :class:`~mcpd.errors.InvalidArgument` if *text* is not a content id.
    """
    bare = text.removeprefix(SCHEME)
    if _SHA256.fullmatch(bare):
        return bare.lower()
    if _decode_256t(bare) is None:
        raise InvalidArgument(
            f"{printable(text)!r} is not a content id: use cid:// and the 64 hex digits of a SHA-256, or a 256t id"
        )
    return bare


def read(text: str, directories: Iterable[Path], limit: int = MAX_CONTENT) -> bytes:
    """Return the content of the id *text* from the first of *directories* that has it, verified against the id.

    Raises :class:`~mcpd.errors.InvalidArgument` if *text* is not a content id, :class:`~mcpd.errors.LimitExceeded` for
    more than *limit* bytes, :class:`~mcpd.errors.InvalidManifest` if the file does not match the id, and
    :class:`~mcpd.errors.NotFound` if no directory has the file.
    """
    return find(text, directories, limit)[0]


def find(text: str, directories: Iterable[Path], limit: int = MAX_CONTENT) -> tuple[bytes, Path | None]:
    """Return the content of the id *text*, and its file; None instead of a file if the id itself contains the content.

    Raises as :func:`read` does.
    """
    name = parse(text)
    decoded = _decode_256t(name)
    if decoded is not None:
        length, inline = decoded
        if length > limit:
            raise _too_large(name, limit)
        if inline is not None:
            return inline, None
    fault: McpdError | None = None
    looked: list[str] = []
    for directory in directories:
        looked.append(str(directory))
        try:
            return _verified(directory / name, name, limit), directory / name
        except (InvalidManifest, LimitExceeded) as error:
            fault = fault or error
        except OSError as error:
            if not is_missing(error):
                fault = fault or from_oserror(error, f"reading {directory / name}")
    if fault is not None:
        raise fault
    raise NotFound(
        f"the content {SCHEME}{name} is in none of {', '.join(looked) or 'no directories'};"
        " 'mcpctl mcps build' stores it"
    )


def write(directory: Path, data: bytes) -> str:
    """Store *data* in *directory*, which is created if necessary, and return its id (SHA-256). Idempotent.

    Raises :class:`~mcpd.errors.LimitExceeded` for more than :data:`MAX_CONTENT` bytes, and another
    :class:`~mcpd.errors.McpdError` if writing fails. A partly written file never appears under the id.
    """
    if len(data) > MAX_CONTENT:
        raise _too_large(content_id(data), MAX_CONTENT)
    make_directory(directory)
    name, alias = content_id(data), directory / content_id_256t(data)
    path = directory / name
    if not _holds(path, data):
        write_atomic(path, data)
    if not _points(alias, name):
        with Staged(alias, name) as staged:
            staged.commit()
    return name


def _holds(path: Path, data: bytes) -> bool:
    try:
        return not path.is_symlink() and read_file(path, MAX_CONTENT) == data
    except (OSError, InvalidManifest):
        return False


def _points(alias: Path, name: str) -> bool:
    try:
        return str(alias.readlink()) == name
    except OSError:
        return False


def _verified(path: Path, name: str, limit: int) -> bytes:
    if path.stat().st_size > limit:
        raise _too_large(name, limit)
    data = read_file(path, limit)
    if name not in (content_id(data), content_id_256t(data)):
        raise InvalidManifest(f"{path}: the content does not match the name; remove the file and build the map again")
    return data


def _too_large(name: str, limit: int) -> LimitExceeded:
    return LimitExceeded(f"the content {SCHEME}{name} is larger than {limit} bytes")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes | None:
    """Decode unpadded base64url; None unless it is in canonical form."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return data if _encode(data) == text else None


def _decode_256t(name: str) -> tuple[int, bytes | None] | None:
    """Return the length and, if it is inline, the content of a 256t id; None if *name* is not one."""
    if not _256T.fullmatch(name):
        return None
    prefix, rest = _decode(name[:_LENGTH_CHARS]), _decode(name[_LENGTH_CHARS:])
    if prefix is None or rest is None:
        return None
    length = int.from_bytes(prefix, "big")
    if length <= _MOST_INLINE:
        return (length, rest) if len(rest) == length else None
    return (length, None) if len(rest) == hashlib.sha512().digest_size else None
