# SPDX-License-Identifier: LGPL-2.1-or-later
"""A registry that is signed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcpd.catalog import Catalog, Query
from mcpd.paths import Paths, Scope
from mcpd.settings import Settings
from mcpd.trust.keys import Keys
from mcpd.trust.signing import new_key, sign
from tests.unit.catalog.catalog_server import registry

if TYPE_CHECKING:
    from pathlib import Path


class Signed:
    """A registry in a file, the key it is signed with, and a catalog that reads it."""

    def __init__(self, paths: Paths, folder: Path) -> None:
        self.private, public = new_key()
        self.public = public.decode()
        self.keys = Keys(paths, Scope.USER)
        self.catalog = Catalog(paths, Scope.USER, Settings(), self.keys)
        self.file = folder / "registry.json"
        self.signature = folder / "registry.json.sig"
        self.url = self.file.as_uri()

    def write(self, data: bytes, private: bytes | None = None) -> None:
        self.file.write_bytes(data)
        self.signature.write_bytes(sign(data, private or self.private))

    def verified(self) -> list[bool]:
        return [hit.verified for hit in self.catalog.query(Query())[0]]


def updated(text: object, *names: str) -> bytes:
    return json.dumps({**json.loads(registry(*(names or ("one",)))), "updated": text}).encode()
