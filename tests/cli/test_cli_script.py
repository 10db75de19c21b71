# SPDX-License-Identifier: LGPL-2.1-or-later
"""mcpctl script: files become servers, and stay what they were when an edit is broken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import ServiceUnavailable
from tests.cli.script_files import HELLO, SHELL, file, listed, names, refused, watching

if TYPE_CHECKING:
    from tests.cli.conftest import Mcpctl
    from tests.cli.fake import FakeMcpd


async def test_a_script_is_copied_and_mcpd_told(mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path) -> None:
    script = file(tmp_path, "hello.py")
    script.chmod(0o600)
    ended = await mcpctl("script", "add", str(script))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"Added hello: {own}/hello.py",
        "'mcpctl tools hello' lists its tools, 'mcpctl call hello TOOL' calls one.",
    ]
    assert (own / "hello.py").read_text() == HELLO
    assert (own / "hello.py").stat().st_mode & 0o777 == 0o600
    assert own.stat().st_mode & 0o777 == 0o700
    assert names(own) == ["hello.py"]
    assert [call[0] for call in mcpd.calls] == ["ListServers"]
    assert (await mcpctl("script", "add", str(script))).out.startswith("Unchanged hello: ")


async def test_a_copy_is_for_nobody_whom_the_script_is_not_for(mcpctl: Mcpctl, own: Path, tmp_path: Path) -> None:
    script, copy = file(tmp_path, "hello.py"), own / "hello.py"
    for mode, kept in ((0o644, 0o644), (0o640, 0o600), (0o755, 0o600)):
        script.chmod(mode)
        assert (await mcpctl("script", "add", str(script))).code == 0
        assert copy.stat().st_mode & 0o777 == kept
    copy.chmod(0o644)
    script.chmod(0o400)
    assert (await mcpctl("script", "add", str(script))).out.startswith("Added hello: ")
    assert copy.stat().st_mode & 0o777 == 0o600


async def test_nothing_that_others_may_not_read_becomes_the_systems(mcpctl: Mcpctl, tmp_path: Path) -> None:
    directory = Path(mcpctl.environ["MCP_ROOT"]) / "etc/mcp/scripts"
    secret, link = file(tmp_path, "secret", "KEY = 'hush'\n"), tmp_path / "a.py"
    link.symlink_to(secret)
    for mode in (0o600, 0o640, 0o660):
        secret.chmod(mode)
        ended = await mcpctl("script", "add", "--system", str(link))
        assert (ended.code, ended.out, names(directory)) == (2, "", [])
        assert f"{link}: not readable by others" in ended.err
        assert "are readable by everybody; to publish it, run chmod a+r first" in ended.err
    secret.chmod(0o604)
    assert (await mcpctl("script", "add", "--system", str(link))).code == 0
    assert (directory / "a.py").stat().st_mode & 0o777 == 0o644


async def test_watching_for_the_system_publishes_nothing_either(mcpctl: Mcpctl, tmp_path: Path) -> None:
    secret, script = file(tmp_path, "secret", "KEY = 'hush'\n"), file(tmp_path, "a.py")
    secret.chmod(0o600)
    async with watching(mcpctl, "--system", str(script)) as watch:
        script.unlink()
        script.symlink_to(secret)
        said = await watch.line()
        assert said.startswith(f"a: {script}: not readable by others")
        assert said.endswith("the server is unchanged")
        assert (Path(mcpctl.environ["MCP_ROOT"]) / "etc/mcp/scripts/a.py").read_text() == HELLO


async def test_a_script_that_hides_another_says_so(mcpctl: Mcpctl, own: Path, vendor: Path, tmp_path: Path) -> None:
    (vendor / "date.sh").write_text(SHELL)
    script = str(file(tmp_path, "date.py"))
    assert f"It hides a package's script {vendor}/date.sh.\n" in (await mcpctl("script", "add", script)).err
    assert "It hides" in (await mcpctl("script", "add", "--system", script)).err
    system = f"{mcpctl.environ['MCP_ROOT']}/etc/mcp/scripts/date.py"
    assert f"It hides the administrator's script {system}." in (await mcpctl("script", "add", script)).err
    assert names(own) == ["date.py"]


async def test_without_mcpd_a_script_is_added_all_the_same(mcpctl: Mcpctl, own: Path, tmp_path: Path) -> None:
    ended = await mcpctl("script", "add", str(file(tmp_path, "hello.py")))
    assert (ended.code, ended.err) == (0, "")
    assert names(own) == ["hello.py"]


async def test_what_mcpd_says_of_a_new_script_is_shown(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, tmp_path: Path
) -> None:
    mcpd.servers["calculator"]["problem"] = "calculator.py has the same id and is not used"
    ended = await mcpctl("script", "add", str(file(tmp_path, "calculator.py")))
    assert ended.code == 0
    assert "warning: calculator.py has the same id" in ended.err
    mcpd.errors["ListServers"] = ServiceUnavailable("gone")
    ended = await mcpctl("script", "remove", "calculator.py")
    assert ended.code == 4
    assert "did you mean 'calculator'?" in ended.err
    assert (await mcpctl("script", "remove", "calculator")).code == 0


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("a.sh", "echo hi\n", "a.sh"),
        ("a", SHELL, "a.sh"),
        ("a.txt", "#!/usr/bin/env bash\necho hi\n", "a.sh"),
        ("a.cgi", "#!/usr/bin/env -S python3\nprint()\n", "a.py"),
        ("a", "#!/usr/bin/python3.11\nx = 1\n", "a.py"),
    ],
)
async def test_the_kind_is_told_by_the_name_or_the_first_line(
    mcpctl: Mcpctl, own: Path, tmp_path: Path, name: str, text: str, stored: str | None
) -> None:
    ended = await mcpctl("script", "add", str(file(tmp_path, name, text)))
    assert names(own) == ([stored] if stored else []), ended.err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", "x = 1\ndef f(:\n", "/a.py:2: invalid syntax"),
        ("a.py", "x = '\0'\n", "/a.py:"),
        ("a.sh", "#!/bin/bash\necho\nif )\n", "/a.sh:3: "),
        ("a.pl", "#!/usr/bin/perl\nprint 1;\n", "/usr/bin/perl is not supported"),
        ("a.txt", "hello\n", "the name must end in .py or .sh"),
        ("meta.py", HELLO, "choose another name with --name"),
        ("_a.py", HELLO, "is not a server id"),
        ("a b.py", HELLO, "is not a server id"),
    ],
)
async def test_what_cannot_be_a_server_is_refused(
    mcpctl: Mcpctl, own: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    assert said in (await refused(mcpctl, own, str(file(tmp_path, name, text)))).err


async def test_what_is_no_file_is_refused(mcpctl: Mcpctl, own: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "big.py").write_text("#" * (1024 * 1024 + 1))
    (tmp_path / "dir.py").mkdir()
    assert (await refused(mcpctl, own, str(tmp_path / "absent.py"))).code == 4
    assert "not a regular file" in (await refused(mcpctl, own, str(tmp_path / "pipe.py"))).err
    assert "not a regular file" in (await refused(mcpctl, own, str(tmp_path / "dir.py"))).err
    assert "larger than" in (await refused(mcpctl, own, str(tmp_path / "big.py"))).err


async def test_nothing_of_a_script_runs_when_it_is_added(mcpctl: Mcpctl, own: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    await mcpctl("script", "add", str(file(tmp_path, "a.py", f"open({str(mark)!r}, 'w')\n")))
    await mcpctl("script", "add", str(file(tmp_path, "b.sh", f"touch {mark}\n")))
    await mcpctl("script", "list")
    assert names(own) == ["a.py", "b.sh"]
    assert not mark.exists()


async def test_another_script_of_the_name_stays_unless_it_is_to_be_replaced(
    mcpctl: Mcpctl, own: Path, tmp_path: Path
) -> None:
    await mcpctl("script", "add", str(file(tmp_path, "a.py")))
    for name, text in (("a.py", HELLO + "#"), ("a.sh", SHELL)):
        other = file(tmp_path, name, text)
        ended = await refused(mcpctl, own, str(other))
        assert "replace it with --force, or choose another name with --name" in ended.err
        assert f"{own}/a." in ended.err
        assert (await mcpctl("script", "add", "--force", str(other))).code == 0
        assert names(own) == [name]
    assert (await mcpctl("script", "add", "--name", "b", str(other))).code == 0
    assert names(own) == ["a.sh", "b.sh"]
    assert "is already the script of server a" in (await refused(mcpctl, own, str(own / "a.sh"))).err
    victim = file(tmp_path, "victim")
    (own / "c.py").symlink_to(victim)
    assert (await mcpctl("script", "add", "--force", "--name", "c", str(file(tmp_path, "new.py", "x = 1\n")))).code == 0
    assert (victim.read_text(), (own / "c.py").read_text()) == (HELLO, "x = 1\n")


async def test_scripts_are_listed_with_what_is_wrong(mcpctl: Mcpctl, own: Path, vendor: Path, tmp_path: Path) -> None:
    assert "mcpctl script add FILE" in (await mcpctl("script", "list")).err
    for name in ("a.py", "b.py"):
        await mcpctl("script", "add", str(file(tmp_path, name)))
    (own / "broken.py").write_text("def f(:\n")
    (own / "a.sh").write_text(SHELL)
    (vendor / "b.sh").write_text(SHELL)
    (vendor / "v.sh").write_text(SHELL)
    map_file = Path(mcpctl.environ["HOME"]) / ".config/mcp/mcps.json"
    map_file.parent.mkdir(parents=True)
    map_file.write_text('{"v": {"enabled": false}}')
    found = {(each["file"], each["state"]) for each in await listed(mcpctl)}
    assert found == {
        (f"{own}/a.py", "installed"), (f"{own}/b.py", "installed"), (f"{own}/broken.py", "broken"),
        (f"{own}/a.sh", "unused"), (f"{vendor}/b.sh", "unused"), (f"{vendor}/v.sh", "disabled"),
    }  # fmt: skip
    broken = next(each for each in await listed(mcpctl) if each["id"] == "broken")
    assert broken["problem"] == f"{own}/broken.py:1: invalid syntax"
    lines = (await mcpctl("script", "list")).out.splitlines()
    assert lines[0].split() == ["ID", "KIND", "SCOPE", "STATE", "FILE", "SUMMARY"]
    assert lines[1].split()[:4] == ["a", "python", "user", "installed"]
    assert lines[1].endswith("Says hello.")
    assert lines[-1].split()[:4] == ["v", "shell", "package", "disabled"]


async def test_only_scripts_of_ones_own_are_removed(
    mcpctl: Mcpctl, mcpd: FakeMcpd, own: Path, vendor: Path, tmp_path: Path
) -> None:
    (vendor / "a.py").write_text(HELLO)
    ended = await mcpctl("script", "remove", "a")
    assert ended.code == 1
    assert f"{vendor}/a.py belongs to a package" in ended.err
    await mcpctl("script", "add", str(file(tmp_path, "a.py")))
    (own / "a.sh").write_text(SHELL)
    mcpd.calls.clear()
    ended = await mcpctl("script", "remove", "a")
    assert ended.code == 0
    assert ended.out.splitlines() == [f"Removed a: {own}/a.py", f"Removed a: {own}/a.sh"]
    assert ended.err == f"{vendor}/a.py is the server a now.\n"
    assert names(own) == []
    assert names(vendor) == ["a.py"]
    assert [call[0] for call in mcpd.calls] == ["Uninstall", "ListServers"]
    ended = await mcpctl("script", "remove", "absent")
    assert ended.code == 4
    assert "did you mean" not in ended.err
    assert (await mcpctl("script", "remove", "../../x")).code == 2
