# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs of others that drive the bridge. ``packaging/conformance.sh`` installs them; nothing is downloaded here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import ROOT, Bridge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIXTURE = f"{sys.executable} {ROOT}/tests/fixtures/conformance_server.py"


class Tools:
    """The programs, to be run with the Node.js beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run *script*, a path below node_modules, to its end."""
        argv = [str(self.directory / "node"), str(self.directory / "node_modules" / script), *arguments]
        path = f"{self.directory}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HOME": str(cwd), "NO_COLOR": "1"}
        return subprocess.run(
            argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="session")
def tools() -> Tools:
    """What ``packaging/conformance.sh`` installed; without it the test is skipped, unless MCPD_REQUIRE_NODE is set."""
    where = [str(ROOT / "packaging" / "conformance.sh"), "--where"]
    directory = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    if not directory.is_dir():
        why = "needs Node.js, the conformance suite and the Inspector: run packaging/conformance.sh"
        if os.environ.get("MCPD_REQUIRE_NODE"):
            pytest.fail(f"MCPD_REQUIRE_NODE is set: {why}")
        pytest.skip(why)
    return Tools(directory)


@pytest.fixture(scope="module")
def start_bridge(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bridge]]:
    """Start bridges in front of the servers given as NAME=COMMAND; they end with the module."""
    _ = tools  # first, so that no bridge is started for tests that will be skipped
    running: list[Bridge] = []

    def start(*servers: str) -> Bridge:
        given = [part for server in servers for part in ("--server", server)]
        log = tmp_path_factory.mktemp("bridge") / "log"
        running.append(Bridge(["--listen", "127.0.0.1:0", "--auth", "none", *given], {}, log))
        return running[-1]

    try:
        yield start
    finally:
        for bridge in running:
            bridge.close()


@pytest.fixture(scope="module")
def bridge(start_bridge: Callable[..., Bridge]) -> Bridge:
    """A bridge in front of the fixture server: as ``both`` in either era, as ``old`` in the handshake era only."""
    return start_bridge(f"both={FIXTURE}", f"old={FIXTURE} --handshake")
