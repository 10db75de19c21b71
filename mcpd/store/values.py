# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values that are kept apart from the manifests: overlays and secrets, one file per server."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mcpd.errors import InvalidConfig, InvalidManifest, from_oserror
from mcpd.model import dump_json, load_json
from mcpd.store.files import (
    Signature,
    Staged,
    is_missing,
    make_directory,
    read_file,
    settled,
    signature,
    sync_directory,
)

if TYPE_CHECKING:
    from pathlib import Path


class ValueFiles:
    """``<directory>/<id>.json``, each a map of keys to values. Takes checked ids only."""

    def __init__(self, directory: Path, *, mode: int, directory_mode: int, own: bool = True) -> None:
        """*own* is False for files of another scope, which this process may not be allowed to read."""
        self.directory = directory
        self._own = own
        self._mode = mode
        self._directory_mode = directory_mode
        self._listed: tuple[Signature | None, frozenset[str]] = (None, frozenset())

    def path(self, server_id: str) -> Path:
        """The file of *server_id*, there or not."""
        return self.directory / f"{server_id}.json"

    def read(self, server_id: str) -> dict[str, Any]:
        """The values of *server_id*, empty if there are none or if another scope keeps them to itself.

        Raises :class:`~mcpd.errors.InvalidConfig` that names the file, never its content.
        """
        path = self.path(server_id)
        try:
            values = load_json(read_file(path), str(path))
        except OSError as error:
            if is_missing(error) or (isinstance(error, PermissionError) and not self._own):
                return {}
            # Taken for empty, the next change would write over what is in it.
            raise InvalidConfig(f"{path}: {error.strerror}; mend or remove the file") from error
        except InvalidManifest as error:
            raise InvalidConfig(f"{error.message}; mend or remove the file") from None
        if not isinstance(values, dict):
            raise InvalidConfig(f"{path}: not a map of values; mend or remove the file")
        return values

    def stage(self, server_id: str, values: dict[str, Any]) -> Staged:
        """Prepare to write *values* for *server_id*."""
        make_directory(self.directory, self._directory_mode)
        return Staged(self.path(server_id), dump_json(values), self._mode)

    def write(self, server_id: str, values: dict[str, Any]) -> None:
        """Keep *values* for *server_id*; none at all removes the file."""
        if not values:
            self.remove(server_id)
            return
        with self.stage(server_id, values) as staged:
            staged.commit()

    def remove(self, server_id: str) -> None:
        """Forget the values of *server_id*."""
        path = self.path(server_id)
        try:
            path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            if not is_missing(error):
                raise from_oserror(error, f"removing {path}") from error

    def signature(self, server_id: str) -> Signature | None:
        """What changes when the values of *server_id* change, None while there are none."""
        try:
            status = self.path(server_id).stat()
        except OSError:
            return None
        found = signature(status)
        return found if settled(status) else (*found[:3], time.time_ns())

    def ids(self) -> frozenset[str]:
        """The servers that have values now."""
        try:
            status = self.directory.stat()
            now = signature(status) if settled(status) else None
            if now is None or now != self._listed[0]:
                names = os.listdir(self.directory)  # noqa: PTH208 - names are enough
                self._listed = (now, frozenset(name.removesuffix(".json") for name in names))
        except OSError:
            self._listed = (None, frozenset())
        return self._listed[1]
