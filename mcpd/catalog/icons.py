# SPDX-License-Identifier: LGPL-2.1-or-later
"""Icons of entries, fetched when first requested and then cached."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.registries import check_entry_url
from mcpd.catalog.results import Icon
from mcpd.errors import InvalidArgument, InvalidManifest, McpdError, SourceUnavailable
from mcpd.files import make_directory, read_file, write_atomic
from mcpd.model import printable

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

MAX_ICON: Final = 512 * 1024
MAX_KEPT: Final = 64 * 1024 * 1024
"""Maximum total size of cached icons in bytes; the least recently used are removed."""
BLOCK: Final = 4096
"""Minimum size in bytes that each cached icon counts as."""
_MAGIC: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (
        re.compile(
            rb"(?:\xef\xbb\xbf)?(?>\s|<\?xml[^>]*>|<!--(?:(?!-->).)*-->|<!DOCTYPE svg[^>\[]*>)*+<svg[\s>]", re.DOTALL
        ),
        "image/svg+xml",
    ),
)
_HEAD: Final = 4096
_FAILED_FOR: Final = 60.0
"""Seconds for which a failure is remembered."""
_MAX_FAILED: Final = 256
"""Number of failures remembered."""


class Icons:
    """Cache of icons in one directory. All calls come from one event loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, asyncio.Task[Icon]] = {}
        """Fetches in progress, by URL."""
        self._failed: dict[str, tuple[float, str]] = {}
        """Time and message of failed fetches, the latest last."""

    async def get(self, url: str, registry: str, seconds: float) -> Icon:
        """Return the image at *url*, named by an entry of *registry* (may be empty), fetched within *seconds*.

        Concurrent calls for the same URL share one fetch. Raises :class:`~mcpd.errors.SourceUnavailable` that names
        *url*, including if it is not an image; for a minute, a failure is raised again without another fetch.
        """
        try:
            place = check_entry_url(url, registry)
        except InvalidArgument as error:
            raise SourceUnavailable(f"the icon cannot be fetched: {error.message}") from error
        if not registry and place.startswith("file:"):
            raise SourceUnavailable(
                f"{printable(url)}: only an entry of a registry can refer to a file on this machine"
            )
        at, message = self._failed.get(place, (-_FAILED_FOR, ""))
        if time.monotonic() - at < _FAILED_FOR:
            raise SourceUnavailable(message)
        task = self._running.get(place)
        if task is None:
            task = self._running[place] = asyncio.create_task(_icon(self._directory, place, seconds))
            task.add_done_callback(partial(self._done, place))
        # Shielded, as other calls may wait for the same task.
        return await asyncio.shield(task)

    def _done(self, place: str, task: asyncio.Task[Icon]) -> None:
        del self._running[place]
        error = None if task.cancelled() else task.exception()
        self._failed.pop(place, None)
        if isinstance(error, SourceUnavailable):
            if len(self._failed) >= _MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[place] = time.monotonic(), error.message


async def _icon(directory: Path, place: str, seconds: float) -> Icon:
    path = directory / hashlib.sha256(place.encode()).hexdigest()
    kept = await asyncio.to_thread(_kept, path)
    if kept is not None:
        return kept
    async with Fetcher(seconds=seconds, max_bytes=MAX_ICON) as fetcher:
        data = (await fetcher.fetch(place)).data or b""
    found = _recognized(data)
    if found is None:
        raise SourceUnavailable(f"{printable(place)}: not a PNG, SVG, JPEG, WebP or GIF image")
    if not place.startswith("file:"):
        await asyncio.to_thread(_keep, directory, path, data)
    return found


def _recognized(data: bytes) -> Icon | None:
    head = data[:_HEAD]
    return next((Icon(data, media_type) for magic, media_type in _MAGIC if magic.match(head)), None)


def _kept(path: Path) -> Icon | None:
    try:
        found = _recognized(read_file(path, MAX_ICON))
        if found is not None:
            with suppress(OSError):  # the cache may be read-only
                path.touch()
    except (OSError, InvalidManifest):
        return None
    return found


def _keep(directory: Path, path: Path, data: bytes) -> None:
    """Cache *data*. Errors are only logged."""
    try:
        make_directory(directory)
        _make_room(directory, len(data))
        write_atomic(path, data)
    except (McpdError, OSError) as error:
        _log.warning("cannot cache an icon: %s", error)


def _make_room(directory: Path, size: int) -> None:
    found: list[tuple[float, int, Path]] = []
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # another thread may have replaced or removed it
            status = path.lstat()
            found.append((status.st_mtime, max(status.st_size, BLOCK), path))
    total = sum(each for _, each, _ in found) + max(size, BLOCK)
    for _, each, path in sorted(found):
        if total <= MAX_KEPT:
            return
        path.unlink(missing_ok=True)
        total -= each
