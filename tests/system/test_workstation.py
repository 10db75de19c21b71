# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workstation on a booted system, from the packages: a user's directories for the user's clients, and no others."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.system.conversation import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import CompletedProcess

    from tests.system.conversation import Conversation
    from tests.system.machine import Machine

pytestmark = pytest.mark.skipif(os.environ.get("MCPD_SYSTEM_FROM") == "tree", reason="there are no packages")

HOME: Final = "/home/alice"
SRC: Final = f"{HOME}/src"
STATE: Final = f"{HOME}/.local/state/mcp/workstation"
IDENTITY: Final = "[user]\n\tname = Alice\n\temail = alice@localhost.invalid\n"
MAKE: Final = f"""#!/bin/sh
echo "making $*"
cat {HOME}/secret 2>/dev/null && echo leaked
ls /run/user/*/bus 2>/dev/null && echo "a bus"
echo escaped 2>/dev/null >{HOME}/.profile && echo "wrote outside"
echo made >made
echo 'main.c:3:7: error: expected expression'
exit 2
"""
"""A build that looks for a way out, and fails as builds do."""

OBEYED: Final = f"""[core]
	repositoryformatversion = 1
	fsmonitor = "echo >{HOME}/obeyed; false"
"""
"""The configuration of a repository that runs a program whenever git looks at its files."""


def call(machine: Machine, tool: str, user: str = "alice", **arguments: Any) -> CompletedProcess[str]:
    return machine.mcpctl("call", "workstation", tool, json.dumps(arguments), "--json", user=user, check=False)


def answer(machine: Machine, tool: str, **arguments: Any) -> dict[str, Any]:
    done = call(machine, tool, **arguments)
    assert done.returncode == 0, (tool, done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)["structuredContent"]
    return found


def refused(machine: Machine, tool: str, **arguments: Any) -> str:
    done = call(machine, tool, **arguments)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def succeed(session: Conversation, tool: str, **arguments: Any) -> None:
    """Call *tool* in *session*, successfully."""
    result = session.request("tools/call", name=tool, arguments=arguments)
    assert not result.get("isError"), (tool, result)


def is_obeyed(machine: Machine, directory: str) -> bool:
    """Whether ``git status`` in *directory* below the root runs the program of :data:`OBEYED`."""
    machine.run("git", "-C", f"{SRC}/{directory}", "status", user="alice", check=False)
    return machine.run("test", "-e", f"{HOME}/obeyed", check=False).returncode == 0


@pytest.fixture
def src(machine: Machine) -> Iterator[str]:
    """A directory of alice's that is configured, beside things that are not."""
    machine.run("mkdir", "-p", SRC, user="alice")
    machine.write(f"{SRC}/hello.txt", "Hello\nworld\n", owner="alice")
    machine.write(f"{HOME}/secret", "nobody's business\n", 0o600, "alice")
    machine.write(f"{HOME}/dotfiles/gitconfig", IDENTITY, owner="alice")
    machine.run("ln", "-sfn", "dotfiles/gitconfig", f"{HOME}/.gitconfig", user="alice")
    machine.mcpctl("config", "set", "workstation", 'roots=["~/src"]', "tools=all", user="alice")
    yield SRC
    for key in ("roots", "tools", "toolchains"):
        machine.mcpctl("config", "unset", "workstation", key, user="alice")
    machine.run("rm", "-rf", SRC, f"{HOME}/secret", f"{HOME}/dotfiles", f"{HOME}/.gitconfig", f"{HOME}/tools",
                f"{HOME}/obeyed")  # fmt: skip


def test_it_is_there_for_everybody_and_says_what_to_set(machine: Machine) -> None:
    for user in ("alice", "bob"):
        found = json.loads(machine.mcpctl("list", "--json", user=user).stdout)["servers"]
        assert {each["id"]: each["state"] for each in found}["workstation"] == "installed"
    tools = json.loads(machine.mcpctl("tools", "workstation", "--json", user="bob").stdout)["tools"]
    assert {"filesystem_read", "git_status", "ci_build"} <= {each["name"] for each in tools}
    said = call(machine, "filesystem_read", "bob", path="/etc/passwd").stdout
    assert "mcpctl config set workstation" in said


