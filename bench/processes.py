# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a process costs, read from ``/proc``."""

from __future__ import annotations

from pathlib import Path


def pss(pid: int) -> float:
    """Proportional set size in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no Pss line")


def peak(pid: int) -> float:
    """The most that has been in memory of it at once since it began, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no VmHWM line")


def cpu(pid: int) -> float:
    """Processor time used so far by all threads, without child processes, in seconds."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def open_fds(pid: int) -> int:
    """Number of open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def descendants(pid: int) -> set[int]:
    """Every process below *pid*."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found
