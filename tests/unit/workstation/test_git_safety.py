# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a hostile repository cannot make git do: run anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import McpdError, NotAuthorized
from mcpd.servers.workstation.git.checkout import CHECKOUT
from mcpd.servers.workstation.git.committing import ADD
from mcpd.servers.workstation.git.diff import DIFF
from mcpd.servers.workstation.git.running import find, git
from mcpd.servers.workstation.git.stashing import STASH
from mcpd.servers.workstation.git.status import STATUS
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_attacks import (
    Attack,
    Prepare,
    attributes,
    call,
    canary,
    commit,
    config,
    everything,
    is_run,
    project,
    push,
    running,
    switch,
)
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


def hook(name: str) -> Prepare:
    def prepare(made: MadeRepository, command: str) -> None:
        path = made.write(f".git/hooks/{name}", f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
        made.write("file", "two\n")

    return prepare


def hooks_path(made: MadeRepository, command: str) -> None:
    made.write("hooks/pre-commit", f"#!/bin/sh\n{command}\n").chmod(0o755)
    made.git("config", "core.hooksPath", "hooks")


def merging(made: MadeRepository, command: str) -> None:
    made.commit("Attributes", {".gitattributes": "file merge=evil\n", "file": "1\n2\n3\n4\n5\n"})
    made.write("file", "1\n2\n3\n4\nfive\n")
    made.git("stash")
    made.commit("Other", {"file": "one\n2\n3\n4\n5\n"})
    made.git("config", "merge.evil.driver", command)


def smudged(made: MadeRepository, command: str) -> None:
    made.commit("Attributes", {".gitattributes": "file filter=evil\n"})
    made.git("config", "filter.evil.smudge", f"{command}; cat")
    (made.path / "file").unlink()


def signed(made: MadeRepository, command: str) -> None:
    made.write("gpg", f"#!/bin/sh\n{command}\n").chmod(0o755)
    tree = made.git("rev-parse", "HEAD^{tree}")
    people = "author A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000"
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----"
    text = f"tree {tree}\n{people}\n{signature}\n\nSigned\n"
    made.git("reset", "--hard", made.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=text.encode()))
    made.git("config", "log.showSignature", "true")
    made.git("config", "gpg.program", str(made.path / "gpg"))


def signing(key: str, *entries: tuple[str, str]) -> Prepare:
    def prepare(made: MadeRepository, command: str) -> None:
        program = made.write(".git/program", f"#!/bin/sh\n{command}\nexit 1\n")
        program.chmod(0o755)
        config(("commit.gpgSign", "true"), (key, str(program)), *entries)(made, command)

    return prepare


def in_the_working_trees_own(made: MadeRepository, command: str) -> None:
    made.commit("Attributes", {".gitattributes": "file filter=evil\n"})
    made.git("config", "extensions.worktreeConfig", "true")
    made.git("config", "--worktree", "filter.evil.clean", f"{command}; cat")
    made.write("file", "two\n")


def with_filter(name: str) -> Attack:
    return Attack(
        f"filter {name}",
        attributes(f"file filter={name}", (f"filter.{name}.clean", "CMD; cat")),
        call(ADD, all=True),
    )


CLEAN = attributes("file filter=evil", ("filter.evil.clean", "CMD; cat"))
TEXTCONV = attributes("file diff=evil", ("diff.evil.textconv", "CMD; cat"))


