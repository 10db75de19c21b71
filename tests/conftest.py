# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for all tests."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Let tests interrupt what they start: jobs in the background, or under nohup, pass on that signals are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """A module of tests ends what it starts: others count the processes below this one."""
    before = _children()
    yield
    give_up = time.monotonic() + 10
    while left := _children() - before:
        assert time.monotonic() < give_up, f"left running: {[_command_line(pid) for pid in left]}"
        time.sleep(0.01)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread may have ended meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def _command_line(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or f"zombie {pid}"
        )
    except (FileNotFoundError, ProcessLookupError):
        return str(pid)
