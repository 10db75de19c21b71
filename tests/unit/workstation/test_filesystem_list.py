# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_list``: entries of all kinds and names, in order, page by page."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import Cancelled, InvalidArgument, NotAuthorized, NotFound
from mcpd.servers.workstation.filesystem.entries import MAX_TEXT, timestamp
from mcpd.servers.workstation.filesystem.listing import LIST
from mcpd.servers.workstation.filesystem.names import shown_name
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

MODIFIED = 1_000_000_000_123_456_789


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def touch(path: Path, content: bytes = b"") -> None:
    path.write_bytes(content)
    os.utime(path, ns=(MODIFIED, MODIFIED))


async def pages(bench: Workbench, **arguments: Any) -> list[list[str]]:
    found, cursor = [], None
    while True:
        asked = arguments if cursor is None else {**arguments, "cursor": cursor}
        result = (await bench.call(LIST, **asked)).result
        found.append([entry.name for entry in result.entries])
        cursor = result.next_cursor
        if cursor is None:
            return found


async def test_everything_in_a_directory_is_said_to_be_what_it_is(bench: Workbench) -> None:
    touch(bench.root / "file", b"12345")
    (bench.root / "directory").mkdir()
    (bench.root / "link").symlink_to("file")
    (bench.root / "outside").symlink_to("../outside/secret")
    (bench.root / "dangling").symlink_to("no where\n")
    os.mkfifo(bench.root / "pipe")
    touch(bench.root / ".hidden")
    result = (await bench.call(LIST)).result
    entries = [entry.model_dump(exclude_none=True) for entry in result.entries]
    assert [(entry["name"], entry["type"], entry.get("target")) for entry in entries] == [
        ("dangling", "symlink", "no where\n"),
        ("directory", "directory", None),
        ("file", "file", None),
        ("link", "symlink", "file"),
        ("outside", "symlink", "../outside/secret"),
        ("pipe", "pipe", None),
    ]
    assert entries[2] == {"name": "file", "type": "file", "size": 5, "modified": "2001-09-09T01:46:40.123Z"}
    assert (result.path, result.total, result.hidden, result.next_cursor) == (str(bench.root), 6, 1, None)
    shown = (await bench.call(LIST, hidden=True)).result
    assert (shown.entries[0].name, shown.total, shown.hidden) == (".hidden", 7, None)


async def test_an_empty_directory_has_no_entries(bench: Workbench) -> None:
    (bench.root / "a").mkdir()
    result = (await bench.call(LIST, path="a")).result
    assert result.model_dump(exclude_none=True) == {"path": str(bench.root / "a"), "entries": [], "total": 0}


async def test_order_is_by_name_or_largest_or_newest_first(bench: Workbench) -> None:
    for number, (name, size) in enumerate({"b": 3, "a": 1, "c": 2, "d": 1}.items()):
        touch(bench.root / name, b"x" * size)
        os.utime(bench.root / name, ns=(0, number * 10**9))
    (bench.root / "e").mkdir()
    os.utime(bench.root / "e", ns=(0, -(10**9)))
    for limit in (1, 2, 3, 5, 100):
        for order, expected in (("name", "abcde"), ("size", "bcade"), ("modified", "dcabe")):
            found = await pages(bench, sort=order, limit=limit)
            assert "".join(name for page in found for name in page) == expected
            assert all(len(page) <= limit for page in found)


async def test_names_that_are_no_utf_8_are_shown_and_said_to_be_out_of_reach(bench: Workbench) -> None:
    for name in (b"\xff", b"a\nb\x1b", b"caf\xe9", "café".encode()):
        touch(bench.root / os.fsdecode(name))
    (bench.root / "z").symlink_to(os.fsdecode(b"\xfe"))
    result = (await bench.call(LIST)).result
    assert [(entry.name, entry.addressable, entry.target) for entry in result.entries] == [
        ("a\nb\x1b", None, None),
        ("café", None, None),
        ("caf\ufffd", False, None),
        ("z", None, "\ufffd"),
        ("\ufffd", False, None),
    ]
    assert await pages(bench, limit=1) == [[entry.name] for entry in result.entries]


