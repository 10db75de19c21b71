# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a server is shown of the program it names, and of directories that somebody else's manifest names."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidManifest, NotStdio, SpawnFailed
from mcpd.paths import Scope
from mcpd.runtime.launch import MountKind
from mcpd.runtime.sandbox import build_spec, server_spec
from mcpd.settings import Settings

if TYPE_CHECKING:
    from mcpd.runtime.launch import LaunchSpec
    from tests.sandbox.world import World


def spec_of(world: World) -> LaunchSpec:
    return server_spec(
        world.get("server"),
        world.launch_manifest("server"),
        paths=world.paths,
        scope=Scope.USER,
        settings=Settings(),
    )


PROGRAM = "print(1)"


def trap(world: World, kind: str) -> str:
    """Files of a package that name something of the user's as their interpreter; returns the command to start."""
    generation = world.install("server", PROGRAM).generation
    private = world.paths.home / "private"
    for directory in (generation / "bin", private / "bin", private / "lib"):
        directory.mkdir(parents=True, exist_ok=True)
    shutil.copy("/usr/bin/env", private / "bin/run")
    (private / "letter").write_text("dear diary")
    shebang = "/usr/bin/python3" if kind == "pyvenv.cfg" else private / "bin/run"
    (generation / "bin/run").write_text(f"#!{shebang}\n{PROGRAM}")
    (generation / "bin/run").chmod(0o755)
    if kind == "pyvenv.cfg":
        (generation / "pyvenv.cfg").write_text(f"home = {private}/bin\n")
    return "bin/run"


@pytest.mark.parametrize("kind", ["pyvenv.cfg", "#!"])
def test_a_package_cannot_choose_what_is_shown_to_it(world: World, kind: str) -> None:
    command = trap(world, kind)
    world.install("server", PROGRAM, transports=[{"type": "stdio", "command": command}])
    spec = spec_of(world)
    private = str(world.paths.home / "private")
    assert [mount for mount in spec.mounts if mount.source.startswith(private)] == []


@pytest.mark.parametrize("way", ["symlink", "directory", "#!", "pyvenv.cfg"])
def test_a_server_that_can_write_to_its_program_cannot_choose_what_is_shown_to_it(world: World, way: str) -> None:
    work, private = world.paths.home / "work", world.paths.home / "private"
    for directory in (work, private / "bin", private / "lib"):
        directory.mkdir(parents=True)
    shutil.copy("/usr/bin/env", private / "bin/run")
    if way == "directory":
        (work / "bin").symlink_to(private / "bin")
    else:
        (work / "bin").mkdir()
        if way == "symlink":
            (work / "bin/run").symlink_to(private / "bin/run")
        else:
            (work / "bin/run").write_text(f"#!{private / 'bin/run' if way == '#!' else '/usr/bin/python3'}\n")
            (work / "bin/run").chmod(0o755)
            (work / "pyvenv.cfg").write_text(f"home = {private}/bin\n" if way == "pyvenv.cfg" else "")
    command = [{"type": "stdio", "command": f"{work}/bin/run"}]
    world.install("server", PROGRAM, transports=command, permissions=["filesystem:rw:~/work"])
    assert [mount for mount in spec_of(world).mounts if mount.source.startswith(str(private))] == []
    world.install("server", PROGRAM, transports=command)
    assert [mount for mount in spec_of(world).mounts if mount.source == str(private)] != []


def test_a_command_beside_private_files_shows_itself_alone(world: World) -> None:
    private = world.paths.home / "private"
    (private / "bin").mkdir(parents=True)
    shutil.copy("/usr/bin/env", private / "bin/run")
    world.install("server", PROGRAM, transports=[{"type": "stdio", "command": f"{private}/bin/run"}])
    spec = spec_of(world)
    assert [m.source for m in spec.mounts if m.source.startswith(str(private))] == [f"{private}/bin/run"]


def test_secrets_stay_hidden_from_a_server_whose_directory_holds_them(world: World) -> None:
    """Another tool's index may say that a server lives anywhere, also in the directory above mcpd's own files."""
    world.install("server", PROGRAM)
    server, launch = world.servers["server"]
    world.servers["server"] = (replace(server, directory=world.paths.home, generation=world.paths.home), launch)
    mounts = spec_of(world).mounts
    home = next(number for number, mount in enumerate(mounts) if mount.target == str(world.paths.home))
    later = {mount.target for mount in mounts[home:] if mount.kind is MountKind.TMPFS}
    assert {str(world.paths.user.secrets), str(world.paths.user.overlay)} <= later