ATTACKS = [
    *(Attack(f"hook {name}", hook(name), commit) for name in (
        "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "reference-transaction",
    )),
    Attack("hook post-index-change", hook("post-index-change"), call(ADD, all=True)),
    Attack("hook post-checkout", hook("post-checkout"), switch),
    Attack("hook reference-transaction of a stash", hook("reference-transaction"), push),
    Attack("core.hooksPath", hooks_path, commit),
    Attack("core.fsmonitor", config(("core.fsmonitor", "CMD; false")), call(STATUS)),
    Attack("core.fsmonitor for adding", config(("core.fsmonitor", "CMD; false")), call(ADD, all=True)),
    Attack("clean", CLEAN, call(ADD, all=True)),
    Attack("clean of status", CLEAN, call(STATUS)),
    Attack("clean of diff", CLEAN, call(DIFF)),
    Attack("clean of commit", CLEAN, everything),
    Attack("clean of stash", CLEAN, push),
    Attack("process", attributes("file filter=evil", ("filter.evil.process", "CMD")), call(ADD, all=True)),
    Attack(
        "process and required",
        attributes("file filter=evil", ("filter.evil.process", "CMD"), ("filter.evil.required", "true")),
        call(STATUS),
    ),
    Attack("smudge", smudged, call(CHECKOUT, paths=["file"])),
    Attack("config.worktree", in_the_working_trees_own, call(ADD, all=True)),
    *(with_filter(name) for name in ("UPPER", "a=b", "a.b.c", "ünï", "x#y;z", "-")),
    Attack("textconv of diff", TEXTCONV, running("diff")),
    Attack("textconv of blame", TEXTCONV, running("blame", "file")),
    Attack("textconv of log", TEXTCONV, running("log", "-p")),
    Attack("diff driver", attributes("file diff=evil", ("diff.evil.command", "CMD")), running("diff")),
    Attack("diff.external", attributes("file text", ("diff.external", "CMD")), running("diff")),
    Attack("merge driver", merging, call(STASH, action="apply")),
    Attack("gpg.program", signing("gpg.program"), commit),
    Attack("gpg.ssh.program", signing("gpg.ssh.program", ("gpg.format", "ssh"), ("user.signingKey", "key")), commit),
    Attack("gpg.ssh.defaultKeyCommand", signing("gpg.ssh.defaultKeyCommand", ("gpg.format", "ssh")), commit),
    Attack("gpg.x509.program", signing("gpg.x509.program", ("gpg.format", "x509")), commit),
    Attack("log.showSignature", signed, running("log", "--show-signature")),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_nothing_is_run_that_a_repository_names(tmp_path: Path, attack: Attack) -> None:
    with Workbench(tmp_path) as bench:
        assert not await is_run(bench, attack)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_allow_hooks_lets_it_run(tmp_path: Path, attack: Attack) -> None:
    with Workbench(tmp_path, allow_hooks=True) as bench:
        assert await is_run(bench, attack)


MISSING = "1234567890" * 4
FETCHES = [
    Attack(
        "a transport that is a command",
        config(("protocol.ext.allow", "always"), ("remote.origin.url", "ext::sh -c CMD% >&2")),
        running("cat-file", "-p", MISSING),
    ),
    Attack(
        "the program at the other end",
        config(("remote.origin.url", "source"), ("remote.origin.uploadpack", "CMD;")),
        running("cat-file", "-p", MISSING),
    ),
    Attack(
        "ssh",
        config(("remote.origin.url", "ssh://example.org/x"), ("core.sshCommand", "CMD;"), ("ssh.variant", "simple")),
        running("cat-file", "-p", MISSING),
    ),
]
PROMISED = (
    ("core.repositoryFormatVersion", "1"),
    ("extensions.partialClone", "origin"),
    ("remote.origin.promisor", "true"),
    ("remote.origin.partialCloneFilter", "blob:none"),
)


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("attack", FETCHES, ids=lambda attack: attack.name)
async def test_nothing_is_fetched_even_with_hooks(tmp_path: Path, attack: Attack, hooks: bool) -> None:
    with Workbench(tmp_path, allow_hooks=hooks) as bench:
        made = project(bench)
        MadeRepository.make(made.path / "source")
        path = canary(bench)
        config(*PROMISED)(made, "")
        attack.prepare(made, f"touch% {path}" if "transport" in attack.name else f"touch {path}")
        made.git("cat-file", "-p", MISSING, check=False, GIT_ALLOW_PROTOCOL="ext:file:ssh")
        assert path.exists(), "the attack is one"
        path.unlink()
        with pytest.raises(McpdError):
            await attack.act(bench)
        assert not path.exists()


NEVER = [
    Attack("alias", config(("alias.status", "!CMD"), ("alias.commit", "!CMD")), commit),
    Attack("core.editor", config(("core.editor", "CMD;")), running("commit", "--allow-empty")),
    Attack("core.pager", config(("core.pager", "CMD; cat"), ("pager.log", "true")), running("-p", "log")),
    Attack("pager.log", config(("pager.log", "CMD; cat")), running("log")),
    Attack("trailer", config(("trailer.x.command", "CMD"), ("trailer.x.ifmissing", "add")), commit),
    Attack("credential.helper", config(("credential.helper", "!CMD")), commit),
    Attack("gc", config(("gc.auto", "1"), ("gc.recentObjectsHook", "CMD")), commit),
]


@pytest.mark.parametrize("attack", NEVER, ids=lambda attack: attack.name)
async def test_what_git_itself_would_run_is_not_run(tmp_path: Path, attack: Attack) -> None:
    with Workbench(tmp_path) as bench:
        assert not await is_run(bench, attack)


@pytest.mark.parametrize(
    "key", ["include.path", "includeIf.onbranch:main.path", "includeIf.gitdir:/.path", "INCLUDE.path"]
)
async def test_a_configuration_in_other_files_is_refused(tmp_path: Path, key: str) -> None:
    with Workbench(tmp_path) as bench:
        project(bench).git("config", key, "../more")
        with pytest.raises(NotAuthorized, match=r"includes other files .*allow_hooks"):
            await bench.call(STATUS, path="project")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    with Workbench(allowed, allow_hooks=True) as bench:
        project(bench).git("config", key, "../more")
        await bench.call(STATUS, path="project")


async def test_more_than_can_be_switched_off_is_refused(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        with (made.path / ".git" / "config").open("a") as file:
            file.writelines(f'[filter "{number}"]\nclean = x\n' for number in range(1000))
        with pytest.raises(NotAuthorized, match="more than 500"):
            await bench.call(STATUS, path="project")


async def test_a_file_whose_filter_is_off_never_gets_into_the_repository_as_it_is(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        made.commit(files={".gitattributes": "secret filter=crypt\n"})
        made.git("config", "filter.crypt.clean", "tr a-z A-Z")
        made.git("config", "filter.crypt.smudge", "tr A-Z a-z")
        made.write("secret", "in the clear\n")
        for act in (call(ADD, all=True), call(STASH, action="push", include_untracked=True)):
            with pytest.raises(McpdError, match=r"filter 'crypt' failed.*allow_hooks"):
                await act(bench)
        clear = made.git("hash-object", "--no-filters", "secret")
        with pytest.raises(AssertionError):
            made.git("cat-file", "-e", clear)
        assert (await bench.call(STATUS, path="project")).result.model_dump()["untracked"] == ["secret"]


@pytest.mark.parametrize("place", [".gitconfig", ".config/git/config"])
async def test_the_users_own_filters_run_whatever_the_repository_says(tmp_path: Path, place: str) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        path = bench.home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('[filter "upper"]\nclean = tr a-z A-Z\nrequired = true\n')
        made.commit(files={".gitattributes": "new filter=upper\n"})
        for what in ("clean", "process"):
            made.git("config", f"filter.upper.{what}", f"touch '{canary(bench)}'; cat")
        made.git("config", "--unset", "filter.upper.process")
        made.write("new", "text\n")
        await bench.call(ADD, path="project", all=True)
        assert made.git("cat-file", "-p", ":new") == "TEXT"
        assert not canary(bench).exists()


async def test_the_users_own_list_of_ignored_files_counts(tmp_path: Path) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        (bench.home / ".gitconfig").write_text("[core]\nexcludesFile = ~/.ignored\n")
        (bench.home / ".ignored").write_text("*.o\n")
        made.write("a.o")
        assert (await bench.call(STATUS, path="project")).result.model_dump()["untracked"] == []
        (bench.home / ".gitconfig").unlink()
        (bench.home / ".config" / "git").mkdir(parents=True)
        (bench.home / ".config" / "git" / "ignore").write_text("*.o\n")
        assert (await bench.call(STATUS, path="project")).result.model_dump()["untracked"] == []


@pytest.mark.parametrize("key", ["core.excludesFile", "core.attributesFile", "mailmap.file", "commit.template"])
async def test_a_repository_names_no_files_outside_of_it(tmp_path: Path, key: str) -> None:
    with Workbench(tmp_path) as bench:
        made = project(bench)
        (bench.roots[0] / "elsewhere").write_text("*\n")
        made.git("config", key, str(bench.root / "elsewhere"))
        one = bench.new_call()
        done = await git(one, await find(one, "project"), "config", "--get", key)
        assert done.stdout == b"/dev/null\n"


KEYS = (
    ("filter", "{}", "clean"), ("filter", "{}", "smudge"), ("filter", "{}", "process"), ("diff", "{}", "textconv"),
    ("diff", "{}", "command"), ("merge", "{}", "driver"), ("trailer", "{}", "command"), ("trailer", "{}", "cmd"),
    ("hook", "{}", "command"), ("submodule", "{}", "update"), ("submodule", "{}", "ignore"), ("pager", "{}", "x"),
    ("lfs", "extension.{}", "clean"), ("lfs", "extension.{}", "smudge"), ("lfs", "customtransfer.{}", "path"),
    ("lfs", "{}", "standalonetransferagent"),
    ("diff", "{}", "funcname"), ("diff", "{}", "xfuncname"),
    # Only these programs of gpg are known to git.
    ("gpg", "openpgp", "program"), ("gpg", "ssh", "program"), ("gpg", "x509", "program"),
)  # fmt: skip
NAMES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        MadeRepository.make(made.root / "project")
        yield made


@given(st.lists(st.tuples(st.sampled_from(KEYS), NAMES), max_size=30))
async def test_no_name_of_a_driver_escapes(bench: Workbench, found: list[tuple[tuple[str, str, str], str]]) -> None:
    with (bench.root / "project" / ".git" / "config").open("w") as file:
        for (section, form, variable), name in found:
            quoted = form.format(name).replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'[{section} "{quoted}"]\n\t{variable} = EVIL\n')
    one = bench.new_call()
    repository = await find(one, "project")
    for writes in (False, True):
        done = await git(one, repository, "config", "--list", "-z", writes=writes)
        last = dict(entry.partition("\n")[::2] for entry in os.fsdecode(done.stdout).split("\0"))
        assert "EVIL" not in last.values()
