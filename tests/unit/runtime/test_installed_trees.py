# SPDX-License-Identifier: LGPL-2.1-or-later
"""The permission ``installed``, seen from inside, and ``filesystem:create:``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import paths as locations
from mcpd.errors import InvalidManifest, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime.bundled import command_of
from mcpd.runtime.permissions import PathGrant, parse
from tests.sandbox.world import talk

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.paths import LayerName
    from tests.sandbox.world import World

pytestmark = pytest.mark.process

LISTING = """
import json, os
def seen(path):
    try: return sorted(os.listdir(path))
    except OSError as error: return error.strerror
def writable(path):
    try: open(os.path.join(path, "probe"), "w").close(); return True
    except OSError: return False
paths = json.load(open("manifest.json"))["config"]["look"]
print(json.dumps({"env": dict(os.environ), "seen": {p: seen(p) for p in paths},
    "writable": [p for p in paths if writable(p)]}))
"""


async def seen(world: World, look: list[Path], *permissions: str) -> Any:
    values = {"look": [str(path) for path in look]}
    world.install("server", LISTING, permissions=list(permissions), values=values)
    output, ended, _ = await talk(world.sessions(scope=Scope.USER), "server")
    assert ended.code == 0, ended.stderr_tail
    return json.loads(output)


def test_the_words_of_the_permissions() -> None:
    granted = parse("s", ["installed", "filesystem:create:~/.x"], {})
    assert granted.installed
    assert granted.paths == (PathGrant("~/.x", True, "filesystem:create:~/.x", create=True),)
    assert not parse("s", ["installed?see"], {"see": False}).installed
    with pytest.raises(InvalidManifest, match="installed, each optionally"):
        parse("s", ["filesystem:make:/x"], {})


async def test_installed_shows_what_there_is_and_no_values_or_secrets(world: World) -> None:
    user, system = world.paths.user, world.paths.system
    for path in (user.secrets, user.overlay, user.deployments, user.scripts, system.scripts):
        path.mkdir(parents=True, exist_ok=True)
        (path / "one").write_text("1")
    world.install("other")
    look = [
        user.installed, user.scripts, system.scripts, user.settings.parent, user.secrets, user.overlay,
        user.deployments, user.state,
    ]  # fmt: skip
    found = await seen(world, look, "installed")
    assert found["seen"][str(user.installed)] == ["other", "server"]
    assert found["seen"][str(user.scripts)] == ["one"]
    assert found["seen"][str(system.scripts)] == ["one"]
    for hidden in (user.secrets, user.overlay, user.deployments):
        assert found["seen"][str(hidden)] == [], hidden
    assert "one" not in found["seen"][str(user.state)]
    assert not set(found["writable"]) & {str(path) for path in look[:4]}
    told = {name: found["env"][name] for name in locations.to_environment(world.paths)}
    assert told == locations.to_environment(world.paths)


async def test_what_is_installed_later_is_seen_by_a_server_that_runs(world: World) -> None:
    assert not world.paths.user.settings.parent.exists()
    found = await seen(world, [world.paths.user.settings.parent], "installed")
    assert found["seen"][str(world.paths.user.settings.parent)] == []
    assert world.paths.user.settings.parent.stat().st_mode & 0o777 == 0o700


async def test_what_symlinks_lead_to_is_found_under_their_names(world: World) -> None:
    settings, data = world.paths.user.settings.parent, world.paths.user.secrets.parent
    elsewhere = world.paths.home / "dotfiles/mcp"
    elsewhere.mkdir(parents=True)
    (elsewhere / "policy.toml").write_text("")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.symlink_to(elsewhere)
    world.install("other")
    moved = world.paths.home / "moved"
    data.parent.rename(moved)
    data.parent.symlink_to(moved)
    found = await seen(world, [settings, world.paths.user.installed], "installed")
    assert found["seen"][str(settings)] == ["policy.toml"]
    assert found["seen"][str(world.paths.user.installed)] == ["other", "server"]
    assert found["writable"] == []


async def test_without_the_permission_nothing_of_it_is_shown_or_told(world: World) -> None:
    world.install("other")
    found = await seen(world, [world.paths.user.installed])
    assert found["seen"][str(world.paths.user.installed)] == ["server"]
    assert locations.HOME_VARIABLE not in found["env"]


async def test_create_makes_the_directory_for_the_server_alone(world: World) -> None:
    made = world.paths.home / "deep" / ".tree"
    found = await seen(world, [made], "filesystem:create:~/deep/.tree")
    assert found["writable"] == [str(made)]
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]
    (made / "kept").write_text("1")
    found = await seen(world, [made], "filesystem:create:~/deep/.tree")
    assert found["seen"][str(made)] == ["kept", "probe"]


@pytest.mark.parametrize("below", ["secrets/x", "deployments/x", "installed/x"])
async def test_create_makes_nothing_in_what_is_mcpds_own(world: World, below: str) -> None:
    path = world.paths.user.secrets.parent / below
    world.install("server", LISTING, permissions=[f"filesystem:create:{path}"])
    with pytest.raises(InvalidManifest):
        await talk(world.sessions(scope=Scope.USER), "server")
    assert not path.exists()


@pytest.mark.parametrize("permission", ["filesystem:ro:~", "filesystem:rw:~", "installed"])
async def test_no_other_server_reads_the_signing_key_or_writes_beside_it(world: World, permission: str) -> None:
    tree, keys = world.paths.user.orchestration, world.paths.user.signing_keys
    keys.mkdir(parents=True)
    (keys / "signing_key.pem").write_text("secret")
    (tree / "audit.jsonl").write_text("")
    found = await seen(world, [keys, tree], permission)
    assert found["seen"][str(keys)] != ["signing_key.pem"]
    assert str(tree) not in found["writable"]
    assert [path.name for path in keys.iterdir()] == ["signing_key.pem"]
    if permission != "installed":
        assert found["seen"][str(tree)] == ["audit.jsonl", "keys"]


@pytest.mark.parametrize("below", ["", "/keys", "/drafts"])
async def test_no_other_server_is_granted_the_tree_of_configurations(world: World, below: str) -> None:
    world.install("server", LISTING, permissions=[f"filesystem:create:~/.mcp-orchestration{below}"])
    with pytest.raises(InvalidManifest, match=r"belongs to mcpd|mcpd's own"):
        await talk(world.sessions(scope=Scope.USER), "server")


@pytest.mark.parametrize("layer", ["user", "system", "vendor"])
def test_only_what_comes_with_the_system_is_taken_for_the_server_that_signs(world: World, layer: LayerName) -> None:
    named = [{"type": "stdio", "command": "mcp-orchestration", "args": []}]
    server = replace(world.install("mcp-orchestration", transports=named), layer=layer)
    assert command_of(server) == ("mcp-orchestration" if layer == "vendor" else None)
    assert command_of(replace(world.install("other"), layer=layer)) is None


async def test_create_follows_no_link_into_what_is_hidden_and_says_what_cannot_be_made(world: World) -> None:
    link = world.paths.home / "link"
    world.paths.user.secrets.mkdir(parents=True)
    link.symlink_to(world.paths.user.secrets)
    world.install("server", LISTING, permissions=["filesystem:create:~/link/x"])
    with pytest.raises(InvalidManifest, match="never shown"):
        await talk(world.sessions(scope=Scope.USER), "server")
    assert not list(world.paths.user.secrets.iterdir())
    (world.paths.home / "file").write_text("")
    world.install("server", LISTING, permissions=["filesystem:create:~/file/x"])
    with pytest.raises(SpawnFailed, match="cannot be created: Not a directory"):
        await talk(world.sessions(scope=Scope.USER), "server")


def test_exported_paths_are_found_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/elsewhere")
    for name, value in locations.to_environment(world.paths).items():
        monkeypatch.setenv(name, value)
    found = locations.from_environment()
    for name in ("installed", "settings", "scripts", "contents", "sources_list", "orchestration", "secrets"):
        assert getattr(found.user, name) == getattr(world.paths.user, name), name
        assert getattr(found.system, name) == getattr(world.paths.system, name), name
    assert (found.vendor, found.home) == (world.paths.vendor, world.paths.home)
