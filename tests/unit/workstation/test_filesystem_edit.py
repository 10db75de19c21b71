# SPDX-License-Identifier: LGPL-2.1-or-later
"""filesystem_edit: what was asked for and nothing else, or nothing at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Cancelled, InvalidArgument, LimitExceeded, McpdError, NotAuthorized, NotFound, TooLarge
from mcpd.servers.workstation.filesystem.writing import EDIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.workstation.bench import Workbench

pytestmark = pytest.mark.process


def edit(old_text: str, new_text: str, **more: Any) -> dict[str, Any]:
    return {"old_text": old_text, "new_text": new_text, **more}


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def test_one_edit(bench: Workbench) -> None:
    path = bench.root / "sub/a.txt"
    path.parent.mkdir()
    path.write_text("one\ntwo\nthree\n")
    path.chmod(0o640)
    answer = await bench.call(EDIT, path="sub/a.txt", edits=[edit("two", "2")])
    assert path.read_text() == "one\n2\nthree\n"
    assert path.stat().st_mode & 0o777 == 0o640
    diff = "--- a/sub/a.txt\n+++ b/sub/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert answer.result.model_dump() == {
        "path": str(path),
        "changed": True,
        "diff": diff,
        "diff_truncated": False,
        "replacements": 1,
        "added": 1,
        "removed": 1,
        "sha256": hashlib.sha256(b"one\n2\nthree\n").hexdigest(),
    }
    assert answer.content == ({"type": "text", "text": diff},)
    assert names(path.parent) == ["a.txt"]


async def test_edits_are_made_one_after_the_other_in_what_the_ones_before_left(bench: Workbench) -> None:
    (bench.root / "a").write_text("x = 1\n")
    answer = await bench.call(EDIT, path="a", edits=[edit("x", "y"), edit("y = 1", "y = 2"), edit("2", "3")])
    assert (bench.root / "a").read_text() == "y = 3\n"
    assert answer.result.diff == "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x = 1\n+y = 3\n"


@pytest.mark.parametrize(
    ("edits", "error", "said"),
    [
        ([edit("b", "c"), edit("missing", "x")], NotFound, "edit 2"),
        ([edit("b", "c"), edit("a", "x")], InvalidArgument, "edit 2.*2 times, in the lines 1, 3"),
        ([edit("aa", "x")], NotFound, "line 1 is nearest: 'a'"),
        ([edit("", "x")], InvalidArgument, None),
        ([], InvalidArgument, None),
    ],
)
async def test_all_edits_or_none(bench: Workbench, edits: list[Any], error: type[McpdError], said: str | None) -> None:
    (bench.root / "a").write_text("a\nb\na\n")
    with pytest.raises(error, match=said):
        await bench.call(EDIT, path="a", edits=edits)
    assert (bench.root / "a").read_text() == "a\nb\na\n"
    assert names(bench.root) == ["a"]


async def test_what_overlaps_itself_is_ambiguous(bench: Workbench) -> None:
    (bench.root / "a").write_text("xaaax")
    with pytest.raises(InvalidArgument, match="2 times"):
        await bench.call(EDIT, path="a", edits=[edit("aa", "b")])
    await bench.call(EDIT, path="a", edits=[edit("aa", "b", replace_all=True)])
    assert (bench.root / "a").read_text() == "xbax"


async def test_many_occurrences_are_counted_and_the_first_named(bench: Workbench) -> None:
    (bench.root / "a").write_text("x\n" * 12)
    with pytest.raises(InvalidArgument, match="12 times, in the lines 1, 2, 3, 4, 5…;"):
        await bench.call(EDIT, path="a", edits=[edit("x", "y")])
    answer = await bench.call(EDIT, path="a", edits=[edit("x", "y", replace_all=True)])
    assert answer.result.replacements == answer.result.added == answer.result.removed == 12
    assert (bench.root / "a").read_text() == "y\n" * 12


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("def  run(self):\n", r"line 2 is nearest: '    def run\(self\):'"),
        ("def run(self):\n  return 1", r"line 2 has its first line, but other white space.*'    def run\(self\):'"),
        ("return value\n", r"line 3 is nearest: '\\treturn values'"),
        ("completely different", "nor anything like it"),
        (" \n \n", "nor anything like it"),
    ],
)
async def test_what_is_not_found_is_said_with_what_is_near(bench: Workbench, old: str, said: str) -> None:
    (bench.root / "a").write_text("class A:\n    def run(self):\n\treturn values\n")
    with pytest.raises(NotFound, match=said):
        await bench.call(EDIT, path="a", edits=[edit(old, "x")])


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        (b"a\r\nb\r\nc\r\n", [edit("a\nb", "x\ny")], b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\n", [edit("a", "x\ny")], b"x\r\ny\r\nb\r\n"),
        (b"a\r\nb\r\n", [edit("a\r\n", "a\n")], b"a\nb\r\n"),
        (b"a\r\nb\r\n", [edit("a\n", "a\r\n-\r\n")], b"a\r\n-\r\nb\r\n"),
        (b"a\r\nb\r\n", [edit("\n", "", replace_all=True)], b"ab"),
        (b"a\nb\r\nc\nd\r\n", [edit("\n", "\n\n", replace_all=True)], b"a\n\nb\r\n\r\nc\n\nd\r\n\r\n"),
        (b"a\nb\r\nc\r\n", [edit("a\nb", "x\ny")], b"x\ny\r\nc\r\n"),
        (b"a\nb\r\nc\r\n", [edit("b\nc", "x\ny")], b"a\nx\r\ny\r\n"),
        (b"a\nb\r\nc\r\n", [edit("a", "x\ny")], b"x\r\ny\nb\r\nc\r\n"),
        (b"a\nb\n", [edit("a", "x\r\n")], b"x\r\n\nb\n"),
        (b"a\rb\r", [edit("a\r", "x\n")], b"x\nb\r"),
        (b"\r\n\nx", [edit("\nx", "y")], b"\r\ny"),
    ],
)
async def test_line_ends_stay_those_of_the_file(
    bench: Workbench, before: bytes, edits: list[Any], after: bytes
) -> None:
    (bench.root / "a").write_bytes(before)
    await bench.call(EDIT, path="a", edits=edits)
    assert (bench.root / "a").read_bytes() == after


async def test_line_ends_of_both_kinds_may_be_ambiguous(bench: Workbench) -> None:
    (bench.root / "a").write_bytes(b"a\nb\n\r\na\r\nb\r\n")
    with pytest.raises(InvalidArgument, match="2 times, in the lines 1, 4"):
        await bench.call(EDIT, path="a", edits=[edit("a\nb", "x")])
    await bench.call(EDIT, path="a", edits=[edit("a\nb", "x\ny", replace_all=True)])
    assert (bench.root / "a").read_bytes() == b"x\ny\n\r\nx\r\ny\r\n"


TEXTS = st.text(st.sampled_from("ab\n\r"), max_size=40)


@given(text=TEXTS, old=st.text(st.sampled_from("ab\n"), min_size=1, max_size=3), new=TEXTS, every=st.booleans())
async def test_without_carriage_returns_it_is_what_str_replace_does(
    bench: Workbench, text: str, old: str, new: str, every: bool
) -> None:
    text, new = text.replace("\r", ""), new.replace("\r", "")
    (bench.root / "a").write_text(text)
    occurs = sum(text.startswith(old, place) for place in range(len(text)))
    expected = text.replace(old, new) if occurs == 1 or every else text
    try:
        answer = await bench.call(EDIT, path="a", edits=[edit(old, new, replace_all=every)])
    except NotFound:
        assert occurs == 0
    except InvalidArgument:
        assert occurs > 1
        assert not every
    else:
        assert answer.result.replacements == text.count(old) > 0
        assert answer.result.changed == (text != expected)
    assert (bench.root / "a").read_text() == expected


@given(text=TEXTS, old=st.text(st.sampled_from("ab\n"), min_size=1, max_size=3), new=TEXTS)
async def test_with_crlf_it_is_the_same_edit_in_a_file_without(bench: Workbench, text: str, old: str, new: str) -> None:
    text, new = text.replace("\r", ""), new.replace("\r", "")
    results = []
    for ends in ("\n", "\r\n"):
        (bench.root / "a").write_bytes(text.replace("\n", ends).encode())
        if "\n" in text and old in text:
            await bench.call(EDIT, path="a", edits=[edit(old, new, replace_all=True)])
        results.append((bench.root / "a").read_bytes())
    assert results[1] == results[0].replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("utf-32", None), ("latin-1", "latin-1")],
)
async def test_encoding_and_mark_stay(bench: Workbench, encoding: str, named: str | None) -> None:
    path = bench.root / "a"
    path.write_bytes("Größe\nzwei\n".encode(encoding))
    arguments: dict[str, Any] = {"encoding": named} if named else {}
    await bench.call(EDIT, path="a", edits=[edit("Größe", "Maß")], **arguments)
    assert path.read_bytes() == "Maß\nzwei\n".encode(encoding)


@pytest.mark.parametrize("data", [b"a\0b", b"a\xffb"])
async def test_binary_files_are_not_edited(bench: Workbench, data: bytes) -> None:
    (bench.root / "a").write_bytes(data)
    with pytest.raises(InvalidArgument, match="binary"):
        await bench.call(EDIT, path="a", edits=[edit("a", "x")])
    assert (bench.root / "a").read_bytes() == data


async def test_what_the_encoding_cannot_write_changes_nothing(bench: Workbench) -> None:
    (bench.root / "a").write_bytes(b"a")
    with pytest.raises(InvalidArgument, match="cannot write"):
        await bench.call(EDIT, path="a", edits=[edit("a", "€")], encoding="latin-1")
    assert (bench.root / "a").read_bytes() == b"a"


async def test_a_dry_run_only_says_what_would_change(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    before = path.stat().st_ino, path.stat().st_ctime_ns
    answer = await bench.call(EDIT, path="a", edits=[edit("old", "new")], dry_run=True)
    assert path.read_text() == "old"
    assert (path.stat().st_ino, path.stat().st_ctime_ns) == before
    assert answer.result.changed
    assert answer.result.sha256 == hashlib.sha256(b"new").hexdigest()
    assert answer.result.diff.endswith("-old\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n")


async def test_edits_that_change_nothing_write_nothing(bench: Workbench) -> None:
    path = bench.root / "a"
    path.write_text("old")
    before = path.stat()
    answer = await bench.call(EDIT, path="a", edits=[edit("old", "new"), edit("new", "old")])
    assert path.stat().st_ino == before.st_ino
    assert not answer.result.changed
    assert answer.result.diff == ""
    assert "nothing" in answer.content[0]["text"]


async def test_expected_sha256(bench: Workbench) -> None:
    (bench.root / "a").write_text("old")
    with pytest.raises(InvalidArgument, match="expected_sha256"):
        await bench.call(EDIT, path="a", edits=[edit("old", "new")], expected_sha256="0" * 64)
    await bench.call(EDIT, path="a", edits=[edit("old", "new")], expected_sha256=hashlib.sha256(b"old").hexdigest())
    assert (bench.root / "a").read_text() == "new"


async def test_links_directories_and_what_is_missing(bench: Workbench) -> None:
    (bench.root / "link").symlink_to(bench.outside / "secret")
    (bench.root / "hard").hardlink_to(bench.outside / "secret")
    (bench.root / "out").symlink_to(bench.outside)
    (bench.root / ".git").mkdir()
    (bench.root / ".git/config").write_text("x")
    for path, error in (
        ("link", InvalidArgument),
        ("hard", NotAuthorized),
        ("out/secret", NotAuthorized),
        (".git/config", NotAuthorized),
        (str(bench.outside / "secret"), NotAuthorized),
        ("out", InvalidArgument),
        (".", NotAuthorized),
        ("missing", NotFound),
    ):
        with pytest.raises(error):
            await bench.call(EDIT, path=path, edits=[edit("x", "y")])
    (bench.root / "hard").unlink()


async def test_large_files_are_refused_and_large_results_too(bench: Workbench) -> None:
    path = bench.root / "a"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLarge):
        await bench.call(EDIT, path="a", edits=[edit("x", "y")])
    path.write_bytes(b"x" * 50_000)
    with pytest.raises(TooLarge):
        await bench.call(EDIT, path="a", edits=[edit("x", "y" * 1_000_000, replace_all=True)])
    path.write_bytes(b"x" * 8_000_000)
    with pytest.raises(LimitExceeded):
        await bench.call(EDIT, path="a", edits=[edit("x", "y", replace_all=True)])
    with pytest.raises(InvalidArgument, match="more than 1000 times"):
        await bench.call(EDIT, path="a", edits=[edit("x" * 1000, "y")])
    assert path.read_bytes() == b"x" * 8_000_000


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("x" * 8_000_000, "x" * 500_000 + "y"),
        ("x" * 8_000_000, "y" + "x" * 500_000),
        ("x\n" * 4_000_000, "x\n" * 100_000 + "y"),
        ("ab " * 2_600_000, "ab " * 100_000 + "b"),
        ("\r\n\n" * 2_000_000, "\n" * 500_000),
    ],
)
async def test_hostile_texts_end(bench: Workbench, text: str, old: str) -> None:
    (bench.root / "a").write_bytes(text.encode())
    with pytest.raises(NotFound):
        await bench.call(EDIT, path="a", edits=[edit(old, "z")])


@pytest.mark.parametrize(("part", "count"), [("x", 50_000), ("x\n", 25_000), ("x\n\n", 25_000), ("xyz", 25_000)])
async def test_many_replacements_and_a_long_diff(bench: Workbench, part: str, count: int) -> None:
    text = part * count
    (bench.root / "a").write_text(text)
    answer = await bench.call(
        EDIT, path="a", edits=[edit("x", "longer", replace_all=True), edit("longer", "aaaa\nbbbb", replace_all=True)]
    )
    assert (bench.root / "a").read_text() == text.replace("x", "aaaa\nbbbb")
    assert answer.result.replacements == 2 * count
    assert answer.result.diff_truncated
    assert len(answer.result.diff) <= 256 * 1024
    assert answer.content[0]["text"].endswith("(the diff goes on)\n")


async def test_a_call_that_was_cancelled_changes_nothing(bench: Workbench) -> None:
    (bench.root / "a").write_text("old")
    call = bench.new_call()
    call.end()
    with pytest.raises(Cancelled):
        await bench.call(EDIT, call=call, path="a", edits=[edit("old", "new")])
    assert (bench.root / "a").read_text() == "old"
