# SPDX-License-Identifier: LGPL-2.1-or-later
"""A control group for each machine: the systemd in one would make and remove the groups of another's units."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CONTROLLERS: Final = ("cpu", "memory", "pids")
"""What the machine may account for, where this system has it in the unified hierarchy."""
PREFIX: Final = "mcpd-machine-"
"""What names begin with of all that is made for a machine; the process follows that made it."""
_ENTER: Final = 'echo 0 >"$1/cgroup.procs" && shift && exec "$@"'
_GUARD: Final = 'cat; echo 1 >"$1/cgroup.kill"'
_PATIENCE: Final = 120.0


class ControlGroup:
    """A group at the top of the unified hierarchy. Use it as a context manager: what is in it dies at the end.

    It dies as well when this process does, however it ends.
    """

    def __init__(self) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._path = hierarchy() / self.name

    def entering(self, argv: Sequence[str]) -> list[str]:
        """The command that runs *argv* as the same process within the group."""
        return ["/bin/sh", "-c", _ENTER, "enter", str(self._path), *argv]

    def __enter__(self) -> Self:
        for controller in CONTROLLERS:
            # It may belong to another hierarchy, or the container that this is has a group without any.
            with contextlib.suppress(OSError):
                (self._path.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        self._path.mkdir()
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", str(self._path)], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._path.rmdir()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        remove(self._path)


def hierarchy() -> Path:
    """Where the unified hierarchy of control groups is, to make groups in. Raises :class:`OSError` if nowhere."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if source.split()[0] == "cgroup2" and os.access(path := Path(mount.split()[4]), os.W_OK):
            return path
    raise FileNotFoundError("no cgroup2 file system that can be written to")


def owned(paths: Iterable[Path], *, by_the_dead: bool = False) -> Iterator[Path]:
    """Those of *paths* whose names say that they are this process's, or those of processes that are no more."""
    for path in paths:
        if owner := re.match(rf"{PREFIX}(\d+)-", path.name):
            pid = int(owner[1])
            if (not Path(f"/proc/{pid}").exists()) if by_the_dead else pid == os.getpid():
                yield path


def remove(path: Path) -> None:
    """Remove a group that was killed, once its processes are gone."""
    give_up = time.monotonic() + _PATIENCE
    while "populated 1" in (path / "cgroup.events").read_text() and time.monotonic() < give_up:
        time.sleep(0.01)
    for directory, _, _ in os.walk(path, topdown=False):
        Path(directory).rmdir()
