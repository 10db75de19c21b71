# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl script: what is left of one that is removed, and what becomes of one that is edited."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.cli.main import main
from mcpd.errors import ReadOnly
from mcpd.runtime import bundled
from tests.cli.script_files import HELLO, Watch, file, names, watching
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd

PATIENCE = 120.0


async def with_values(mcpctl: Mcpctl, mcpd: FakeMcpd, tmp_path: Path) -> Path:
    """Make the server ``a``, which has values, secrets and state, and return the directory of the latter."""
    await mcpctl("script", "add", str(file(tmp_path, "a.py")))
    mcpd.servers["a"] = {"id": "a"}
    mcpd.config["a"] = ({"unit": "K", "depth": 3}, ["KEY", "TOKEN"])
    mcpd.calls.clear()
    state = Path(mcpctl.environ["HOME"]) / ".local/state/mcp/a"
    (state / "deep").mkdir(parents=True)
    (state / "deep/file").write_text("kept")
    return state


async def test_what_was_set_for_a_script_goes_with_it(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path
) -> None:
    state = await with_values(mcpctl, mcpd, tmp_path)
    ended = await mcpctl("script", "remove", "a")
    assert (ended.code, ended.err) == (0, "")
    assert names(own) == []
    assert not state.exists()
    assert [call[:3] for call in mcpd.calls] == [("Uninstall", "a", {"forget": True}), ("ListServers", {})]


async def test_what_was_set_for_a_script_may_stay(mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path) -> None:
    state = await with_values(mcpctl, mcpd, tmp_path)
    ended = await mcpctl("script", "remove", "--keep-config", "a")
    assert (ended.code, ended.err, names(own)) == (0, "", [])
    assert (state / "deep/file").exists()
    assert [call[0] for call in mcpd.calls] == ["ListServers"]


async def test_what_mcpd_refuses_to_forget_stays_with_its_script(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path
) -> None:
    state = await with_values(mcpctl, mcpd, tmp_path)
    mcpd.errors["Uninstall"] = ReadOnly("mcpd is read-only")
    ended = await mcpctl("script", "remove", "a")
    assert (ended.code, ended.err) == (1, "mcpctl: mcpd is read-only\n")
    assert names(own) == ["a.py"]
    assert (state / "deep/file").exists()


