# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_blame on repositories that git has made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.git.blame import BLAME, BlameResult
from tests.unit.workstation.git_parts import AUTHOR, EMAIL, TIME, MadeRepository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process

NOT_COMMITTED = "0" * 40


async def blame(bench: Workbench, path: str, **arguments: Any) -> BlameResult:
    return cast("BlameResult", (await bench.call(BLAME, path=path, **arguments)).result)


def lines(found: BlameResult) -> list[tuple[int, str, str]]:
    return [(line.line, line.commit, line.text) for line in found.lines]


async def test_whom_each_line_is_from(bench: Workbench, repository: MadeRepository) -> None:
    first = repository.commit("one", {"d/file": "a\nb\n"})
    second = repository.commit(
        "two", {"d/file": "a\n\tx: ö\nb\n"}, GIT_AUTHOR_NAME="Somebody", GIT_AUTHOR_DATE="2026-02-03T04:05:06-01:30"
    )
    answer = await bench.call(BLAME, path="d/file")
    assert answer.result.model_dump(exclude_none=True) == {
        "path": str(bench.root / "d/file"),
        "lines": [
            {"line": 1, "commit": first, "text": "a"},
            {"line": 2, "commit": second, "text": "\tx: ö"},
            {"line": 3, "commit": first, "text": "b"},
        ],
        "commits": [
            {
                "commit": first,
                "author": AUTHOR,
                "author_email": EMAIL,
                "date": TIME,
                "subject": "one",
                "path": "d/file",
            },
            {
                "commit": second,
                "author": "Somebody",
                "author_email": EMAIL,
                "date": "2026-02-03T04:05:06-01:30",
                "subject": "two",
                "path": "d/file",
            },
        ],
        "truncated": False,
    }
    assert answer.content[0]["text"] == (
        f"{first[:8]} (A U Thor 2026-01-02 1) a\n{second[:8]} (Somebody 2026-02-03 2) \tx: ö\n"
        f"{first[:8]} (A U Thor 2026-01-02 3) b\n"
    )


async def test_lines_that_are_not_committed(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"file": "a\n"})
    repository.write("file", "a\nb")
    found = await blame(bench, "file")
    assert lines(found) == [(1, commit, "a"), (2, NOT_COMMITTED, "b")]
    assert lines(await blame(bench, "file", revision="HEAD")) == [(1, commit, "a")]


async def test_some_lines(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"file": "".join(f"{number}\n" for number in range(1, 8))})
    found = await blame(bench, "file", start_line=3, end_line=4)
    assert lines(found) == [(3, commit, "3"), (4, commit, "4")]
    assert (found.truncated, found.next_line) == (False, None)
    found = await blame(bench, "file", start_line=2, limit=2)
    assert [line.line for line in found.lines] == [2, 3]
    assert (found.truncated, found.next_line) == (True, 4)
    found = await blame(bench, "file", start_line=7, end_line=100)
    assert ([line.line for line in found.lines], found.truncated) == ([7], False)
    with pytest.raises(InvalidArgument, match="only 7 lines"):
        await blame(bench, "file", start_line=8)
    with pytest.raises(InvalidArgument, match="before start_line"):
        await blame(bench, "file", start_line=3, end_line=2)


async def test_an_empty_file(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": ""})
    answer = await bench.call(BLAME, path="file")
    assert cast("BlameResult", answer.result).lines == []
    assert answer.content[0]["text"] == "The file is empty.\n"


async def test_a_renamed_file_with_an_odd_name(bench: Workbench, repository: MadeRepository) -> None:
    old = 'a "b\\\n\tö'
    commit = repository.commit(files={old: "one\ntwo\nthree\n"})
    repository.git("mv", old, "new")
    repository.commit()
    found = await blame(bench, "new")
    assert [(each.commit, each.path) for each in found.commits] == [(commit, old)]


async def test_a_renamed_file_whose_old_name_was_no_utf8(bench: Workbench, repository: MadeRepository) -> None:
    old = os.fsdecode(b"a\xff\xc3\xb6")
    repository.commit(files={old: "one\ntwo\nthree\n"})
    repository.git("mv", old, "new")
    repository.commit()
    assert [each.path for each in (await blame(bench, "new")).commits] == ["a\ufffdö"]


async def test_white_space_and_moves(bench: Workbench, repository: MadeRepository) -> None:
    block = "".join(f"a long line of text, number {number}\n" for number in range(9))
    first = repository.commit(files={"file": block, "other": "x\n"})
    second = repository.commit(files={"file": block.replace("a long", "  a  long")})
    assert {line.commit for line in (await blame(bench, "file")).lines} == {second}
    assert {line.commit for line in (await blame(bench, "file", ignore_whitespace=True)).lines} == {first}
    third = repository.commit(files={"file": "", "other": f"x\n{block}"})
    assert {line.commit for line in (await blame(bench, "other", start_line=2)).lines} == {third}
    moved = await blame(bench, "other", start_line=2, moves=True, ignore_whitespace=True)
    assert {line.commit for line in moved.lines} == {first}


async def test_commits_that_the_repository_passes_over(bench: Workbench, repository: MadeRepository) -> None:
    first = repository.commit(files={"file": "a = 1\n"})
    second = repository.commit(files={"file": "a  =  1\n"})
    repository.write("ignored", f"{second}\n")
    repository.git("config", "blame.ignoreRevsFile", "ignored")
    repository.git("config", "blame.markIgnoredLines", "true")
    assert lines(await blame(bench, "file")) == [(1, first, "a  =  1")]


@pytest.mark.parametrize("way", ["absolute", "symlink", "hard link"])
async def test_a_list_of_commits_to_pass_over_is_read_in_the_roots_only(
    bench: Workbench, repository: MadeRepository, way: str, tmp_path: Path
) -> None:
    commit = repository.commit(files={"file": "a\n"})
    # What commands may read besides the roots is the system, where nothing changes: a line of it is no id.
    listed = "/etc/passwd"
    if way == "symlink":
        listed = "ignored"
        (bench.root / listed).symlink_to("/etc/passwd")
    elif way == "hard link":
        listed = "ignored"
        (tmp_path / "list").write_text(f"{commit}\nanother line\n")
        (bench.root / listed).hardlink_to(tmp_path / "list")
    repository.git("config", "blame.ignoreRevsFile", listed)
    assert lines(await blame(bench, "file")) == [(1, commit, "a")]


async def test_a_list_of_commits_to_pass_over_may_hold_anything(bench: Workbench, repository: MadeRepository) -> None:
    first = repository.commit(files={"file": "a = 1\n"})
    second = repository.commit(files={"file": "a  =  1\n"})
    repository.git("tag", "-a", "-m", "x", "formatted")
    tag = repository.git("rev-parse", "formatted")
    others = f"# formatted\n\nno id\n{'0' * 40}\n{'1' * 64}\n{first[:10]}\n{repository.head('HEAD:file')}\n"
    for line in (f"  {second.upper()} # again", tag, f"{second}\r"):
        repository.write("lists/one", others + line)
        repository.git("config", "--replace-all", "blame.ignoreRevsFile", "lists/one")
        assert lines(await blame(bench, "file")) == [(1, first, "a  =  1")]
    repository.git("config", "--add", "blame.ignoreRevsFile", "missing")
    assert lines(await blame(bench, "file", revision="HEAD")) == [(1, first, "a  =  1")]
    repository.git("config", "--add", "blame.ignoreRevsFile", "")
    assert lines(await blame(bench, "file")) == [(1, second, "a  =  1")]


async def test_the_users_own_list_may_be_missing_in_a_repository(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"file": "a\n"})
    config = bench.home / ".gitconfig"
    config.write_text("[blame]\n\tignoreRevsFile = .git-blame-ignore-revs\n")
    try:
        assert lines(await blame(bench, "file")) == [(1, commit, "a")]
    finally:
        config.unlink()


