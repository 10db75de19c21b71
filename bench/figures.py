# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures, their targets, and the page they are kept on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).with_name("results.md")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; *limit* is the most it may be, or None where the machine decides."""

    what: str
    value: float
    limit: float | None
    unit: str
    how: str

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        return self.limit is None or self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one part, and the seconds it took to measure them."""

    name: str
    figures: list[Figure]
    seconds: float


@dataclass(slots=True)
class Report:
    """All figures of a run, of what *commit* has."""

    commit: str
    parts: list[Part] = field(default_factory=list)
    _figures: list[Figure] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Take what is added within as the figures of the part *name*."""
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        yield
        self.parts.append(Part(name, self._figures, time.monotonic() - begun))
        self._figures = []
        print(f"   took {self.parts[-1].seconds:.0f} s", flush=True)

    def add(self, what: str, value: float, limit: float | None, unit: str, how: str) -> None:
        """Take down a figure and print it."""
        figure = Figure(what, value, limit, unit, how)
        self._figures.append(figure)
        mark = "ok  " if figure.holds else "MISS"
        most = "" if limit is None else f" (at most {limit:.4g})"
        print(f"{mark} {what}: {value:.4g} {unit}{most}", flush=True)

    def write(self) -> None:
        """Write the page."""
        cores = len(os.sched_getaffinity(0))
        seconds = sum(part.seconds for part in self.parts)
        lines = [
            "# Figures",
            "",
            (
                f"`make bench` of {self.commit} on {datetime.now(UTC):%Y-%m-%d}, in {seconds / 60:.0f} minutes on "
                f"{cores} cores with Linux {platform.release().split('-')[0]} and Python {platform.python_version()}. "
                "Medians unless it says otherwise."
            ),
        ]
        for part in self.parts:
            lines += ["", f"## {part.name.capitalize()}", "", "| figure | measured | at most | | how |"]
            lines += ["|---|---|---|---|---|", *map(_row, part.figures)]
        RESULTS.write_text("\n".join(lines) + "\n")

    @property
    def exit_code(self) -> int:
        """0 if every figure holds."""
        return 0 if all(figure.holds for part in self.parts for figure in part.figures) else 1


def _row(figure: Figure) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    limit, mark = ("", "") if figure.limit is None else (f"{figure.limit:.4g}{unit}", "✓" if figure.holds else "✗")
    return f"| {figure.what} | {figure.value:.4g}{unit} | {limit} | {mark} | {figure.how} |"


def commit() -> str:
    """The commit that is checked out, and whether there are changes to it."""
    git = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
