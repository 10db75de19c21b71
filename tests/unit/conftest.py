# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.paths import Paths, Scope
from mcpd.store import Store
from tests.unit.store.store_trees import layout

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be, for what waits for the disk hundreds of times."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(
        user=layout(Scope.USER, tmp_path / "user"),
        system=layout(Scope.SYSTEM, tmp_path / "system"),
        vendor=tmp_path / "vendor",
        home=tmp_path / "home",
    )


@pytest.fixture
def user(paths: Paths) -> Store:
    return Store(paths, Scope.USER)


@pytest.fixture
def system(paths: Paths) -> Store:
    return Store(paths, Scope.SYSTEM)
