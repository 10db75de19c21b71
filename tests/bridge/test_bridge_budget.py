# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory that messages take: what one caller cannot have, others still can."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.bridge.budget import COUNTED_FROM, Budget
from mcpd.bridge.callers import Caller
from tests.bridge.bridge_harness import FIXTURE, PATIENCE, call, eventually, initialize, text_of
from tests.bridge.test_bridge_service import SHARED, Program, ask_as, needs_root, passed, post, start  # noqa: F401 -- fixtures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.errors import LimitExceeded

HOSTILE = f"{sys.executable} {FIXTURE.with_name('hostile_server.py')}"
MIB = 1 << 20
ONE, OTHER, THIRD = Caller(1), Caller(2), Caller(3)


class Shared:
    """The bridge of many users, of which each may take one MiB."""

    def __init__(self, program: Program, path: Path) -> None:
        self.program = program
        self.path = path

    def connect(self) -> socket.socket:
        """A connection of the user who runs the tests."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(str(self.path))
        return connection

    def send(self, body: bytes, length: int) -> socket.socket:
        """Begin a POST of *length* bytes with *body*."""
        connection = self.connect()
        head = "POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
        return connection

    def held(self) -> int:
        """What it says it holds."""
        before = self.program.said().count("bytes held")
        self.program.process.send_signal(signal.SIGUSR1)
        eventually(lambda: self.program.said().count("bytes held") > before, "it says what it holds")
        return int(self.program.said().rpartition(" bytes held")[0].rpartition("\n")[2])

    def serves_others(self) -> None:
        """Fails unless another user gets a large answer."""
        status, answer, _ = ask_as(2002, self.path, post(call("large")))[0]
        assert status == 200
        assert len(text_of(answer)) == 900_000


@pytest.fixture
def shared(start: Callable[..., Program]) -> Iterator[Shared]:  # noqa: F811
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "bridge.sock"
        program = start(*SHARED, str(path), f"{place}/tokens", HOSTILE, MAX_BUFFERED=str(4 * MIB))
        program.hear("READY=1")
        yield Shared(program, path)


@needs_root
def test_a_server_that_never_ends_its_answer_is_cut_off_and_others_are_served(shared: Shared) -> None:
    (status, answer, _), (again, _, _) = ask_as(2001, shared.path, post(call("hoard")), post(initialize()))
    assert status == 200
    assert "server s was stopped" in answer["error"]["message"]
    assert "bridge.max_buffered" in answer["error"]["message"]
    assert again == 200
    shared.serves_others()
    assert shared.held() == 0


@needs_root
def test_bodies_that_do_not_end_are_refused_and_others_are_served(shared: Shared) -> None:
    with shared.send(b"x" * 700_000, MIB) as first:
        eventually(lambda: shared.held() == 700_000, "the first one is kept")
        with shared.send(b"x" * 600_000, MIB):
            # The larger one makes room.
            reply = first.recv(65536)
            assert reply.startswith(b"HTTP/1.1 429 ")
            assert b"bridge.max_buffered" in reply
            shared.serves_others()
            eventually(lambda: shared.held() == 600_000, "the second one is kept")
    eventually(lambda: shared.held() == 0, "what the clients sent is forgotten")


def read(connection: socket.socket) -> int:
    """How many bytes come, up to a whole answer."""
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while size < 900_000 and (piece := connection.recv(65536)):
            size += len(piece)
    return size


@needs_root
def test_answers_that_nobody_reads_are_counted_until_they_are_read(shared: Shared) -> None:
    body = json.dumps(call("large")).encode()
    with shared.send(body, len(body)) as first:
        eventually(lambda: shared.held() > 900_000, "the answer waits for its reader")
        shared.serves_others()
        with shared.send(body, len(body)) as second:
            assert read(second) > 900_000
        assert read(first) < 900_000
    eventually(lambda: shared.held() == 0, "one was read, and the other was dropped")


# ---------------------------------------------------------------------------------------- the count


def test_the_largest_of_a_caller_makes_room_for_its_smaller() -> None:
    budget = Budget(4 * MIB, 4)
    cut: list[LimitExceeded] = []
    large, small = budget.holding(ONE, cut.append), budget.holding(ONE, cut.append)
    assert large.hold(700_000)
    assert small.hold(500_000)
    assert ("bridge.max_buffered" in cut[0].message, large.size, budget.held) == (True, 0, 500_000)
    assert not large.hold(700_000)
    assert large.hold(COUNTED_FROM)
    assert (large.size, budget.held) == (0, 500_000)
    small.close()
    assert not small.hold(500_000)
    assert budget.held == 0


def test_if_all_have_too_much_it_is_taken_from_who_has_the_most() -> None:
    budget = Budget(2 * MIB, 1)
    cut: list[str] = []
    first = budget.holding(ONE, lambda _fault: cut.append("first"))
    second = budget.holding(OTHER, lambda _fault: cut.append("second"))
    third = budget.holding(THIRD, lambda _fault: cut.append("third"))
    assert first.hold(MIB)
    assert second.hold(MIB - 1)
    assert third.hold(100_000)
    assert cut == ["first"]
    assert budget.held == MIB - 1 + 100_000
    for each in (first, second, third):
        each.close()
    assert budget.held == 0
