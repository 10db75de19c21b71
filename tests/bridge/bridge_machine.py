# SPDX-License-Identifier: LGPL-2.1-or-later
"""A home directory with a bus, a mcpd and a bridge of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx2

from tests.bridge.bridge_harness import FIXTURE, PATIENCE, ROOT, Bridge, Client, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Machine:
    """A home directory with a bus, mcpd and the bridge."""

    def __init__(self, home: Path, sandbox: str = "off") -> None:
        self.home = home
        self.bridge: Bridge | None = None
        self.runtime = home / "run"
        self.runtime.mkdir(mode=0o700)
        self.socket = self.runtime / "mcp" / "bridge.sock"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MCP"))} | {
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "MCP_ROOT": str(home / "system"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.runtime}/bus",
            "MCPD_RUNTIME_SANDBOX": sandbox,
            "MCPD_RUNTIME_LAUNCHER": "plain",
        }
        self.programs: list[subprocess.Popen[bytes]] = []
        self.clients: list[httpx2.Client] = []
        self.install("fix", {})

    def boot(self) -> None:
        self.start_bus()
        self.daemon = self.start(sys.executable, "-m", "mcpd.daemon", "--user")
        self.bridge = Bridge(["--user"], self.environ, self.home / "bridge.log")
        eventually(self.socket.exists, "the bridge listens")
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        eventually(lambda: self.client("fix").post(ping).status_code == 200, "mcpd runs servers")

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.home / "programs.log").open("ab") as log:
            process = subprocess.Popen(argv, env=self.environ, stdout=log, stderr=log, cwd=ROOT)
        self.programs.append(process)
        return process

    def start_bus(self) -> subprocess.Popen[bytes]:
        address = self.environ["DBUS_SESSION_BUS_ADDRESS"]
        bus = self.start("dbus-daemon", "--session", "--nofork", "--address", address)
        eventually((self.runtime / "bus").exists, "the bus is there")
        return bus

    def install(self, name: str, changes: Mapping[str, object]) -> None:
        directory = self.home / ".local/share/mcp/installed" / name
        directory.mkdir(parents=True)
        shutil.copy(FIXTURE, directory / "server.py")
        transport = {"type": "stdio", "command": "/usr/bin/python3", "args": ["server.py"]}
        manifest = {"id": name, "name": name, "summary": "-", "version": "1", "transports": [transport], **changes}
        (directory / "manifest.json").write_text(json.dumps({**manifest, "installDir": str(directory)}))

    def client(self, server: str) -> Client:
        transport = httpx2.HTTPTransport(uds=str(self.socket))
        http = httpx2.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE, trust_env=False)
        self.clients.append(http)
        return Client(http, server)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.bridge is not None:
            self.bridge.close()
        for process in reversed(self.programs):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
