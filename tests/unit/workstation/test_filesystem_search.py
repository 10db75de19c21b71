# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_search``: what is found, with ripgrep and without."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import InvalidArgument, NotAuthorized, NotFound, TooLarge
from mcpd.servers.workstation.filesystem.scanning import MAX_SIZE, MAX_WHOLE
from mcpd.servers.workstation.filesystem.searching import SEARCH, SearchResult
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.searches import ENGINES, fill, paths, search, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    use(name, bench, monkeypatch)
    return name


async def test_lines_are_found_with_their_places_in_the_order_of_the_paths(bench: Workbench, engine: str) -> None:
    fill(bench.root, {"b.txt": "none\nthe word here\n", "a/c.txt": "word\n", "a.txt": "äöü word word\n"})
    answer = await bench.call(SEARCH, pattern="w[o]rd")
    result = answer.result
    assert isinstance(result, SearchResult)
    assert [(each.path, each.line, each.column, each.text) for each in result.matches] == [
        (f"{bench.root}/a/c.txt", 1, 1, "word"),
        (f"{bench.root}/a.txt", 1, 5, "äöü word word"),
        (f"{bench.root}/b.txt", 2, 5, "the word here"),
    ]
    assert (result.files, result.truncated, result.engine) == (3, False, engine)
    (block,) = answer.content
    assert block["text"].split("\n")[2:] == [f"{bench.root}/b.txt:2:5: the word here", "3 matches in 3 files"]


async def test_nothing_found_is_a_result(bench: Workbench, engine: str) -> None:
    fill(bench.root, {"a": "x\n"})
    result = await search(bench, "word")
    assert (result.matches, result.files, result.engine) == ([], 0, engine)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("pattern", "arguments", "found"),
    [
        ("word", {}, ["word", "Word"]),
        ("Word", {}, ["Word"]),
        ("word", {"case_sensitive": True}, ["word"]),
        ("WORD", {"case_sensitive": False}, ["word", "Word"]),
        (r"\Bord", {}, ["word", "Word"]),
        (r"\Sord", {}, ["word", "Word"]),
        ("ÄÖ", {"case_sensitive": False}, ["äö"]),
        ("a.c", {}, ["a.c", "abc"]),
        ("a.c", {"literal": True}, ["a.c"]),
        ("(", {"literal": True}, ["f(x)"]),
        ("-x", {}, ["-x"]),
        ("--files", {"literal": True}, []),
        (r"^\w+$", {}, ["word", "Word", "abc", "äö"]),
    ],
)
async def test_patterns(bench: Workbench, pattern: str, arguments: dict[str, Any], found: list[str]) -> None:
    fill(bench.root, {"a": "word\nWord\na.c\nabc\nf(x)\näö\n-x\n"})
    result = await search(bench, pattern, **arguments)
    assert [each.text for each in result.matches] == found


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, ["docs/a.md", "kept.log", "src/a.c", "src/deep/b.h"]),
        ({"include": ["*.c", "*.h"]}, ["src/a.c", "src/deep/b.h"]),
        ({"include": ["*.{c,h}"]}, ["src/a.c", "src/deep/b.h"]),
        ({"include": ["src/*"]}, ["src/a.c"]),
        ({"include": ["src/"]}, ["src/a.c", "src/deep/b.h"]),
        ({"include": ["src/**"]}, ["src/a.c", "src/deep/b.h"]),
        ({"include": ["*.log"]}, ["kept.log"]),
        ({"include": ["[a-b].?"]}, ["src/a.c", "src/deep/b.h"]),
        ({"exclude": ["src"]}, ["docs/a.md", "kept.log"]),
        ({"exclude": ["src/deep/", "*.log"]}, ["docs/a.md", "src/a.c"]),
        ({"exclude": ["a.{c,md}"]}, ["kept.log", "src/deep/b.h"]),
        ({"include": ["*.c"], "exclude": ["*"]}, []),
        ({"hidden": True}, [".env", ".h/a.c", "docs/a.md", "kept.log", "src/a.c", "src/deep/b.h"]),
        ({"hidden": True, "include": ["*.c"]}, [".h/a.c", "src/a.c"]),
        ({"ignored": True}, ["docs/a.md", "kept.log", "lost.log", "out/a.c", "src/a.c", "src/deep/b.h"]),
        ({"ignored": True, "include": ["*.c"]}, ["out/a.c", "src/a.c"]),
        ({"path": "src"}, ["src/a.c", "src/deep/b.h"]),
        ({"path": "src/deep/b.h"}, ["src/deep/b.h"]),
        ({"path": "lost.log"}, ["lost.log"]),
        ({"path": ".env", "include": ["*.c"]}, [".env"]),
    ],
)
async def test_which_files_are_searched(bench: Workbench, arguments: dict[str, Any], found: list[str]) -> None:
    names = ("src/a.c", "src/deep/b.h", "docs/a.md", "out/a.c", "lost.log", "kept.log", ".env", ".h/a.c", ".git/a.c")
    fill(bench.root, dict.fromkeys(names, "word\n"))
    fill(bench.root, {".gitignore": "*.log\n!kept.log\nout/\n!.env\n"})
    assert await paths(bench, "word", **arguments) == found


