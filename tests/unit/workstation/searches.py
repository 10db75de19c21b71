# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ``filesystem_search`` have in common."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.workstation.filesystem.searching import SEARCH, SearchResult

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.workstation.bench import Workbench

needs_ripgrep = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")
ENGINES = [pytest.param("ripgrep", marks=needs_ripgrep), "python"]


def use(engine: str, bench: Workbench, patch: pytest.MonkeyPatch) -> None:
    """Search with *engine*: ripgrep is found where it is installed."""
    if engine == "python":
        which = bench.processes.which
        patch.setattr(bench.processes, "which", lambda program: None if program == "rg" else which(program))


def fill(root: Path, files: dict[str, str | bytes]) -> None:
    """Write *files* below *root*."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


async def search(bench: Workbench, pattern: str, **arguments: Any) -> SearchResult:
    """What the tool finds."""
    answer = await bench.call(SEARCH, pattern=pattern, **arguments)
    assert isinstance(answer.result, SearchResult)
    return answer.result


async def paths(bench: Workbench, pattern: str, **arguments: Any) -> list[str]:
    """The same: the paths from the root."""
    found = await search(bench, pattern, **arguments)
    return [each.path.removeprefix(f"{bench.root}/") for each in found.matches]
