# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the files of a server come from (seed 001 §6.2, design §3)."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from mcpd.errors import InvalidManifest
from mcpd.model.base import Document, Text, printable
from mcpd.model.legacy import modern_source_type

_GIT_SCHEMES: Final = frozenset({"https", "ssh", "git", "file"})
_SCP_LIKE: Final = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?![/:])?[^:].*", re.ASCII)

_CONTAINERS: Final = frozenset({"oci", "docker"})


class SourceType(StrEnum):
    """Kinds of source."""

    GIT = "git"
    NPM = "npm"
    PYPI = "pypi"
    MCPB = "mcpb"
    ARCHIVE = "archive"
    LOCAL = "local"


class Source(Document):
    """What to fetch, and the pin it must match.

    ``git``: ``url``, ``path``, ``rev`` (branch, tag or full commit id). ``npm`` and ``pypi``: ``package`` and
    ``version``. ``local``: ``path``, an absolute directory. A type mcpd cannot install is kept: a server that
    another tool installed from it still runs.
    """

    type: Annotated[SourceType | str, Field(union_mode="left_to_right"), BeforeValidator(modern_source_type)]
    url: Text = ""
    path: Text = ""
    package: Text = ""
    version: Text = ""
    rev: Text = ""
    sha256: Annotated[Text, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @property
    def unsupported(self) -> str:
        """Why mcpd cannot install from it, for people; empty if it is of a type that mcpd knows."""
        if isinstance(self.type, SourceType):
            return ""
        if self.type in _CONTAINERS:
            return "it is a container image, and mcpd runs no containers"
        return f"mcpd cannot install from a source of type {printable(self.type)!r}"

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        path = PurePosixPath(self.path)
        if self.type is SourceType.LOCAL:
            if not path.is_absolute():
                raise ValueError("'path' of a local source must be an absolute directory")
        elif self.path and (path.is_absolute() or self.path.startswith("-") or "\\" in self.path):
            raise ValueError(f"'path' {printable(self.path)!r} must be relative to the root of the source")
        if ".." in path.parts:
            raise ValueError(f"'path' {printable(self.path)!r} climbs out of the source")
        return self


def check_git_url(url: str) -> str:
    """Return *url* if git may be given it: https, ssh, git, file, or ``user@host:path``.

    Raises :class:`~mcpd.errors.InvalidManifest` for anything else. ``ext::`` and other remote helpers run
    commands, a leading ``-`` is an option, plain http can be changed on the way.
    """
    shown = printable(url)
    if not url or not url.isprintable() or " " in url:
        raise InvalidManifest(f"git URL {shown!r}: empty, or holds spaces or control characters")
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
