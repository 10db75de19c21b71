# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_search`` among names, files and patterns that were made to hurt it."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotAuthorized, TimedOut
from mcpd.servers.workstation.filesystem.searching import SEARCH
from tests.children import marked
from tests.unit.workstation.bench import Workbench
from tests.unit.workstation.searches import ENGINES, fill, needs_ripgrep, paths, search, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.process]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    use(name, bench, monkeypatch)
    return name


async def test_no_symlink_leads_out(bench: Workbench) -> None:
    (bench.root / "directory").symlink_to(bench.outside)
    (bench.root / "file").symlink_to(bench.outside / "secret")
    (bench.root / ".gitignore").symlink_to(bench.outside / "secret")
    assert await paths(bench, "business", hidden=True, ignored=True) == []
    for path in ("directory", "file", "directory/secret"):
        with pytest.raises(NotAuthorized):
            await search(bench, "business", path=path)


async def test_what_lies_above_the_root_does_not_count(bench: Workbench) -> None:
    (bench.directory / ".gitignore").write_text("*\n")
    fill(bench.root, {"a": "word\n", "d/b": "word\n"})
    assert await paths(bench, "word") == ["a", "d/b"]
    assert await paths(bench, "word", path="d") == ["d/b"]


async def test_a_symlink_inside_leads_to_what_it_names(bench: Workbench) -> None:
    fill(bench.root, {"real/a": "word\n", "real/sub/b": "word\n"})
    (bench.root / "link").symlink_to("real")
    (bench.root / "file").symlink_to("real/a")
    assert await paths(bench, "word") == ["real/a", "real/sub/b"]
    assert await paths(bench, "word", path="link") == ["link/a", "link/sub/b"]
    assert await paths(bench, "word", path="file") == ["file"]


async def test_hard_links_tell_nothing(bench: Workbench) -> None:
    (bench.root / "a").hardlink_to(bench.outside / "secret")
    fill(bench.root, {"b": "business\n"})
    result = await search(bench, "business", max_results=1)
    assert [each.path for each in result.matches] == [f"{bench.root}/b"]
    assert (result.files, result.truncated) == (1, False)
    with pytest.raises(NotAuthorized, match="hard link"):
        await search(bench, "business", path="a")


async def test_names_of_all_kinds(bench: Workbench) -> None:
    names = (b"-e", b"a\nb", b"\xff", b"\x1b[31m", b'q"\\', "ü".encode(), b" ", b"{a,b}")
    for name in names:
        with open(os.path.join(os.fsencode(bench.root), name), "w") as file:  # noqa: PTH118, PTH123
            file.write("word\n")
    expected = [(name.decode(errors="replace"), None if name != b"\xff" else False) for name in sorted(names)]
    for target, pattern in (("content", "word"), ("name", "")):
        answer = await bench.call(SEARCH, pattern=pattern, target=target)
        found = [(each["path"], each.get("addressable")) for each in answer.result.model_dump()["matches"]]
        assert found == [(f"{bench.root}/{name}", addressable) for name, addressable in expected]
        lines = answer.content[0]["text"].split("\n")
        assert len(lines) == len(names) + 1
        assert not any("\x1b" in line for line in lines)


async def test_what_is_no_file_is_left_alone(bench: Workbench) -> None:
    os.mkfifo(bench.root / "pipe")
    (bench.root / "loop").symlink_to("loop")
    (bench.root / "null").symlink_to("/dev/zero")
    fill(bench.root, {"a": "word\n", "sparse": ""})
    os.truncate(bench.root / "sparse", 1 << 40)
    assert await paths(bench, "word") == ["a"]


async def test_long_lines_are_cut_around_the_match(bench: Workbench) -> None:
    fill(bench.root, {"a": "x" * 300_000 + "word" + "y" * 300_000 + "\n", "b": "word" + "z" * 600})
    first, second = (await search(bench, "word")).matches
    assert (first.line, first.column) == (1, 300_001)
    assert first.text is not None
    assert len(first.text) == 500
    assert "xword" in first.text
    assert second.text == "word" + "z" * 495 + "…"


async def test_lines_of_many_megabytes(bench: Workbench) -> None:
    quoted = b'"}}\n{"type":"match"}}' * 10
    fill(
        bench.root, {"a": b"first\n" + b'\\"}},"line_number":7,' * 400_000 + b" word\nword\n", "b": quoted + b" word\n"}
    )
    result = await search(bench, "word", context=1)
    assert [(each.path[-1], each.line) for each in result.matches] == [("a", 2), ("a", 3), ("b", 11)]
    assert result.matches[0].text is not None
    assert result.matches[0].before == ["first"]
    assert all(len(each.text or "") <= 500 for each in result.matches)


async def test_many_matches_of_much_context_are_bounded(bench: Workbench) -> None:
    fill(bench.root, {"a": ("word " * 100 + "\n") * 5000})
    result = await search(bench, "word", max_results=5000, context=20)
    assert result.truncated
    assert sum(len("".join((*(each.before or ()), *(each.after or ())))) for each in result.matches) < 2 * 1024 * 1024


async def test_many_lines_that_match_across_lines_are_not_lost_in_silence(bench: Workbench) -> None:
    fill(bench.root, {"a": "word\n" * 100_000})
    result = await search(bench, r"word\n", multiline=True, max_results=5000)
    assert result.truncated
    assert (result.matches[0].line, result.matches[0].text) == (1, "word")


async def test_deep_and_wide_trees(bench: Workbench) -> None:
    deep = bench.root / "/".join(["d"] * 150)
    deep.mkdir(parents=True)
    (deep / "a").write_text("word\n")
    for number in range(1200):
        (bench.root / f"{number:05}").touch()
    assert await paths(bench, "word") == ["d/" * 150 + "a"]
    assert len(await paths(bench, "^0", target="name", max_results=5000)) == 1200


async def test_globs_that_would_be_tried_for_ever(bench: Workbench) -> None:
    fill(bench.root, {"a" * 200: "word\n", ".gitignore": "a*" * 60 + "b\n" + "**/" * 30 + "a*b\n"})
    assert await paths(bench, "word", exclude=["a*" * 100 + "b", "*?" * 80 + "b"]) == ["a" * 200]


@pytest.mark.parametrize("engine", ["python"], indirect=True)
async def test_a_call_that_is_cancelled_leaves_nothing(bench: Workbench) -> None:
    fill(bench.root, dict.fromkeys((*map(str, range(1200)), "a" * 64), ""))
    searching = asyncio.Event()
    call = bench.new_call(progress=lambda *_: searching.set())
    running = asyncio.ensure_future(bench.call(SEARCH, call=call, pattern="(a|a)*(a|a)*b$", target="name"))
    await searching.wait()
    assert marked(str(bench.directory))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not marked(str(bench.directory))


@pytest.mark.parametrize(
    ("engine", "target"),
    [pytest.param("ripgrep", "content", marks=needs_ripgrep), ("python", "content"), ("python", "name")],
    indirect=["engine"],
)
async def test_a_pattern_that_takes_for_ever_is_ended(bench: Workbench, engine: str, target: str) -> None:
    fill(bench.root, {"a" * 64: "a" * 64 + "\n"})
    pattern = "(a|a)*(a|a)*b$"
    if engine == "ripgrep":
        assert await paths(bench, pattern) == []
    else:
        with pytest.raises(TimedOut):
            await bench.call(SEARCH, call=bench.new_call(seconds=0.5), pattern=pattern, target=target)
