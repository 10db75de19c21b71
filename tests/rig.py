# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine of one's own: a temporary home, a private session bus, mcpd on it and mcpd-bridge beside it.

Used by the end-to-end tests, by ``bench`` and by ``make demo``. Nothing outside the temporary directory is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(sys.executable).parent
PATIENCE = 120.0
"""Seconds that a program may take to be ready."""


class RigError(RuntimeError):
    """A program of the rig did not come up."""


class Rig:
    """A context manager; inside, :attr:`environ` is what a program of this machine runs with."""

    interpreter: ClassVar[Callable[[], str]] = staticmethod(lambda: sys.executable)
    """What ``mcpctl`` runs in; tests have one that has imported it."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mcpd-"))
        self.runtime = self.home / "run"
        self.state = self.home / ".local/state/mcp"
        self.installed = self.home / ".local/share/mcp/installed"
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_", "MCP", "PYTHON"))
        } | {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "MCP_ROOT": str(self.home / "system"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.runtime}/bus",
        }
        self.programs: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.runtime.mkdir(mode=0o700)
        self.start(
            "dbus-daemon", "--session", "--nofork", "--address", self.environ["DBUS_SESSION_BUS_ADDRESS"],
            ready=(self.runtime / "bus").exists,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.programs)):
            self.stop(name)
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self, *argv: str, ready: Callable[[], bool]) -> subprocess.Popen[bytes]:
        """Run *argv* in the background, its messages in a log, and wait until *ready* says so."""
        name = Path(argv[0]).name
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(argv, env=self.environ, stdout=log, stderr=log, cwd=self.home)
        self.programs[name] = process
        give_up = time.monotonic() + PATIENCE
        while not ready():
            if process.poll() is not None or time.monotonic() > give_up:
                raise RigError(f"{name} did not come up:\n{self.log(name).read_text(errors='replace')[-4000:]}")
            time.sleep(0.01)
        return process

    def stop(self, name: str) -> None:
        """Ask the program *name* to end and wait for it; SIGKILL if it will not."""
        process = self.programs.pop(name)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            return
        process.kill()
        process.wait()

    def log(self, name: str) -> Path:
        """Where the messages of the program *name* go."""
        return self.home / f"{name}.log"

    def start_daemon(self) -> subprocess.Popen[bytes]:
        """Start ``mcpd --user`` and wait until it answers."""
        return self.start(str(BIN / "mcpd"), "--user", ready=lambda: self.mcpctl("list").returncode == 0)

    def start_bridge(self) -> subprocess.Popen[bytes]:
        """Start ``mcpd-bridge`` on the unix socket and a free TCP port, and wait until it listens."""
        url = self.runtime / "mcp/bridge.url"
        return self.start(str(BIN / "mcpd-bridge"), "--listen", "127.0.0.1:0", ready=url.exists)

    def command(self, *argv: str) -> list[str]:
        """What runs ``mcpctl`` with *argv*."""
        return [type(self).interpreter(), "-m", "mcpd.cli.main", "--user", *argv]

    def mcpctl(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``mcpctl`` with *argv* on this machine."""
        return subprocess.run(
            self.command(*argv),
            env=self.environ, input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Where the bridge listens, without a slash at the end."""
        return (self.runtime / "mcp/bridge.url").read_text().strip().rstrip("/")

    @property
    def token(self) -> str:
        """The bridge's token."""
        return (self.state / "bridge.token").read_text().strip()

    @property
    def socket(self) -> Path:
        """The bridge's unix socket."""
        return self.runtime / "mcp/bridge.sock"