async def test_both_search_a_directory_below_by_the_rules_above_it(bench: Workbench, engine: str) -> None:
    fill(bench.root, {".gitignore": "/src/made\n*.o\n!a.o\n", "src/.gitignore": "a.o\n!c.o\n"})
    fill(bench.root, dict.fromkeys(("src/made/a", "src/a.o", "src/b.o", "src/c.o", "src/x"), "word\n"))
    result = await search(bench, "word", path="src")
    assert [each.path for each in result.matches] == [f"{bench.root}/src/c.o", f"{bench.root}/src/x"]
    assert result.engine == engine


@pytest.mark.usefixtures("engine")
async def test_rules_above_a_repository_do_not_count_in_it(bench: Workbench) -> None:
    fill(bench.root, {".gitignore": "a.txt\n", "inner/.git/HEAD": "", "inner/a.txt": "word\n", "a.txt": "word\n"})
    assert await paths(bench, "word") == ["inner/a.txt"]


@pytest.mark.usefixtures("engine")
async def test_context(bench: Workbench) -> None:
    fill(bench.root, {"a": "1\n2\nx3\nx4\n5\n6\n7\n8\nx9\n"})
    result = await search(bench, "x", context=2)
    assert [(each.line, each.before, each.after) for each in result.matches] == [
        (3, ["1", "2"], ["x4", "5"]),
        (4, ["2", "x3"], ["5", "6"]),
        (9, ["7", "8"], []),
    ]


@pytest.mark.usefixtures("engine")
async def test_matches_across_lines(bench: Workbench) -> None:
    fill(bench.root, {"a": "1\nfoo\nbar\n4\nfoo\n6\n", "b": "foo bar"})
    result = await search(bench, r"foo\s+bar$", multiline=True, context=1)
    assert [(each.line, each.column, each.text, each.before, each.after) for each in result.matches] == [
        (2, 1, "foo\nbar", ["1"], ["4"]),
        (1, 1, "foo bar", [], []),
    ]
    with pytest.raises(InvalidArgument, match="multiline"):
        await search(bench, r"foo\nbar")
    with pytest.raises(InvalidArgument, match="multiline"):
        await search(bench, "foo\nbar", literal=True)


@pytest.mark.usefixtures("engine")
async def test_each_line_counts_once_across_lines_too(bench: Workbench) -> None:
    fill(bench.root, {"a": "x x\nx\n\n1\nx"})
    result = await search(bench, "x", multiline=True)
    assert [(each.line, each.column, each.text) for each in result.matches] == [(1, 1, "x x"), (2, 1, "x"), (5, 1, "x")]


@pytest.mark.usefixtures("engine")
async def test_lines_that_end_as_on_windows(bench: Workbench) -> None:
    fill(bench.root, {"a": "one word\r\ntwo\r\n"})
    result = await search(bench, "word$", context=1)
    assert [(each.text, each.after) for each in result.matches] == [("one word", ["two"])]


@pytest.mark.usefixtures("engine")
async def test_what_is_no_utf_8(bench: Workbench) -> None:
    fill(
        bench.root,
        {"latin": b"\xe4\xf6 word\n", "wide": "\ufeffä word\n".encode("utf-16-le"), "bom": b"\xef\xbb\xbfword\n"},
    )
    result = await search(bench, "word")
    assert [(each.text, each.column) for each in result.matches] == [
        ("word", 1),
        ("\ufffd\ufffd word", 4),
        ("ä word", 3),
    ]


@pytest.mark.usefixtures("engine")
async def test_binary_files_do_not_count(bench: Workbench) -> None:
    fill(bench.root, {"early": b"word\n\0\n", "late": b"word\n" * 40_000 + b"\0", "text": "word\n"})
    assert await paths(bench, "word", max_per_file=1, include=["early", "text"]) == ["text"]
    assert await paths(bench, "word", max_results=5000, include=["text", "early"]) == ["text"]
    assert await paths(bench, "word", path="early") == []


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("multiline", "most"), [(False, MAX_SIZE), (True, MAX_WHOLE)])
async def test_files_that_are_too_large_are_left_out(bench: Workbench, multiline: bool, most: int) -> None:
    with (bench.root / "large").open("wb") as file:
        file.write(b"word\n" + b"x" * (most - 5))
    assert await paths(bench, "word", multiline=multiline) == ["large"]
    assert await paths(bench, "word", multiline=multiline, path="large") == ["large"]
    with (bench.root / "large").open("ab") as file:
        file.write(b"x")
    assert await paths(bench, "word", multiline=multiline) == []
    with pytest.raises(TooLarge, match=str(most)):
        await search(bench, "word", multiline=multiline, path="large")


