# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small world to run servers in: directories, an installed server, somebody to run it as."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - loaded before the user changes: the interpreter may be out of reach then.
import gc
import json
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.errors import NotFound
from mcpd.model import Manifest
from mcpd.paths import Layout, Paths, Scope
from mcpd.runtime.launchers import PlainLauncher
from mcpd.runtime.sessions import Owner, Sessions
from mcpd.settings import RuntimeSettings, Settings
from mcpd.store import InstalledServer, LaunchManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mcpd.runtime.launch import Exit, Launcher
    from mcpd.runtime.sessions import Backoff, Session

NOBODY = 65534
PYTHON = "/usr/bin/python3"
OWNER = Owner(os.getuid(), ":1.1")


@dataclass
class World:
    """Everything below one directory; it is also the ``store`` that :class:`Sessions` asks."""

    root: Path
    servers: dict[str, tuple[InstalledServer, LaunchManifest]] = field(default_factory=dict)
    paths: Paths = field(init=False)
    opened: list[Sessions] = field(default_factory=list)

    def __post_init__(self) -> None:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        user = Layout(
            Scope.USER,
            home / ".config/mcp/sources.list",
            home / ".config/mcp/mcpd.toml",
            home / ".local/share/mcp/installed",
            home / ".local/share/mcp/secrets",
            home / ".local/state/mcp",
            home / ".cache/mcp",
            self.root / "run/mcp",
            home / ".local/share/mcp/overlay",
            home / ".local/share/mcp/scripts",
            home / ".local/share/mcp/cas",
            home / ".mcp-orchestration",
            home / ".local/share/mcp/deployments",
        )
        system = self.root / "system"
        layout = Layout(
            Scope.SYSTEM,
            system / "etc/mcp/sources.list",
            system / "etc/mcp/mcpd.toml",
            system / "usr/share/mcp/installed",
            system / "var/lib/mcp/secrets",
            system / "var/lib/mcp/state",
            system / "var/cache/mcp",
            system / "run/mcp",
            system / "var/lib/mcp/overlay",
            system / "etc/mcp/scripts",
            system / "var/lib/mcp/cas",
            system / "var/lib/mcp/orchestration",
            system / "var/lib/mcp/deployments",
        )
        self.paths = Paths(user, layout, system / "usr/share/mcp/servers", home)

    def install(
        self,
        server_id: str,
        program: str = "",
        *,
        values: dict[str, Any] | None = None,
        scope: Scope = Scope.USER,
        **fields: Any,
    ) -> InstalledServer:
        """Install *program*, a Python script, with the manifest *fields*."""
        layout = self.paths.layout(scope)
        generation = layout.generations / server_id / "1"
        generation.mkdir(parents=True, exist_ok=True)
        (generation / "server.py").write_text(program)
        document = {
            "id": server_id,
            "name": server_id,
            "transports": [{"type": "stdio", "command": PYTHON, "args": ["-IS", "server.py"]}],
            **fields,
        }
        (generation / "manifest.json").write_text(json.dumps(document))
        directory = layout.installed / server_id
        directory.parent.mkdir(parents=True, exist_ok=True)
        if not directory.is_symlink():
            directory.symlink_to(generation)
        manifest = Manifest.parse(document, "test")
        merged = json.dumps({**document, "config": values or {}}).encode()
        server = InstalledServer(
            id=server_id,
            scope=scope,
            layer="user" if scope is Scope.USER else "system",
            manifest=manifest,
            directory=directory,
            generation=generation,
            problem="",
            writable=True,
            configured=True,
        )
        self.servers[server_id] = (server, LaunchManifest(manifest, merged, values or {}))
        return server

    def get(self, server_id: str) -> InstalledServer:
        if server_id not in self.servers:
            raise NotFound(f"{server_id} is not installed")
        return self.servers[server_id][0]

    def launch_manifest(self, server_id: str) -> LaunchManifest:
        return self.servers[server_id][1]

    def sessions(
        self,
        *,
        scope: Scope = Scope.USER,
        launcher: Launcher | None = None,
        backoff: Backoff | None = None,
        **runtime: Any,
    ) -> Sessions:
        settings = Settings(runtime=RuntimeSettings(**runtime))
        made = Sessions(self, launcher or PlainLauncher(), self.paths, settings, scope, backoff=backoff)
        self.opened.append(made)
        return made

    async def close(self) -> None:
        """End what a test that failed may have left."""
        for sessions in self.opened:
            await sessions.close()


def open_descriptors() -> int:
    """How many descriptors this process has."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


class Client:
    """The client's ends of one server's stdio."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.server_in, self.write_end = os.pipe()
        self.read_end, self.server_out = os.pipe()
        self.error_end, self.server_err = os.pipe() if stderr else (-1, -1)
        self.fds = {0: self.server_in, 1: self.server_out} | ({2: self.server_err} if stderr else {})
        self._reader = asyncio.StreamReader()
        self._transport: asyncio.BaseTransport | None = None

    def started(self) -> None:
        """Close the server's ends, as a client does after the start."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    async def read(self) -> bytes:
        """Everything up to the end of its stdout."""
        return await asyncio.to_thread(_read_all, self.read_end)

    def close(self) -> None:
        self.started()
        for fd in (self.write_end, self.read_end, self.error_end):
            if fd >= 0:
                os.close(fd)
        self.write_end = self.read_end = self.error_end = -1


def _read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 65536):
        data += chunk
    return data


async def talk(sessions: Sessions, server_id: str, **options: Any) -> tuple[bytes, Exit, Session]:
    """Start *server_id*, read its stdout to the end, and await its exit."""
    client = Client()
    try:
        session = await sessions.spawn(server_id, client.fds, owner=OWNER, **options)
        client.started()
        async with asyncio.timeout(120):
            output = await client.read()
            return output, await session.wait(), session
    finally:
        client.close()


def run_as(uid: int, work: Callable[[World], Coroutine[Any, Any, Any]]) -> Any:
    """Run *work* in a process of user *uid*, in a world of its own, and return its JSON result."""
    with tempfile.TemporaryDirectory(prefix="mcp-world-", dir="/tmp") as name:
        root = Path(name).resolve()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(read)
                if uid != os.getuid():
                    os.chown(root, uid, uid)
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                # The interpreter of the tests may lie where this user cannot reach it.
                sys.executable = PYTHON
                os.environ.update(HOME=str(root / "home"), XDG_RUNTIME_DIR=str(root / "run"))
                result = asyncio.run(work(World(root)))
                with os.fdopen(write, "w") as file:
                    json.dump(result, file)
                status = 0
            except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        data = _read_all(read)
        os.close(read)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the work as uid {uid} failed with status {status}, see its traceback"
        return json.loads(data)
