# SPDX-License-Identifier: LGPL-2.1-or-later
"""Globs and ``.gitignore`` files: what git, and ripgrep, make of them."""

from __future__ import annotations

import secrets
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument
from mcpd.servers.workstation.filesystem.walking import Globs, Ignored
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.searches import needs_ripgrep, paths, search, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

FILES = (
    "a",
    "b",
    "ab",
    "a b",
    "b.a",
    "d/a",
    "d/b",
    "d/ab",
    "d/d/a",
    "d/d/b",
    "d/e/a.b",
    "e/d/b",
    "e/[a]",
    "e/!a",
    "e/#",
)
LINES = st.lists(
    st.one_of(
        st.text("abde*?/[]!.-\\ #", max_size=7),
        st.lists(st.sampled_from(["**", "*", "d", "e", "a", "b", "?", "[a-b]", "[!a]", "a*"]), min_size=1, max_size=4)
        .map("/".join)
        .flatmap(lambda glob: st.sampled_from([glob, f"/{glob}", f"!{glob}", f"{glob}/"])),
    ),
    max_size=5,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def planted(parent: Path, lines: list[str]) -> Path:
    root = parent / secrets.token_hex(4)
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("word\n")
    (root / ".gitignore").write_text("\n".join(lines))
    return root


@given(st.lists(LINES, min_size=1, max_size=8))
async def test_names_are_left_out_as_git_leaves_them_out(bench: Workbench, directories: list[list[str]]) -> None:
    root = bench.root / secrets.token_hex(4)
    for lines in directories:
        planted(root, lines)
    subprocess.run(["git", "init", "-q", root], check=True)
    git = [
        "git",
        "-C",
        str(root),
        "-c",
        "core.excludesFile=/dev/null",
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split("\0")
    found = await search(bench, "", target="name", path=root.name, hidden=True, max_results=5000)
    files = {each.path.removeprefix(f"{root}/") for each in found.matches if each.type == "file"}
    assert files == {each for each in listed if each}


@needs_ripgrep
@given(
    include=st.lists(
        st.sampled_from(["a", "*.?", "d/", "/d/*", "**/d/**", "{a,b}", "d/{d,e}/*", "[!a]", "e/\\[*"]), max_size=3
    ),
    exclude=st.lists(st.sampled_from(["b", "d/d", "e/", "*/*/a", "{a,d/**/b}"]), max_size=2),
    lines=st.lists(st.sampled_from(["a", "!a", "d/d", "e/", "/b", "*b", "!d/b", "**/e/*"]), max_size=3),
    hidden=st.booleans(),
    ignored=st.booleans(),
)
async def test_both_engines_search_the_same_files(
    bench: Workbench,
    include: list[str],
    exclude: list[str],
    lines: list[str],
    hidden: bool,
    ignored: bool,
) -> None:
    root = planted(bench.root, lines)
    (root / ".h").write_text("word\n")
    asked: dict[str, Any] = {
        "path": root.name, "include": include, "exclude": exclude, "hidden": hidden, "ignored": ignored,
        "pattern": "word", "literal": True,
    }  # fmt: skip
    with_ripgrep = await search(bench, **asked)
    with pytest.MonkeyPatch.context() as patch:
        use("python", bench, patch)
        without = await search(bench, **asked)
    assert (with_ripgrep.engine, without.engine) == ("ripgrep", "python")
    assert with_ripgrep.matches == without.matches


@needs_ripgrep
@given(
    contents=st.lists(
        st.lists(st.sampled_from(["a", "b", "ab", "aba", "Ä", "é", " ", "\t", "\n", "\n", "\r\n"]), max_size=12),
        max_size=3,
    ),
    pattern=st.sampled_from(
        ["a", "b+", "^a", "a$", "^$", "a|é", r"\bab\b", r"\w+", "[^a]", "Ä", "ä", "a.*b", "(?:ab)+", "b?$"]
    ),
    context=st.integers(0, 2),
    max_per_file=st.none() | st.integers(1, 2),
    max_results=st.integers(1, 6),
)
async def test_both_engines_find_the_same(
    bench: Workbench,
    contents: list[list[str]],
    pattern: str,
    context: int,
    max_per_file: int | None,
    max_results: int,
) -> None:
    root = bench.root / secrets.token_hex(4)
    root.mkdir()
    for number, parts in enumerate(contents):
        (root / str(number)).write_text("".join(parts), newline="")
    asked: dict[str, Any] = {"path": root.name, "pattern": pattern, "context": context, "max_results": max_results}
    if max_per_file is not None:
        asked["max_per_file"] = max_per_file
    with_ripgrep = await search(bench, **asked)
    with pytest.MonkeyPatch.context() as patch:
        use("python", bench, patch)
        without = await search(bench, **asked)
    assert with_ripgrep.model_copy(update={"engine": "python"}) == without


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a/b/c.py", True),
        ("*.py", "a.py/b", False),
        ("a/*.py", "a/c.py", True),
        ("a/*.py", "b/a/c.py", False),
        ("/*.py", "c.py", True),
        ("/*.py", "a/c.py", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**", "a", False),
        ("**/a/**/b/c", "x/a/b/y/b/c", True),
        ("*a*b*c", "xaxbxaxbc", True),
        ("*a*b*c", "xbxaxc", False),
        ("[]a]", "]", True),
        ("[^a-c]", "d", True),
        ("[^a-c]", "/", False),
        ("[a-]", "-", True),
        (r"[\]]", "]", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("{a,b{c,d}}.x", "bd.x", True),
        ("{a,}x", "x", True),
        (r"\{a,b}", "{a,b}", True),
        ("[{]", "{", True),
        ("?", "ü", True),
        ("*", "a\nb", True),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert Globs([glob]).matches(path, directory=False) is matches


def test_what_a_directory_has_in_it_is_covered_with_it() -> None:
    globs = Globs(["build/", "/x"])
    assert globs.covers("a/build/b/c")
    assert globs.covers("x/y")
    assert not globs.covers("build")
    assert not globs.covers("a/x")


@given(st.text(max_size=60), st.text(max_size=20))
def test_anything_is_a_gitignore_file(text: str, path: str) -> None:
    assert Ignored(text).verdict(path, directory=True) in {True, False, None}


@given(st.text("ab*?[]{},!\\/-^", max_size=30))
def test_a_glob_matches_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        assert Globs([text]).covers("a/b") in {True, False}


async def test_globs_that_stand_for_too_many_are_refused(bench: Workbench) -> None:
    assert await paths(bench, "word", include=["{a,b}" * 7], exclude=["{a,b}" * 8]) == []
    with pytest.raises(InvalidArgument, match="more than 256"):
        await search(bench, "word", include=["{a,b}" * 7] * 3)


async def test_a_glob_of_anything_finds_all(bench: Workbench) -> None:
    root = planted(bench.root, [])
    assert len(await paths(bench, "word", path=root.name, include=["**"])) == len(FILES)
