# SPDX-License-Identifier: LGPL-2.1-or-later
"""The addresses of sources: which there may be, how they are compared, and what they name."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from mcpd.catalog.hosts import is_loopback, normal_host
from mcpd.errors import InvalidArgument
from mcpd.model import printable

SourceType: TypeAlias = Literal["registry", "official", "directory"]
_OFFICIAL: Final = ("/v0.1/servers", "/v0/servers")
"""Ends of the path of an API like the official one."""


def check_source_url(url: str) -> str:
    """*url* in the form by which sources are compared: https, file, or http on this machine only.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    shown = printable(url)
    text = url.strip()
    if not text or not text.isprintable() or " " in text:
        raise InvalidArgument(f"source {shown!r}: empty, or holds spaces or control characters")
    try:
        parts = urlsplit(text)
        host, port = normal_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise InvalidArgument(f"source {shown!r}: {error}") from error
    if parts.scheme == "file":
        return _normal_file(parts, shown)
    if parts.scheme not in ("https", "http") or not host:
        raise InvalidArgument(f"source {shown!r}: use an https:// or file:// URL")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidArgument(f"source {shown!r}: plain http can be changed on the way; use https")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"source {parts.scheme}://…@{host}: lists are public and cannot hold a password")
    default = 443 if parts.scheme == "https" else 80
    where = f"[{host}]" if ":" in host else host
    return urlunsplit(
        (parts.scheme, where if port in (None, default) else f"{where}:{port}", parts.path or "/", parts.query, "")
    )


def key_of(url: str) -> str:
    """What *url* is compared by: its normal form, or for one that cannot be a source itself."""
    try:
        return check_source_url(url)
    except InvalidArgument:
        return url.strip()


def type_of(url: str) -> SourceType:
    """What is at *url*, a checked one as it is written, unless something else is said."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file":
        return "directory" if parts.path.endswith("/") else "registry"
    return "official" if parts.path.rstrip("/").endswith(_OFFICIAL) else "registry"


def as_listed(url: str) -> str:
    """*url*, a checked one, as a list is to have it: that of a directory which is there ends with a slash."""
    parts = urlsplit(url.strip())
    if parts.scheme == "file" and not parts.path.endswith("/") and is_directory(url.strip()):
        return urlunsplit(parts._replace(path=f"{parts.path}/"))
    return url.strip()


def is_directory(url: str) -> bool:
    """Whether the file URL *url* names a directory that is there."""
    return os.path.isdir(file_path(url))  # noqa: PTH112 - of what cannot be looked at, Path's raises


def signature_url(url: str) -> str:
    """Where the signature of the file at *url* is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sig"))


def file_path(url: str) -> Path:
    """What the file URL *url* names on this machine."""
    return Path(unquote(urlsplit(url).path))


def _normal_file(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"source {shown!r}: a file URL needs an absolute path on this machine, file:///…")
    return f"file://{quote(posixpath.normpath(path).replace('//', '/'))}"
