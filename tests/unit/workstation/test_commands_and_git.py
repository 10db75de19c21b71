# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds and tests leave alone what git obeys later, when the user runs it outside of all this."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import LimitExceeded, NotAuthorized, NotSupported
from mcpd.servers.commands import repositories
from mcpd.servers.commands.repositories import LEVELS
from mcpd.servers.workstation.ci.tools import BUILD
from mcpd.servers.workstation.filesystem.moving import DELETE, MOVE
from mcpd.servers.workstation.git.committing import COMMIT
from mcpd.servers.workstation.processes import Command, Completed
from tests.unit.ensembles.confined_parts import without_landlock
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.workstation.jail import Jail

pytestmark = pytest.mark.process

NAMESPACE = "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)'"


@pytest.fixture
def project(bench: Workbench) -> MadeRepository:
    """A repository two levels below the root."""
    made = MadeRepository.make(bench.root / "group/project")
    made.commit(files={"file": "one\n"})
    (made.path / ".git/hooks").mkdir()
    return made


async def shell(bench: Workbench, script: str, directory: str = "group/project", jail: Jail | None = None) -> Completed:
    """What a shell that may write in the roots does in *directory*."""
    call = bench.new_call(jail=jail)
    return await call.run(Command(("sh", "-c", script), call.jail.place(directory), writes=True))