def test_what_is_configured_can_be_worked_on_and_nothing_else(machine: Machine, src: str) -> None:
    read = answer(machine, "filesystem_read", path="hello.txt")
    assert (read["text"], read["path"]) == ("Hello\nworld\n", f"{src}/hello.txt")
    written = answer(machine, "filesystem_write", path=f"{src}/new/file.txt", content="new\n", create_parents=True)
    assert written["created"] is True
    assert machine.run("stat", "--format=%U", f"{src}/new/file.txt").stdout.strip() == "alice"
    edits = [{"old_text": "world", "new_text": "machine"}]
    assert answer(machine, "filesystem_edit", path="hello.txt", edits=edits)["replacements"] == 1
    assert machine.read(f"{src}/hello.txt") == "Hello\nmachine\n"
    found = answer(machine, "filesystem_search", pattern="mach.ne")
    assert [(match["path"], match["line"]) for match in found["matches"]] == [(f"{src}/hello.txt", 2)]
    assert found["engine"] == "ripgrep"

    machine.run("ln", "-s", f"{HOME}/secret", f"{src}/link", user="alice")
    machine.run("ln", f"{HOME}/secret", f"{src}/hard", user="alice")
    for path, said in (
        (f"{HOME}/secret", "outside"),
        ("/etc/passwd", "outside"),
        ("../secret", "'..'"),
        ("link", "link"),
        ("hard", "allow_hard_links"),
    ):
        assert said in refused(machine, "filesystem_read", path=path)
    assert "outside" in refused(machine, "filesystem_write", path=f"{HOME}/.bashrc", content="")
    assert "outside" in refused(machine, "filesystem_delete", path=f"{HOME}/secret")
    assert machine.read(f"{HOME}/secret") == "nobody's business\n"


def test_what_is_deleted_is_in_the_trash_of_its_root(machine: Machine, src: str) -> None:
    gone = answer(machine, "filesystem_delete", path="hello.txt")
    assert machine.run("test", "-e", f"{src}/hello.txt", check=False).returncode == 1
    uid = machine.uid("alice")
    assert gone["trashed_to"] == f"{src}/.Trash-{uid}/files/hello.txt"
    assert machine.read(gone["trashed_to"]) == "Hello\nworld\n"
    assert "Path=hello.txt\n" in machine.read(f"{src}/.Trash-{uid}/info/hello.txt.trashinfo")
    assert machine.run("stat", "--format=%U %a", f"{src}/.Trash-{uid}").stdout.strip() == "alice 700"


def test_git_knows_its_user_and_runs_no_hook(machine: Machine, src: str) -> None:
    machine.run("git", "init", "-q", "-b", "main", src, user="alice")
    hook = f"#!/bin/sh\necho ran >{src}/ran\n"
    machine.write(f"{src}/.git/hooks/pre-commit", hook, 0o755, "alice")
    assert answer(machine, "git_current_branch", path=".")["branch"] == "main"
    answer(machine, "git_add", path=".", paths=["hello.txt"])
    made = answer(machine, "git_commit", path=".", message="Say hello")
    assert made["subject"] == "Say hello"
    log = machine.run("git", "-C", src, "log", "--format=%H %an %s", user="alice").stdout
    assert log == f"{made['commit']} Alice Say hello\n"
    assert machine.run("test", "-e", f"{src}/ran", check=False).returncode == 1
    assert "git" in refused(machine, "filesystem_write", path=".git/config", content="")


def test_a_build_runs_in_the_roots_with_a_toolchain_and_finds_no_way_out(machine: Machine, src: str) -> None:
    machine.write(f"{HOME}/tools/bin/make", MAKE, 0o755, "alice")
    machine.write(f"{src}/Makefile", "all:\n\ttrue\n", owner="alice")
    profile = machine.read(f"{HOME}/.profile")
    machine.mcpctl("config", "set", "workstation", 'toolchains=["~/tools"]', user="alice")
    built = answer(machine, "ci_build", path=".")
    assert (built["exit_code"], built["success"]) == (2, False)
    assert built["output"].splitlines()[0].startswith("making")
    for trace in ("leaked", "a bus", "wrote outside", "nobody's business"):
        assert trace not in built["output"]
    (diagnostic,) = built["diagnostics"]
    assert (diagnostic["file"], diagnostic["line"], diagnostic["severity"]) == ("main.c", 3, "error")
    assert machine.read(f"{src}/made") == "made\n"
    assert machine.read(f"{HOME}/.profile") == profile
    assert "allow_network" in refused(machine, "ci_restore", path=".")


