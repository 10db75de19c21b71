# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script agents: what they may touch, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import LimitExceeded, McpdError, NotSupported
from mcpd.servers.ensembles.agents.scripts import ScriptAgents
from mcpd.servers.ensembles.engine.types import ScriptCall
from mcpd.servers.ensembles.settings import DIRECTORY
from tests.unit.ensembles.confined_parts import Den, without_landlock

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

TRIES = """
read() { cat "$1" >/dev/null 2>&1 && echo "read $2"; }
write() { (echo x >"$1") 2>/dev/null && echo "wrote $2"; }
"""


@pytest.fixture
def den(tmp_path: Path) -> Iterator[Den]:
    with Den(tmp_path) as made:
        for directory in (made.project, made.other / DIRECTORY, made.user, made.shipped, made.directory):
            (directory / "secret").write_text("x")
        yield made


async def tried(den: Den, tier: str) -> set[str]:
    """What a script of *tier* can do where."""
    places = {"project": den.project, "other": den.other / DIRECTORY, "user": den.user, "shipped": den.shipped}
    places["outside"] = den.directory
    lines = [f"read {path}/secret {name}; write {path}/new {name}" for name, path in places.items()]
    lines += ["write $HOME/new home", "write $TMPDIR/new temporary", "write /etc/new system", "read /etc/passwd system"]
    # What has CAP_PERFMON may read that of any process.
    lines += [f"read /proc/{os.getpid()}/environ server"] * (os.geteuid() != 0)
    script = TRIES + "data=$(" + "\n".join(lines) + ')\nprintf \'{"data": "%s"}\' "$(echo $data)"'
    origin = den.origin(tier)  # type: ignore[arg-type]
    done = (await den.shell(script, origin=origin)).split()
    return {f"{word} {name}" for word, name in zip(done[::2], done[1::2], strict=True)}


ALWAYS = {"read project", "wrote project", "wrote home", "wrote temporary", "read system"}


async def test_a_projects_script_touches_its_project_only(den: Den) -> None:
    assert await tried(den, "project") == ALWAYS


@pytest.mark.parametrize("tier", ["user", "shipped"])
async def test_others_read_their_own_directory_and_change_the_first_project(den: Den, tier: str) -> None:
    assert await tried(den, tier) == ALWAYS | {f"read {tier}"}


async def test_without_a_project_they_have_a_directory_for_the_call(den: Den) -> None:
    with Den(den.directory, projects=(den.directory / "gone",)) as without:
        script = 'test "$(pwd -P)" = "$(cd $TMPDIR && pwd -P)" && echo x >new && echo \'"fine"\''
        assert await without.shell(script, origin=without.origin("user")) == '"fine"'
        assert await tried(without, "user") == {"wrote home", "wrote temporary", "read system", "read user"}


async def test_it_is_led_nowhere_by_a_symlink(den: Den) -> None:
    (den.project / "link").symlink_to(den.directory / "secret")
    with pytest.raises(McpdError, match="ermission denied"):
        await den.shell("cat link")


async def test_a_base_that_leads_out_of_the_project_shows_nothing(den: Den) -> None:
    aside = den.directory / "aside"
    (den.project / DIRECTORY).rename(aside)
    (den.project / DIRECTORY).symlink_to(aside)
    with pytest.raises(McpdError, match=r"ermission denied|can't open"):
        await den.shell("echo 1")


async def test_a_project_is_not_in_the_home_of_another(den: Den) -> None:
    homes = {await den.shell('printf \'"%s"\' "$HOME"', origin=origin) for origin in (den.origin(), den.origin("user"))}
    with Den(den.directory) as other:
        other.project = other.other
        homes.add(await other.shell('printf \'"%s"\' "$HOME"'))
    assert len(homes) == 3
    assert all(json.loads(home).startswith(str(den.settings.state / "home")) for home in homes)


CONNECT = """
import socket
try:
    socket.create_connection(("127.0.0.1", %d), 10)
    print('"connected"')
except PermissionError:
    print('"refused"')
"""


async def test_there_is_a_network_only_if_it_is_allowed(den: Den) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Den(den.directory, script_network=True) as allowing:
        den.write("connect.py", CONNECT % server.getsockname()[1])
        assert await den.run("connect.py") == '"refused"'
        assert await allowing.run("connect.py") == '"connected"'


async def test_nothing_is_left_of_its_temporary_files(den: Den) -> None:
    script = "mkdir -p $TMPDIR/a/b; echo x >$TMPDIR/a/b/c; chmod 0 $TMPDIR/a; ln -s ~ $TMPDIR/home; echo 1"
    assert await den.shell(script) == "1"
    with pytest.raises(McpdError):
        await den.shell(script + "; exit 1")
    with pytest.raises(LimitExceeded):
        await den.shell(script + "; exec yes")
    assert [*(den.settings.state / "tmp").iterdir()] == []
    assert (den.settings.state / "home").is_dir()


async def begun(den: Den) -> None:
    """Return once the script has made the file ``begun``."""
    async with asyncio.timeout(120):
        while not (den.project / "begun").exists():
            await asyncio.sleep(0.01)


