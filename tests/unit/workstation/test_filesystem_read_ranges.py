# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_read``: lines and bytes of texts, in all encodings, and the encodings themselves."""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, TooLarge
from mcpd.servers.workstation.filesystem.reading import READ
from mcpd.servers.workstation.filesystem.texts import TextEncoding, bytes_of, decode, encode
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

ENCODINGS = get_args(TextEncoding)
UNICODE = [each for each in ENCODINGS if each.startswith("utf")]
CHARACTERS = st.one_of(
    st.sampled_from("\n\r\t aé€😀\u2028\ufeff"), st.characters(exclude_categories=["Cs"], exclude_characters="\0")
)
TEXTS = st.text(CHARACTERS, max_size=80)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def lines_of(text: str) -> list[str]:
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@given(text=TEXTS, encoding=st.sampled_from(UNICODE), most=st.integers(4, 30))
async def test_the_parts_of_a_text_are_the_text(bench: Workbench, text: str, encoding: TextEncoding, most: int) -> None:
    text = text.removeprefix("\ufeff")
    (bench.root / "a").write_bytes(bytes_of(text, encoding))
    parts = []
    offset: int | None = 0
    while offset is not None:
        result = (await bench.call(READ, path="a", encoding=encoding, offset=offset, max_bytes=most)).result
        assert result.next_offset is None or result.text.endswith("\n") or "\n" not in result.text
        parts.append(result.text)
        assert result.next_offset is None or result.next_offset > offset
        assert result.truncated == (result.next_offset is not None)
        offset = result.next_offset
    assert "".join(parts) == text


@given(text=TEXTS, encoding=st.sampled_from(UNICODE), length=st.integers(1, 9))
async def test_a_range_of_bytes_is_cut_between_characters(
    bench: Workbench, text: str, encoding: TextEncoding, length: int
) -> None:
    text = text.removeprefix("\ufeff")
    (bench.root / "a").write_bytes(bytes_of(text, encoding))
    parts = []
    offset: int | None = 0
    while offset is not None:
        result = (await bench.call(READ, path="a", encoding=encoding, offset=offset, length=length)).result
        assert not result.truncated
        parts.append(result.text)
        assert result.next_offset is None or result.text
        offset = result.next_offset
    assert "".join(parts) == text


@given(text=TEXTS, encoding=st.sampled_from(UNICODE), offset=st.integers(0, 400))
async def test_what_begins_within_a_character_begins_with_the_next(
    bench: Workbench, text: str, encoding: TextEncoding, offset: int
) -> None:
    text = text.removeprefix("\ufeff")
    data = bytes_of(text, encoding)
    (bench.root / "a").write_bytes(data)
    result = (await bench.call(READ, path="a", encoding=encoding, offset=offset)).result
    assert text.endswith(result.text)
    assert offset <= result.offset <= offset + 4
    rest = data[result.offset :]
    assert rest.decode(encoding if not encoding.endswith(("16", "32")) else f"{encoding}-le") == result.text


@given(text=TEXTS, encoding=st.sampled_from(UNICODE), first=st.integers(1, 12), more=st.integers(0, 12) | st.none())
async def test_lines_are_those_that_end_with_a_newline(
    bench: Workbench, text: str, encoding: TextEncoding, first: int, more: int | None
) -> None:
    text = text.removeprefix("\ufeff")
    (bench.root / "a").write_bytes(bytes_of(text, encoding))
    lines = lines_of(text)
    last = None if more is None else first + more
    asked: dict[str, Any] = {
        "path": "a",
        "encoding": encoding,
        "start_line": first,
        **({} if last is None else {"end_line": last}),
    }
    if first > max(len(lines), 1):
        with pytest.raises(InvalidArgument, match=f"has only {len(lines)} line"):
            await bench.call(READ, **asked)
        return
    result = (await bench.call(READ, **asked)).result
    assert result.text == "".join(lines[first - 1 : last])
    assert not result.truncated
    assert result.total_lines == len(lines)
    if lines:
        end = min(last or len(lines), len(lines))
        assert (result.start_line, result.end_line) == (first, end)
        assert result.next_line == (end + 1 if end < len(lines) else None)


@given(text=TEXTS, most=st.integers(4, 30))
async def test_read_on_by_lines_or_bytes_gives_every_line_its_number(bench: Workbench, text: str, most: int) -> None:
    text = text.removeprefix("\ufeff")
    (bench.root / "a").write_bytes(text.encode())
    lines = lines_of(text)
    found: list[str] = []
    asked: dict[str, Any] = {"start_line": 1}
    while True:
        result = (await bench.call(READ, path="a", max_bytes=most, **asked)).result
        if result.next_offset is not None and result.next_line is None:
            break
        found += lines_of(result.text)
        assert lines[: len(found)] == found
        assert result.total_lines == len(lines)
        if result.next_line is None:
            assert found == lines
            return
        assert result.next_line == len(found) + 1
        asked = {"start_line": result.next_line}
    assert len(lines[len(found)].encode()) > most


@given(
    data=st.one_of(st.binary(), st.binary().map(lambda data: b"\xff\xfe" + data), TEXTS.map(str.encode)),
    encoding=st.sampled_from(["auto", "base64", *ENCODINGS]),
    asked=st.one_of(
        st.fixed_dictionaries({}, optional={"offset": st.integers(0, 300), "length": st.integers(1, 300)}),
        st.fixed_dictionaries({}, optional={"start_line": st.integers(1, 9), "end_line": st.integers(9, 20)}),
    ),
    most=st.integers(4, 300),
)
async def test_whatever_a_file_holds_it_is_answered_or_refused(
    bench: Workbench, data: bytes, encoding: str, asked: dict[str, Any], most: int
) -> None:
    (bench.root / "a").write_bytes(data)
    try:
        answer = await bench.call(READ, path="a", encoding=encoding, max_bytes=most, **asked)
    except (InvalidArgument, TooLarge):
        return
    result = answer.result
    assert json.dumps([*answer.content]).encode()
    assert result.next_offset is None or asked.get("offset", 0) < result.next_offset <= len(data)
    assert result.sha256 in {None, hashlib.sha256(data).hexdigest()}


async def test_a_line_that_is_too_long_alone_is_cut_between_characters(bench: Workbench) -> None:
    (bench.root / "a").write_text("x\n" + "é" * 1000)
    result = (await bench.call(READ, path="a", start_line=2, max_bytes=101)).result
    assert (result.text, result.truncated, result.next_line) == ("é" * 50, True, None)
    assert (result.next_offset, result.total_lines) == (102, 2)


async def test_a_large_text_comes_in_parts_that_end_with_a_line(bench: Workbench) -> None:
    text = "".join(f"line {number} äöü\n" for number in range(1, 200_001))
    (bench.root / "a.log").write_text(text)
    first = (await bench.call(READ, path="a.log")).result
    assert (first.truncated, first.sha256, first.total_lines) == (True, None, 200_000)
    assert first.text.endswith("\n")
    rest = (await bench.call(READ, path="a.log", start_line=first.next_line, max_bytes=8 * 2**20)).result
    assert first.text + rest.text == text
    assert (rest.offset, rest.end_line) == (first.next_offset, 200_000)
    middle = (await bench.call(READ, path="a.log", start_line=150_000, end_line=150_001)).result
    assert middle.text == "line 150000 äöü\nline 150001 äöü\n"
    assert (middle.truncated, middle.next_line) == (False, 150_002)


@pytest.mark.parametrize(
    ("mark", "codec", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8", "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le", "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16-be", "utf-16"),
        (codecs.BOM_UTF32_LE, "utf-32-le", "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32-be", "utf-32"),
    ],
)
async def test_a_byte_order_mark_tells_the_encoding(bench: Workbench, mark: bytes, codec: str, encoding: str) -> None:
    text = "zwölf\n😀\n"
    data = mark + text.encode(codec)
    (bench.root / "a").write_bytes(data)
    for asked in ("auto", encoding):
        result = (await bench.call(READ, path="a", encoding=asked)).result
        assert (result.text, result.encoding, result.byte_order_mark) == (text, encoding, True)
        assert result.sha256 == hashlib.sha256(data).hexdigest()
    second = (await bench.call(READ, path="a", start_line=2)).result
    assert (second.text, second.sha256) == ("😀\n", None)


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
async def test_utf_16_of_which_a_character_is_missing_half_is_binary(bench: Workbench, codec: str) -> None:
    mark = codecs.BOM_UTF16_LE if codec.endswith("le") else codecs.BOM_UTF16_BE
    (bench.root / "a").write_bytes(mark + "a😀".encode(codec)[:-2])
    assert (await bench.call(READ, path="a")).result.kind == "binary"
    with pytest.raises(InvalidArgument, match="byte 4 is no utf-16"):
        await bench.call(READ, path="a", encoding="utf-16")