@given(
    names=st.sets(st.binary(min_size=1, max_size=20).filter(lambda name: not {0, 47} & set(name)), max_size=15),
    limit=st.integers(1, 20),
    sort=st.sampled_from(["name", "size", "modified"]),
)
async def test_pages_have_every_entry_once(bench: Workbench, names: set[bytes], limit: int, sort: str) -> None:
    names -= {b".", b".."}
    for path in bench.root.iterdir():
        path.unlink()
    for name in names:
        touch(bench.root / os.fsdecode(name), name[:3])
    found = [name for page in await pages(bench, limit=limit, sort=sort, hidden=True) for name in page]
    assert sorted(found) == sorted(shown_name(os.fsdecode(name)) for name in names)


async def test_a_page_goes_on_where_the_one_before_ended_though_entries_come_and_go(bench: Workbench) -> None:
    for name in "bdfh":
        touch(bench.root / name)
    first = (await bench.call(LIST, limit=2)).result
    assert [entry.name for entry in first.entries] == ["b", "d"]
    for name in "aeg":
        touch(bench.root / name)
    (bench.root / "d").unlink()
    (bench.root / "f").unlink()
    second = (await bench.call(LIST, limit=9, cursor=first.next_cursor)).result
    assert [entry.name for entry in second.entries] == ["e", "g", "h"]


async def test_a_directory_with_very_many_entries_is_listed_in_parts(bench: Workbench) -> None:
    directory = os.open(bench.root, os.O_RDONLY)
    try:
        os.mkfifo("000000", dir_fd=directory)
        for number in range(1, 12_000):
            os.link("000000", f"{number:06}", src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    result = (await bench.call(LIST, limit=3)).result
    assert ([entry.name for entry in result.entries], result.total) == (["000000", "000001", "000002"], 12_000)
    result = (await bench.call(LIST, cursor=base64.urlsafe_b64encode(b"name 0 011997").decode())).result
    assert [entry.name for entry in result.entries] == ["011998", "011999"]
    assert len((await bench.call(LIST, limit=10_000)).result.entries) == 10_000


@pytest.mark.parametrize("cursor", ["", "x", "é", "AAAA", "eCB5IHo=", "bmFtZSB4IHk="])
async def test_a_made_up_cursor_is_refused(bench: Workbench, cursor: str) -> None:
    with pytest.raises(InvalidArgument, match="cursor"):
        await bench.call(LIST, cursor=cursor)


async def test_a_cursor_of_another_order_is_refused(bench: Workbench) -> None:
    touch(bench.root / "a")
    touch(bench.root / "b")
    cursor = (await bench.call(LIST, limit=1)).result.next_cursor
    with pytest.raises(InvalidArgument, match="sort"):
        await bench.call(LIST, sort="size", cursor=cursor)


@pytest.mark.parametrize(
    "arguments", [{"limit": 0}, {"limit": 10_001}, {"sort": "no"}, {"path": "a"}, {"path": "../x"}]
)
async def test_arguments_that_are_refused(bench: Workbench, arguments: dict[str, Any]) -> None:
    touch(bench.root / "a")
    with pytest.raises(InvalidArgument):
        await bench.call(LIST, **arguments)


async def test_nothing_outside_is_listed(bench: Workbench) -> None:
    before = bench.fingerprint()
    (bench.root / "link").symlink_to("../outside")
    for path in ("link", str(bench.outside), "/"):
        with pytest.raises(NotAuthorized):
            await bench.call(LIST, path=path)
    with pytest.raises(NotFound):
        await bench.call(LIST, path="missing")
    assert bench.fingerprint() == before


@pytest.mark.parametrize(
    ("nanoseconds", "written"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999_999_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000_000_000, "9999-12-31T23:59:59.999Z"),
        (-(2**63) * 10**9, "0001-01-01T00:00:00.000Z"),
        (2**63 * 10**9, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_beyond_what_can_be_written_are_the_first_and_the_last(nanoseconds: int, written: str) -> None:
    assert timestamp(nanoseconds) == written


async def test_a_page_of_symlinks_that_point_far_is_cut_and_goes_on(bench: Workbench) -> None:
    for number in range(1100):
        (bench.root / f"{number:04}").symlink_to("t" * 4095)
    found = await pages(bench)
    assert [name for page in found for name in page] == [f"{number:04}" for number in range(1100)]
    result = (await bench.call(LIST, limit=10_000)).result
    assert result.next_cursor is not None
    assert sum(len(entry.target) for entry in result.entries) <= MAX_TEXT + 4096


async def test_a_call_that_nobody_waits_for_ends(bench: Workbench) -> None:
    touch(bench.root / "a")
    call = bench.new_call()
    call.end()
    with pytest.raises(Cancelled):
        await bench.call(LIST, call=call)
