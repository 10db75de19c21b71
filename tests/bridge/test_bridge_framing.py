# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests that can be read in more than one way are refused, with newer parsers and with older ones (RFC 9112)."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import httptools
import pytest

from mcpd.bridge.http.connection import Framing, Misframed
from tests.bridge.bridge_harness import PATIENCE

if TYPE_CHECKING:
    from tests.bridge.bridge_harness import Bridge

HEAD = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NOTE = b'{"jsonrpc":"2.0","method":"notifications/x"}'
SIZE = b"%x" % len(NOTE)
LENGTH = b"Content-Length: %d\r\n" % len(NOTE)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = SIZE + b"\r\n" + NOTE + b"\r\n0\r\n\r\n"
NEXT = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

GOOD = {
    "length": HEAD + LENGTH + b"\r\n" + NOTE,
    "chunked": HEAD + CHUNKED + b"\r\n" + CHUNKS,
    "several-chunks": HEAD
    + CHUNKED
    + b"\r\n1\r\n{\r\n"
    + b"%X" % (len(NOTE) - 1)
    + b"\r\n"
    + NOTE[1:]
    + b"\r\n0\r\n\r\n",
    "extension": HEAD + CHUNKED + b"\r\n" + SIZE + b";a=b\r\n" + NOTE + b"\r\n0\r\n\r\n",
    "line-breaks-before": b"\r\n\r\n" + HEAD + LENGTH + b"\r\n" + NOTE,
    "other-case": HEAD + b"TRANSFER-encoding:   CHUNKED\r\n\r\n" + CHUNKS,
}
BAD = {
    "two-lengths": HEAD + LENGTH + LENGTH + b"\r\n" + NOTE,
    "different-lengths": HEAD + LENGTH + b"Content-Length: 3\r\n\r\n" + NOTE,
    "list-of-lengths": HEAD + b"Content-Length: %d, %d\r\n\r\n" % (len(NOTE), len(NOTE)) + NOTE,
    "signed-length": HEAD + b"Content-Length: +44\r\n\r\n" + NOTE,
    "length-and-chunked": HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "chunked-and-length": HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "chunked-twice": HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "chunked-not-last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "unknown-coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "space-before-colon": HEAD + b"Content-Length : %d\r\n\r\n" % len(NOTE) + NOTE,
    "coding-space-before-colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "folded-length": HEAD + b"Content-Length:\r\n %d\r\n\r\n" % len(NOTE) + NOTE,
    "folded-coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "folded-other": HEAD + b"X: y\r\n Content-Length: 3\r\n" + LENGTH + b"\r\n" + NOTE,
    "bare-lf": HEAD + b"X: y\n" + LENGTH + b"\r\n" + NOTE,
    "bare-lf-at-the-end": HEAD + LENGTH + b"\n" + NOTE,
    "bare-cr": HEAD + b"X: y\rContent-Length: 3\r\n" + LENGTH + b"\r\n" + NOTE,
    "chunk-size-lf": HEAD + CHUNKED + b"\r\n" + SIZE + b"\n" + NOTE + b"\r\n0\r\n\r\n",
    "chunk-end-lf": HEAD + CHUNKED + b"\r\n" + SIZE + b"\r\n" + NOTE + b"\n0\r\n\r\n",
    "chunk-too-long": HEAD + CHUNKED + b"\r\n" + SIZE + b"\r\n" + NOTE + b"XX0\r\n\r\n",
    "chunk-size-prefix": HEAD + CHUNKED + b"\r\n0x" + CHUNKS,
    "chunk-size-space": HEAD + CHUNKED + b"\r\n" + SIZE + b" \r\n" + NOTE + b"\r\n0\r\n\r\n",
    "chunk-size-negative": HEAD + CHUNKED + b"\r\n-1\r\n" + NOTE + b"\r\n0\r\n\r\n",
    "chunk-size-overflow": HEAD + CHUNKED + b"\r\n1000000000000002c\r\n" + NOTE + b"\r\n0\r\n\r\n",
    "extension-lf": HEAD + CHUNKED + b"\r\n" + SIZE + b";\n" + NOTE + b"\r\n0\r\n\r\n",
    "length-as-trailer": HEAD + CHUNKED + b"\r\n" + SIZE + b"\r\n" + NOTE + b"\r\n0\r\nContent-Length: 9\r\n\r\n",
    "other-version": HEAD.replace(b"1.1", b"1.2") + LENGTH + b"\r\n" + NOTE,
}


@pytest.mark.parametrize("case", [*GOOD, *BAD])
def test_a_request_is_read_in_one_way_or_not_at_all(bridge: Bridge, case: str) -> None:
    host, port = bridge.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), PATIENCE) as client:
        try:
            client.sendall((GOOD | BAD)[case] + NEXT)
            while len(re.findall(rb"HTTP/1\.1 \d", received)) < 2 and (data := client.recv(10_000)):
                received += data
        except ConnectionError:
            pass
    expected = [b"202", b"200"] if case in GOOD else [b"400"]
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == expected


class Lenient:
    """What the connection does with an older parser, with the parser that is installed."""

    def __init__(self) -> None:
        self.framing = Framing()
        self.parser = httptools.HttpRequestParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.bodies: list[bytes] = []

    def on_message_begin(self) -> None:
        self.headers.clear()
        self.bodies.append(b"")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.framing.body(self.headers)

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def feed(self, data: bytes) -> None:
        for piece in self.framing.split(data):
            self.parser.feed_data(piece)


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("case", GOOD)
def test_what_is_well_framed_goes_to_the_parser_unchanged(case: str, step: int) -> None:
    found, data = Lenient(), GOOD[case] + NEXT + GOOD[case]
    for position in range(0, len(data), step):
        found.feed(data[position : position + step])
    assert found.bodies == [NOTE, b"", NOTE]


def refused(data: bytes, step: int) -> bool:
    """Whether the framing alone, with the headers that a forgiving parser would have seen, refuses *data*."""
    framing = Framing()
    head, _, _ = data.partition(b"\r\n\r\n")
    pairs = [line.partition(b":")[::2] for line in head.split(b"\r\n")[1:]]
    headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
    seen = b""
    try:
        for position in range(0, len(data), step):
            for piece in framing.split(data[position : position + step]):
                before, seen = seen, seen + piece
                if b"\r\n\r\n" in seen and b"\r\n\r\n" not in before:
                    framing.body(headers)
    except Misframed:
        return True
    return False


@pytest.mark.parametrize("step", [1, 5, 10_000])
@pytest.mark.parametrize("case", BAD)
def test_what_an_older_parser_would_forgive_is_refused_before_it(case: str, step: int) -> None:
    assert refused(BAD[case] + NEXT, step)
    assert not refused(GOOD["chunked"] + NEXT, step)


def test_a_line_without_end_is_refused() -> None:
    framing = Framing()
    assert list(framing.split(b"x" * 65_000)) == [b"x" * 65_000]
    with pytest.raises(Misframed, match="too long"):
        list(framing.split(b"x" * 1000))


def test_lines_without_data_are_bounded() -> None:
    tiny = b"1\r\nx\r\n"
    found = Lenient()
    found.feed(HEAD + CHUNKED + b"\r\n" + tiny * 1000 + b"0\r\n\r\n" + NEXT)
    found.feed(HEAD + CHUNKED + b"\r\n" + (b"100\r\n" + b"x" * 256 + b"\r\n") * 5000 + tiny * 1000 + b"0\r\n\r\n")
    assert [len(body) for body in found.bodies] == [1000, 0, 256 * 5000 + 1000]
    for lines in (HEAD + CHUNKED + b"\r\n" + tiny * 1100, b"\r\n" * 1100):
        with pytest.raises(Misframed, match="little data"):
            Lenient().feed(lines)
