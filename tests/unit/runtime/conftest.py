# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parents[2] / "sandbox"))

from tests.sandbox.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    made = World(tmp_path)
    yield made
    await made.close()
