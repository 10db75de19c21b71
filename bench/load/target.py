# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bridge that runs to be measured."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.load.session import HANDSHAKE, Client, Direct
from bench.load.wire import Wrong
from bench.processes import cpu, descendants, pss

if TYPE_CHECKING:
    from bench.load.peers import Peer

START_LIMIT: Final = 90.0
"""Seconds for a bridge's first answer."""


class Target:
    """*peer* in front of the command *server*, or without one the server alone; called in *revision*."""

    def __init__(self, name: str, peer: Peer | None, server: str, revision: str = HANDSHAKE) -> None:
        self.name = name
        self._peer = peer
        self._server = server
        self._revision = revision
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | Direct | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """The bridge's process; 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def revision(self) -> str:
        """In which it is called."""
        return self._revision

    def start(self) -> float:
        """Start it; the seconds until it has answered its first call."""
        if self._peer is None:
            return 0.0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        argv: list[str] = []
        for word in self._peer.argv:
            if word == "{server...}":
                argv += shlex.split(self._server)
            else:
                argv.append(word.replace("{port}", port).replace("{server}", self._server))
        self.url = f"http://127.0.0.1:{port}{self._peer.path}"
        start = time.perf_counter()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **dict(self._peer.env)},
            start_new_session=True,
        )
        while True:
            try:
                client = self.client()
                client.http.connect()
                client.open()
                client.call(*client.maker()(1, 1))
            except (OSError, Wrong) as error:
                if self._process.poll() is not None or time.perf_counter() - start > START_LIMIT:
                    raise Wrong(f"{self.name} does not answer: {error}") from error
                time.sleep(0.002)
            else:
                took = time.perf_counter() - start
                client.close()
                return took

    def client(self) -> Client:
        """A client that is not open yet."""
        return Client(self.url, () if self._peer is None else self._peer.headers, self._revision)

    def session(self) -> Client | Direct:
        """The session of those measurements that need one."""
        if self._client is None:
            self._client = (Direct(shlex.split(self._server)) if self._peer is None else self.client()).open()
        return self._client

    def forget_session(self) -> None:
        """End that session."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def own(self) -> list[int]:
        """The bridge's processes, without the servers behind it."""
        if self._process is None:
            return []
        wanted = shlex.split(self._server)
        return [pid for pid in (self.pid, *descendants(self.pid)) if _argv(pid)[: len(wanted)] != wanted]

    def servers(self) -> int:
        """How many servers it runs."""
        return len(descendants(self.pid)) + 1 - len(self.own())

    def cpu(self) -> float:
        """Processor time of the bridge, in seconds."""
        total = 0.0
        for pid in self.own():
            with contextlib.suppress(OSError):
                total += cpu(pid)
        return total

    def pss(self) -> float:
        """Memory of the bridge in MiB."""
        return sum(pss(pid) for pid in self.own())

    def stop(self) -> None:
        """End it and what it left behind."""
        self.forget_session()
        process, self._process = self._process, None
        if process is None:
            return
        left = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []
