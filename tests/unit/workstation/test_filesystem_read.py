# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_read``: what becomes of text, images, sounds and other bytes, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import struct
import wave
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Cancelled, InvalidArgument, NotAuthorized, NotFound, TimedOut, TooLarge
from mcpd.servers.workstation.filesystem.reading import MAX_BYTES, READ
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    with Workbench(tmp_path) as made:
        yield made


def png() -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def wav() -> bytes:
    made = BytesIO()
    with wave.open(made, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\xff" * 40)
    return made.getvalue()


IMAGES = {
    "image/png": png(),
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + b"\0" * 20,
    "image/gif": b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00;",
    "image/webp": b"RIFF\x24\x00\x00\x00WEBPVP8 " + b"\0" * 20,
}
SOUNDS = {
    "audio/wav": wav(),
    "audio/mpeg": b"ID3\x04\x00\x00\x00\x00\x00\x00\xff\xfb\x90\x64" + b"\0" * 20,
    "audio/flac": b"fLaC\x00\x00\x00\x22" + b"\0" * 34,
    "audio/ogg": b"OggS\x00\x02" + b"\0" * 22 + b"\x01\x1eOpusHead\x01",
}


async def test_the_content_of_text_is_the_text_itself(bench: Workbench) -> None:
    text = "first\r\nsecond ü 😀\n\ttab\rno end"
    (bench.root / "a.txt").write_bytes(text.encode())
    answer = await bench.call(READ, path="a.txt")
    assert answer.content == ({"type": "text", "text": text},)
    assert answer.result.model_dump(exclude_none=True) == {
        "path": str(bench.root / "a.txt"),
        "size": len(text.encode()),
        "mime_type": "text/plain",
        "kind": "text",
        "encoding": "utf-8",
        "text": text,
        "offset": 0,
        "start_line": 1,
        "end_line": 3,
        "total_lines": 3,
        "truncated": False,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


async def test_an_empty_file_is_an_empty_text(bench: Workbench) -> None:
    (bench.root / "empty").touch()
    answer = await bench.call(READ, path=str(bench.root / "empty"))
    assert answer.content == ({"type": "text", "text": ""},)
    assert (answer.result.text, answer.result.total_lines, answer.result.start_line) == ("", 0, None)
    assert (await bench.call(READ, path="empty", start_line=1)).result.text == ""


@pytest.mark.parametrize("mime_type", [*IMAGES, *SOUNDS])
@pytest.mark.parametrize("name", ["a", "a.txt", "a.png"])
async def test_images_and_sounds_are_told_by_what_they_begin_with(bench: Workbench, mime_type: str, name: str) -> None:
    data = {**IMAGES, **SOUNDS}[mime_type]
    (bench.root / name).write_bytes(data)
    answer = await bench.call(READ, path=name)
    kind = mime_type.partition("/")[0]
    assert answer.content == ({"type": kind, "data": base64.b64encode(data).decode(), "mimeType": mime_type},)
    assert (answer.result.kind, answer.result.mime_type, answer.result.text) == (kind, mime_type, None)
    assert answer.result.sha256 == hashlib.sha256(data).hexdigest()


async def test_an_image_that_is_larger_than_max_bytes_is_refused_and_its_parts_are_bytes(bench: Workbench) -> None:
    data = png() + b"\0" * 2000
    (bench.root / "a.png").write_bytes(data)
    with pytest.raises(TooLarge, match="max_bytes is 1000"):
        await bench.call(READ, path="a.png", max_bytes=1000)
    answer = await bench.call(READ, path="a.png", offset=1, length=3)
    assert answer.content[0]["resource"]["blob"] == base64.b64encode(b"PNG").decode()
    assert (answer.result.kind, answer.result.mime_type) == ("binary", "image/png")
    assert (answer.result.offset, answer.result.next_offset, answer.result.truncated) == (1, 4, False)


async def test_svg_is_text(bench: Workbench) -> None:
    (bench.root / "a.svg").write_text("<svg/>")
    answer = await bench.call(READ, path="a.svg")
    assert answer.content == ({"type": "text", "text": "<svg/>"},)
    assert answer.result.mime_type == "image/svg+xml"


@pytest.mark.parametrize("text", ["GIF89a is a format\n", "ID3\n", "fLaC", "OggS", "RIFF....WEBP"])
async def test_text_that_begins_like_an_image_is_text(bench: Workbench, text: str) -> None:
    (bench.root / "a.gif").write_text(text)
    answer = await bench.call(READ, path="a.gif")
    assert (answer.result.text, answer.result.mime_type) == (text, "text/plain")


@pytest.mark.parametrize(
    ("name", "data", "mime_type"),
    [
        ("a.zip", b"PK\x03\x04\0\0", "application/zip"),
        ("a.bin", b"\xff\xfe\xfd", "application/octet-stream"),
        ("a.png", b"no image\0", "application/octet-stream"),
        ("a.txt", b"broken \xff utf-8", "application/octet-stream"),
        ("a.txt", b"cut \xe2\x82", "application/octet-stream"),
        ("a b%?#.bin", b"\0", "application/octet-stream"),
    ],
)
async def test_other_bytes_are_a_resource(bench: Workbench, name: str, data: bytes, mime_type: str) -> None:
    (bench.root / name).write_bytes(data)
    answer = await bench.call(READ, path=name)
    blob = base64.b64encode(data).decode()
    resource = {"uri": (bench.root / name).as_uri(), "mimeType": mime_type, "blob": blob}
    assert answer.content == ({"type": "resource", "resource": resource},)
    assert (answer.result.kind, answer.result.text, answer.result.encoding) == ("binary", None, None)


async def test_bytes_that_are_no_text_only_further_on_are_a_resource(bench: Workbench) -> None:
    data = b"a" * 20_000 + b"\xff"
    (bench.root / "a").write_bytes(data)
    assert (await bench.call(READ, path="a")).result.kind == "binary"
    assert (await bench.call(READ, path="a", length=10_000)).result.kind == "text"
    with pytest.raises(InvalidArgument, match="byte 20000"):
        await bench.call(READ, path="a", start_line=2)


async def test_what_begins_as_binary_is_binary_in_all_its_parts(bench: Workbench) -> None:
    (bench.root / "a").write_bytes(b"\0plain text")
    answer = await bench.call(READ, path="a", offset=1)
    assert (answer.result.kind, answer.result.mime_type) == ("binary", "application/octet-stream")
    with pytest.raises(InvalidArgument, match="NUL"):
        await bench.call(READ, path="a", end_line=1)


async def test_base64_gives_the_bytes_of_everything(bench: Workbench) -> None:
    (bench.root / "a.txt").write_text("text")
    answer = await bench.call(READ, path="a.txt", encoding="base64", offset=1, length=2)
    assert answer.content == ({"type": "text", "text": base64.b64encode(b"ex").decode()},)
    assert answer.result.text == base64.b64encode(b"ex").decode()
    assert (answer.result.kind, answer.result.encoding, answer.result.next_offset) == ("binary", "base64", 3)
    (bench.root / "a.png").write_bytes(png())
    assert base64.b64decode((await bench.call(READ, path="a.png", encoding="base64")).result.text) == png()
    with pytest.raises(InvalidArgument, match="no lines"):
        await bench.call(READ, path="a.txt", encoding="base64", start_line=1)


async def test_bytes_come_in_parts(bench: Workbench) -> None:
    data = os.urandom(2500) + b"\0"
    (bench.root / "a").write_bytes(b"\0" + data)
    parts = []
    offset: int | None = 0
    while offset is not None:
        result = (await bench.call(READ, path="a", offset=offset, max_bytes=1000, encoding="base64")).result
        assert result.truncated == (result.next_offset is not None)
        parts.append(base64.b64decode(result.text))
        offset = result.next_offset
    assert b"".join(parts) == b"\0" + data
    assert [len(part) for part in parts] == [1000, 1000, 502]


@pytest.mark.parametrize("offset", [3, 4, 2**40, 2**53 - 1])
@pytest.mark.parametrize("encoding", ["auto", "utf-16", "utf-32", "base64"])
async def test_beyond_the_end_there_is_nothing(bench: Workbench, offset: int, encoding: str) -> None:
    (bench.root / "a").write_text("abc")
    result = (await bench.call(READ, path="a", offset=offset, encoding=encoding)).result
    assert (result.text, result.next_offset, result.truncated) == ("", None, False)


@pytest.mark.parametrize(
    "arguments",
    [
        {"start_line": 1, "offset": 0},
        {"end_line": 1, "length": 1},
        {"start_line": 3, "end_line": 2},
        {"start_line": 0},
        {"offset": -1},
        {"length": 0},
        {"max_bytes": 3},
        {"max_bytes": MAX_BYTES + 1},
        {"offset": 2**53},
        {"encoding": "rot13"},
        {"encoding": "idna"},
        {"unknown": 1},
        {"path": "../a"},
        {"path": ""},
        {"path": "a\0b"},
        {"path": "."},
        {"path": "a/b"},
    ],
)
async def test_arguments_that_are_refused(bench: Workbench, arguments: dict[str, Any]) -> None:
    (bench.root / "a").write_text("a\nb\nc\n")
    with pytest.raises(InvalidArgument):
        await bench.call(READ, **{"path": "a", **arguments})


async def test_what_is_not_there_is_not_found(bench: Workbench) -> None:
    with pytest.raises(NotFound, match="missing"):
        await bench.call(READ, path="missing")


async def test_nothing_outside_is_read(bench: Workbench) -> None:
    before = bench.fingerprint()
    secret = bench.outside / "secret"
    (bench.root / "absolute").symlink_to(secret)
    (bench.root / "relative").symlink_to("../outside/secret")
    (bench.root / "directory").symlink_to("../outside")
    os.link(secret, bench.root / "hard")
    for path in ("absolute", "relative", "directory/secret", "hard", str(secret), "/proc/self/root/etc/passwd"):
        with pytest.raises(NotAuthorized):
            await bench.call(READ, path=path)
    (bench.root / "hard").unlink()
    assert bench.fingerprint() == before


async def test_a_symlink_within_the_root_is_followed(bench: Workbench) -> None:
    (bench.root / "d").mkdir()
    (bench.root / "d/a").write_text("text")
    (bench.root / "link").symlink_to("d/a")
    assert (await bench.call(READ, path="link")).result.text == "text"


async def test_what_is_no_file_is_refused_at_once(bench: Workbench) -> None:
    os.mkfifo(bench.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(bench.root, os.O_PATH)
        try:
            listener.bind(f"/proc/self/fd/{directory}/socket")
        finally:
            os.close(directory)
        for name, word in (("pipe", "a named pipe"), ("socket", "a socket")):
            with pytest.raises(InvalidArgument, match=word):
                await bench.call(READ, path=name)


@pytest.mark.parametrize("arguments", [{}, {"offset": 2**39}, {"start_line": 2}, {"encoding": "base64"}])
async def test_of_a_huge_sparse_file_only_what_is_asked_for_is_read(
    bench: Workbench, arguments: dict[str, Any]
) -> None:
    with (bench.root / "sparse").open("wb") as made:
        made.truncate(2**40)
    if "start_line" in arguments:
        with pytest.raises(InvalidArgument, match="binary"):
            await bench.call(READ, path="sparse", **arguments)
    else:
        answer = await bench.call(READ, path="sparse", max_bytes=10, **arguments)
        assert (answer.result.size, answer.result.truncated) == (2**40, True)
        assert answer.result.next_offset == arguments.get("offset", 0) + 10


async def test_a_search_for_a_line_that_takes_too_long_ends(bench: Workbench) -> None:
    with (bench.root / "sparse").open("wb") as made:
        made.truncate(2**40)
    with pytest.raises(TimedOut):
        await bench.call(READ, path="sparse", encoding="latin-1", start_line=2, call=bench.new_call(seconds=0.2))


async def test_a_call_that_nobody_waits_for_ends(bench: Workbench) -> None:
    with (bench.root / "sparse").open("wb") as made:
        made.truncate(2**40)
    call = bench.new_call()
    asyncio.get_running_loop().call_soon(call.end)
    with pytest.raises(Cancelled):
        await bench.call(READ, path="sparse", encoding="latin-1", start_line=2, call=call)


async def test_a_file_that_changes_while_it_is_read_is_no_fault(bench: Workbench) -> None:
    path = bench.root / "a"
    stop = asyncio.Event()

    async def change() -> None:
        while not stop.is_set():
            path.write_text("line\n" * 50_000)
            os.truncate(path, 3)
            await asyncio.sleep(0)

    path.write_text("line\n")
    changing = asyncio.create_task(change())
    for _ in range(50):
        text = (await bench.call(READ, path="a")).result.text
        assert "line\n".startswith(text.replace("line\n", ""))  # the last one may be written in part
        await bench.call(READ, path="a", start_line=1, end_line=40_000)
    stop.set()
    await changing


async def test_names_that_are_hard_to_show(bench: Workbench) -> None:
    name = "a\nb \x1b[31m'\"é"
    (bench.root / name).write_text("text")
    assert (await bench.call(READ, path=name)).result.path == f"{bench.root}/{name}"
    with pytest.raises(NotFound) as caught:
        await bench.call(READ, path=name + "!")
    assert caught.value.message.isprintable()
