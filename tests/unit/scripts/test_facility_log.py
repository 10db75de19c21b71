# SPDX-License-Identifier: LGPL-2.1-or-later
"""The log of a script server, which nobody has to read."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 10
LINE = "x" * 200_000
"""More than a pipe holds."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None)


def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    log = Log("mcp-scripts", pipe[1])
    for number in range(5):
        log.handle(record(f"line {number}"))
    assert log.end(30)
    assert os.read(pipe[0], 1000).decode().splitlines() == [f"line {number}" for number in range(5)]


def test_what_nobody_reads_is_left_out_and_counted_and_holds_up_nothing(pipe: tuple[int, int]) -> None:
    log = Log("mcp-scripts", pipe[1], MOST)
    log.handle(record(LINE))
    while not log._lines.empty():
        """The thread has taken it, and is held up."""
    for number in range(MOST + 7):
        log.handle(record(f"line {number}"))
    assert not log.end(0.01)
    written = b""
    while written.count(b"\n") < MOST + 2:
        written += os.read(pipe[0], 65536)
    assert log.end(30)
    first, told, *rest = written.decode().splitlines()
    assert first == LINE
    assert told == "mcp-scripts: 7 lines are left out, as they came faster than they were read"
    assert rest == [f"line {number}" for number in range(MOST)]


def test_an_end_that_is_closed_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = Log("mcp-scripts", writing)
    log.handle(record("x"))
    assert log.end(30)
    os.close(writing)
