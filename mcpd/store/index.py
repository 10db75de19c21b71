# SPDX-License-Identifier: LGPL-2.1-or-later
"""``index.json`` on disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mcpd.errors import InvalidManifest
from mcpd.model import Index, dump_json, load_json, parse_index
from mcpd.store.files import Signature, Staged, is_missing, read_file, settled, signature, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)


class IndexFile:
    """The index of one tree; a missing one is empty, so that only what is found by scanning counts (S-34)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        """Why the file as a whole cannot be used; then it counts as missing."""
        self._read: tuple[Signature | None, Index] = (None, Index())

    def read(self) -> Index:
        """What the file says now; kept until it changes."""
        try:
            status = self.path.stat()
            now = signature(status)
            if now == self._read[0]:
                return self._read[1]
            index = parse_index(load_json(read_file(self.path), str(self.path)), str(self.path))
            self.fault = ""
        except InvalidManifest as error:
            index = self._unusable(error.message)
        except OSError as error:
            if is_missing(error):
                self.fault = ""
                self._read = (None, Index())
                return self._read[1]
            index = self._unusable(f"{self.path}: {error.strerror}")
            now, status = None, None
        for problem in index.problems:
            _log.warning("%s", problem.message)
        self._read = (now if status is not None and settled(status) else None, index)
        return index

    def _unusable(self, fault: str) -> Index:
        if fault != self.fault:
            _log.warning("%s; the servers beside it are found without it", fault)
        self.fault = fault
        return Index()

    def stage(self, index: Index) -> Staged:
        """Prepare to write *index*; what a broken file held is kept beside it (S-36)."""
        if self.fault:
            self._keep_broken()
        return Staged(self.path, dump_json(index.to_json()))

    def _keep_broken(self) -> None:
        try:
            write_atomic(self.path.with_name(f"{self.path.name}.broken"), read_file(self.path, 1 << 28), 0o600)
        except (InvalidManifest, OSError) as error:
            _log.warning("%s could not be kept: %s", self.path, error)
