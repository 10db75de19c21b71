# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sources.list`` and ``sources.list.d/*.list`` of both scopes (seed 001 §2.1, §3)."""

from __future__ import annotations

import ipaddress
import logging
import posixpath
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from mcpd.errors import InvalidArgument, InvalidManifest, NotFound, ReadOnly, from_oserror
from mcpd.model import printable
from mcpd.paths import Paths, Scope
from mcpd.store.files import is_missing, make_directory, read_file, write_atomic
from mcpd.store.lock import WriteLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)

MAX_LIST: Final = 1024 * 1024
"""Bytes of one list."""
MANAGED_NAME: Final = "50-mcpd.list"
"""The one file of the system's lists that mcpd writes (design §3)."""

State: TypeAlias = Literal["new", "ready", "offline", "failed", "invalid"]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of one list."""

    url: str
    """As it is written."""
    origin: Path
    """The file it is in."""
    scope: Scope
    read_only: bool
    """Whether the line is somebody else's to remove."""
    state: State = "new"
    """``ready``: fetched; ``offline``: an earlier copy is used; ``failed``: there is no copy; ``invalid``: refused."""
    updated: float = 0.0
    """Unix time of the copy in use, 0 if there is none."""
    problem: str = ""


class Sources:
    """The lists one instance reads, and the one it writes."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        self._paths = paths
        layout = paths.layout(scope)
        self._scopes = (Scope.USER, Scope.SYSTEM) if scope is Scope.USER else (Scope.SYSTEM,)
        self.writable: Final = layout.sources_list if scope is Scope.USER else layout.sources_dir / MANAGED_NAME
        self._lock = WriteLock(layout.cache / ".sources.lock")

    def lines(self) -> list[SourceLine]:
        """Every source once, the user's before the system's (S-5)."""
        found: list[SourceLine] = []
        seen: set[str] = set()
        for line in self._all():
            key = _key(line.url)
            if key not in seen:
                seen.add(key)
                found.append(line)
        return found

    def add(self, url: str) -> None:
        """List *url* in the file this instance writes, unless it is there.

        Raises :class:`~mcpd.errors.InvalidArgument` for a URL that cannot be a source.
        """
        normal = check_source_url(url)
        with self._lock.hold():
            text = _read(self.writable)
            if normal not in {_key(line) for line in _urls(text)}:
                self._write(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{url.strip()}\n")

    def remove(self, url: str) -> None:
        """Remove *url* from the file this instance writes; every other line stays as it is.

        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.ReadOnly` if only other files list it.
        """
        key = _key(url)
        others = [line for line in self._all() if _key(line.url) == key]
        if not others:
            raise NotFound(f"{printable(url)} is not among the sources")
        if all(line.read_only for line in others):
            raise ReadOnly(
                f"{printable(url)} is listed in {others[0].origin}, which is not mcpd's to change; edit that file"
            )
        with self._lock.hold():
            kept = [line for line in _read(self.writable).splitlines(keepends=True) if _key(line.strip()) != key]
            self._write("".join(kept))

    def _write(self, text: str) -> None:
        # Many people keep their dot files elsewhere and link to them.
        path = self.writable.resolve()
        make_directory(path.parent)
        write_atomic(path, text.encode("utf-8", "surrogateescape"))

    def _all(self) -> Iterator[SourceLine]:
        for scope in self._scopes:
            layout = self._paths.layout(scope)
            for path in (layout.sources_list, *_fragments(layout.sources_dir)):
                for url in _urls(_read_or_log(path)):
                    yield _line(url, path, scope, read_only=path != self.writable)


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
        host, port = (parts.hostname or "").rstrip("."), parts.port
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


def is_loopback(host: str) -> bool:
    """Whether *host* is this machine by name or address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _normal_file(parts: SplitResult, shown: str) -> str:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidArgument(f"source {shown!r}: a file URL needs an absolute path on this machine, file:///…")
    return f"file://{quote(posixpath.normpath(path).replace('//', '/'))}"


def _key(url: str) -> str:
    """What *url* is compared by; for one that cannot be a source, itself."""
    try:
        return check_source_url(url)
    except InvalidArgument:
        return url.strip()


def _line(url: str, path: Path, scope: Scope, *, read_only: bool) -> SourceLine:
    try:
        check_source_url(url)
    except InvalidArgument as error:
        return SourceLine(printable(url), path, scope, read_only, "invalid", problem=f"{path}: {error.message}")
    return SourceLine(url, path, scope, read_only)


def _urls(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped


def _fragments(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if p.suffix == ".list" and not p.name.startswith("."))
    except OSError as error:
        if not is_missing(error):
            _log.warning("%s: %s", directory, error.strerror)
        return []


def _read(path: Path) -> str:
    """The text of *path*, empty if there is none; whatever is not UTF-8 comes back as it was when written."""
    try:
        return read_file(path, MAX_LIST).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        if is_missing(error):
            return ""
        raise from_oserror(error, f"reading {path}") from error


def _read_or_log(path: Path) -> str:
    try:
        return read_file(path, MAX_LIST).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except InvalidManifest as error:
        _log.warning("%s; its sources are not read", error.message)
    except OSError as error:
        if not is_missing(error):
            _log.warning("%s: %s; its sources are not read", path, error.strerror)
    return ""