def test_a_build_plants_nothing_that_the_users_git_runs(machine: Machine, src: str) -> None:
    machine.run("git", "init", "-q", f"{src}/project", user="alice")
    program = f"{src}/project/planted"
    machine.write(program, f"#!/bin/sh\necho ran >{HOME}/ran\n", 0o755, "alice")
    plant = (
        f"cp planted .git/hooks/post-index-change; git config core.fsmonitor {program}; mv .git git; mv $PWD $PWD.old"
    )
    machine.write(f"{HOME}/tools/bin/make", f"#!/bin/sh\n{plant}\necho made >made\n", 0o755, "alice")
    machine.write(f"{src}/project/Makefile", "all:\n\ttrue\n", owner="alice")
    machine.mcpctl("config", "set", "workstation", 'toolchains=["~/tools"]', user="alice")
    built = answer(machine, "ci_build", path="project")
    assert built["output"].count("Read-only file system") == 2, built["output"]
    assert built["output"].count("Device or resource busy") == 2, built["output"]
    assert machine.read(f"{src}/project/made") == "made\n"
    machine.run("git", "-C", f"{src}/project", "add", "made", user="alice")
    machine.run("git", "-C", f"{src}/project", "status", user="alice")
    assert machine.run("test", "-e", f"{HOME}/ran", check=False).returncode == 1


def test_the_file_tools_make_no_git_directory_that_the_users_git_obeys(machine: Machine, src: str) -> None:
    machine.run("git", "init", "-q", "-b", "main", src, user="alice")
    with running(machine, "workstation", "alice") as session:
        for place in ("x/objects", "x/refs", "d"):
            succeed(session, "filesystem_mkdir", path=place)
        config = f"{OBEYED}[extensions]\n\tworktreeConfig = true\n"
        succeed(session, "filesystem_write", path="x/config", content=config)
        succeed(session, "filesystem_write", path="d/commondir", content="../x\n")
        worktree = "[core]\n\tbare = false\n\tworktree = ..\n"
        succeed(session, "filesystem_write", path="d/config.worktree", content=worktree)
    refused(machine, "filesystem_write", path="d/HEAD", content="ref: refs/heads/main\n")
    assert not is_obeyed(machine, "x")
    assert not is_obeyed(machine, "d")
    # The same directory is one that git obeys, once it is complete.
    machine.write(f"{src}/d/HEAD", "ref: refs/heads/main\n", owner="alice")
    assert is_obeyed(machine, "d")


def test_a_checkout_completes_no_git_directory_that_the_users_git_obeys(machine: Machine, src: str) -> None:
    machine.run("git", "init", "-q", "-b", "main", src, user="alice")
    machine.run("git", "-C", src, "commit", "-q", "--allow-empty", "-m", "Begin", user="alice")
    with running(machine, "workstation", "alice") as session:
        succeed(session, "git_checkout", path=".", create=True, revision="other")
        succeed(session, "filesystem_write", path="d/HEAD", content="ref: refs/heads/main\n", create_parents=True)
        succeed(session, "git_add", path=".", paths=["d/HEAD"])
        succeed(session, "git_commit", path=".", message="A file called HEAD")
        succeed(session, "git_checkout", path=".", revision="main")
        for place in ("d/objects", "d/refs"):
            succeed(session, "filesystem_mkdir", path=place)
        config = f"{OBEYED}\tbare = false\n\tworktree = ..\n"
        succeed(session, "filesystem_write", path="d/config", content=config)
    refused(machine, "git_checkout", path=".", revision="other")
    assert not is_obeyed(machine, "d")
    # The user's own git writes there, and obeys it from then on.
    machine.run("git", "-C", src, "checkout", "-q", "other", user="alice")
    assert is_obeyed(machine, "d")


def test_every_call_is_in_the_audit_trail_without_what_was_written(machine: Machine, src: str) -> None:
    answer(machine, "filesystem_write", path="note.txt", content="s3cr3t content")
    refused(machine, "filesystem_read", path="/etc/shadow")
    trail = f"{STATE}/audit.jsonl"
    lines = [json.loads(line) for line in machine.read(trail).splitlines()]
    written, denied = (line for line in lines[-2:] if line["event"] == "end")
    assert (written["tool"], written["path"], written["ok"]) == ("filesystem_write", "/home/alice/src/note.txt", True)
    assert (denied["tool"], denied["path"], denied["ok"]) == ("filesystem_read", "/etc/shadow", False)
    assert "s3cr3t content" not in machine.read(trail)
    assert machine.run("stat", "--format=%U %a", trail).stdout.strip() == "alice 600"


def test_the_system_has_no_home_to_work_in(machine: Machine) -> None:
    done = call(machine, "filesystem_list", "root")
    assert done.returncode != 0
    assert "a system server has no home directory" in done.stderr