@pytest.mark.parametrize(
    ("encoding", "data", "text"),
    [
        ("latin-1", b"a\xe9\x80", "aé\x80"),
        ("windows-1252", b"a\xe9\x80", "aé€"),
        ("ascii", b"plain", "plain"),
        ("utf-16-le", b"a\0b\0", "ab"),
        ("utf-16-be", b"\0a\0b", "ab"),
        ("utf-16", b"a\0b\0", "ab"),
        ("utf-32", b"a\0\0\0", "a"),
        ("utf-8", b"with\0NUL", "with\0NUL"),
    ],
)
async def test_a_named_encoding_is_taken_as_named(bench: Workbench, encoding: str, data: bytes, text: str) -> None:
    (bench.root / "a").write_bytes(data)
    result = (await bench.call(READ, path="a", encoding=encoding)).result
    assert (result.text, result.encoding, result.kind, result.byte_order_mark) == (text, encoding, "text", None)


@pytest.mark.parametrize(
    ("encoding", "data", "byte"),
    [("utf-8", b"ab\xff", 2), ("ascii", b"a\xe9", 1), ("windows-1252", b"abc\x81", 3), ("utf-16", b"a\0b", 2)],
)
async def test_what_is_no_text_in_the_named_encoding_is_an_error(
    bench: Workbench, encoding: str, data: bytes, byte: int
) -> None:
    (bench.root / "a").write_bytes(data)
    with pytest.raises(InvalidArgument, match=f"byte {byte} is no {encoding}"):
        await bench.call(READ, path="a", encoding=encoding)


@given(text=st.text(st.characters(exclude_categories=["Cs"])), encoding=st.sampled_from(ENCODINGS))
def test_what_is_written_in_an_encoding_is_read_in_it(text: str, encoding: TextEncoding) -> None:
    try:
        data = bytes_of(text, encoding)
    except InvalidArgument:
        assert encoding in {"latin-1", "windows-1252", "ascii"}
        return
    read, form = decode(data, encoding, "a")
    assert encode(read, form) == data
    assert read == text or text.startswith("\ufeff")


@pytest.mark.parametrize(
    ("text", "encoding", "said"),
    [
        ("a\nb€", "latin-1", "line 2 of the text holds U+20AC"),
        ("\x81", "windows-1252", "U+0081"),
        ("é", "ascii", "use 'utf-8'"),
        ("\ud83d", "utf-8", "half of a character"),
        ("\udcff", "utf-16", "half of a character"),
    ],
)
def test_a_character_that_an_encoding_cannot_write_is_named(text: str, encoding: TextEncoding, said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        bytes_of(text, encoding)


@given(data=st.binary(), encoding=st.sampled_from(["auto", *ENCODINGS]))
def test_what_can_be_decoded_is_encoded_to_the_same_bytes(data: bytes, encoding: TextEncoding) -> None:
    try:
        text, form = decode(data, encoding, "a")
    except InvalidArgument:
        return
    assert encode(text, form) == data


@given(data=st.binary(), width=st.integers(1, 80))
def test_base64_is_read_with_any_white_space_in_it(data: bytes, width: int) -> None:
    encoded = base64.b64encode(data).decode()
    folded = "\r\n ".join(encoded[start : start + width] for start in range(0, len(encoded), width))
    assert bytes_of(folded, "base64") == data


@pytest.mark.parametrize("content", ["a", "ab=c", "a-b_", "é", "====", "YQ=="[:3]])
def test_what_is_no_base64_is_refused(content: str) -> None:
    with pytest.raises(InvalidArgument, match="base64"):
        bytes_of(content, "base64")
