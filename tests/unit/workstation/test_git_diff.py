# SPDX-License-Identifier: LGPL-2.1-or-later
"""git_diff on repositories that git has made."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, NotFound
from mcpd.servers.workstation.git.diff import DIFF, DiffResult
from tests.unit.workstation.git_parts import MadeRepository

if TYPE_CHECKING:
    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


async def diff(bench: Workbench, **arguments: Any) -> DiffResult:
    return cast("DiffResult", (await bench.call(DIFF, **arguments)).result)


async def files(bench: Workbench, **arguments: Any) -> list[dict[str, Any]]:
    return [each.model_dump(exclude_none=True) for each in (await diff(bench, **arguments)).files or []]


PATCH = "diff --git a/file b/file\nindex e69de29..d00491f 100644\n--- a/file\n+++ b/file\n@@ -0,0 +1 @@\n+1\n"


async def test_the_work_tree_the_index_and_commits(bench: Workbench, repository: MadeRepository) -> None:
    first = repository.commit(files={"file": ""})
    assert (await diff(bench)).files == []
    assert (await bench.call(DIFF)).content[0]["text"] == "No differences.\n"
    repository.write("file", "1\n")
    answer = await bench.call(DIFF)
    assert answer.result.model_dump(exclude_none=True) == {
        "repository": str(bench.root),
        "files": [{"path": "file", "status": "modified", "added": 1, "removed": 0}],
        "added": 1,
        "removed": 0,
        "patch": PATCH,
        "truncated": False,
    }
    assert answer.content[0]["text"] == PATCH
    assert (await diff(bench, staged=True)).files == []
    repository.git("add", "file")
    assert (await diff(bench)).files == []
    assert (await diff(bench, staged=True)).patch == PATCH
    assert (await diff(bench, revision="HEAD")).patch == PATCH
    second = repository.commit()
    assert (await diff(bench, staged=True, revision=first)).patch == PATCH
    for arguments in (
        {"revision": first, "to": second},
        {"revision": f"{first}..{second}"},
        {"revision": f"{first}.."},
        {"revision": first, "to": "main"},
    ):
        assert (await diff(bench, **arguments)).patch == PATCH
    assert [each["removed"] for each in await files(bench, revision=second, to=first)] == [1]


async def test_three_dots_compare_with_the_common_ancestor(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.commit(files={"topic": "2\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit(files={"main": "3\n"})
    assert [each["path"] for each in await files(bench, revision="main...topic")] == ["topic"]
    assert [each["path"] for each in await files(bench, revision="main..topic")] == ["main", "topic"]


async def test_before_the_first_commit(bench: Workbench, repository: MadeRepository) -> None:
    repository.write("file", "1\n")
    repository.git("add", "file")
    assert await files(bench, staged=True) == [{"path": "file", "status": "added", "added": 1, "removed": 0}]
    assert await files(bench) == []
    with pytest.raises(NotFound, match="nothing has been committed"):
        await diff(bench, revision="HEAD")


async def test_what_happened_to_files(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(
        files={"moved": "the same\n" * 10, "gone": "1\n2\n", "mode": "1\n", "link": "1\n", "binary": b"\0", "kept": ""}
    )
    repository.git("mv", "moved", "here")
    repository.write("here", "the same\n" * 10 + "and more\n")
    (bench.root / "gone").unlink()
    (bench.root / "mode").chmod(0o755)
    (bench.root / "link").unlink()
    (bench.root / "link").symlink_to("kept")
    repository.write("binary", b"\0\0")
    repository.git("add", "--all")
    assert await files(bench, staged=True, stat=True) == [
        {"path": "binary", "status": "modified", "binary": True},
        {"path": "gone", "status": "deleted", "added": 0, "removed": 2},
        {"path": "here", "old_path": "moved", "status": "renamed", "added": 1, "removed": 0},
        {
            "path": "link",
            "status": "type_changed",
            "added": 1,
            "removed": 1,
            "old_mode": "100644",
            "mode": "120000",
        },
        {"path": "mode", "status": "modified", "added": 0, "removed": 0, "old_mode": "100644", "mode": "100755"},
    ]
    assert (await bench.call(DIFF, staged=True, stat=True)).content[0]["text"] == (
        "modified: binary (binary)\ndeleted: gone (+0 -2)\nrenamed: moved -> here (+1 -0)\ntype_changed: link (+1 -1)\n"
        "modified: mode (+0 -0)\n+2 -3 in all\n"
    )


async def test_stat_has_no_patch(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.write("file", "2\n")
    found = await diff(bench, stat=True)
    assert (found.patch, found.truncated, found.added, found.removed) == (None, None, 1, 1)


async def test_a_conflict_is_listed_once(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.git("checkout", "--quiet", "-b", "other")
    repository.commit(files={"file": "other\n"})
    repository.git("checkout", "--quiet", "main")
    repository.commit(files={"file": "main\n"})
    repository.git("merge", "other", check=False)
    found = await diff(bench)
    assert [(each.path, each.status) for each in found.files or []] == [("file", "unmerged")]
    assert (found.patch or "").startswith("diff --cc file\n")


async def test_only_some_paths(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"a/x": "1\n", "b/x": "1\n", "*": "1\n"})
    for name in ("a/x", "b/x", "*"):
        repository.write(name, "2\n")
    assert [each["path"] for each in await files(bench, paths=["a"])] == ["a/x"]
    assert [each["path"] for each in await files(bench, paths=["*"])] == ["*"]
    assert [each["path"] for each in await files(bench, paths=[str(bench.root / "b")])] == ["b/x"]
    assert [each["path"] for each in await files(bench, path="a")] == ["*", "a/x", "b/x"]


@pytest.mark.parametrize(
    "paths", [["/etc/passwd", "/etc/group"], ["../outside/secret", "file"], [".git/config", "file"]]
)
async def test_two_paths_never_make_it_a_diff_of_any_files(
    bench: Workbench, repository: MadeRepository, paths: list[str]
) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(InvalidArgument):
        await diff(bench, paths=paths)


async def test_context_and_white_space(bench: Workbench, repository: MadeRepository) -> None:
    lines = [f"{number}\n" for number in range(9)]
    repository.commit(files={"file": "".join(lines)})
    repository.write("file", "".join([*lines[:4], "changed\n", *lines[5:]]))
    assert "\n@@ -5 +5 @@" in ((await diff(bench, context=0)).patch or "")
    assert "\n@@ -1,9 +1,9 @@" in ((await diff(bench, context=100)).patch or "")
    repository.write("file", "".join(f" {line}" for line in lines))
    found = await diff(bench, ignore_whitespace=True)
    assert (found.files, found.patch) == ([], None)
    assert await files(bench, ignore_whitespace=True, stat=True) == []


async def test_a_huge_patch_is_cut_after_a_line(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": ""})
    repository.write("file", "a line of it\n" * 1_000_000)
    found = await diff(bench, max_bytes=1000)
    assert found.truncated
    assert found.patch is not None
    assert found.patch.endswith("\n+a line of it\n")
    assert 900 < len(found.patch) <= 1000
    assert found.added == 1_000_000
    assert "max_bytes" in (await bench.call(DIFF, max_bytes=1000)).content[0]["text"]


async def test_many_files(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={f"{number:04}": "1\n" for number in range(1001)})
    found = await diff(bench, revision="HEAD", to="HEAD", stat=True)
    assert (found.files, found.files_truncated) == ([], None)
    repository.git("rm", "--quiet", "--cached", "-r", ".")
    found = await diff(bench, staged=True, stat=True)
    assert found.files is not None
    assert (len(found.files), found.files_truncated) == (1000, True)
    assert (found.added, found.removed) == (0, 1001)
    assert "[More files differ.]" in (await bench.call(DIFF, staged=True, stat=True)).content[0]["text"]


async def test_more_files_than_git_may_list(bench: Workbench, repository: MadeRepository) -> None:
    empty = repository.commit()
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"1\n")
    entries = "".join(f"100644 blob {blob}\t{number:05}{'x' * 200}\0" for number in range(20_000))
    tree = repository.git("mktree", "-z", stdin=entries.encode())
    full = repository.git("commit-tree", tree, "-m", "Many files")
    found = await diff(bench, revision=empty, to=full, max_bytes=1000)
    assert (len(found.files or []), found.files_truncated, found.truncated) == (1000, True, True)
    assert (found.added, found.files and found.files[0].added) == (None, None)
    shown = (await bench.call(DIFF, revision=empty, to=full, stat=True)).content[0]["text"]
    assert shown.startswith(f"added: 00000{'x' * 200}\nadded: ")
    assert shown.endswith("\n[More files differ.]\n")


async def test_names_and_content_that_are_no_utf8(bench: Workbench, repository: MadeRepository) -> None:
    name = os.fsdecode(b"a\xff\nb")
    repository.commit(files={name: b"\xfe\n"})
    repository.write(name, b"\xff\n")
    found = await diff(bench)
    assert [each.path for each in found.files or []] == ["a\ufffd\nb"]
    assert found.patch is not None
    assert found.patch.endswith("\n-\ufffd\n+\ufffd\n")


async def test_a_submodule(bench: Workbench) -> None:
    part = MadeRepository.make(bench.root / "part")
    part.commit(files={"file": "1\n"})
    whole = MadeRepository.make(bench.root / "whole")
    whole.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../part", "sub")
    whole.commit()
    whole.git("config", "diff.submodule", "diff")
    inner = MadeRepository(whole.path / "sub")
    inner.write("file", "2\n")
    assert await files(bench, path="whole") == []
    inner.commit()
    (found,) = await files(bench, path="whole")
    assert (found["path"], found["submodule"]) == ("sub", True)
    assert "\n+Subproject commit " in ((await diff(bench, path="whole")).patch or "")


async def test_a_bare_repository(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    repository.commit(files={"file": "2\n"})
    repository.git("clone", "--quiet", "--bare", ".", "bare.git")
    assert [each["path"] for each in await files(bench, path="bare.git", revision="HEAD~", to="HEAD")] == ["file"]
    with pytest.raises(InvalidArgument, match="bare"):
        await diff(bench, path="bare.git")


@pytest.mark.parametrize(
    "arguments",
    [
        {"to": "HEAD"},
        {"revision": "HEAD..HEAD", "to": "HEAD"},
        {"revision": "HEAD", "to": "HEAD", "staged": True},
        {"revision": "HEAD..HEAD", "staged": True},
        {"context": -1},
        {"max_bytes": 0},
    ],
)
async def test_what_makes_no_sense(bench: Workbench, repository: MadeRepository, arguments: dict[str, Any]) -> None:
    repository.commit()
    with pytest.raises(InvalidArgument):
        await diff(bench, **arguments)


@pytest.mark.parametrize("revision", ["nowhere", "--no-index", "--output=x", "HEAD:file"])
async def test_what_is_no_commit(bench: Workbench, repository: MadeRepository, revision: str) -> None:
    repository.commit(files={"file": "1\n"})
    with pytest.raises(NotFound, match="names no commit"):
        await diff(bench, revision=revision)
    assert not (bench.root / "x").exists()


async def test_the_repository_does_not_choose_the_format(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "", "other": "1\n"})
    repository.write(".gitattributes", "file diff=evil\n")
    repository.git("add", ".gitattributes")
    repository.commit()
    repository.write("file", "1\n")
    repository.write("order", "other\n")
    for key, value in (
        ("diff.noprefix", "true"),
        ("diff.mnemonicPrefix", "true"),
        ("diff.external", f"touch {bench.root}/ran"),
        ("diff.evil.command", f"touch {bench.root}/ran"),
        ("diff.evil.textconv", f"touch {bench.root}/ran; cat"),
        ("diff.context", "0"),
        ("diff.interHunkContext", "9"),
        ("diff.relative", "true"),
        ("diff.orderFile", "order"),
        ("diff.wordRegex", "."),
        ("diff.statGraphWidth", "1"),
        ("color.diff", "always"),
        ("core.abbrev", "7"),
    ):
        repository.git("config", key, value)
    assert (await diff(bench)).patch == PATCH
    assert not (bench.root / "ran").exists()


async def test_nothing_is_written(bench: Workbench, repository: MadeRepository) -> None:
    repository.commit(files={"file": "1\n"})
    os.utime(bench.root / "file", (1, 1))
    before = (bench.root / ".git" / "index").read_bytes()
    assert (await diff(bench)).files == []
    assert (bench.root / ".git" / "index").read_bytes() == before


async def test_the_repository_does_not_choose_how_a_patch_is_written(
    bench: Workbench, repository: MadeRepository
) -> None:
    repository.commit(files={"ö": "\n1\n"})
    repository.write("ö", "\n2\n")
    for key, value in (
        ("core.abbrev", "20"),
        ("core.quotePath", "true"),
        ("diff.suppressBlankEmpty", "true"),
        ("diff.srcPrefix", "x/"),
    ):
        repository.git("config", key, value)
    patch = (await diff(bench)).patch or ""
    assert re.sub(r"^index [0-9a-f]{7}\.\.[0-9a-f]{7} ", "index ", patch, flags=re.MULTILINE) == (
        "diff --git a/ö b/ö\nindex 100644\n--- a/ö\n+++ b/ö\n@@ -1,2 +1,2 @@\n \n-1\n+2\n"
    )


@given(before=st.text("ab\n", max_size=40), after=st.text("ab\n", max_size=40))
async def test_git_makes_of_the_old_file_and_the_patch_the_new_one(
    bench: Workbench, repository: MadeRepository, before: str, after: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository.commit(files={"file": before})
    repository.write("file", after)
    patch = (await diff(bench)).patch
    assert (patch is None) == (before == after)
    if patch is not None:
        directory = tmp_path_factory.mktemp("applied")
        (directory / "file").write_text(before)
        subprocess.run(["git", "apply", "-"], cwd=directory, input=patch.encode(), check=True, capture_output=True)
        assert (directory / "file").read_text() == after
