# SPDX-License-Identifier: LGPL-2.1-or-later
"""The look at the sandbox from inside, with bubblewraps that leave something out."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NoReturn

import pytest

from mcpd.errors import SandboxUnavailable
from mcpd.paths import Scope
from mcpd.runtime.launchers import PlainLauncher, SystemdSocketLauncher
from mcpd.runtime.self_check import verify_sandbox
from mcpd.settings import RuntimeSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mcpd.runtime.launch import LaunchSpec, Leash
    from tests.sandbox.world import World

pytestmark = pytest.mark.process

LOOSE = """#!/usr/bin/python3 -IS
import os, sys
source = int(sys.argv[2])
with open(source, "rb", closefd=False) as file:
    args = file.read().decode().split("\\0")
{change}
fd = os.memfd_create("args")
os.write(fd, "\\0".join(args).encode())
os.lseek(fd, 0, os.SEEK_SET)
os.set_inheritable(fd, True)
os.execv("{bwrap}", ["bwrap", "--args", str(fd), *sys.argv[3:]])
"""


@pytest.fixture
def loosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a bubblewrap before the real one that changes ``args`` before it passes them on."""

    def put(change: str) -> None:
        program = tmp_path / "bin/bwrap"
        program.parent.mkdir()
        program.write_text(LOOSE.format(change=change, bwrap=shutil.which("bwrap")))
        program.chmod(0o755)
        monkeypatch.setattr(os, "defpath", f"{program.parent}:{os.defpath}")

    return put


async def test_sandbox_that_confines_is_found_good(world: World) -> None:
    for scope in Scope:
        await verify_sandbox(PlainLauncher(), world.paths, scope, Settings())


FLAWS = {
    "args.remove('--unshare-net')": "the network is reachable",
    "args.remove('--disable-userns')": "it can create user namespaces",
    "i = args.index('--proc'); args[i] = '--bind'; args.insert(i + 1, '/proc')": "processes outside",
    "del args[-4:-2]": "it can write to /, /etc",
    "args[-4:-4] = ['--bind', '/usr', '/usr']": "it can write to /usr",
    "args[-4:-4] = ['--dev-bind', '/home', '/home']": "it can see /home",
}


@pytest.mark.parametrize("change", FLAWS)
async def test_what_does_not_hold_is_named(world: World, loosen: Callable[[str], None], change: str) -> None:
    loosen(change)
    with pytest.raises(SandboxUnavailable, match=FLAWS[change]):
        await verify_sandbox(PlainLauncher(), world.paths, Scope.SYSTEM, Settings())


async def test_secrets_in_sight_are_named(world: World, loosen: Callable[[str], None]) -> None:
    secrets = world.paths.user.secrets
    secrets.mkdir(parents=True)
    loosen(
        f"args[-4:-4] = ['--ro-bind', {str(secrets)!r}, '/srv/secrets']\n"
        "launch = int(sys.argv[-3])\n"
        "count, *words = os.read(launch, 1 << 20).split(bytes(1))\n"
        "words[int(count) - 1] = b'/srv/secrets'\n"
        "os.pwrite(launch, bytes(1).join([count, *words]), 0)\n"
        "os.ftruncate(launch, len(bytes(1).join([count, *words])))\n"
        "os.lseek(launch, 0, os.SEEK_SET)"
    )
    with pytest.raises(SandboxUnavailable, match="it can see /srv/secrets"):
        await verify_sandbox(PlainLauncher(), world.paths, Scope.USER, Settings())


async def test_sandbox_that_cannot_be_built_is_named(world: World, loosen: Callable[[str], None]) -> None:
    loosen("sys.exit('bwrap: no namespaces today')")
    with pytest.raises(SandboxUnavailable, match="no namespaces today"):
        await verify_sandbox(PlainLauncher(), world.paths, Scope.USER, Settings())


async def test_probe_that_says_nothing_is_no_good_news(world: World, loosen: Callable[[str], None]) -> None:
    loosen("sys.argv[sys.argv.index('--') + 1:] = ['/bin/true']")
    with pytest.raises(SandboxUnavailable, match="bubblewrap did not execute the program"):
        await verify_sandbox(PlainLauncher(), world.paths, Scope.USER, Settings())


async def test_launcher_that_fails_is_no_good_news(world: World, tmp_path: Path) -> None:
    launcher = SystemdSocketLauncher(tmp_path / "spawn.sock", "root")
    with pytest.raises(SandboxUnavailable, match=r"mcpd-spawn\.socket"):
        await verify_sandbox(launcher, world.paths, Scope.SYSTEM, Settings())


async def test_another_user_than_the_units_is_named(world: World) -> None:
    class Behind(SystemdSocketLauncher):
        async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
            return await PlainLauncher().launch(spec, fds)

    launcher = Behind(world.root / "spawn.sock", "daemon")
    with pytest.raises(SandboxUnavailable, match=f"it runs as uid {os.getuid()}, not 1"):
        await verify_sandbox(launcher, world.paths, Scope.SYSTEM, Settings())


async def test_nothing_is_looked_at_without_a_sandbox(world: World) -> None:
    class Unused:
        name = "plain"

        async def launch(self, spec: LaunchSpec, fds: Mapping[int, int]) -> NoReturn:
            raise AssertionError("nothing is to be started")

    await verify_sandbox(Unused(), world.paths, Scope.USER, Settings(runtime=RuntimeSettings(sandbox="off")))
