# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the facility's tests have in common: messages, and the server they go to, which may be of either kind."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.bridge.bridge_harness import FIXTURE, PATIENCE, Client
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bridge.bridge_harness import Bridge

SERVER = FIXTURE.with_name("facility_server.py")
COMMAND = f"{sys.executable} {SERVER}"
SCRIPT = Path(__file__).parents[1] / "fixtures/facility_script.py"
PICTURE = bytes(range(256))

_SCRIPT = pytest.param(
    "script", marks=pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")
)
on_both = pytest.mark.parametrize("target", ["stdio", _SCRIPT], indirect=True, scope="module")
"""Marks tests that run twice: against a server that was installed, and against a script."""
on_script = pytest.mark.parametrize("target", [_SCRIPT], indirect=True, scope="module")
"""Marks tests that run against a script."""


def request(method: str, identity: object = 1, /, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def tool(name: str, identity: object = 1, /, **arguments: object) -> dict[str, Any]:
    return request("tools/call", identity, name=name, arguments=arguments)


class Target:
    """The server ``f`` of a bridge that listens at *url*, or on the unix socket *socket*."""

    def __init__(self, kind: str, url: str, socket: str | None = None) -> None:
        self.kind, self.url, self.socket = kind, url, socket
        self._clients: list[httpx2.Client] = []

    def client(self) -> Client:
        """A client that has no session yet."""
        transport = httpx2.HTTPTransport(uds=self.socket)
        http = httpx2.Client(transport=transport, base_url=self.url, timeout=PATIENCE, trust_env=False)
        self._clients.append(http)
        return Client(http, "f")

    def many(self, connections: int) -> httpx2.AsyncClient:
        """What has that many *connections*."""
        limits = httpx2.Limits(max_connections=connections)
        transport = httpx2.AsyncHTTPTransport(uds=self.socket, limits=limits)
        return httpx2.AsyncClient(transport=transport, base_url=self.url, timeout=PATIENCE, trust_env=False)

    def close(self) -> None:
        for http in self._clients:
            http.close()


def of_bridge(bridge: Bridge) -> Target:
    """The server that runs behind a *bridge* of its own."""
    return Target("stdio", bridge.url)


@contextlib.contextmanager
def of_script() -> Iterator[Target]:
    """The script, confined and started by mcpd, with an entry in the map, at the unix socket of the user's bridge."""
    with Rig() as rig:
        source, settings = rig.home / "source", rig.home / ".config/mcp"
        source.mkdir()
        settings.mkdir(parents=True)
        for path in SCRIPT.parent.glob("facility_script*"):
            shutil.copy(path, source)
        (source / "picture.png").write_bytes(PICTURE)
        rig.start_daemon()
        rig.start_bridge()
        for command in (
            ("script", "add", str(source / SCRIPT.name), "--name", "f"),
            ("mcps", "build", str(source / "facility_script.mcps.source.json"), "-o", str(settings / "mcps.json")),
        ):
            done = rig.mcpctl(*command)
            assert done.returncode == 0, done.stderr
        target = Target("script", "http://localhost", str(rig.socket))
        try:
            yield target
        finally:
            target.close()
