# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the guard takes for the session bus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.paths import Scope
from mcpd.runtime.guard import Guard

if TYPE_CHECKING:
    from world import World


@pytest.mark.parametrize(
    ("address", "sockets"),
    [
        ("unix:path=/srv/one", ["/srv/one"]),
        ("unix:path=/srv/one,guid=0123;unix:guid=4567,path=/srv/two", ["/srv/one", "/srv/two"]),
        ("unix:abstract=/srv/no;unix:path=/srv/with%20space%3bmore", ["/srv/with space;more"]),
        ("tcp:host=localhost,port=1;unix:path=/srv/last;", ["/srv/last"]),
        ("unix:path=%2fsrv%2f%c3%a9", ["/srv/é"]),
        ("unix:path=srv/relative;nonsense;unix:path=%00/srv", []),
        ("", []),
    ],
)
def test_every_socket_of_the_session_bus_is_hidden(
    world: World, monkeypatch: pytest.MonkeyPatch, address: str, sockets: list[str]
) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    always = Guard.of(world.paths, Scope.USER).hidden
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
    hidden = Guard.of(world.paths, Scope.USER).hidden
    assert [path for path in hidden if path not in always] == [Path(path) for path in sockets]
