# SPDX-License-Identifier: LGPL-2.1-or-later
"""The roots: the configured ones, restricted by those that a client declares.

A client's roots are requested when they are needed, and again when they change. They only say what the client works
with, and never permit access to anything that is not configured.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes, urlsplit

from mcpd.errors import InvalidConfig, McpdError, NotAuthorized
from mcpd.model import printable
from mcpd.servers.beneath import open_beneath
from mcpd.servers.workstation.jail import HERE, Jail, MissingRoot, Root, path_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from mcpd.servers.workstation.settings import Settings

UNSET: Final = (
    "no directory may be touched, as none is configured; set roots, for example with: mcpctl config set workstation"
    " roots=~/src, or --root DIR where the server is started"
)
OUTSIDE: Final = (
    "the client's own roots are not in the directories that are configured (roots), so nothing may be touched"
)


class Roots:
    """The configured roots, held open as far as they exist."""

    def __init__(self, settings: Settings) -> None:
        """Open the roots. Raises :class:`~mcpd.errors.InvalidConfig` for one that cannot be a root."""
        self._settings = settings
        self._found = [_opened(path) for path in settings.roots]
        self.missing = [root for root in self._found if isinstance(root, MissingRoot)]
        """The roots that could not be opened."""
        _refuse_to_show(settings.state, "roots", [root.path for root in self._found])
        _refuse_to_show(settings.state, "toolchains", map(str, settings.toolchains))

    @property
    def jail(self) -> Jail:
        """The jail of all configured roots."""
        return self._jail(self._found, self._settings.problem or UNSET, whole=True)

    def _jail(self, roots: Sequence[Root | MissingRoot], hint: str, *, whole: bool) -> Jail:
        settings = self._settings
        return Jail(
            roots,
            hint=hint,
            state=settings.state,
            home=str(settings.home),
            hard_links=settings.allow_hard_links,
            whole=whole,
        )

    def narrowed(self, uris: Iterable[str]) -> Jail:
        """Return the jail restricted to the client's roots *uris*: what is in one of them and in a configured root.

        Without any *uris* nothing is restricted. URIs other than ``file:``, and paths that do not exist, are ignored.
        """
        named = list(uris)
        if not named or not self._found:
            return self.jail
        found: dict[str, Root | MissingRoot] = {}
        for path in filter(None, map(_path, named)):
            for root in self._found:
                if any(_lies_in(spelled, path) for spelled in (root.path, *root.spelled)):
                    found[root.path] = root
                elif isinstance(root, MissingRoot) and _lies_in(path, root.path):
                    found.setdefault(root.path, root)
            inner = self._inside(path)
            if inner is not None:
                found.setdefault(inner.path, inner)
        whole = found.keys() >= {root.path for root in self._found}
        return self._jail(list(found.values()), OUTSIDE, whole=whole)

    def _inside(self, path: str) -> Root | None:
        """Return *path*, opened as a root within a configured one; None if it does not exist or may not be accessed."""
        try:
            place = self.jail.place(path)
            if place.relative == HERE:
                return place.root
            if place.root.moved:
                # The configured root was moved: with this path, a call gets the error that says so.
                return Root(place.path, os.dup(place.root.fd))
            fd = open_beneath(place.root.fd, place.relative, os.O_PATH | os.O_DIRECTORY)
        except (McpdError, OSError):
            return None
        return Root(path_of(fd), fd, (place.path,), place.root.path)


def _opened(path: Path) -> Root | MissingRoot:
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is not a directory" if error.errno == errno.ENOTDIR else os.strerror(error.errno or 0)
        return MissingRoot(os.path.normpath(path), reason)
    real, spelled = path_of(fd), os.path.normpath(path)
    root = Root(real, fd, () if spelled == real else (spelled,))
    if real == "/":
        raise InvalidConfig("roots: / cannot be a root; name the directories that are needed")
    return root


def _refuse_to_show(state: Path, key: str, paths: Iterable[str]) -> None:
    """Raise :class:`~mcpd.errors.InvalidConfig` if one of *paths* overlaps *state*, which has the audit log."""
    kept = os.path.realpath(state)
    for path in paths:
        real = os.path.realpath(path)
        if _lies_in(kept, real) or _lies_in(real, kept):
            raise InvalidConfig(
                f"{key}: {printable(path)} holds {printable(kept)}, where every call is recorded; name narrower"
                " directories"
            )


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _path(uri: str) -> str | None:
    """Return the absolute path that a ``file:`` URI names, or None for any other."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return None
    path = os.fsdecode(unquote_to_bytes(parts.path))
    return os.path.normpath(path) if path.startswith("/") and "\0" not in path else None


PATIENCE: Final = 10.0
"""Seconds to wait for the client's answer."""
ROUNDS: Final = 5
"""Number of requests if the client's roots change while it answers."""


class ClientRoots:
    """The roots of one client."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._uris: Sequence[str] = ()
        self._jail: Jail | None = None
        self._asking: asyncio.Task[Jail] | None = None
        self._changes = 0

    def changed(self) -> None:
        """Forget the client's roots, which have changed."""
        self._changes += 1
        self._jail = None

    async def jail(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Jail:
        """Return the jail, calling *ask* once for all that wait to request the URIs of the client's roots.

        Raises :class:`~mcpd.errors.NotAuthorized` if the client does not answer.
        """
        if self._jail is not None:
            if any(root.moved for root in self._jail.roots):
                self._jail = self._roots.narrowed(self._uris)
            return self._jail
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked(ask))
            self._asking.add_done_callback(self._answered)
        # Cancelling one waiting call must not cancel the request for the others.
        return await asyncio.shield(self._asking)

    async def _asked(self, ask: Callable[[], Awaitable[Sequence[str]]]) -> Jail:
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in range(ROUNDS):
                    changes = self._changes
                    self._uris = await ask()
                    if changes == self._changes:
                        self._jail = self._roots.narrowed(self._uris)
                        return self._jail
        except TimeoutError:
            raise NotAuthorized(
                f"the client has roots of its own, but has not said within {PATIENCE:g} s which; nothing may be touched"
            ) from None
        raise NotAuthorized("the client's roots change faster than it says which they are; nothing may be touched")

    def _answered(self, task: asyncio.Task[Jail]) -> None:
        self._asking = None
        if not task.cancelled():
            # Retrieve the exception, as all waiting calls may have been cancelled.
            task.exception()