async def test_a_cancelled_call_ends_all_that_it_has_started(den: Den) -> None:
    script = "(trap '' TERM; setsid sleep 600) & (env -i setsid sleep 600 &); echo x >begun; sleep 600"
    task = asyncio.create_task(den.shell(script))
    await begun(den)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not den.processes()
    assert [*(den.settings.state / "tmp").iterdir()] == []


async def test_so_does_one_cancelled_while_it_starts(den: Den) -> None:
    for _ in range(10):
        task = asyncio.create_task(den.shell("sleep 600"))
        while not any((den.settings.state / "tmp").glob("*")):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not den.processes()
    assert [*(den.settings.state / "tmp").iterdir()] == []


SERVER = """
import asyncio, sys
from pathlib import Path
from tests.unit.ensembles.confined_parts import Den

asyncio.run(Den(Path(sys.argv[1])).run("long.sh"))
"""


async def test_so_does_a_server_that_is_killed(den: Den) -> None:
    den.write("long.sh", "(env -i setsid sleep 600 &); echo x >begun; sleep 600")
    environ = {**os.environ, "TMPDIR": str(den.directory)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(den.directory), cwd=Path(__file__).parents[3], env=environ
    )
    try:
        await begun(den)
        assert den.processes()
    finally:
        process.kill()
        await process.wait()
    async with asyncio.timeout(120):
        while den.processes():
            await asyncio.sleep(0.01)


async def test_what_a_killed_server_has_left_the_next_one_removes(den: Den) -> None:
    den.write("long.sh", "mkdir $TMPDIR/a; echo x >$TMPDIR/a/b; echo x >begun; sleep 600")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(den.directory), cwd=Path(__file__).parents[3]
    )
    try:
        await begun(den)
        assert await den.shell("echo 1") == "1"
        (used,) = (den.settings.state / "tmp").iterdir()
        assert (used / "a/b").exists()
    finally:
        process.kill()
        await process.wait()
    async with asyncio.timeout(120):
        while den.processes():
            await asyncio.sleep(0.01)
    assert (used / "a/b").exists()
    with Den(den.directory) as following:
        assert await following.shell("echo 1") == "1"
    assert [*(den.settings.state / "tmp").iterdir()] == []


async def test_cancelling_it_again_does_not_take_its_last_words(den: Den) -> None:
    script = "trap 'sleep 0.05; echo x >last; exit' TERM; sleep 600 & echo x >begun; wait"
    task = asyncio.create_task(den.shell(script))
    await begun(den)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (den.project / "last").exists()
    assert not den.processes()
    assert [*(den.settings.state / "tmp").iterdir()] == []


async def test_nor_does_cancelling_it_again_leave_anything_while_it_starts(den: Den) -> None:
    path = den.write("long.sh", "sleep 600")
    await den.shell("echo 1")
    gc.collect()  # else descriptors of earlier tests may be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    entered, go_on = threading.Event(), threading.Event()

    def find(_origin: object, _script: str) -> Path:
        entered.set()
        assert go_on.wait(60)
        return path

    with closing(ScriptAgents(den.settings, find)) as agents:
        await _cancelled_twice(den, agents, entered, go_on)
    assert not den.processes()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def _cancelled_twice(den: Den, agents: ScriptAgents, entered: threading.Event, go_on: threading.Event) -> None:
    """Cancel a call of *agents* again and again while it is held between these two."""
    task = asyncio.create_task(agents.run(ScriptCall("a", "scripts/long.sh", {}, "", {}, den.origin())))
    async with asyncio.timeout(120):
        while not entered.is_set():
            await asyncio.sleep(0.01)
    try:
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
        assert len([*(den.settings.state / "tmp").iterdir()]) == 1
    finally:
        go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [*(den.settings.state / "tmp").iterdir()] == []


async def test_many_at_once_each_with_its_own_answer(den: Den) -> None:
    den.write("number.sh", 'echo "$INPUT_TEXT"; sleep 0.01')
    said = await asyncio.gather(*(den.run("number.sh", str(number)) for number in range(30)))
    assert said == [str(number) for number in range(30)]


async def test_no_descriptor_is_left(den: Den) -> None:
    await den.shell("echo 1")
    gc.collect()  # else descriptors of earlier tests may be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await den.shell("echo 1")
        with pytest.raises(McpdError):
            await den.run("none.py")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("tier", ["project", "user"])
async def test_it_changes_nothing_of_gits_in_the_project_unless_it_may(den: Den, tier: str) -> None:
    hooks = den.project / "nested/.git/hooks"
    hooks.mkdir(parents=True)
    script = "{ echo x >nested/.git/hooks/x || mv nested other; } 2>/dev/null && echo 1 || echo 0; echo x >new"
    origin = den.origin(tier)  # type: ignore[arg-type]
    assert await den.shell(script, origin=origin) == "0"
    assert not (hooks / "x").exists()
    assert (den.project / "new").exists()
    with Den(den.directory, commands_write_git=True) as allowing:
        assert await allowing.shell(script, origin=origin) == "1"
    assert (hooks / "x").exists()


async def test_where_the_kernel_cannot_hold_it_no_script_runs_but_in_mcpds_sandbox(
    den: Den, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_landlock(den.directory, monkeypatch)
    with pytest.raises(NotSupported, match=r"script scripts/it\.sh is not run: .*Landlock"):
        await den.shell("echo >new")
    with Den(den.directory, confined=True) as confined:
        assert await confined.shell("echo 1") == "1"
