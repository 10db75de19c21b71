# SPDX-License-Identifier: LGPL-2.1-or-later
"""The progress of a run, including nested runs and instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import AgentResult, Observer


_PARTS: Final = 0.9
"""Share of an agent's progress that its instances, or the agents that it runs, account for; the rest is its own end."""


class Course:
    """The progress of a whole run."""

    def __init__(self, observer: Observer, total: int) -> None:
        self.observer = observer
        self._total = total
        self._done = 0.0

    def advance(self, part: float, result: AgentResult) -> None:
        """Add *part* of an agent and report it with *result*."""
        self._done = min(float(self._total), self._done + part)
        self.observer.progressed(round(self._done, 6), self._total, result)


class Stretch:
    """The progress of one agent, of an instance, or of an agent of a nested run, as a part of the course."""

    def __init__(self, course: Course, size: float = 1.0, prefix: str = "", around: Stretch | None = None) -> None:
        self._course, self._size, self._prefix, self._around = course, size, prefix, around
        self._done = 0.0

    def within(self, name: str, parts: int) -> Stretch:
        """Return one of *parts* equal parts, whose names begin with *name*. The rest is for the end of this one."""
        return Stretch(self._course, self._size * _PARTS / parts, f"{self._prefix}{name}", self)

    def started(self, name: str) -> None:
        """Report that *name* has started."""
        self._course.observer.started(self._prefix + name)

    def path(self, name: str) -> str:
        """Return *name* as observers see it."""
        return self._prefix + name

    def finish(self, result: AgentResult) -> None:
        """Add the rest of this part, and report it with *result*, whose name is the whole path."""
        left = self._size - self._done
        if self._around is not None:
            left = min(left, self._around.room)
        left = max(0.0, left)
        self.count(left)
        self._course.advance(left, result)

    @property
    def room(self) -> float:
        """The progress that inner parts may still add; retries do not count again."""
        own = self._size * _PARTS - self._done
        return own if self._around is None else min(own, self._around.room)

    def count(self, part: float) -> None:
        """Add *part* to the progress."""
        self._done += part
        if self._around is not None:
            self._around.count(part)

    @property
    def observer(self) -> Observer:
        """The observer of the course."""
        return self._course.observer
