# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ``mcpctl client`` have in common: a machine with a user, their servers and clients, and no bus."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.clients.service import Orchestration
from mcpd.paths import Paths, Scope, from_environment
from mcpd.servers.orchestration.tools import Tools
from tests.preloaded import python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 120
MINE = {"command": "mine", "args": ["--api-key", "sk-verysecretverysecretverysecret"], "env": {"TOKEN": "hush"}}
"""An entry that the user wrote into a client's file by hand."""
NOTES = {"command": "mcpctl", "args": ["run", "notes"]}
"""The entry of the server ``notes``."""
_ANYBODY: Final = """
import ctypes, os, sys
for capability in (0, 1, 2, 3):  # What lets root do as it likes with files; somebody else has none of it.
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Ended:
    """What a process left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Machine:
    """A user's home and the system's directories, below *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root / "root"
        self.home = root / "home"
        self.programs = root / "bin"
        for directory in (self.root, self.home, self.programs):
            directory.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "DBUS_", "MCP"))}
        self.environ = kept | {
            "HOME": str(self.home),
            "MCP_ROOT": str(self.root),
            "PATH": str(self.programs),
            "PYTHONPATH": str(REPOSITORY),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={root}/no-bus",
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={root}/no-bus",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
        }
        self.cursor = self.home / ".cursor/mcp.json"
        self.tree = self.home / ".mcp-orchestration"
        self.audit = self.home / ".local/share/mcp/deployments/audit.jsonl"
        self.system_tree = self.root / "var/lib/mcp/orchestration"

    def __call__(
        self, *argv: str, stdin: str = "", scope: Scope = Scope.USER, environ: Mapping[str, str] | None = None
    ) -> Ended:
        """``mcpctl client`` with *argv*."""
        return self.mcpctl(f"--{scope}", "client", *argv, stdin=stdin, environ=environ)

    def mcpctl(self, *argv: str, stdin: str = "", environ: Mapping[str, str] | None = None) -> Ended:
        """``mcpctl`` with *argv*."""
        return self.run([python(), "-m", "mcpd.cli.main", *argv], stdin=stdin, environ=environ)

    def run(self, argv: Sequence[str], *, stdin: str = "", environ: Mapping[str, str] | None = None) -> Ended:
        """A program that is mcpctl in one way or another."""
        done = subprocess.run(
            argv, input=stdin, env=self.environ | dict(environ or {}), cwd=self.home, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def json(self, *argv: str, stdin: str = "", scope: Scope = Scope.USER) -> Any:
        """What a command that succeeds prints."""
        ended = self(*argv, "--json", stdin=stdin, scope=scope)
        assert ended.code == 0, ended.err
        return ended.json

    def as_anybody(self, *argv: str, scope: Scope = Scope.SYSTEM) -> Ended:
        """``mcpctl client`` with *argv*, held to the permissions of files although it may be root that runs it."""
        return self.run([sys.executable, "-c", _ANYBODY, "-m", "mcpd.cli.main", f"--{scope}", "client", *argv])

    def refused(self, *argv: str, code: int, scope: Scope = Scope.USER) -> str:
        """The one line that a command says which fails with *code*."""
        ended = self(*argv, scope=scope)
        assert (ended.code, ended.out) == (code, ""), ended
        assert ended.err.startswith("mcpctl: ")
        assert ended.err.count("\n") == 1
        return ended.err.removeprefix("mcpctl: ").removesuffix("\n")

    def tools(self, monkeypatch: pytest.MonkeyPatch) -> Tools:
        """The tools of the user's mcp-orchestration."""
        return Tools(Orchestration(self.paths(monkeypatch), Scope.USER))

    def install(self, server_id: str, scope: Scope = Scope.USER, **more: Any) -> None:
        """Install a server; *more* goes into its manifest."""
        home, system = self.home / ".local/share/mcp/installed", self.root / "usr/share/mcp/installed"
        directory = (home if scope is Scope.USER else system) / server_id
        directory.mkdir(parents=True)
        document = {
            "id": server_id, "name": server_id.title(), "summary": "Does it", "version": "1",
            "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
            "source": {"type": "git", "url": "https://example.com/it.git"}, **more,
        }  # fmt: skip
        (directory / "manifest.json").write_text(json.dumps(document))

    def write(self, text: str, file: Path | None = None) -> bytes:
        """Give Cursor, or another client, a file; returns what is in it."""
        file = file or self.cursor
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return text.encode()

    def policy(self, text: str, scope: Scope = Scope.SYSTEM) -> None:
        """Give the machine, or the user, a policy."""
        self.write(text, (self.root / "etc" if scope is Scope.SYSTEM else self.home / ".config") / "mcp/policy.toml")

    def servers(self) -> dict[str, Any]:
        """The servers in Cursor's file."""
        found: dict[str, Any] = json.loads(self.cursor.read_text())["mcpServers"]
        return found

    def paths(self, monkeypatch: pytest.MonkeyPatch) -> Paths:
        """What mcpctl finds there."""
        for name in ("HOME", "MCP_ROOT"):
            monkeypatch.setenv(name, self.environ[name])
        for name in [name for name in os.environ if name.startswith(("XDG_", "MCP_USER", "MCP_SYSTEM"))]:
            monkeypatch.delenv(name)
        return from_environment()

    def on_terminal(
        self, *argv: str, answer: str = "", meanwhile: Callable[[], object] = lambda: None
    ) -> tuple[int, str]:
        """``mcpctl client`` on a terminal, on which *answer* is typed; how it ended, and what was seen.

        What happens *meanwhile* happens when it has asked.
        """
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0), subprocess.Popen(
            [sys.executable, "-m", "mcpd.cli.main", "--user", "client", *argv],
            stdin=theirs, stdout=theirs, stderr=theirs, env=self.environ | {"TERM": "dumb"}, cwd=self.home,
            start_new_session=True,
        ) as process:  # fmt: skip
            os.close(theirs)
            try:
                seen = b""
                while answer and b"[y/N]" not in seen:
                    piece = _read(ours)
                    assert piece, seen
                    seen += piece
                meanwhile()
                os.write(ours, answer.encode())
                while piece := _read(ours):
                    seen += piece
                code = process.wait(PATIENCE)
            finally:
                process.kill()
        return code, seen.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    """What the other side of the terminal writes next; nothing once it is gone."""
    ready, _, _ = select.select([descriptor], [], [], PATIENCE)
    assert ready, "nothing was written"
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
