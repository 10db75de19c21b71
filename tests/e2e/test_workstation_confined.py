# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server ``workstation`` as mcpd runs it: the files, repositories and builds of some directories, and no others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from tests.e2e.workstation_parts import ERAS, REPOSITORY, SERVER, SLOW, WorkstationRig, answer, happens
from tests.servers.failures import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS = [(way, mode) for way in ("stdio", "http") for mode in ERAS]
IDENTITY = "[user]\n\tname = Alice Example\n\temail = alice@example.invalid\n"
MAKEFILE = "test:\n\t@echo fine\nlint:\n\t@echo 'main.c:3:7: error: expected expression'; exit 1\n"


@pytest.fixture(scope="module")
def machine() -> Iterator[WorkstationRig]:
    with WorkstationRig() as rig:
        rig.boot()
        yield rig


@pytest.fixture
def rig(machine: WorkstationRig) -> WorkstationRig:
    """The machine with two empty roots and nothing else configured."""
    machine.clear()
    return machine


def test_it_is_listed_and_confined(machine: WorkstationRig) -> None:
    found = machine.listed()[SERVER]
    manifest = json.loads((REPOSITORY / "data/share/servers/workstation/manifest.json").read_text())
    assert found["sandboxed"] is True
    assert found["permissions"] == manifest["permissions"]
    assert not found.get("problem")


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_without_roots_it_lists_its_tools_and_they_name_the_setting(
    rig: WorkstationRig, way: str, mode: str
) -> None:
    rig.unset("roots")
    async with rig.connect(way, mode) as client:
        assert len((await client.list_tools()).tools) > 20
        for tool in ("filesystem_list", "git_status", "ci_detect"):
            error = await refused(client, tool)
            assert error.code == -32603
            assert "mcpctl config set workstation roots=" in error.message


def test_a_root_that_is_not_there_costs_that_root_and_is_named(rig: WorkstationRig) -> None:
    (rig.src / "file").write_text("there\n")
    rig.configure(roots=["~/src", "~/elsewhere"])
    read = rig.mcpctl("call", SERVER, "filesystem_read", "path=file")
    listed = rig.mcpctl("call", SERVER, "filesystem_list", "path=~/elsewhere")
    rig.unset("roots")
    assert (read.returncode, read.stdout) == (0, "there\n")
    assert listed.returncode != 0
    assert f"the configured root {rig.src.parent}/elsewhere was not there when the server started" in listed.stdout


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_files_are_read_written_and_edited_in_the_sandbox(rig: WorkstationRig, way: str, mode: str) -> None:
    (rig.src / "hello.txt").write_text("Hello\nworld\n")
    async with rig.connect(way, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"filesystem_read", "git_status", "ci_build"} <= set(names)
        result = await client.call_tool("filesystem_read", {"path": "hello.txt"})
        assert [block.text for block in result.content if block.type == "text"] == ["Hello\nworld\n"]
        assert result.structured_content is not None
        assert result.structured_content["path"] == str(rig.src / "hello.txt")
        path = str(rig.work / "new/file.txt")
        written = await answer(client, "filesystem_write", path=path, content="grüß Gott\n", create_parents=True)
        assert written["created"] is True
        edits = [{"old_text": "grüß", "new_text": "Grüß"}]
        assert (await answer(client, "filesystem_edit", path=path, edits=edits))["replacements"] == 1
        found = await answer(client, "filesystem_search", path=str(rig.work), pattern="gr.ß")
        assert [(each["path"], each["line"]) for each in found["matches"]] == [(path, 1)]
        gone = await answer(client, "filesystem_delete", path=path)
    assert not (rig.work / "new/file.txt").exists()
    assert gone["trashed_to"] == f"{rig.work}/.Trash-{os.getuid()}/files/file.txt"
    assert (rig.work / f".Trash-{os.getuid()}/files/file.txt").read_text() == "Grüß Gott\n"


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_the_codes_of_the_seed(rig: WorkstationRig, way: str, mode: str) -> None:
    (rig.src / "Makefile").write_text(SLOW)
    async with rig.connect(way, mode) as client:
        errors = [
            await refused(client, "filesystem/format", path="x"),
            await refused(client, "filesystem_read", path=5),
            await refused(client, "filesystem_read"),
            await refused(client, "filesystem_read", path="nothing"),
            await refused(client, "filesystem_read", path=str(rig.secret)),
            await refused(client, "ci_build", timeout_seconds=1),
        ]
        await happens(lambda: not rig.commands())
    assert [error.code for error in errors] == [-32601, -32602, -32602, -32603, -32603, -32000]
    assert [error.form for error in errors] == ["json-rpc"] * 3 + ["result"] * 2 + ["json-rpc"]
    assert [error.message.split(":")[0] for error in errors[:3]] == ["Method not found"] + ["Invalid params"] * 2
    assert errors[3].message == f"{rig.src}/nothing does not exist"
    assert errors[5].message == "Tool execution timeout after 1 s"
    assert errors[3].data == {"tool": "filesystem_read", "error": "NotFound"}
    assert "begun" in errors[5].data["output"]


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_errors_as_results_but_for_the_timeout(rig: WorkstationRig, way: str, mode: str) -> None:
    rig.configure(error_mapping="tool-result")
    (rig.src / "Makefile").write_text(SLOW)
    async with rig.connect(way, mode) as client:
        result = await client.call_tool("filesystem_read", {"path": "nothing"})
        assert result.is_error
        assert result.meta is not None
        assert result.meta["org.mcpd/error"]["code"] == -32603
        assert (await refused(client, "ci_build", timeout_seconds=1)).code == -32000


