# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pipes between the standard streams of mcpctl and a server of the system."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.cli.streams import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

MUCH = os.urandom(1 << 20)
PATIENCE = 120


class Streams:
    """Sockets in the place of standard input and output, as Node.js gives them to its children."""

    def __init__(self, *, blocking: bool = True) -> None:
        self.to_stdin, self.stdin = socket.socketpair()
        self.stdout, self.from_stdout = socket.socketpair()
        for stream in (self.stdin, self.stdout):
            stream.setblocking(blocking)
        for end in (self.to_stdin, self.from_stdout):
            end.settimeout(PATIENCE)
        self._threads = set(threading.enumerate())
        self.relay = Relay({0: self.stdin.fileno(), 1: self.stdout.fileno()})
        # The server has its own descriptors of the pipes.
        fds = {number: os.dup(fd) for number, fd in self.relay.fds.items()}
        self.server_in, self.server_out = os.fdopen(fds[0], "rb", 0), os.fdopen(fds[1], "wb", 0)

    def close(self) -> None:
        for end in (self.server_in, self.server_out, self.to_stdin, self.from_stdout):
            end.close()
        # A thread that still reads would read from whatever gets the number of its descriptor next.
        for thread in set(threading.enumerate()) - self._threads:
            thread.join(PATIENCE)
        for stream in (self.stdin, self.stdout):
            stream.close()


@pytest.fixture(params=[True, False], ids=["blocking", "non-blocking"])
def streams(request: pytest.FixtureRequest) -> Iterator[Streams]:
    made = Streams(blocking=request.param)
    yield made
    made.close()


def test_sockets_and_files_need_pipes_in_their_place_and_pipes_do_not() -> None:
    one, other = socket.socketpair()
    ends = os.pipe()
    with one, other, Path(__file__).open("rb") as file:
        assert Relay.needed({0: one.fileno(), 1: ends[1]})
        assert Relay.needed({0: ends[0], 2: file.fileno()})
        assert not Relay.needed({0: ends[0], 1: ends[1]})
    for fd in ends:
        os.close(fd)


def test_bytes_go_both_ways(streams: Streams) -> None:
    streams.relay.start()
    for number in range(3):
        streams.to_stdin.sendall(b"question %d\n" % number)
        assert streams.server_in.readline() == b"question %d\n" % number
        streams.server_out.write(b"answer %d\n" % number)
        assert streams.from_stdout.recv(100) == b"answer %d\n" % number


def test_the_end_of_the_input_is_passed_on(streams: Streams) -> None:
    streams.relay.start()
    streams.to_stdin.sendall(b"last")
    streams.to_stdin.shutdown(socket.SHUT_WR)
    assert streams.server_in.read(100) + streams.server_in.read(100) == b"last"


def test_everything_that_the_server_said_is_written_before_the_end(streams: Streams) -> None:
    streams.relay.start()
    received = bytearray()

    def receive() -> None:
        while len(received) < len(MUCH):
            received.extend(streams.from_stdout.recv(1 << 16))

    reader = threading.Thread(target=receive)
    reader.start()
    view = memoryview(MUCH)
    while view:
        view = view[streams.server_out.write(view) :]
    streams.server_out.close()
    streams.relay.drain()
    reader.join(PATIENCE)
    assert received == MUCH


def test_a_server_that_was_not_started_leaves_no_descriptors() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    Relay({0: 0, 1: 1}).cancel()
    # What earlier tests have left may be collected meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