async def test_a_file_that_is_gone(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"d/file": "a\n"})
    repository.git("rm", "--quiet", "d/file")
    repository.commit()
    found = await blame(bench, "d/file", revision="HEAD~")
    assert (lines(found), found.path) == ([(1, commit, "a")], str(bench.root / "d/file"))
    with pytest.raises(NotFound, match="no such file"):
        await blame(bench, "d/file")


async def test_a_bare_repository(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"d/file": "a\n"})
    repository.git("clone", "--quiet", "--bare", ".", "bare.git")
    assert lines(await blame(bench, "bare.git/d/file")) == [(1, commit, "a")]


async def test_a_line_longer_than_an_answer(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "x" * 5_000_000 + "\nlast\n"})
    found = await blame(bench, "file")
    assert [line.text for line in found.lines] == ["x" * 1000]
    assert (found.truncated, found.next_line) == (True, 2)
    assert [line.text for line in (await blame(bench, "file", start_line=2)).lines] == ["last"]


async def test_dates_that_are_none(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "a\n"})
    tree = repository.head("HEAD^{tree}")
    for date in ("99999999999999999 +0000", "1 +9999"):
        commit = f"tree {tree}\nauthor A <a@b> {date}\ncommitter A <a@b> 1 +0000\n\nx\n"
        made = repository.git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", stdin=commit.encode())
        (found,) = (await blame(bench, "file", revision=made)).commits
        assert found.date.startswith("19")


async def test_a_path_is_no_option_and_no_pattern(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"-L1": "a\n", "*": "b\n"})
    assert lines(await blame(bench, "-L1")) == [(1, commit, "a")]
    assert lines(await blame(bench, "*")) == [(1, commit, "b")]


@pytest.mark.parametrize("revision", ["nowhere", "--contents=/etc/passwd", "HEAD:file"])
async def test_what_is_no_commit(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit(files={"file": "a\n"})
    with pytest.raises(NotFound, match="names no commit"):
        await blame(bench, "file", revision=revision)


async def test_what_is_no_file_of_the_repository(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"d/file": "a\n"})
    repository.write("untracked", "a\n")
    with pytest.raises(NotFound):
        await blame(bench, "untracked")
    with pytest.raises(NotFound):
        await blame(bench, "nothing")
    with pytest.raises(McpdError):
        await blame(bench, "d")
    with pytest.raises(InvalidArgument, match="directory"):
        await blame(bench, ".")


async def test_nothing_outside_of_the_roots(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "a\n"})
    (bench.root / "link").symlink_to(bench.outside / "secret")
    for path in (str(bench.outside / "secret"), "link"):
        with pytest.raises(NotAuthorized):
            await blame(bench, path)
    with pytest.raises(InvalidArgument):
        await blame(bench, "../outside/secret")


async def test_the_repository_runs_nothing(bench: Workbench, repository: MadeRepository) -> None:
    commit = repository.commit(files={"file": "a\n", ".gitattributes": "file diff=evil\n"})
    repository.git("config", "diff.evil.textconv", f"touch {bench.root}/ran; cat")
    repository.git("config", "diff.evil.command", f"touch {bench.root}/ran")
    repository.git("config", "blame.showRoot", "false")
    assert lines(await blame(bench, "file")) == [(1, commit, "a")]
    assert not (bench.root / "ran").exists()


@given(content=st.binary(max_size=100))
async def test_each_line_of_any_file(bench: Workbench, repository: MadeRepository, content: bytes) -> None:
    repository.git("config", "core.autocrlf", "false")
    commit = repository.commit(files={"file": content})
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    found = await blame(bench, "file", revision=commit)
    assert [line.line for line in found.lines] == list(range(1, len(expected) + 1))
    for line, wanted in zip(found.lines, expected, strict=True):
        text = wanted.decode(errors="surrogateescape")
        assert line.text == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
