# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mcpd.catalog import Catalog
from mcpd.paths import Paths, Scope
from mcpd.settings import CatalogSettings, Settings
from mcpd.trust.keys import Keys
from tests.unit.catalog.catalog_paths import paths_below
from tests.unit.catalog.catalog_server import registry
from tests.unit.catalog.signed_registry import Signed

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = Settings(catalog=CatalogSettings(timeout=5, max_bytes=100_000))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return paths_below(tmp_path)


@pytest.fixture
def user(paths: Paths) -> Catalog:
    return Catalog(paths, Scope.USER, SETTINGS, Keys(paths, Scope.USER))


@pytest.fixture
def system(paths: Paths) -> Catalog:
    return Catalog(paths, Scope.SYSTEM, SETTINGS, Keys(paths, Scope.SYSTEM))


@pytest.fixture
def signed(paths: Paths, tmp_path: Path) -> Signed:
    found = Signed(paths, tmp_path)
    found.keys.add("example", found.public)
    found.write(registry("one"))
    return found