@pytest.mark.usefixtures("engine")
async def test_as_many_as_asked_for(bench: Workbench) -> None:
    fill(bench.root, {f"{number}": "word\nword\nword\n" for number in range(4)})
    exact = await search(bench, "word", max_results=12)
    assert (len(exact.matches), exact.files, exact.truncated) == (12, 4, False)
    fewer = await search(bench, "word", max_results=4)
    assert (len(fewer.matches), fewer.files, fewer.truncated) == (4, 2, True)
    assert fewer.matches == exact.matches[:4]
    assert await paths(bench, "word", max_per_file=1) == ["0", "1", "2", "3"]
    assert await paths(bench, "word", max_per_file=2, multiline=True, path="1") == ["1", "1"]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("pattern", ["(", "[z-a]", "*", "x{2,1}", "\0", ""])
async def test_a_pattern_that_cannot_be_used(bench: Workbench, pattern: str) -> None:
    fill(bench.root, {"a": "x\n"})
    with pytest.raises(InvalidArgument, match="pattern"):
        await search(bench, pattern)


async def test_a_pattern_that_python_would_read_otherwise_is_refused(bench: Workbench) -> None:
    fill(bench.root, {"abc": ""})
    with pytest.raises(InvalidArgument, match="nested set"):
        await search(bench, "[[:alpha:]]", target="name")


@pytest.mark.parametrize("glob", ["[", "a{b", "a\\", "//", "{a,b}" * 9, "[b-a]"])
async def test_a_glob_that_cannot_be_used(bench: Workbench, glob: str) -> None:
    with pytest.raises(InvalidArgument, match=r"the glob .* cannot be used"):
        await search(bench, "x", include=[glob])


async def test_where_nothing_can_be_searched(bench: Workbench) -> None:
    os.mkfifo(bench.root / "pipe")
    (bench.root / "file").touch()
    with pytest.raises(NotFound):
        await search(bench, "x", path="none")
    with pytest.raises(NotAuthorized):
        await search(bench, "x", path=str(bench.outside))
    with pytest.raises(InvalidArgument, match="named pipe"):
        await search(bench, "x", path="pipe")
    with pytest.raises(InvalidArgument, match="not a directory"):
        await search(bench, "x", path="file", target="name")


@pytest.mark.parametrize(
    ("pattern", "arguments", "found"),
    [
        ("a", {}, [("a", "directory"), ("a/Abc.txt", "file")]),
        ("^link$", {}, [("link", "symlink")]),
        ("A", {}, [("a/Abc.txt", "file")]),
        (r"\.txt$", {}, [("a/Abc.txt", "file"), ("x.txt", "file")]),
        (".txt", {"literal": True}, [("a/Abc.txt", "file"), ("x.txt", "file")]),
        ("", {"include": ["*.txt"]}, [("a/Abc.txt", "file"), ("x.txt", "file")]),
        ("", {"include": ["a"]}, [("a", "directory")]),
        ("^a/A", {}, [("a/Abc.txt", "file")]),
        ("env", {"hidden": True}, [(".env", "file")]),
        ("out", {"ignored": True}, [("out", "directory"), ("out/out", "file")]),
        ("out", {}, []),
        ("", {"path": "a"}, [("a/Abc.txt", "file")]),
        ("pipe", {}, [("pipe", "pipe")]),
    ],
)
async def test_names(bench: Workbench, pattern: str, arguments: dict[str, Any], found: list[tuple[str, str]]) -> None:
    fill(bench.root, dict.fromkeys(("a/Abc.txt", "x.txt", ".env", "out/out"), ""))
    fill(bench.root, {".gitignore": "out/\n"})
    (bench.root / "link").symlink_to(bench.outside)
    os.mkfifo(bench.root / "pipe")
    result = await search(bench, pattern, target="name", **arguments)
    assert [(each.path.removeprefix(f"{bench.root}/"), each.type) for each in result.matches] == found


async def test_names_end_where_enough_are_found(bench: Workbench) -> None:
    fill(bench.root, dict.fromkeys(map(str, range(20)), ""))
    answer = await bench.call(SEARCH, pattern="", target="name", max_results=3)
    assert isinstance(answer.result, SearchResult)
    assert (len(answer.result.matches), answer.result.truncated) == (3, True)
    assert answer.content[0]["text"].split("\n")[-1].startswith("3 matches; there are more")


async def test_who_asks_is_told_how_far_it_is(bench: Workbench) -> None:
    fill(bench.root, dict.fromkeys(map(str, range(2500)), ""))
    told: list[float] = []
    call = bench.new_call(progress=lambda progress, total, message: told.append(progress))
    await bench.call(SEARCH, call=call, pattern="none", target="name")
    assert told == [1000, 2000]
