# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes that tests start. Nothing that a test module starts outlives it; tests that count them rely on that."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 120.0


def children() -> dict[int, str]:
    """The children of this process with their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
    return found


def marked(mark: str) -> list[int]:
    """The processes, whoever started them, that have *mark* in their environment or their command line."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            said = (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in said:
            found.append(int(proc.name))
    return found


@pytest.fixture(scope="module", autouse=True)
def no_child_stays() -> Iterator[None]:
    """Fails the module if a process that it started is still a child of this one."""
    before = children()
    yield
    give_up = time.monotonic() + PATIENCE
    while left := {pid: line for pid, line in children().items() if pid not in before}:
        assert time.monotonic() < give_up, f"still there: {left}"
        time.sleep(0.05)