@pytest.mark.parametrize("how", ["file", "symlink", "xdg"])
async def test_git_has_the_identity_of_its_user(rig: WorkstationRig, how: str) -> None:
    config = rig.home / ".config/git/config" if how == "xdg" else rig.home / ".gitconfig"
    real = rig.home / "dotfiles/gitconfig" if how == "symlink" else config
    real.parent.mkdir(exist_ok=True)
    real.write_text(IDENTITY)
    if how == "symlink":
        (real.parent / "token").write_text("nobody's business\n")
        config.symlink_to("dotfiles/gitconfig")
    if os.getuid() == 0:
        rig.configure(commands_write_git=True)
    try:
        rig.git("init", "-q", "-b", "main")
        hook = rig.src / ".git/hooks/pre-commit"
        hook.write_text(f"#!/bin/sh\necho ran >{rig.src}/ran\n")
        hook.chmod(0o755)
        (rig.src / "hello.txt").write_text("Hello\n")
        (rig.src / "Makefile").write_text(f"look:\n\t-ls {real.parent}\n\tcat {real.parent}/token {config}\n")
        async with rig.connect("stdio", "legacy") as client:
            status = await answer(client, "git_status")
            assert status["branch"] == "main"
            await answer(client, "git_add", paths=["hello.txt"])
            made = await answer(client, "git_commit", message="Say hello")
            looked = await answer(client, "ci_task", name="look")
    finally:
        config.unlink()
        real.unlink(missing_ok=True)
    log = rig.git("log", "--format=%H %an <%ae> %s")
    assert log == f"{made['commit']} Alice Example <alice@example.invalid> Say hello\n"
    assert not (rig.src / "ran").exists()
    # What git may read for its user no build reads, nor what lies beside it.
    assert not looked["success"]
    assert "Alice" not in looked["output"]
    assert "business" not in looked["output"]


async def test_git_without_an_identity_says_so(rig: WorkstationRig) -> None:
    rig.git("init", "-q")
    (rig.src / "hello.txt").write_text("Hello\n")
    async with rig.connect("stdio", "legacy") as client:
        await answer(client, "git_add", paths=["hello.txt"])
        error = await refused(client, "git_commit", message="Say hello")
    assert error.code == -32603
    assert "user.email" in error.message


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_a_project_is_tested(rig: WorkstationRig, way: str, mode: str) -> None:
    (rig.src / "Makefile").write_text(MAKEFILE)
    async with rig.connect(way, mode) as client:
        tested = await answer(client, "ci_test")
        assert (tested["success"], tested["output"].strip()) == (True, "fine")
        linted = await answer(client, "ci_lint")
    assert linted["success"] is False
    (diagnostic,) = (each for each in linted["diagnostics"] if each["file"] == "main.c")
    assert (diagnostic["line"], diagnostic["severity"]) == (3, "error")