def state(directory: Path) -> dict[str, tuple[int, bytes]]:
    """What is in *directory*."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b"",
        )
        for path in (directory, *directory.rglob("*"))
    }


ATTACKS = {
    "a hook": "echo x >.git/hooks/post-checkout",
    "by its absolute path": "echo x >$PWD/.git/hooks/post-checkout",
    "by the working directory that was opened before": "cd /proc/self/cwd && echo x >.git/hooks/post-checkout",
    "by the parent's root": "echo x >/proc/$PPID/root$PWD/.git/hooks/post-checkout",
    "the configuration": "git config core.fsmonitor /bin/false",
    "attributes": "mkdir -p .git/info && echo '* filter=x' >.git/info/attributes",
    "another configuration": "echo /elsewhere >.git/commondir",
    "a mode": "chmod 777 .git/config",
    "a hard link": "ln .git/config config && echo x >>config",
    "through a symlink": "ln -s .git link && echo x >link/config",
    "another .git": "mv .git git && cp -r git .git",
    "another project": "mv $PWD ${PWD}2 && cp -r ${PWD}2 $PWD",
    "another directory above": "cd ../.. && mv group group2 && cp -r group2 group",
    "to remove it": "rm -rf .git",
    "to remove the directories above": "cd ../.. && rm -rf group/project/.git",
    "to unmount it": "umount .git || umount -l $PWD",
    "to mount it again": "mount -o remount,bind,rw .git",
    "a user namespace": f"unshare --user true || {NAMESPACE}",
    "a user namespace and a mount": "unshare --user --map-root-user --mount umount -l $PWD/.git",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_command_changes_nothing_of_gits(bench: Workbench, project: MadeRepository, attack: str) -> None:
    before = state(project.path / ".git")
    done = await shell(bench, f"{attack}; test $? != 0 && echo refused")
    assert done.stdout == b"refused\n"
    assert state(project.path / ".git") == before


async def test_what_a_command_changes_otherwise_stays(bench: Workbench, project: MadeRepository) -> None:
    script = """
        mkdir -p build && echo new >build/file && mv build/file file && ln file link && chmod 600 file
        mkdir ../other && mv build ../other/ && echo $? && git status --short && git describe --always && id -u
        grep -c '^Cap[IPEA].*:.0*$' /proc/self/status
    """
    done = await shell(bench, script)
    assert done.stderr == b""
    assert done.stdout.decode().split("\n") == [
        "0", " M file", "?? link", project.head()[:7], str(os.getuid()), "4", ""
    ]  # fmt: skip
    assert (project.path / "file").read_text() == "new\n"
    assert (project.path.parent / "other/build").is_dir()


async def test_a_build_plants_no_hook(bench: Workbench, project: MadeRepository) -> None:
    project.write("Makefile", "all:\n\techo x >.git/hooks/post-index-change; echo done\n")
    result = (await bench.call(BUILD, path="group/project")).result
    assert "Read-only file system" in result.model_dump()["output"]
    assert not (project.path / ".git/hooks/post-index-change").exists()


async def test_with_the_setting_it_may(bench: Workbench, project: MadeRepository) -> None:
    with Workbench.of(bench, commands_write_git=True) as allowing:
        assert (await shell(allowing, "git config core.fsmonitor /bin/false && mv .git git")).code == 0
    assert not (project.path / ".git").exists()


async def test_the_git_tools_may(bench: Workbench, project: MadeRepository) -> None:
    project.write("file", "two\n")
    await bench.call(COMMIT, path="group/project", message="Two", all=True)
    assert project.status() == []


async def test_repositories_of_all_kinds_are_left_alone(bench: Workbench, project: MadeRepository) -> None:
    root = bench.root
    project.git("worktree", "add", "--quiet", str(root / "worktree"))
    project.git("init", "--quiet", "--bare", str(root / "bare"))
    project.git("init", "--quiet", f"--separate-git-dir={root / 'separate'}", str(root / "work"))
    project.git("submodule", "--quiet", "add", str(project.path), "module")
    (root / "linked").mkdir()
    (root / "linked/.git").symlink_to("../bare")
    (root / "empty/.git").mkdir(parents=True)
    (root / "common").mkdir()
    for part in ("HEAD", "commondir"):
        (root / "common" / part).touch()
    deep = root.joinpath(*"abcd")
    MadeRepository.make(deep)
    script = """
        for path in worktree/.git bare/config bare/new separate/config work/.git group/project/module/.git \
            group/project/.git/modules/module/config linked/.git empty/.git/config common/config a/b/c/d/.git/config; do
            { echo x >$path || rm $path || mv $path $path.moved; } 2>/dev/null && echo $path
        done
    """
    before = state(root)
    done = await shell(bench, script, ".")
    assert done.stdout == b""
    assert state(root) == before


@pytest.mark.parametrize("names", [(".Git",), (".git.",), ("head", "Commondir"), ("Head", "OBJECTS", "refs")])
async def test_a_repository_is_left_alone_if_only_some_file_systems_make_it_one(
    bench: Workbench, names: tuple[str, ...]
) -> None:
    directory = bench.root / "directory"
    for name in names:
        (directory / name).mkdir(parents=True, exist_ok=True)
    done = await shell(bench, f"echo x >{names[0]}/config || echo refused", "directory")
    assert done.stdout == b"refused\n"


async def test_one_that_is_cloned_meanwhile_is_left_alone(bench: Workbench, project: MadeRepository) -> None:
    assert (await shell(bench, "true")).code == 0
    MadeRepository.make(bench.root / "group/later/clone")
    done = await shell(bench, "echo x >../later/clone/.git/config || echo refused")
    assert done.stdout == b"refused\n"


async def test_one_around_the_directory_and_one_below_are_found_however_deep(
    bench: Workbench, project: MadeRepository
) -> None:
    deep = project.path.joinpath(*"123456789")
    top = MadeRepository.make(deep)
    MadeRepository.make(deep.joinpath(*"abcd"[:LEVELS]))
    (top.path / "directory").mkdir()
    done = await shell(
        bench,
        "echo x >../.git/config || echo refused; echo x >../a/b/c/d/.git/config || echo refused; echo x >../new",
        str((deep / "directory").relative_to(bench.root)),
    )
    assert done.stdout == b"refused\nrefused\n"
    assert (deep / "new").read_text() == "x\n"


async def test_a_client_s_narrower_roots_are_looked_into(bench: Workbench, project: MadeRepository) -> None:
    jail = bench.roots_found.narrowed([project.path.as_uri()])
    done = await shell(bench, "mv .git git || echo refused; echo x >new", ".", jail=jail)
    assert done.stdout == b"refused\n"
    assert (project.path / "new").exists()


async def test_a_repository_is_not_moved_to_where_it_is_not_found(bench: Workbench, project: MadeRepository) -> None:
    (bench.root / "a/b/c").mkdir(parents=True)
    MadeRepository.make(bench.root / "1/2/3/4/5/beyond")
    with pytest.raises(
        NotAuthorized, match=r"project/\.git would be more than 4 directories below.*commands_write_git"
    ):
        await bench.call(MOVE, source="group", destination="a/b/c/d")
    await bench.call(MOVE, source="group/project", destination="a/b/c/d")
    await bench.call(MOVE, source="1/2/3/4/5", destination="1/2/3/4/6")
    assert (bench.root / "a/b/c/d/.git").is_dir()
    with Workbench.of(bench, commands_write_git=True) as allowing:
        await allowing.call(MOVE, source="a", destination="group/a")


async def test_a_repository_is_not_put_into_the_trash_where_it_is_not_found(
    bench: Workbench, project: MadeRepository
) -> None:
    MadeRepository.make(bench.root / "group/further/deep")
    with pytest.raises(NotAuthorized, match=r"further/deep/\.git would be more than 4 directories below"):
        await bench.call(DELETE, path="group")
    assert not list(bench.root.glob(".Trash-*"))
    found = (await bench.call(DELETE, path="group/project")).result.model_dump()["trashed_to"]
    done = await shell(bench, f"echo x >{found}/.git/config || echo refused", ".")
    assert done.stdout == b"refused\n"


async def test_a_directory_that_was_made_unreadable_hides_none(bench: Workbench, project: MadeRepository) -> None:
    assert (await shell(bench, "chmod 300 .", "group")).code == 0
    with pytest.raises(NotAuthorized, match=r"group cannot be read.*chmod u\+rx.*commands_write_git"):
        await shell(bench, "true")
    project.path.parent.chmod(0o755)


async def test_more_directories_than_can_be_looked_into_are_told(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "MOST_DIRECTORIES", 10)
    for number in range(10):
        (bench.root / f"directory{number}").mkdir()
    with pytest.raises(LimitExceeded, match=r"more than 10 directories.*commands_write_git"):
        await shell(bench, "true", ".")


async def test_without_landlock_it_is_left_alone_in_mcpds_sandbox_too(
    bench: Workbench, project: MadeRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_landlock(bench.directory, monkeypatch)
    with Workbench.of(bench, confined=True) as confined:
        attacks = "echo x >.git/config; mv ../../group ../../other; umount -l $PWD/.git; echo x >new"
        assert (await shell(confined, attacks)).code == 0
    assert project.status() == ["?? new"]


@pytest.fixture
def without_namespaces(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keepers see a kernel, or a container, that refuses user namespaces."""
    python = bench.directory / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -B -c 'from mcpd.servers import seccomp;"
        " seccomp.install_limits(); from mcpd.servers.commands import keeper; keeper.main()'\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("without_namespaces")
async def test_where_the_kernel_cannot_it_is_refused(bench: Workbench, project: MadeRepository) -> None:
    with pytest.raises(NotSupported, match=r"git directories.*user namespaces.*commands_write_git"):
        await shell(bench, "echo x >.git/config")
    with Workbench.of(bench, commands_write_git=True) as allowing:
        assert (await shell(allowing, "true")).code == 0


@pytest.mark.usefixtures("without_namespaces")
async def test_without_a_repository_it_runs_all_the_same(bench: Workbench) -> None:
    assert (await shell(bench, "echo x >new", ".")).code == 0


@pytest.mark.usefixtures("without_namespaces")
async def test_git_runs_where_there_are_no_user_namespaces(bench: Workbench, project: MadeRepository) -> None:
    MadeRepository.make(bench.root / "other")
    project.write("file", "two\n")
    await bench.call(COMMIT, path="group/project", message="two", all=True)
    assert project.status() == []
