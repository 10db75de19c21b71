# SPDX-License-Identifier: LGPL-2.1-or-later
"""An mcpd of a test machine, the system's or a user's, and clients of it that hold sessions."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.machine import Machine

CLIENT = """
import asyncio, json, os, sys
from mcpd.bus.client import connect

async def main():
    system, server, count = sys.argv[1] == "system", sys.argv[2], int(sys.argv[3])
    async with connect(system) as client:
        ends = []
        for _ in range(count):
            path, pipes = await client.spawn(server)
            ends.append(pipes)
            print(json.dumps({"path": path, **await client.session(path).properties()}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, which = line.split()
            pipes = ends[int(which)]
            if what == "talk":
                os.write(pipes[0], b"word")
            elif what == "end":
                os.close(pipes[0])
            got = await asyncio.to_thread(os.read, pipes[1], 100)
            print(json.dumps(got.decode()), flush=True)

asyncio.run(main())
"""
"""Starts servers, says what they are, and then does with them what its stdin says."""


class Instance:
    """One mcpd of the machine, and how it is talked with."""

    def __init__(self, machine: Machine, scope: str) -> None:
        self.machine = machine
        self.scope = scope
        self.user = "root" if scope == "system" else "alice"
        self._options = ["--user"] if scope == "user" else []

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.machine.run("systemctl", *self._options, *words, user=self.user, check=check).stdout.strip()

    def start(self) -> None:
        """Start mcpd, however often it was started a moment ago."""
        self.systemctl("reset-failed", "mcpd", check=False)
        self.systemctl("start", "mcpd")

    def start_alone(self) -> None:
        """Start mcpd, and wait until nothing is left of what earlier tests, or a bridge, have begun."""
        self.systemctl("stop", "mcpd-bridge", "mcpd", check=False)
        self.start()
        self.forgets_all()

    def show(self, name: str, unit: str = "mcpd.service") -> str:
        return self.systemctl("show", "--value", "-p", name, unit)

    @property
    def pid(self) -> int:
        return int(self.show("MainPID"))

    @property
    def records(self) -> list[str]:
        runtime = "/run/mcp" if self.scope == "system" else f"/run/user/{self.machine.uid('alice')}/mcp"
        return self.machine.run("ls", f"{runtime}/sessions").stdout.split()

    def signal(self, number: signal.Signals) -> None:
        self.machine.run("kill", f"-{number.value}", str(self.pid))

    def kill(self) -> None:
        """End mcpd as nobody should, and wait for the next."""
        before = self.pid
        self.signal(signal.SIGKILL)
        self.machine.wait_until(lambda: self.pid not in {0, before}, "mcpd is there again")

    def call(self, path: str, member: str, *words: str) -> str:
        interface = "Manager" if path == "/org/mcpd/Mcp1" else "Session"
        bus = "--user" if self.scope == "user" else "--system"
        argv = ["busctl", bus, "--json=short", "call", "org.mcpd.Mcp1", path, f"org.mcpd.Mcp1.{interface}", member]
        return self.machine.run(*argv, *words, user=self.user).stdout

    def sessions(self) -> dict[str, int]:
        """Path and process of the sessions that mcpd knows."""
        (found,) = json.loads(self.call("/org/mcpd/Mcp1", "ListSessions"))["data"]
        return {session["path"]["data"]: session["pid"]["data"] for session in found}

    def forgets_all(self) -> None:
        """Wait until nothing of any session is left."""
        self.machine.wait_until(lambda: not self.sessions(), "no session is left")
        self.machine.wait_until(lambda: self.show("NFileDescriptorStore") == "0", "no leash is kept")
        assert self.records == []

    @contextmanager
    def settings(self, text: str) -> Iterator[None]:
        """A drop-in for the unit."""
        place = f"/etc/systemd/{self.scope}/mcpd.service.d"
        self.machine.write(f"{place}/test.conf", text)
        self.systemctl("stop", "mcpd")
        self.systemctl("daemon-reload")
        self.systemctl("reset-failed", "mcpd", check=False)
        try:
            yield
        finally:
            self.machine.run("rm", "-r", place)
            self.systemctl("daemon-reload")
            self.systemctl("stop", "mcpd")


class Client:
    """A client inside that holds sessions."""

    def __init__(self, instance: Instance, server: str, count: int) -> None:
        pipe = subprocess.PIPE
        self.program = instance.machine.popen(
            "/usr/bin/python3", "-c", CLIENT, instance.scope, server, str(count), user=instance.user,
            stdin=pipe, stdout=pipe,
        )  # fmt: skip
        self.sessions: list[dict[str, Any]] = [self._line() for _ in range(count)]

    def _line(self) -> Any:
        assert self.program.stdout is not None
        return json.loads(self.program.stdout.readline())

    def do(self, what: str, which: int) -> str:
        """``talk`` to a server, ``end`` one, or ``hear`` what it says; what it said."""
        assert self.program.stdin is not None
        self.program.stdin.write(f"{what} {which}\n".encode())
        self.program.stdin.flush()
        return str(self._line())

    def paths(self) -> dict[str, int]:
        return {session["path"]: session["Pid"] for session in self.sessions}

    def leave(self) -> None:
        self.program.kill()
        self.program.wait()