def spying(rig: WorkstationRig) -> str:
    """A Makefile that looks for a way out; each target is one."""
    state = rig.state / SERVER
    return f"""\
read:
	cat {rig.secret}
there:
	test -e {rig.secret} && echo there
write:
	echo x >{rig.home}/new
replace:
	echo x >{rig.src}/new && mv {rig.src}/new {rig.home}/new
link:
	ln {rig.secret} {rig.src}/link
trail:
	cat {state}/audit.jsonl
forge:
	echo x >>{state}/audit.jsonl
settings:
	ls {rig.home}/.config {rig.home}/.local/share {rig.state}
bus:
	ls {rig.runtime} /run/user/*/bus
server:
	cat /proc/1/environ /proc/$$PPID/environ | tr '\\0' '\\n' | grep ^MCP_HOME
shown:
	@cut -d' ' -f5 /proc/self/mountinfo | grep '^{rig.home}'
"""


async def test_the_sandbox_and_the_kernel_hold_a_build(rig: WorkstationRig) -> None:
    (rig.src / "Makefile").write_text(spying(rig))
    ways_out = ["read", "there", "write", "replace", "link", "trail", "forge", "settings", "bus"]
    async with rig.connect("stdio", "legacy") as client:
        for name in ways_out:
            tried = await answer(client, "ci_task", name=name)
            assert tried["success"] is False, (name, tried["output"])
            assert "business" not in tried["output"]
        shown = await answer(client, "ci_task", name="shown")
    assert not (rig.home / "new").exists()
    assert not (rig.src / "link").exists()
    trail = (rig.state / SERVER / "audit.jsonl").read_text()
    assert [json.loads(line)["tool"] for line in trail.splitlines()[-2:]] == ["ci_task", "ci_task"]
    # Of the home there is what is configured, what the server has for itself, and nothing else.
    own = {str(rig.state / SERVER)}
    own |= {line for line in shown["output"].split() if line.startswith(str(rig.vendor))}
    assert set(shown["output"].split()) == {str(rig.src), str(rig.work)} | own


@pytest.mark.skipif(os.getuid() == 0, reason="root's sandbox allows no user namespaces")
async def test_a_build_changes_nothing_of_gits_unless_it_may(rig: WorkstationRig) -> None:
    rig.git("init", "-q", "project")
    project = rig.src / "project"
    (project / "Makefile").write_text(
        "build:\n\techo x >.git/hooks/post-index-change\nmove:\n\tmv .git git\n"
        "above:\n\tmv ../project ../other\nnamespace:\n\tunshare --user true\n"
        "other:\n\techo x >new && git status --short\n"
    )
    async with rig.connect("stdio", "legacy") as client:
        for name in ("build", "move", "above", "namespace"):
            tried = await answer(client, "ci_task", path="project", name=name)
            assert tried["success"] is False, (name, tried["output"])
        assert (await answer(client, "ci_task", path="project", name="other"))["output"].endswith("?? new\n")
        await answer(client, "git_add", path="project", paths=["new"])
    assert not (project / ".git/hooks/post-index-change").exists()
    rig.configure(commands_write_git=True)
    async with rig.connect("stdio", "legacy") as client:
        assert (await answer(client, "ci_build", path="project"))["success"] is True
    assert (project / ".git/hooks/post-index-change").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="others have user namespaces")
async def test_roots_builds_need_the_setting_beside_a_repository(rig: WorkstationRig) -> None:
    (rig.src / "Makefile").write_text("build:\n\techo x >.git/hooks/post-index-change\n")
    rig.git("init", "-q")
    async with rig.connect("stdio", "legacy") as client:
        assert "commands_write_git" in (await refused(client, "ci_build")).message
    assert not (rig.src / ".git/hooks/post-index-change").exists()
    rig.configure(commands_write_git=True)
    async with rig.connect("stdio", "legacy") as client:
        assert (await answer(client, "ci_build"))["success"] is True


