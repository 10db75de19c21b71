# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package sources: where the files of a server come from."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Text, printable
from mcpd.model.legacy import modern_source_type
from mcpd.package_sources import INDEXES, PACKAGE_SOURCES, SourceType

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIT_SCHEMES: Final = frozenset({"https", "ssh", "git", "file"})
_SCP_LIKE: Final = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?![/:])?[^:].*", re.ASCII)
_CREDENTIALS: Final = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://)[^/@\s]{1,2048}@", re.IGNORECASE)
"""Matches the credentials of a URL; its repetitions are bounded, so that matching takes linear time."""
_CONTAINERS: Final = frozenset({"oci", "docker"})


class Source(Document):
    """A package source, with the pin that its files must match.

    ``git``: ``url``, ``path``, ``rev`` (branch, tag or full commit id). A package index such as ``npm``: ``package``
    and ``version``. ``local``: ``path``, an absolute directory. An unknown type is kept, so that a server that another
    tool installed from it still runs.
    """

    type: Annotated[SourceType | str, Field(union_mode="left_to_right"), BeforeValidator(modern_source_type)]
    url: Text = ""
    path: Text = ""
    package: Text = ""
    version: Text = ""
    rev: Text = ""
    sha256: Annotated[Text, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @property
    def is_file(self) -> bool:
        """True if the package source is a single file, which can only be pinned by :attr:`sha256`."""
        return self.type in (SourceType.MCPB, SourceType.ARCHIVE)

    @property
    def is_exact(self) -> bool:
        """True if a hash, commit or exact version pins the package source to the same files forever."""
        kind = PACKAGE_SOURCES.get(self.type)
        return kind is not None and kind.is_exact(getattr(self, kind.pin, ""))

    @property
    def unsupported(self) -> str:
        """Reason why mcpd cannot install from this package source; empty if it can."""
        if isinstance(self.type, SourceType):
            return next(self._faults(), "")
        if self.type in _CONTAINERS:
            return "it is a container image, and mcpd does not run containers"
        return f"mcpd cannot install from a source of type {printable(self.type)!r}"

    def _faults(self) -> Iterator[str]:
        """Yield a message for each field that is missing or contradictory for this type."""
        if self.type in INDEXES and not self.package:
            yield f"its {self.type} source has no 'package'"
        if self.type is SourceType.GIT:
            if not self.url.lower().startswith(("https://", "file://")):
                yield "source.url must be an https or file URL, because an installation cannot ask for ssh keys"
            if self.sha256 or self.version:
                yield "a git source is pinned by 'rev', not by sha256 or version"
        if self.is_file:
            yield from self._faults_of_a_file()

    def _faults_of_a_file(self) -> Iterator[str]:
        if not self.url and self.type is SourceType.MCPB and self.sha256:
            file = f"that .mcpb file (sha256 {self.sha256})"
            yield f"it was installed from a file; install {file} with: mcpctl install FILE"
        if not self.url:
            yield f"its {self.type} source has no 'url'"
        if self.type is SourceType.MCPB and (self.path or self.rev):
            yield "a bundle is installed whole and pinned by 'sha256'; omit path and rev"
        if self.type is SourceType.ARCHIVE and not self.sha256:
            yield "an archive needs source.sha256because nothing else pins its content"
        if self.type is SourceType.ARCHIVE and self.rev:
            yield "an archive is pinned by 'sha256', not by rev"

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        path = PurePosixPath(self.path)
        if self.type is SourceType.LOCAL:
            if not path.is_absolute():
                raise ValueError("'path' of a local source must be an absolute directory")
        elif self.path and (path.is_absolute() or self.path.startswith("-") or "\\" in self.path):
            raise ValueError(f"'path' {printable(self.path)!r} must be relative to the root of the source")
        if ".." in path.parts:
            raise ValueError(f"'path' {printable(self.path)!r} is outside the package source")
        return self


def strip_credentials(text: str) -> str:
    """Return *text* without the user and password parts of its URLs."""
    return _CREDENTIALS.sub(r"\1", text)


def check_git_url(url: str) -> str:
    """Return *url* if it is safe for git: https, ssh, git, file, or ``user@host:path``.

    Raises :class:`~mcpd.errors.InvalidManifest` for anything else: ``ext::`` and other remote helpers run commands, git
    takes a leading ``-`` for an option, and plain HTTP can be modified in transit.
    """
    shown = printable(url)
    if not url or not url.isprintable() or " " in url:
        raise InvalidManifest(f"git URL {shown!r}: empty, or contains spaces or control characters")
    if url.startswith("-"):
        raise InvalidManifest(f"git URL {shown!r}: begins with '-', which git would take for an option")
    if re.match(r"[A-Za-z0-9_+.-]*::", url):
        raise InvalidManifest(f"git URL {shown!r}: remote helpers run commands and are not allowed; use https")
    if "://" in url:
        return _check_git_scheme(url, shown)
    if _SCP_LIKE.fullmatch(url):
        return url
    raise InvalidManifest(f"git URL {shown!r}: use https://…, ssh://…, git://…, file://… or user@host:path")


def _check_git_scheme(url: str, shown: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidManifest(f"git URL {shown!r}: {error}") from error
    if parts.scheme.lower() not in _GIT_SCHEMES:
        raise InvalidManifest(f"git URL {shown!r}: {parts.scheme}:// is not allowed; use https, ssh, git or file")
    if parts.scheme.lower() == "file":
        if not parts.path.startswith("/") or host not in ("", "localhost"):
            raise InvalidManifest(f"git URL {shown!r}: a file URL needs an absolute path on this machine")
    elif not host or host.startswith("-") or (parts.username or "").startswith("-"):
        # ssh would take a host or user that begins with '-' for an option.
        raise InvalidManifest(f"git URL {shown!r}: has no usable host")
    return url
