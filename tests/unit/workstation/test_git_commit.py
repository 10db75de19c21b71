# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Busy, ConfigMissing, InvalidArgument, McpdError, NotFound
from mcpd.servers.workstation.git.committing import ADD, COMMIT, CommitResult
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture
def made(bench: Workbench) -> MadeRepository:
    repository = MadeRepository.make(bench.root / "project")
    repository.commit("First", {"one": "1\n", "two": "1\n2\n"})
    return repository


async def committed(bench: Workbench, **arguments: Any) -> CommitResult:
    answer = await bench.call(COMMIT, path="project", **arguments)
    assert isinstance(answer.result, CommitResult)
    return answer.result


async def test_what_is_staged_is_committed(bench: Workbench, made: MadeRepository) -> None:
    made.write("one", "2\n")
    made.write("two", "1\n3\n4\n")
    made.git("add", "two")
    result = await committed(bench, message="Second\n\nA body.\n")
    assert result.commit == made.head()
    assert made.head().startswith(result.abbreviated)
    assert (result.branch, result.subject) == ("main", "Second")
    assert (result.files_changed, result.insertions, result.deletions) == (1, 2, 1)
    assert made.git("log", "-1", "--format=%B").rstrip() == "Second\n\nA body."
    assert made.status() == [" M one"]


async def test_the_first_commit_counts_all_its_files(bench: Workbench) -> None:
    made = MadeRepository.make(bench.root / "project")
    made.git("config", "log.showRoot", "false")
    made.write("file", "1\n2\n")
    await bench.call(ADD, path="project", all=True)
    result = await committed(bench, message="First")
    assert (result.commit, result.files_changed, result.insertions) == (made.head(), 1, 2)


async def test_all_takes_tracked_files_and_paths_only_what_they_name(bench: Workbench, made: MadeRepository) -> None:
    for name in ("one", "two", "three"):
        made.write(name, "changed\n")
    assert (await committed(bench, message="One", paths=["one"])).files_changed == 1
    assert (await committed(bench, message="Two", all=True)).files_changed == 1
    assert made.status() == ["?? three"]


async def test_a_name_like_an_option_or_a_pattern_is_one_file(bench: Workbench, made: MadeRepository) -> None:
    made.commit("Names", {"--amend": "1\n", "*": "1\n"})
    for name in ("--amend", "*", "one"):
        made.write(name, "2\n")
    assert (await committed(bench, message="Star", paths=["*", "--amend"])).files_changed == 2
    assert made.status() == [" M one"]


@pytest.mark.parametrize(
    "message",
    ["# no comment", "--amend", "-F x", "Fix: `touch x` $(touch y)", "Ünï ✓\n\n# Heading\ntext", "a" * 50_000],
)
async def test_the_message_is_taken_as_it_is(bench: Workbench, made: MadeRepository, message: str) -> None:
    result = await committed(bench, message=message, allow_empty=True)
    assert made.git("log", "-1", "--format=%B").rstrip("\n") == message
    assert message.startswith(result.subject)


async def test_the_repository_does_not_choose_what_is_cut_off_a_message(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "commit.verbose", "true")
    made.git("config", "commit.cleanup", "scissors")
    message = f"Subject\n\n# {'-' * 24} >8 {'-' * 24}\nthe rest"
    await committed(bench, message=message, allow_empty=True)
    assert made.git("log", "-1", "--format=%B").rstrip("\n") == message


async def test_amend_replaces_the_last_commit(bench: Workbench, made: MadeRepository) -> None:
    made.commit("Second", {"one": "2\n"})
    parent = made.head("HEAD~1")
    made.write("two", "new\n")
    result = await committed(bench, amend=True, all=True)
    assert (result.subject, result.files_changed) == ("Second", 2)
    assert made.head("HEAD~1") == parent
    assert (await committed(bench, amend=True, message="Other")).subject == "Other"


async def test_another_author_is_named(bench: Workbench, made: MadeRepository) -> None:
    await committed(bench, message="x", allow_empty=True, author="Änne Other <a.other@example.org>")
    assert made.git("log", "-1", "--format=%an <%ae> %cn") == "Änne Other <a.other@example.org> A U Thor"


