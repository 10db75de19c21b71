# SPDX-License-Identifier: LGPL-2.1-or-later
"""How far a run has come, with what it runs counted in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcpd.servers.ensembles.engine.types import AgentResult, Observer


_PARTS: Final = 0.9
"""How much of an agent its instances are, or the agents that it runs: its own end is progress, too."""


class Course:
    """The whole of a run."""

    def __init__(self, observer: Observer, total: int) -> None:
        self.observer = observer
        self._total = total
        self._done = 0.0

    def advance(self, part: float, result: AgentResult) -> None:
        """*part* of an agent more is done, with *result*."""
        self._done = min(float(self._total), self._done + part)
        self.observer.progressed(round(self._done, 6), self._total, result)


class Stretch:
    """The part of a course that one agent is, or one instance of it, or an agent of an ensemble that it runs."""

    def __init__(self, course: Course, size: float = 1.0, prefix: str = "", around: Stretch | None = None) -> None:
        self._course, self._size, self._prefix, self._around = course, size, prefix, around
        self._done = 0.0

    def within(self, name: str, parts: int) -> Stretch:
        """One of *parts* equal ones, whose names begin with *name*. What is left is for the end of this one."""
        return Stretch(self._course, self._size * _PARTS / parts, f"{self._prefix}{name}", self)

    def started(self, name: str) -> None:
        """*name* begins."""
        self._course.observer.started(self._prefix + name)

    def path(self, name: str) -> str:
        """What observers call *name*."""
        return self._prefix + name

    def finish(self, result: AgentResult) -> None:
        """What is left of it is done, with *result*, whose name is the whole path."""
        left = self._size - self._done
        if self._around is not None:
            left = min(left, self._around.room)
        left = max(0.0, left)
        self.count(left)
        self._course.advance(left, result)

    @property
    def room(self) -> float:
        """What those within it may still be; what is tried again is no progress a second time."""
        own = self._size * _PARTS - self._done
        return own if self._around is None else min(own, self._around.room)

    def count(self, part: float) -> None:
        """*part* of it is done."""
        self._done += part
        if self._around is not None:
            self._around.count(part)

    @property
    def observer(self) -> Observer:
        """Who hears of it."""
        return self._course.observer
