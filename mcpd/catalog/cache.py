# SPDX-License-Identifier: LGPL-2.1-or-later
"""The last good copy of each registry, used until a newer one is there and while there is no network (S-9)."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidManifest
from mcpd.model import Registry, dump_json, load_json, parse_registry
from mcpd.store.files import Signature, is_missing, make_directory, read_file, settled, signature, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

_MAX_COPY: Final = 1 << 28
"""Bytes; a copy is indented, so it may be larger than what was fetched."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A registry as it was fetched."""

    registry: Registry
    etag: str
    updated: float
    """Unix time."""


class Cache:
    """One file per source in one directory. Takes URLs in their normal form."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded: dict[str, tuple[Signature, Copy]] = {}

    def path(self, url: str) -> Path:
        """The file of *url*, there or not."""
        return self._directory / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

    def load(self, url: str) -> Copy | None:
        """The copy of *url*; None if there is none that can be used."""
        path = self.path(url)
        try:
            status = path.stat()
            now = signature(status)
            loaded = self._loaded.get(url)
            if loaded is not None and loaded[0] == now:
                return loaded[1]
            copy = _parse(load_json(read_file(path, _MAX_COPY), str(path)), url, status.st_mtime)
        except InvalidManifest as error:
            _log.warning("%s; fetching it again", error.message)
            return None
        except OSError as error:
            if not is_missing(error):
                _log.warning("%s: %s", path, error.strerror)
            self._loaded.pop(url, None)
            return None
        if settled(status):
            self._loaded[url] = (now, copy)
        return copy

    def store(self, url: str, data: bytes, etag: str) -> Registry:
        """Keep *data*, fetched from *url*.

        Raises :class:`~mcpd.errors.InvalidManifest` if it is no registry; then the earlier copy stays.
        """
        document = load_json(data, url)
        registry = parse_registry(document, url)
        make_directory(self._directory)
        written = dump_json({"url": url, "etag": etag, "registry": document})
        write_atomic(self.path(url), written)
        self._loaded.pop(url, None)
        with suppress(OSError):
            status = self.path(url).stat()
            if status.st_size == len(written):  # else another process has written since
                self._loaded[url] = (signature(status), Copy(registry, etag, status.st_mtime))
        return registry

    def confirm(self, url: str) -> None:
        """The copy of *url* is still what the source has."""
        path = self.path(url)
        loaded = self._loaded.get(url)
        try:
            before = signature(path.stat())
            path.touch()
            status = path.stat()
        except OSError as error:
            _log.warning("%s: %s", path, error.strerror)
            return
        now = signature(status)
        if loaded is not None and loaded[0] == before and before[:2] == now[:2]:
            self._loaded[url] = (now, replace(loaded[1], updated=status.st_mtime))


def _parse(data: Any, url: str, updated: float) -> Copy:
    if not isinstance(data, dict) or data.get("url") != url:
        raise InvalidManifest(f"{url}: the copy of it belongs to something else")
    etag = data.get("etag")
    return Copy(parse_registry(data.get("registry"), url), etag if isinstance(etag, str) else "", updated)
