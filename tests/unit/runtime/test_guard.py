# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the guard takes for the session bus, and what it keeps of files that packages and administrators bring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidManifest, McpdError
from mcpd.paths import Scope
from mcpd.runtime.guard import Guard
from mcpd.runtime.launch import MountKind
from mcpd.runtime.permissions import PathGrant

if TYPE_CHECKING:
    from tests.sandbox.world import World


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


def opened(world: World, path: Path) -> dict[Path, MountKind]:
    """What a server with a permission to write to *path* gets, the covers after the grants."""
    guard = Guard.of(world.paths, Scope.USER)
    mounts = guard.grants("s", [PathGrant(str(path), True, f"filesystem:rw:{path}")])
    return {Path(mount.target): mount.kind for mount in [*mounts, *guard.covers(mounts)]}


def test_what_packages_and_administrators_bring_is_read_only_where_it_is(world: World) -> None:
    paths, system = world.paths, world.root / "system"
    brought = [paths.vendor_scripts, paths.vendor_contents, paths.system.contents, paths.vendor_mcps]
    system.mkdir()
    found = opened(world, system)
    assert not found.keys() & set(brought)
    assert not any(path.exists() for path in brought)
    for directory in brought[:-1]:
        directory.mkdir(parents=True)
    paths.vendor_mcps.write_text("{}")
    found = opened(world, system)
    assert {found[path] for path in brought} == {MountKind.RO_BIND}
    # A mount point, so that it cannot be moved away with them in it.
    assert found[paths.vendor.parent] is found[paths.system.contents.parent] is MountKind.BIND
    for path in brought:
        with pytest.raises(InvalidManifest, match="mcpd's own"):
            opened(world, path)


def test_what_packages_bring_from_elsewhere_is_not_moved_away(world: World) -> None:
    elsewhere = world.root / "opt/pack/scripts"
    elsewhere.mkdir(parents=True)
    world.paths.vendor.parent.mkdir(parents=True)
    world.paths.vendor_scripts.symlink_to(elsewhere)
    found = opened(world, world.root / "opt")
    assert (found[elsewhere.parent], found[elsewhere]) == (MountKind.BIND, MountKind.RO_BIND)


ELSEWHERE = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mcpd.errors import InvalidManifest, McpdError
from mcpd.paths import Scope
from mcpd.runtime.guard import Guard
from mcpd.runtime.permissions import PathGrant
from tests.sandbox.world import World

root = Path(sys.argv[1])
user = World(root).paths.user
(user.secrets / "server").mkdir(parents=True)
user.state.mkdir(parents=True)
data = root / "da ta"
for directory in (data / "homes", data / "hidden"):
    directory.mkdir(parents=True)
subprocess.run(["mount", "--bind", root / "home", data / "homes"], check=True)
subprocess.run(["mount", "--bind", user.state, data / "hidden"], check=True)
guard = Guard.of(World(root).paths, Scope.USER)
mounts = guard.grants("s", [PathGrant(str(data), True, "filesystem:rw")])
for mount in [*mounts, *guard.covers(mounts)]:
    if Path(mount.target).is_relative_to(data):
        print(mount.kind, Path(mount.target).relative_to(data))
for path in (data / "homes" / user.secrets.relative_to(root / "home") / "server", data / "hidden"):
    try:
        guard.grants("s", [PathGrant(str(path), False, "filesystem:ro")])
    except InvalidManifest:
        print("refused", path.relative_to(data))
"""


def test_without_a_list_of_mounts_nothing_is_granted(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mcpd.runtime.guard.MOUNT_INFO", tmp_path / "missing")
    with pytest.raises(McpdError, match="missing"):
        Guard.of(world.paths, Scope.USER)


@pytest.mark.process
def test_bind_mounts_lead_to_nothing_that_is_hidden_or_protected(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces for mounts here")
    program = [sys.executable, "-c", ELSEWHERE, str(tmp_path), str(Path(__file__).parents[3])]
    found = subprocess.run([*unshare, *program], capture_output=True, check=True, text=True).stdout.splitlines()
    assert {"tmpfs homes/.local/share/mcp/secrets", "tmpfs homes/.local/state/mcp", "tmpfs hidden"} <= {*found}
    assert {"ro-bind homes/.config/mcp", "ro-bind homes/.local/share/mcp", "bind homes/.local/share"} <= {*found}
    assert {"refused homes/.local/share/mcp/secrets/server", "refused hidden"} <= {*found}
