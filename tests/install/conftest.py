# SPDX-License-Identifier: LGPL-2.1-or-later
"""A user scope of its own for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.install.install_parts import World, make_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories of a user and of a system nobody else uses."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("MCP_USER_SOURCES_PATH", str(tmp_path / "home/sources.list"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "home/run"))
    monkeypatch.setenv("MCP_ROOT", str(tmp_path / "system"))
    return tmp_path


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Store, sessions and installer."""
    async with make_world() as made:
        yield made


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program that installs from Python package indexes; without uv it is pip."""
    if request.param == "pip":
        monkeypatch.setattr("mcpd.install.sources.pypi.find_uv", lambda: None)
    return str(request.param)


@pytest.fixture
def own_index(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No other index than the one the test sets."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return monkeypatch