async def test_a_tool_finds_no_way_out(rig: WorkstationRig) -> None:
    (rig.src / "link").symlink_to(rig.secret)
    (rig.src / "up").symlink_to("..")
    os.link(rig.secret, rig.src / "hard")
    try:
        async with rig.connect("stdio", "legacy") as client:
            for path in (str(rig.secret), "/etc/passwd", "../secret", "link", "up/secret", "hard"):
                error = await refused(client, "filesystem_read", path=path)
                assert "business" not in error.message
            for path in (f"{rig.home}/.bashrc", "up/new", "../new"):
                await refused(client, "filesystem_write", path=path, content="")
            await refused(client, "filesystem_move", source="link", destination=f"{rig.home}/moved")
            await refused(client, "filesystem_delete", path=str(rig.secret))
            await answer(client, "filesystem_delete", path="link", permanent=True)
    finally:
        (rig.src / "hard").unlink()
    assert rig.secret.read_text() == "nobody's business\n"
    assert not {".bashrc", "new", "moved"} & set(os.listdir(rig.home))  # noqa: PTH208


async def test_the_network_is_off_unless_it_is_allowed(rig: WorkstationRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (rig.src / "reach.py").write_text(
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5).close()\nprint('connected')\n"
        )
        (rig.src / "Makefile").write_text("reach:\n\t@python3 reach.py\nnames:\n\t@cat /proc/net/dev\n")
        async with rig.connect("stdio", "legacy") as client:
            assert "connected" not in (await answer(client, "ci_task", name="reach"))["output"]
            names = (await answer(client, "ci_task", name="names"))["output"]
            assert [line.split(":")[0].strip() for line in names.splitlines() if ":" in line] == ["lo"]
            assert "allow_network" in (await refused(client, "ci_restore")).message
        rig.configure(allow_network=True)
        async with rig.connect("stdio", "legacy") as client:
            assert (await answer(client, "ci_task", name="reach"))["output"].strip() == "connected"


async def test_a_toolchain_is_read_and_run_and_not_written(rig: WorkstationRig) -> None:
    tools = rig.home / "tools/bin"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "make").write_text(f"#!/bin/sh\necho from the toolchain\necho x >{tools}/new\n")
    (tools / "make").chmod(0o755)
    (rig.src / "Makefile").write_text(MAKEFILE)
    rig.configure(toolchains=["~/tools"])
    async with rig.connect("stdio", "legacy") as client:
        tested = await answer(client, "ci_test")
        await refused(client, "filesystem_read", path=str(tools / "make"))
    assert tested["output"].splitlines()[0] == "from the toolchain"
    assert not (tools / "new").exists()


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_a_style_of_names_is_configured_and_all_are_understood(rig: WorkstationRig, way: str, mode: str) -> None:
    (rig.src / "file").write_text("text")
    rig.configure(tool_name_style="dot")
    async with rig.connect(way, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "filesystem.read" in names
        assert not any("/" in name for name in names)
        for name in ("filesystem/read", "filesystem.read", "filesystem_read"):
            assert (await answer(client, name, path="file"))["text"] == "text"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_ends_what_it_runs(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "Makefile").write_text(SLOW)
    async with rig.connect("stdio", mode) as client:
        call = asyncio.create_task(client.call_tool("ci_build", {"timeout_seconds": 600}))
        await happens((rig.src / "begun").exists)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await happens(lambda: not rig.commands())
        assert len((await client.list_tools()).tools) > 20


@pytest.mark.parametrize("mode", ERAS)
async def test_when_the_client_goes_nothing_is_left(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "Makefile").write_text(SLOW)
    others, before = rig.running(), rig.descriptors()
    async with rig.connect("stdio", mode) as client:
        call = asyncio.create_task(client.call_tool("ci_build", {"timeout_seconds": 600}))
        await happens((rig.src / "begun").exists)
    await asyncio.gather(call, return_exceptions=True)
    await happens(lambda: rig.running() <= others)
    await happens(lambda: all(rig.descriptors()[name] <= before[name] for name in before))
