# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_log on repositories that git has made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, NotFound
from mcpd.servers.workstation.git.log import LOG, LogResult
from tests.unit.workstation.git_parts import AUTHOR, EMAIL, TIME, MadeRepository

if TYPE_CHECKING:
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


async def log(bench: Workbench, **arguments: Any) -> LogResult:
    return cast("LogResult", (await bench.call(LOG, **arguments)).result)


async def subjects(bench: Workbench, **arguments: Any) -> list[str]:
    return [commit.subject for commit in (await log(bench, **arguments)).commits]


def history(repository: MadeRepository, *messages: str) -> list[str]:
    """Commits with *messages*, a minute apart; their ids."""
    times = (f"2026-01-02T03:{minute:02}:05+00:00" for minute in range(60))
    return [
        repository.commit(message, {"file": f"{message}\n"}, GIT_AUTHOR_DATE=time, GIT_COMMITTER_DATE=time)
        for message, time in zip(messages, times, strict=False)
    ]


async def test_everything_about_a_commit(bench: Workbench, repository: MadeRepository) -> None:
    first = repository.commit("first")
    second = repository.commit("Ünïcode subject\n\nA body\n  of two lines\n\nand a paragraph", {"file": "1\n"})
    repository.git("tag", "v1.0")
    answer = await bench.call(LOG)
    found = cast("LogResult", answer.result)
    assert [commit.commit for commit in found.commits] == [second, first]
    assert found.commits[0].model_dump() == {
        "commit": second,
        "abbreviated": second[:7],
        "parents": [first],
        "author": AUTHOR,
        "author_email": EMAIL,
        "date": TIME,
        "committer": AUTHOR,
        "committer_email": EMAIL,
        "committed": TIME,
        "refs": ["HEAD -> main", "tag: v1.0"],
        "subject": "Ünïcode subject",
        "body": "A body\n  of two lines\n\nand a paragraph",
    }
    assert (found.repository, found.truncated, found.next_skip) == (str(bench.root), False, None)
    assert answer.content[0]["text"] == (
        f"commit {second} (HEAD -> main, tag: v1.0)\nAuthor: {AUTHOR} <{EMAIL}>\nDate:   {TIME}\n\n"
        "    Ünïcode subject\n\n    A body\n      of two lines\n\n    and a paragraph\n\n"
        f"commit {first}\nAuthor: {AUTHOR} <{EMAIL}>\nDate:   {TIME}\n\n    first\n"
    )


async def test_an_empty_repository_has_no_history(bench: Workbench, repository: MadeRepository) -> None:
    cases: list[dict[str, Any]] = [{}, {"all": True}]
    for arguments in cases:
        answer = await bench.call(LOG, **arguments)
        assert cast("LogResult", answer.result).commits == []
        assert answer.content[0]["text"] == "No commits.\n"


async def test_ten_commits_and_where_it_goes_on(bench: Workbench, repository: MadeRepository) -> None:
    history(repository, *(str(number) for number in range(12)))
    found = await log(bench)
    assert [commit.subject for commit in found.commits] == [str(number) for number in range(11, 1, -1)]
    assert (found.truncated, found.next_skip) == (True, 10)
    assert await subjects(bench, skip=10) == ["1", "0"]
    assert not (await log(bench, limit=12)).truncated


async def test_revisions_and_ranges(bench: Workbench, repository: MadeRepository) -> None:
    ids = history(repository, "a", "b", "c")
    repository.git("tag", "-m", "An annotated tag", "v1", ids[1])
    repository.git("checkout", "--quiet", "-b", "side", ids[0])
    repository.commit("side")
    assert await subjects(bench) == ["side", "a"]
    assert await subjects(bench, revision="main") == ["c", "b", "a"]
    assert await subjects(bench, revision="v1") == ["b", "a"]
    assert await subjects(bench, revision="v1..main") == ["c"]
    assert await subjects(bench, revision="main..") == ["side"]
    assert set(await subjects(bench, revision="main...side")) == {"b", "c", "side"}
    assert await subjects(bench, revision=f"{ids[2][:12]}~1") == ["b", "a"]
    assert set(await subjects(bench, all=True)) == {"a", "b", "c", "side"}