@pytest.mark.parametrize("author", ["nobody", "a <b> c", "--all <x>\n", "<a@b>"])
async def test_an_author_that_is_none_is_refused(bench: Workbench, made: MadeRepository, author: str) -> None:
    with pytest.raises(InvalidArgument):
        await committed(bench, message="x", allow_empty=True, author=author)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "message is missing"),
        ({"message": " \n"}, "message is blank"),
        ({"message": "x"}, "nothing is staged.*git_add"),
        ({"message": "x", "all": True}, "nothing to commit"),
        ({"message": "x", "paths": ["one"]}, "have not changed"),
        ({"message": "x", "all": True, "paths": ["one"]}, "exclude each other"),
    ],
)
async def test_what_makes_no_commit_is_said(
    bench: Workbench, made: MadeRepository, arguments: dict[str, Any], said: str
) -> None:
    before = made.head()
    with pytest.raises(InvalidArgument, match=said):
        await committed(bench, **arguments)
    assert made.head() == before


async def test_changes_that_are_not_staged_are_no_commit(bench: Workbench, made: MadeRepository) -> None:
    made.write("one", "2\n")
    made.write("new", "2\n")
    with pytest.raises(InvalidArgument, match="nothing is staged"):
        await committed(bench, message="x")


async def test_without_an_identity_it_says_how_to_set_one(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "--unset", "user.name")
    made.git("config", "--unset", "user.email")
    with pytest.raises(ConfigMissing, match=r"user\.name and user\.email in ~/\.gitconfig"):
        await committed(bench, message="x", allow_empty=True)
    (bench.home / ".gitconfig").write_text("[user]\nname = From Home\nemail = home@example.org\n")
    assert (await committed(bench, message="x", allow_empty=True)).author == "From Home <home@example.org>"


@pytest.mark.parametrize("where", ["~/.work", ".work", "{home}/.work"])
@pytest.mark.parametrize("section", ["include", 'includeIf "gitdir:**/project/"'])
async def test_the_identity_may_be_in_a_file_that_the_users_own_includes(
    bench: Workbench, made: MadeRepository, where: str, section: str
) -> None:
    made.git("config", "--unset", "user.email")
    (bench.home / ".config" / "git").mkdir(parents=True)
    (bench.home / ".config" / "git" / "config").write_text("[user]\nemail = overridden@example.org\n")
    (bench.home / ".gitconfig").write_text(f"[{section}]\n\tpath = {where.format(home=bench.home)} ; at work\n")
    (bench.home / ".work").write_text("[user]\nemail = work@example.org\n[include]\npath = .missing\n")
    assert (await committed(bench, message="x", allow_empty=True)).author == "A U Thor <work@example.org>"


async def test_what_cannot_be_signed_says_no_gpg_sign(bench: Workbench, made: MadeRepository) -> None:
    made.git("config", "commit.gpgSign", "true")
    made.git("config", "user.signingKey", "nobody@example.org")
    with pytest.raises(McpdError, match="no_gpg_sign"):
        await committed(bench, message="x", allow_empty=True)
    await committed(bench, message="x", allow_empty=True, no_gpg_sign=True)


async def test_a_detached_head_has_no_branch(bench: Workbench, made: MadeRepository) -> None:
    made.git("checkout", "--quiet", "--detach")
    assert (await committed(bench, message="x", allow_empty=True)).branch is None


async def test_a_merge_is_concluded(bench: Workbench, made: MadeRepository) -> None:
    made.git("checkout", "--quiet", "-b", "side")
    made.commit("Side", {"one": "side\n"})
    made.git("checkout", "--quiet", "main")
    made.commit("Main", {"two": "main\n"})
    made.git("merge", "--quiet", "--no-commit", "side")
    result = await committed(bench, message="Merged")
    assert result.files_changed == 1
    assert made.git("log", "-1", "--format=%P").split() == [made.head("HEAD^1"), made.head("side")]


async def test_a_lock_that_another_git_holds_is_said(bench: Workbench, made: MadeRepository) -> None:
    made.write(".git/index.lock")
    made.write("one", "2\n")
    with pytest.raises(Busy, match=r"index\.lock"):
        await committed(bench, message="x", all=True)


async def test_a_bare_repository_is_refused(bench: Workbench) -> None:
    MadeRepository.make(bench.root / "project", "--bare")
    with pytest.raises(InvalidArgument, match="bare"):
        await committed(bench, message="x", allow_empty=True)


@pytest.mark.parametrize("arguments", [{"message": "a\0b"}, {"message": "a", "author": "A\0 <a@b>"}], ids=repr)
async def test_text_with_NUL_is_refused(bench: Workbench, made: MadeRepository, arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"x00\]"):
        await committed(bench, allow_empty=True, **arguments)


async def test_a_path_that_git_does_not_know_is_named(bench: Workbench, made: MadeRepository) -> None:
    with pytest.raises(NotFound, match="'nowhere' did not match"):
        await committed(bench, message="a", paths=["nowhere"])
