# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_read`` of more than one answer has room for, and what the other tools make of long texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import to_json

from mcpd.servers.workstation.filesystem.listing import LIST, TREE
from mcpd.servers.workstation.filesystem.reading import MAX_BYTES, READ
from mcpd.servers.workstation.filesystem.searching import SEARCH
from tests.unit.workstation.bench import Answer, Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.process

ANSWER = 12 * 1024 * 1024
"""Bytes that an answer may have: 16 MiB are what clients take in one line."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def size(answer: Answer) -> int:
    structured = answer.result.model_dump(mode="json", exclude_none=True)
    content = [*answer.content] or [{"type": "text", "text": json.dumps(structured, ensure_ascii=False)}]
    return len(to_json({"content": content, "structuredContent": structured}))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"start_line": 1},
        {"start_line": 2, "end_line": 10_000_000},
        {"offset": 10},
        {"offset": 10, "length": 7 * 1024 * 1024},
        {"encoding": "latin-1"},
        {"encoding": "base64"},
    ],
)
@pytest.mark.parametrize(
    "data",
    [b"\x01", b"\x01\n", b"text\n", b'"\\', "ä€😀\n".encode()],
    ids=["controls", "lines", "text", "quotes", "wide"],
)
async def test_an_answer_has_room_in_a_message(bench: Workbench, data: bytes, arguments: dict[str, Any]) -> None:
    content = b"first line\n" + data * (9 * 1024 * 1024 // len(data))
    (bench.root / "a").write_bytes(content)
    answer = await bench.call(READ, path="a", max_bytes=MAX_BYTES, **arguments)
    assert size(answer) <= ANSWER
    result = answer.result
    assert result.truncated
    offset = result.next_offset
    assert offset is not None
    assert offset - result.offset > (700_000 if b"\n" in data else 0)
    if arguments.get("encoding") not in {"base64", "latin-1"}:
        assert result.text == content[result.offset : offset].decode()


async def test_the_parts_of_a_text_that_is_long_in_json_are_the_text(bench: Workbench) -> None:
    content = "".join(f"{number}\x01\x02\x03\n" for number in range(600_000))
    (bench.root / "a").write_text(content)
    parts = []
    start: int | None = 1
    while start is not None:
        result = (await bench.call(READ, path="a", start_line=start, max_bytes=MAX_BYTES)).result
        assert result.start_line == start
        parts.append(result.text)
        start = result.next_line
    assert "".join(parts) == content
    assert len(parts) > 2


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({}, None),
        ({"start_line": 2, "end_line": 3}, None),
        ({"offset": 2, "length": 3}, None),
        ({"max_bytes": 30}, "[cut after line 5 of 100; go on with start_line=6]"),
        ({"start_line": 3, "max_bytes": 30}, "[cut after line 7 of 100; go on with start_line=8]"),
        ({"offset": 3, "max_bytes": 30}, "[cut after byte 30 of 600; go on with offset=30]"),
        ({"max_bytes": 4}, "[cut after byte 4 of 600; go on with offset=4]"),
        ({"encoding": "base64", "max_bytes": 30}, "[cut after byte 30 of 600; go on with offset=30]"),
    ],
)
async def test_who_sees_only_the_text_sees_that_it_is_cut(
    bench: Workbench, arguments: dict[str, Any], note: str | None
) -> None:
    (bench.root / "a").write_text("".join(f"{number:5}\n" for number in range(100)))
    answer = await bench.call(READ, path="a", **arguments)
    assert answer.content[0]["text"] == answer.result.text
    assert [block["text"] for block in answer.content[1:]] == ([] if note is None else [note])


async def test_bytes_that_are_cut_are_said_to_be_so(bench: Workbench) -> None:
    (bench.root / "a").write_bytes(bytes(100))
    answer = await bench.call(READ, path="a", max_bytes=30)
    assert answer.content[1] == {"type": "text", "text": "[cut after byte 30 of 100; go on with offset=30]"}


async def test_names_and_lines_that_are_long_in_json_have_room_too(bench: Workbench) -> None:
    for number in range(3000):
        name = f"{number:04}" + "\x01" * 250
        (bench.root / name).symlink_to("\x01" * 1000)
    (bench.root / "lines").write_text("word" + "\x01" * 400 + "\n" + "around\n" * 40)
    with (bench.root / "lines").open("a") as file:
        file.writelines("word" + "\x01" * 400 + "\n" + "around\n" * 40 for _ in range(5000))
    listed = await bench.call(LIST, limit=10_000)
    assert size(listed) <= ANSWER
    assert listed.result.next_cursor is not None
    drawn = await bench.call(TREE, limit=20_000)
    assert size(drawn) <= ANSWER
    found = await bench.call(SEARCH, pattern="word", max_results=5000, context=20)
    assert size(found) <= ANSWER
    assert found.result.truncated