async def test_paths_and_renames(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one", {"a": "the same\n" * 10})
    repository.commit("two", {"b": "x\n"})
    repository.git("mv", "a", "c")
    repository.commit("three")
    assert await subjects(bench, paths=["b"]) == ["two"]
    assert await subjects(bench, paths=["c"]) == ["three"]
    assert await subjects(bench, paths=["c"], follow=True) == ["three", "one"]
    assert await subjects(bench, paths=["a"]) == ["three", "one"]
    repository.git("config", "log.follow", "true")
    assert await subjects(bench, paths=["c"]) == ["three"]
    with pytest.raises(InvalidArgument, match="exactly one"):
        await log(bench, paths=["a", "b"], follow=True)


async def test_authors_messages_and_dates(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("Fix [a.b]", GIT_AUTHOR_NAME="B. Other", GIT_COMMITTER_DATE="2020-01-01T00:00:00+00:00")
    repository.commit("Fix axb")
    assert await subjects(bench, grep="[a.b]") == ["Fix [a.b]"]
    assert await subjects(bench, grep="fix") == []
    assert await subjects(bench, grep="fix", ignore_case=True) == ["Fix axb", "Fix [a.b]"]
    assert await subjects(bench, author="B. Oth") == ["Fix [a.b]"]
    assert await subjects(bench, author=".*") == []
    assert await subjects(bench, since="2025-01-01") == ["Fix axb"]
    assert await subjects(bench, until="2025-01-01") == ["Fix [a.b]"]


async def test_merges(bench: Workbench, repository: MadeRepository) -> None:
    ids = history(repository, "a", "b")
    repository.git("checkout", "--quiet", "-b", "side", ids[0])
    repository.git("commit", "--quiet", "--allow-empty", "-m", "side")
    repository.git("merge", "--quiet", "--no-edit", "-m", "merge", "main")
    (merge,) = (await log(bench, merges=True)).commits
    assert merge.subject == "merge"
    assert len(merge.parents) == 2
    assert "merge" not in await subjects(bench, merges=False)
    assert "\nMerge: " in (await bench.call(LOG)).content[0]["text"]


async def test_a_bare_repository(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one")
    repository.git("clone", "--quiet", "--bare", ".", "bare.git")
    assert await subjects(bench, path="bare.git") == ["one"]


async def test_a_detached_head(bench: Workbench, repository: MadeRepository) -> None:
    history(repository, "a", "b")
    repository.git("checkout", "--quiet", "--detach", "HEAD~1")
    assert await subjects(bench) == ["a"]


async def test_a_message_in_another_encoding(bench: Workbench, repository: MadeRepository) -> None:
    repository.git("config", "i18n.commitEncoding", "ISO-8859-1")
    repository.git("commit", "--quiet", "--allow-empty", "-F", "-", stdin="Grün".encode("latin-1"))
    assert await subjects(bench) == ["Grün"]


async def test_a_message_larger_than_an_answer(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("small")
    repository.git("commit", "--quiet", "--allow-empty", "-F", "-", stdin=b"large\n\n" + b"x" * 79 * 80_000)
    found = await log(bench)
    assert [commit.subject for commit in found.commits] == ["large"]
    assert (found.truncated, found.next_skip) == (True, 1)
    assert await subjects(bench, skip=1) == ["small"]


@pytest.mark.parametrize(
    "revision", ["nowhere", "--all", "-n1", "a b", "HEAD:file", "main..nowhere", "^main", "HEAD\n"]
)
async def test_what_is_no_commit(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(NotFound, match="names no commit"):
        await log(bench, revision=revision)


async def test_an_option_is_never_a_revision(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(NotFound):
        await log(bench, revision=f"--output={bench.root}/written")
    assert not (bench.root / "written").exists()


async def test_text_with_options_is_text(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit("one")
    for name in ("author", "grep"):
        assert await subjects(bench, **{name: "--output=written"}) == []
    assert not (bench.root / "written").exists()


@pytest.mark.parametrize("name", ["author", "grep", "since", "until"])
async def test_text_with_NUL_is_refused(bench: Workbench, repository: MadeRepository, name: str) -> None:
    repository.commit("one")
    with pytest.raises(InvalidArgument, match=r"x00\]"):
        await log(bench, **{name: "a\0b"})


async def test_all_and_a_revision_exclude_each_other(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit()
    with pytest.raises(InvalidArgument, match="exclude"):
        await log(bench, all=True, revision="main")


async def test_the_repository_does_not_choose_the_format(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit("one")
    for key, value in (
        ("format.pretty", "oneline"),
        ("log.decorate", "full"),
        ("log.showSignature", "true"),
        ("color.ui", "always"),
        ("log.date", "relative"),
        ("log.diffMerges", "on"),
        ("log.excludeDecoration", "refs/heads/*"),
        ("core.abbrev", "20"),
    ):
        repository.git("config", key, value)
    (found,) = (await log(bench)).commits
    assert (found.commit, found.abbreviated, found.refs, found.date) == (commit, commit[:7], ["HEAD -> main"], TIME)


@given(message=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200))
async def test_whatever_a_message_says(bench: Workbench, repository: MadeRepository, message: str) -> None:
    before = (await log(bench)).commits
    repository.git("commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "-F", "-", stdin=f"x{message}".encode())
    found = (await log(bench, limit=1)).commits[0]
    stored = repository.git("log", "-1", "--format=%s%x00%b%x00").split("\0")
    assert (found.subject, found.body) == (stored[0], stored[1].rstrip("\n"))
    assert found.parents == [commit.commit for commit in before[:1]]