@pytest.mark.parametrize("text", [HELLO, "def f(:\n"])
async def test_without_mcpd_a_users_own_values_go_all_the_same(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path, text: str
) -> None:
    state = await with_values(mcpctl, mcpd, tmp_path)
    data = Path(mcpctl.environ["HOME"]) / ".local/share/mcp"
    kept = [data / "secrets/a.json", data / "overlay/a.json"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (own / "a.py").write_text(text)
    ended = await mcpctl("script", "remove", "a", environ={"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent"})
    assert (ended.code, names(own), state.exists()) == (0, [], False)
    assert [path for path in kept if path.exists()] == []


async def test_what_is_another_servers_is_not_forgotten(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path
) -> None:
    state = await with_values(mcpctl, mcpd, tmp_path)
    installed = Path(mcpctl.environ["HOME"]) / ".local/share/mcp/installed/a"
    installed.mkdir(parents=True)
    document = {"id": "a", "name": "A", "transports": [{"type": "stdio", "command": "true"}]}
    (installed / "manifest.json").write_text(json.dumps(document))
    ended = await mcpctl("script", "remove", "a")
    assert (ended.code, names(own)) == (0, [])
    assert state.exists()
    assert [call[0] for call in mcpd.calls] == ["ListServers"]


async def test_the_systems_state_is_left_to_mcpd(mcpctl: Mcpctl, tmp_path: Path) -> None:
    root = Path(mcpctl.environ["MCP_ROOT"])
    (root / "var/lib/mcp/state/a").mkdir(parents=True)
    await mcpctl("script", "add", "--system", str(file(tmp_path, "a.py")))
    ended = await mcpctl("script", "remove", "--system", "a")
    assert ended.code == 1
    assert f"{root}/var/lib/mcp/state/a; remove it as root" in ended.err
    assert (root / "var/lib/mcp/state/a").is_dir()


async def test_a_files_name_that_is_not_a_servers_state_is_not_touched(mcpctl: Mcpctl, tmp_path: Path) -> None:
    other = Path(mcpctl.environ["HOME"]) / ".local/state/mcp/a"
    other.parent.mkdir(parents=True)
    other.write_text("other")
    await mcpctl("script", "add", str(file(tmp_path, "a.py")))
    assert (await mcpctl("script", "remove", "a")).err == ""
    assert other.read_text() == "other"


def test_without_the_package_that_runs_them_scripts_are_added_with_a_warning(
    mcpctl: Mcpctl, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in mcpctl.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bundled, "PYTHON", tmp_path / "absent")
    monkeypatch.setattr(bundled, "NEEDED_BY_SCRIPTS", ("surely_no_such_module",))
    assert main(["--user", "script", "add", str(file(tmp_path, "a.py"))]) == 0
    told = capsys.readouterr()
    said = "warning: the server cannot be started: mcp-scripts, which runs script servers, is not installed; "
    assert told.err.startswith(said)
    assert names(own) == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_the_systems_scripts_are_roots(mcpctl: Mcpctl, tmp_path: Path) -> None:
    Path(mcpctl.environ["MCP_ROOT"]).mkdir(mode=0o500)
    ended = await mcpctl("script", "add", "--system", str(file(tmp_path, "a.py")))
    assert ended.code == 3
    assert "use sudo" in ended.err


async def test_the_systems_scripts_are_in_a_directory_for_all(mcpctl: Mcpctl, tmp_path: Path) -> None:
    ended = await mcpctl("script", "add", "--system", str(file(tmp_path, "a.py")))
    assert ended.code == 0
    directory = Path(mcpctl.environ["MCP_ROOT"]) / "etc/mcp/scripts"
    assert names(directory) == ["a.py"]
    assert directory.stat().st_mode & 0o777 == 0o755
    assert (await mcpctl("script", "remove", "a")).err.startswith(f"mcpctl: {directory}/a.py belongs to")


async def test_edits_show_up_and_broken_ones_do_not(mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path) -> None:
    script = file(tmp_path, "a.py")
    async with watching(mcpctl, str(script)) as watch:
        script.write_text("x = 1\n")
        assert await watch.line() == "a: updated"
        assert (own / "a.py").read_text() == "x = 1\n"
        script.write_text("x = 1\ndef f(:\n")
        assert await watch.line() == f"a: {script}:2: invalid syntax; the server is unchanged"
        assert (own / "a.py").read_text() == "x = 1\n"
        script.write_text("x = 1\n")
        assert await watch.line() == "a: unchanged"
        script.write_text("x = 2\n")
        assert await watch.line() == "a: updated"
        assert names(own) == ["a.py"]
    assert {call[0] for call in mcpd.calls} == {"ListServers"}
    assert len(mcpd.calls) == 3


async def test_a_file_that_editors_replace_is_still_watched(mcpctl: Mcpctl, own: Path, tmp_path: Path) -> None:
    script, saved = file(tmp_path, "a.py"), tmp_path / "a.py~"
    async with watching(mcpctl, str(script)) as watch:
        saved.write_text("x = 1\n")
        saved.rename(script)
        assert await watch.line() == "a: updated"
        script.unlink()
        assert await watch.line() == f"a: {script}: No such file or directory; the server is unchanged"
        target = file(tmp_path, "elsewhere.py", "x = 2\n")
        script.symlink_to(target)
        assert await watch.line() == "a: updated"
        target.write_text("x = 3\n")
        assert await watch.line() == "a: updated"
        script.unlink()
        os.mkfifo(script)
        assert (await watch.line()).endswith("not a regular file; the server is unchanged")
        script.unlink()
        script.write_text("x = 4\n")
        assert await watch.line() == "a: updated"
        assert (own / "a.py").read_text() == "x = 4\n"


async def test_a_script_that_somebody_else_changed_is_not_overwritten_by_watching(
    mcpctl: Mcpctl, own: Path, tmp_path: Path
) -> None:
    script = file(tmp_path, "a.py")
    process = await mcpctl.start("script", "add", "--watch", str(script))
    watch = Watch(process)
    for _ in range(3):
        await watch.line()
    (own / "a.py").write_text("mine = 1\n")
    script.write_text("x = 1\n")
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 1
    assert b"there is already a script with that name" in err
    assert (own / "a.py").read_text() == "mine = 1\n"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A machine with mcpd."""
    with Rig() as machine:
        machine.start_daemon()
        yield machine


def test_the_next_script_of_the_name_gets_nothing_of_the_last(rig: Rig, tmp_path: Path) -> None:
    script = str(file(tmp_path, "next.py"))
    entry = {
        "configurableProperties": [
            {"key": "unit", "type": "string", "default": "C"}, {"key": "KEY", "type": "string", "sensitive": True},
        ],
    }  # fmt: skip
    map_file = Path(rig.environ["HOME"]) / ".config/mcp/mcps.json"
    map_file.parent.mkdir(parents=True, exist_ok=True)
    map_file.write_text(json.dumps({"next": entry}))
    for keep in ("--keep-config", ""):
        assert rig.mcpctl("script", "add", script).returncode == 0
        if keep:
            assert rig.mcpctl("config", "set", "next", "unit=K").returncode == 0
            assert rig.mcpctl("secret", "set", "next", "KEY", stdin="hush").returncode == 0
        said = json.loads(rig.mcpctl("config", "get", "next", "--json").stdout)
        assert (said["values"], said["secrets-set"]) == ({"unit": "K"}, ["KEY"])
        if not keep:
            broken = Path(rig.environ["HOME"]) / ".local/share/mcp/scripts/next.py"
            broken.write_text(broken.read_text() + "def x(:\n")
        removed = rig.mcpctl("script", "remove", "next", *([keep] if keep else []))
        assert (removed.returncode, removed.stderr) == (0, "")
    rig.mcpctl("script", "add", script)
    said = json.loads(rig.mcpctl("config", "get", "next", "--json").stdout)
    assert (said["values"], said["secrets-set"]) == ({"unit": "C"}, [])
