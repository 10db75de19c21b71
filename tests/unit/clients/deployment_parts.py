# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of deployments share: a user, clients of each format, and a payload."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.clients.deployments import About, Deployments
from mcpd.clients.families import Family
from mcpd.paths import Layout, Scope
from tests.unit.store.store_trees import layout as layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mcpd.clients.history import Deployment
    from mcpd.model import JsonValue

ARTIFACT = "a" * 64
ABOUT = About(Scope.USER, "default", ARTIFACT)
SECRET = "sk-live-51HxYzNeverShown"
ENTRY: dict[str, JsonValue] = {"command": "mcpctl", "args": ["run", "github"]}
OTHER: dict[str, JsonValue] = {"command": "mcpctl", "args": ["run", "time"], "env": {"TZ": "${env:TZ}"}}
BY_HAND: dict[str, JsonValue] = {"command": "npx", "args": ["--token", SECRET], "env": {"API_KEY": SECRET}}

_EXPANSION = {"prefix": "${env:", "suffix": "}", "fields": ["env", "headers"]}
_FILES: dict[str, dict[str, Any]] = {
    "cursor": {"format": "json", "key": ["mcpServers"], "linux": ["{home}/.cursor/mcp.json"]},
    "vscode": {"format": "jsonc", "key": ["servers"], "linux": ["{config}/Code/User/mcp.json"]},
    "codex": {
        "format": "toml",
        "key": ["mcp_servers"],
        "linux": ["{CODEX_HOME}/config.toml"],
        "variables": {"CODEX_HOME": "{home}/.codex"},
    },
    "continue": {
        "format": "yaml",
        "key": ["mcpServers"],
        "shape": "list",
        "linux": ["{home}/.continue/config.yaml", "{home}/.continue/config.yml"],
    },
    "elsewhere": {"format": "json", "key": ["mcpServers"], "macos": ["{home}/elsewhere.json"]},
}
_NAMES = {"continue": {"name": "name"}}

NATIVE: dict[str, bytes] = {
    "cursor": b'{\r\n\t// mine\r\n\t"mcpServers": {\r\n\t\t"mine": {"command": "npx"},\r\n\t},\r\n}',
    "vscode": b'{\n    /* mine */\n    "inputs": [],\n    "servers": {"mine": {"command": "npx"}}\n}\n',
    "codex": b'model = "o9"  # mine\n\n[mcp_servers.mine]\ncommand = "npx"\n',
    "continue": b"name: me\nmcpServers:\n  # mine\n  - name: mine\n    command: npx\nmodels: []\n",
}
"""A file of each format with a server ``mine``."""


def family(client_id: str = "cursor") -> Family:
    data = {
        "name": client_id.title(),
        "platform": "cross-platform",
        "profiles": ["default"],
        "file": _FILES[client_id],
        "detect": {"programs": [f"{client_id}-app"], "directories": ["{home}/." + client_id]},
        "expansion": _EXPANSION,
        "stdio": {"cwd": "cwd", **_NAMES.get(client_id, {})},
        "http": {"unmarked": True, **_NAMES.get(client_id, {})},
    }
    return Family.parse(client_id, data, "test")


def layout(root: Path) -> Layout:
    return replace(layout_of(Scope.USER, root), orchestration=root / "home/.mcp-orchestration")


class Clock:
    """A second later each time."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now


class User:
    """A home directory, and what mcpctl does in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.state = layout(root).deployments
        self.deployments = Deployments(layout(root), Clock(), home=self.home)

    def file(self, client_id: str = "cursor") -> Path:
        return family(client_id).linux_locations(self.home, {})[0]

    def write(self, data: bytes | object, client_id: str = "cursor", mode: int = 0o644) -> Path:
        path = self.file(client_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data, indent=2).encode())
        path.chmod(mode)
        return path

    def servers(self, **servers: JsonValue) -> Path:
        """The file of cursor, holding *servers*."""
        return self.write({"mcpServers": servers})

    def read(self) -> dict[str, Any]:
        found = json.loads(self.file().read_bytes())["mcpServers"]
        assert isinstance(found, dict)
        return found

    def deploy(
        self,
        entries: Mapping[str, JsonValue],
        client_id: str = "cursor",
        file: Path | None = None,
        about: About = ABOUT,
        **how: Any,
    ) -> Deployment:
        tree = how.pop("tree", None)
        plan = self.deployments.plan(family(client_id), file or self.file(client_id), entries, **how)
        return self.deployments.apply(plan, about, tree=tree)

    def undo(self, client_id: str = "cursor", file: Path | None = None, **how: Any) -> Deployment:
        return self.deployments.undo(family(client_id), file, **how)

    def backups(self) -> set[str]:
        directory = self.state / "backups"
        return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def strays(root: Path) -> list[str]:
    """Names of files that a writer left behind."""
    return [str(path.relative_to(root)) for path in root.rglob("*") if "~tmp" in path.name]


def skip_without_leases(file: Path) -> None:
    """Skip the test where the file system does not say who has *file* open."""
    with file.open("r+b"), file.open("rb") as probe:
        try:
            fcntl.fcntl(probe, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return
    pytest.skip("this file system does not say who has a file open")


_CAP_CHOWN = 0
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def ordinary() -> Iterator[None]:
    """Permission bits and groups count, also for root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, given = _Header(_VERSION, 0), (_Capabilities * 2)()
    assert libc.capget(ctypes.byref(header), given) == 0, os.strerror(ctypes.get_errno())
    before = given[0].effective
    given[0].effective &= ~(1 << _CAP_CHOWN | 1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert libc.capset(ctypes.byref(header), given) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        given[0].effective = before
        assert libc.capset(ctypes.byref(header), given) == 0, os.strerror(ctypes.get_errno())
