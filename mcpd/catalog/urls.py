# SPDX-License-Identifier: LGPL-2.1-or-later
"""The addresses of sources: which there may be, and how they are compared."""

from __future__ import annotations

import posixpath
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from mcpd.catalog.hosts import is_loopback, normal_host
from mcpd.errors import InvalidArgument
from mcpd.model import printable


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


def signature_url(url: str) -> str:
    """Where the signature of the file at *url* is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sig"))


def _normal_file(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"source {shown!r}: a file URL needs an absolute path on this machine, file:///…")
    return f"file://{quote(posixpath.normpath(path).replace('//', '/'))}"
