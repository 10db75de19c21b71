# SPDX-License-Identifier: LGPL-2.1-or-later
"""How far a job is: a bar on a terminal, one line per step elsewhere; always on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.cli.output import clean, note

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = 101
"""``Job.Progress`` when nobody can tell."""

_MIB: Final = 1 << 20


class View(Protocol):
    """Shows a job."""

    def show(self, job: Mapping[str, object]) -> None:
        """Show what the properties of the *job* say."""

    def pause(self) -> None:
        """Leave the terminal to somebody else until the next :meth:`show`."""

    def close(self) -> None:
        """Show nothing more."""


class Lines:
    """One line for each new state."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, job: Mapping[str, object]) -> None:
        """Print the state of *job* if it is another one."""
        line = describe(job)
        if line != self._last:
            self._last = line
            note(line)

    def pause(self) -> None:
        """Nothing is in the way."""

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A progress bar by rich."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
        )
        self._console = Console(stderr=True)
        self._class = Progress
        self._progress: Progress | None = None

    def show(self, job: Mapping[str, object]) -> None:
        """Move the bar."""
        if self._progress is None:
            self._progress = self._class(*self._columns, console=self._console, transient=True)
            self._task = self._progress.add_task("")
            self._progress.start()
        done = job.get("Progress")
        percent = done if isinstance(done, int) and done < UNKNOWN else None
        self._progress.update(
            self._task,
            description=describe(job) + _fetched(job),
            total=None if percent is None else 100,
            completed=percent,
        )

    def pause(self) -> None:
        """Take the bar off the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    close = pause


def view() -> View:
    """The view that suits standard error."""
    return Bar() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()


def _fetched(job: Mapping[str, object]) -> str:
    """How much of what has to be fetched is there; empty where nothing is said of it."""
    done, total = job.get("BytesDone"), job.get("BytesTotal")
    if job.get("State") != "fetching" or not isinstance(done, int) or not isinstance(total, int) or not done:
        return ""
    return f" ({done / _MIB:.1f} of {total / _MIB:.1f} MiB)" if total else f" ({done / _MIB:.1f} MiB)"


def describe(job: Mapping[str, object]) -> str:
    """One line for *job*: what about, and which state."""
    return f"{clean(job.get('ServerId') or job.get('Kind', ''))}: {clean(job.get('State', ''))}"