@pytest.mark.parametrize("place", ["secrets", "overlay", "state", "runtime"])
def test_a_file_in_a_hidden_place_is_never_shown(world: World, place: str) -> None:
    hidden = getattr(world.paths.user, place) / "other/key"
    hidden.parent.mkdir(parents=True)
    shutil.copy("/usr/bin/env", hidden)
    generation = world.install("server", PROGRAM).generation
    (generation / "run").symlink_to(hidden)
    for command in (str(hidden), "./run"):
        world.install("server", PROGRAM, transports=[{"type": "stdio", "command": command}])
        with pytest.raises(InvalidManifest, match="never shown"):
            spec_of(world)
    with pytest.raises(InvalidManifest, match="never shown"):
        build_spec("server", ["true"], world.root, [], [hidden], False, {}, paths=world.paths)


def test_a_server_whose_directory_is_a_hidden_place_is_refused(world: World) -> None:
    world.install("server", PROGRAM)
    server, launch = world.servers["server"]
    for place in (world.paths.user.secrets, world.paths.user.state / "other"):
        place.mkdir(parents=True)
        world.servers["server"] = (replace(server, directory=place, generation=place), launch)
        with pytest.raises(InvalidManifest, match="never shown"):
            spec_of(world)


def kinds(world: World) -> dict[str, MountKind]:
    """Below the home: the last mount at each path, which is what counts."""
    home = world.paths.home
    return {
        str(Path(mount.target).relative_to(home)): mount.kind
        for mount in spec_of(world).mounts
        if Path(mount.target).is_relative_to(home)
    }


def test_every_directory_above_what_is_hidden_is_a_mount_point_in_a_writable_grant(world: World) -> None:
    (world.paths.home / ".local/share/icons").mkdir(parents=True)
    grants = ["filesystem:rw:~", "filesystem:ro:~/.local/share/icons", "filesystem:ro:~/.cache"]
    (world.paths.home / ".cache").mkdir()
    world.install("server", PROGRAM, permissions=grants)
    found = kinds(world)
    writable = {path for path, kind in found.items() if kind is MountKind.BIND}
    assert writable == {".", ".config", ".local", ".local/share", ".local/state", ".local/state/mcp/server"}
    assert found[".local/share/icons"] is found[".cache"] is found[".config/mcp"] is MountKind.RO_BIND
    assert (world.paths.home / ".config").stat().st_mode & 0o777 == 0o700


def test_a_directory_between_two_grants_cannot_be_moved_away_either(world: World) -> None:
    (world.paths.home / ".local/share").mkdir(parents=True)
    world.install("server", PROGRAM, permissions=["filesystem:rw:~", "filesystem:ro:~/.local/share"])
    found = kinds(world)
    assert found[".local"] is MountKind.BIND
    assert found[".local/share"] is MountKind.RO_BIND


def test_a_symlink_to_mcpds_own_files_cannot_be_in_a_writable_grant(world: World) -> None:
    dotfiles = world.root / "dotfiles"
    dotfiles.mkdir()
    (world.paths.home / ".config").symlink_to(dotfiles)
    world.install("server", PROGRAM, permissions=["filesystem:rw:~"])
    with pytest.raises(InvalidManifest, match=r"\.config is a symlink"):
        spec_of(world)
    world.install("server", PROGRAM, permissions=["filesystem:ro:~"])
    assert spec_of(world).mounts


def test_settings_that_cannot_be_covered_refuse_a_writable_grant(world: World) -> None:
    (world.paths.home / ".config").write_text("in the way")
    world.install("server", PROGRAM, permissions=["filesystem:rw:~"])
    with pytest.raises(SpawnFailed, match=r"\.config/mcp cannot be created"):
        spec_of(world)


def test_server_without_a_program_cannot_be_started(world: World) -> None:
    world.install("server", transports=[{"type": "carrier-pigeon"}])
    with pytest.raises(NotStdio, match="server"):
        spec_of(world)


def test_a_server_elsewhere_gets_the_network_and_nothing_else(world: World) -> None:
    far = [{"type": "sse", "url": "https://example.org/"}]
    world.install("server", transports=far, permissions=["filesystem:rw:~", "devices"])
    spec = spec_of(world)
    assert spec.network
    assert spec.argv[1:] == ("-I", "-m", "mcpd.servers.remote")
    assert spec.manifest is not None
    writable = [mount.target for mount in spec.mounts if mount.kind in {MountKind.BIND, MountKind.DEV_BIND}]
    assert writable == [spec.env["HOME"]]
