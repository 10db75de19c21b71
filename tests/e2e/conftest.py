# SPDX-License-Identifier: LGPL-2.1-or-later
"""One machine for all end-to-end tests: a private bus, mcpd, mcpd-bridge, and an installed server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.servers import ECHO
from tests.e2e.script_parts import ScriptRig
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "com.example.echo"
MANIFEST = {
    "id": SERVER,
    "name": "Echo",
    "summary": "Says what it hears",
    "version": "1.0",
    "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
    "configurableProperties": [
        {"key": "greeting", "label": "Greeting", "default": "hello"},
        {"key": "api_key", "label": "API key", "sensitive": True},
    ],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry file with one server, whose files lie beside it."""
    directory = tmp_path_factory.mktemp("registry")
    project = directory / "echo"
    project.mkdir()
    (project / "server.py").write_text(ECHO)
    entry = MANIFEST | {"source": {"type": "local", "path": str(project)}}
    file = directory / "registry.json"
    file.write_text(json.dumps({"version": "1.0", "updated": "2026-01-01T00:00:00Z", "servers": [entry]}))
    return file


@pytest.fixture(scope="module")
def rig(registry: Path) -> Iterator[Rig]:
    """The machine, with the registry known to it and nothing installed."""
    with Rig() as machine:
        machine.start_daemon()
        machine.start_bridge()
        assert machine.mcpctl("source", "add", registry.as_uri()).returncode == 0
        assert machine.mcpctl("refresh").returncode == 0
        yield machine


@pytest.fixture
def installed(rig: Rig) -> Rig:
    """The machine with the server installed."""
    if SERVER not in rig.mcpctl("list").stdout:
        done = rig.mcpctl("install", SERVER)
        assert done.returncode == 0, done.stderr
    return rig


@pytest.fixture(scope="module")
def machine() -> Iterator[ScriptRig]:
    """A machine for the tests of scripts in one module."""
    with ScriptRig() as found:
        found.boot()
        yield found
