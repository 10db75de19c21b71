# SPDX-License-Identifier: LGPL-2.1-or-later
"""What most tests of the workstation begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """One root; nothing outside of it changes."""
    with Workbench(tmp_path) as made:
        before = made.fingerprint()
        yield made
        assert made.fingerprint() == before


@pytest.fixture
def repository(bench: Workbench) -> MadeRepository:
    """A repository that is the root of *bench*."""
    return MadeRepository.make(bench.root)
