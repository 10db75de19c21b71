# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory usage of processes."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_Inode = tuple[int, int]

_RESIDENT: Final = (b"RssAnon", b"RssShmem")
_BLOCK: Final = 512
_MEMFD: Final = "/memfd:"
_MAPPED: Final = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) +/memfd:.*\n"
    rb"(?:.*\n)*?Pss: +(\d+) kB\n(?:.*\n)*?Anonymous: +(\d+) kB$",
    re.MULTILINE,
)
"""A mapping of a memfd in smaps: device and inode, its proportional share, and the process's private copy of it."""
_MOST_MAPS: Final = 1 << 23
"""Maximum size of smaps to read for all processes together, as a process can have very many mappings."""


def held_by(pids: list[int], enough: float = math.inf) -> int:
    """Return the bytes of memory that *pids* hold: private, shared, and files in memory, mapped or only open (memfd).

    Memory that several of them share counts for each of them, and mappings of a memfd count in addition to the memfd,
    unless the sum exceeds *enough*: then each counts once, which takes longer to determine.
    """
    held = dict(filter(None, map(_held, pids)))
    files = _memfds(held)
    found = sum(held.values()) + sum(files.values())
    if found <= enough:
        return found
    parts = {place: _sum(f"{place}/smaps_rollup", (b"Pss_Anon", b"Pss_Shmem")) for place in held}
    found = sum(held[place] if part is None else part for place, part in parts.items())
    if files and found + sum(files.values()) > enough:
        mapped = _mapped(held)
        files = {inode: max(0, size - mapped[inode]) for inode, size in files.items()}
    return found + sum(files.values())


def _held(pid: int) -> tuple[str, int] | None:
    """Return the directory with the status of *pid*, and the bytes that it has mapped; None if it has ended.

    After its first thread has ended, only the directories of the other threads have the status.
    """
    place = f"/proc/{pid}"
    if (size := _sum(f"{place}/status", _RESIDENT)) is not None:
        return place, size
    with suppress(OSError):
        for thread in os.listdir(f"{place}/task"):  # noqa: PTH208 -- as this is done often
            if (size := _sum(f"{place}/task/{thread}/status", _RESIDENT)) is not None:
                return f"{place}/task/{thread}", size
    return None


def _memfds(places: Iterable[str]) -> dict[_Inode, int]:
    """Return the sizes of the files in memory that the processes in *places* have open, by device and inode."""
    found: dict[_Inode, int] = {}
    for place in places:
        with suppress(OSError):
            directory = os.open(f"{place}/fd", os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in os.listdir(directory):  # noqa: PTH208 -- of a descriptor, as this is done often
                    with suppress(OSError):
                        # Only files in memory are examined: others may take time to answer.
                        if os.readlink(name, dir_fd=directory).startswith(_MEMFD):
                            about = os.stat(name, dir_fd=directory)
                            found[about.st_dev, about.st_ino] = about.st_blocks * _BLOCK
            finally:
                os.close(directory)
    return found


def _mapped(places: Iterable[str]) -> Counter[_Inode]:
    """Return the mapped bytes of each memfd in the processes in *places*; fewer if there is too much to read."""
    found: Counter[_Inode] = Counter()
    left = _MOST_MAPS
    for place in places:
        maps = _read(f"{place}/smaps", left)
        left -= len(maps)
        for major, minor, inode, share, own in _MAPPED.findall(maps):
            device = os.makedev(int(major, 16), int(minor, 16))
            found[device, int(inode)] += max(0, int(share) - int(own)) << 10
    return found


def _sum(path: str, names: tuple[bytes, ...]) -> int | None:
    """Return the sum, in bytes, of the lines ``NAME: N kB`` of *path*; None if there are none."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            lines = os.read(fd, 1 << 14).splitlines()
        finally:
            os.close(fd)
    except OSError:
        return None
    found = [int(line.split()[1]) << 10 for line in lines if line.partition(b":")[0] in names]
    return sum(found) if found else None


def _read(path: str, most: int) -> bytes:
    """Return at most *most* bytes of *path*, or what can be read of it."""
    data = bytearray()
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            while len(data) < most and (more := os.read(fd, min(1 << 20, most - len(data)))):
                data += more
        finally:
            os.close(fd)
    return bytes(data)
