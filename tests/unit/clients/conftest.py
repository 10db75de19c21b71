# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.clients.tree import Tree
from mcpd.paths import Scope
from tests.unit.clients.deployment_parts import User
from tests.unit.clients.signed_parts import Site

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "tree")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree", Scope.USER)


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that everybody may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        Path(name).chmod(0o755)
        yield Path(name)
