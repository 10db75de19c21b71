# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers, client families and profiles as the tests of configurations need them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.clients.families import Family
from mcpd.clients.profiles import Profile
from mcpd.model import Manifest
from mcpd.paths import Paths, Scope
from mcpd.scripts.mcps import ServerEntry
from mcpd.scripts.servers import ScriptFile
from mcpd.store.index import InstalledServer
from tests.unit.store.store_trees import layout

if TYPE_CHECKING:
    from mcpd.paths import LayerName

NPM = {"type": "npm", "package": "@example/one", "version": "1.0.0"}
STDIO = [{"type": "stdio", "command": "node", "args": ["x.js"]}]


def server(
    server_id: str = "one",
    *,
    layer: LayerName = "user",
    problem: str = "",
    disabled: str = "",
    script: bool = False,
    broken: bool = False,
    configured: bool = True,
    **manifest: Any,
) -> InstalledServer:
    """A server as the store lists it; *manifest* changes what its manifest says."""
    named = {"id": server_id, "name": server_id, "version": "1"}
    document: dict[str, Any] = {**named, "transports": STDIO, "source": NPM, **manifest}
    return InstalledServer(
        id=server_id,
        scope=Scope.USER if layer == "user" else Scope.SYSTEM,
        layer=layer,
        manifest=None if broken else Manifest.parse(document, "test"),
        directory=Path("/nowhere") / server_id,
        generation=Path("/nowhere") / server_id,
        problem=problem,
        writable=layer != "vendor",
        configured=configured,
        entry=ServerEntry(disabled=disabled),
        script=ScriptFile(Path("/nowhere/x.py"), "", ()) if script else None,
    )


def by_id(*servers: InstalledServer) -> dict[str, InstalledServer]:
    return {each.id: each for each in servers}


def family(family_id: str = "plain", **more: Any) -> Family:
    """A client without limits that fills in ``${NAME}`` everywhere and takes URLs."""
    data: dict[str, Any] = {
        "name": "Plain",
        "platform": "linux",
        "profiles": ["default"],
        "file": {"format": "json", "key": ["mcpServers"], "linux": ["{home}/.plain.json"]},
        "expansion": {"prefix": "${", "suffix": "}", "fields": ["env", "headers", "args", "url"]},
        "stdio": {"cwd": "cwd"},
        "http": {"marks": {"type": ["http"]}},
        "sse": {"marks": {"type": ["sse"]}},
        **more,
    }
    return Family.parse(family_id, {key: value for key, value in data.items() if value is not None}, "test")


def profile(profile_id: str = "default", **more: Any) -> Profile:
    return Profile.parse(profile_id, {"name": profile_id, **more}, "test")


def payload(**servers: Any) -> dict[str, Any]:
    return {"mcpServers": servers}


def paths_below(root: Path) -> Paths:
    """The paths of a machine whose files are all below *root*."""
    return Paths(
        user=layout(Scope.USER, root / "user"),
        system=layout(Scope.SYSTEM, root / "system"),
        vendor=root / "vendor/servers",
        home=root / "home",
    )


NPX: dict[str, Any] = {"command": "npx", "args": ["-y", "x"]}


def run(server_id: str, **more: Any) -> dict[str, Any]:
    """An entry that runs an installed server."""
    return {"command": "mcpctl", "args": ["run", server_id], **more}


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = datetime(2025, 10, 23, 14, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now
