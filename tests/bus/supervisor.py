# SPDX-License-Identifier: LGPL-2.1-or-later
"""As much of systemd as a D-Bus-activated service notices, with the same answer to every state it is asked in.

A start that is asked for while the service runs is fulfilled already, and forgotten; while it stops, it waits for the
end. Descriptors are kept until the service is inactive.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from mcpd.bus.names import BUS_NAME
from tests.fd_keeper import FdKeeper

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ASK = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
"""What the bus runs to have mcpd started: asks the supervisor, and stays until mcpd is there."""
RESTART = 75
START = """import os, sys
count = int(sys.argv[1])
for at in range(count):
    os.dup2(int(sys.argv[2 + at]), 100 + at)
for at in range(count):
    os.dup2(100 + at, 3 + at)
os.closerange(3 + count, 100 + count)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "mcpd.daemon", "--user", "--log-level", "debug"])
"""


class Supervisor:
    """Runs mcpd whenever the bus wants it."""

    def __init__(self, directory: Path) -> None:
        self.services = directory / "services"
        self.services.mkdir()
        self._asked_at = directory / "ask"
        self._directory = directory
        ask = directory / "ask.py"
        ask.write_text(ASK)
        (self.services / f"{BUS_NAME}.service").write_text(
            f"[D-BUS Service]\nName={BUS_NAME}\nExec={sys.executable} -IS {ask} {self._asked_at}\n"
        )
        self.keeper = FdKeeper(directory / "notify")
        self.state = "inactive"
        self.starts = 0
        self.statuses: list[int] = []
        """How each mcpd ended."""
        self.process: asyncio.subprocess.Process | None = None
        self._environ: Mapping[str, str] = {}
        self._queued = False
        self._waiting: list[asyncio.StreamWriter] = []
        self._runner: asyncio.Task[None] | None = None
        self._seen = 0

    async def open(self, environ: Mapping[str, str]) -> Self:
        self._environ = environ
        self._server = await asyncio.start_unix_server(self._on_ask, str(self._asked_at))
        asyncio.get_running_loop().add_reader(self.keeper.sock.fileno(), self._on_notify)
        return self

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.keeper.sock.fileno())
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._server.close()
        self._let_askers_go()
        self.keeper.__exit__()

    def log(self) -> str:
        return (self._directory / "mcpd.log").read_text()

    async def _on_ask(self, _reader: Any, writer: asyncio.StreamWriter) -> None:
        self._waiting.append(writer)
        self._on_notify()
        if self.state == "stopping":
            self._queued = True
        elif self.state == "inactive":
            self._begin()

    def _on_notify(self) -> None:
        self.keeper.read()
        for message in self.keeper.said[self._seen :]:
            if "STOPPING" in message:
                self.state = "stopping"
            elif "READY" in message and self.state == "starting":
                self.state = "running"
                self._let_askers_go()
        self._seen = len(self.keeper.said)

    def _let_askers_go(self) -> None:
        for writer in self._waiting:
            writer.close()
        self._waiting.clear()

    def _begin(self) -> None:
        self.state = "starting"
        self._runner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        again = True
        while again:
            self.state, self._queued = "starting", False
            self.starts += 1
            passed = self.keeper.passed()
            fds = [fd for kept in passed.values() for fd in kept]
            names = ":".join(name for name, kept in passed.items() for _ in kept)
            environ = {**self._environ, "NOTIFY_SOCKET": self.keeper.address, "FDSTORE": "100"}
            if fds:
                environ |= {"LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names}
            with (self._directory / "mcpd.log").open("a") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", START, str(len(fds)), *map(str, fds), pass_fds=fds,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
                )  # fmt: skip
            for fd in fds:
                os.close(fd)
            status = await self.process.wait()
            self._on_notify()
            self.statuses.append(status)
            again = self._queued or status == RESTART or status < 0
        self.state = "inactive"
        self.keeper.release()
