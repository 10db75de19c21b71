# SPDX-License-Identifier: LGPL-2.1-or-later
"""The layers and what the programs may import, held by import-linter and by looking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def test_imports_go_downwards_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("module", ["mcpd.daemon", "mcpd.bridge.main", "mcpd.cli.main"])
def test_programs_do_not_import_the_sdk(module: str) -> None:
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert not {"mcp", "mcp_types", "anyio"} & set(loaded)
