# SPDX-License-Identifier: LGPL-2.1-or-later
"""The real ``mcpctl`` process, on a private bus with an mcpd that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.client_machine import Machine
from tests.cli.fake import FakeMcpd, fake_mcpd
from tests.cli.map_files import HELLO, TRANSFORM
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PATIENCE = 120.0


@dataclass(frozen=True)
class Ended:
    """What a process left."""

    code: int
    out: str
    err: str


class Mcpctl:
    """Runs ``mcpctl --user``."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    async def __call__(self, *argv: str, stdin: bytes = b"", environ: dict[str, str] | None = None) -> Ended:
        process = await self.start(*argv, environ=environ)
        out, err = await asyncio.wait_for(process.communicate(stdin), PATIENCE)
        assert process.returncode is not None
        # One of mcpctl itself; what servers write has their id before it.
        assert "Traceback" not in {line.partition(" ")[0] for line in err.decode().splitlines()}
        return Ended(process.returncode, out.decode(), err.decode())

    async def on_terminal(self, *argv: str, environ: dict[str, str] | None = None) -> str:
        """What appears where standard output is a terminal."""
        ours, its = pty.openpty()
        process = await self.start(*argv, environ=environ, stdout=its)
        os.close(its)
        shown, _ = await asyncio.wait_for(
            asyncio.gather(asyncio.to_thread(_rest, ours), process.communicate()), PATIENCE
        )
        assert process.returncode == 0
        return shown

    async def start(
        self, *argv: str, environ: dict[str, str] | None = None, stdout: int | None = None
    ) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # As root the default is the system's instance.
        scope = () if "--system" in argv else ("--user",)
        return await asyncio.create_subprocess_exec(
            python(), "-m", "mcpd.cli.main", *scope, *argv,
            stdin=pipe, stdout=pipe if stdout is None else stdout, stderr=pipe, env=self.environ | (environ or {}),
        )  # fmt: skip


def _rest(terminal: int) -> str:
    data = b""
    with os.fdopen(terminal, "rb", 0) as file, contextlib.suppress(OSError):
        while read := file.read(65536):
            data += read
    return data.decode()


@pytest.fixture(scope="module")
def bus_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A private message bus, to which mcpd is known as it is on a real machine, but cannot be started."""
    directory = tmp_path_factory.mktemp("bus")
    services = directory / "dbus-1/services"
    services.mkdir(parents=True)
    (services / "org.mcpd.Mcp1.service").write_text("[D-BUS Service]\nName=org.mcpd.Mcp1\nExec=/bin/false\n")
    address = f"unix:path={directory}/socket"
    argv = ["dbus-daemon", "--session", "--nofork", "--print-address", "--address", address]
    environ = os.environ | {"XDG_DATA_DIRS": str(directory), "XDG_DATA_HOME": str(directory)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        yield address
        daemon.terminate()


@pytest.fixture
def mcpctl(bus_address: str, tmp_path: Path) -> Mcpctl:
    """``mcpctl`` with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_", "MCP"))}
    return Mcpctl(
        kept
        | {
            "HOME": str(tmp_path / "home"),
            "MCP_ROOT": str(tmp_path / "root"),
            "DBUS_SESSION_BUS_ADDRESS": bus_address,
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/no-system-bus",
            "COLUMNS": "100",
        }
    )


@pytest.fixture
async def mcpd(bus_address: str) -> AsyncIterator[FakeMcpd]:
    """The mcpd on the bus."""
    fake = await fake_mcpd(bus_address)
    yield fake
    await fake.close()


@pytest.fixture
def own(mcpctl: Mcpctl) -> Path:
    """Where the user's scripts go."""
    return Path(mcpctl.environ["HOME"]) / ".local/share/mcp/scripts"


@pytest.fixture
def vendor(mcpctl: Mcpctl) -> Path:
    """Where those of packages are."""
    directory = Path(mcpctl.environ["MCP_ROOT"]) / "usr/share/mcp/scripts"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def home(mcpctl: Mcpctl) -> Path:
    """The user's home, with the directories of the map and of scripts."""
    path = Path(mcpctl.environ["HOME"])
    (path / ".config/mcp").mkdir(parents=True)
    (path / ".local/share/mcp/scripts").mkdir(parents=True)
    return path


@pytest.fixture
def project(tmp_path: Path, home: Path) -> Path:
    """A source that is right."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "hello.py").write_text(HELLO)
    secret = home / "secret"
    secret.write_text("nobody's business")
    (root / "tools.py").write_text(TRANSFORM.format(secret=str(secret), mark=str(tmp_path / "mark")))
    document = {
        "hello": {
            "definition_cid": "hello.py",
            "tools_transform_cid": "tools.py",
            "auto_discover": True,
            "disallowed_tools": ["nothing*"],
            "tools": {"hello": {"name": "greet"}},
            "resources": {"self": {"uri": "hello://self", "description": "Itself", "source": "file:hello.py"}},
            "prompts": {"ask": {"description": "Asks", "template": "Say hello"}},
        }
    }
    (root / "mcps.source.json").write_text(json.dumps(document, indent=2))
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A user with one server, ``notes``."""
    made = Machine(tmp_path)
    made.install("notes")
    return made
