# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures, their targets, and the page they are kept on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).with_name("results.md")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; *limit* is the most it may be."""

    what: str
    value: float
    limit: float
    unit: str
    how: str

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        return self.value <= self.limit


@dataclass(slots=True)
class Report:
    """All figures of a run."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, what: str, value: float, limit: float, unit: str, how: str) -> None:
        """Take down a figure and print it."""
        figure = Figure(what, value, limit, unit, how)
        self.figures.append(figure)
        mark = "ok  " if figure.holds else "MISS"
        print(f"{mark} {what}: {value:.4g} {unit} (at most {limit:g})", flush=True)

    def write(self) -> None:
        """Write the page."""
        cores = len(os.sched_getaffinity(0))
        lines = [
            "# Figures",
            "",
            (
                f"`make bench` on {cores} cores, Linux {platform.release().split('-')[0]}, Python "
                f"{platform.python_version()}. Medians unless it says otherwise."
            ),
            "",
            "| figure | measured | at most | | how |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {f.what} | {f.value:.4g} {f.unit} | {f.limit:g} {f.unit} | {'✓' if f.holds else '✗'} | {f.how} |"
            for f in self.figures
        ]
        RESULTS.write_text("\n".join(lines) + "\n")

    @property
    def exit_code(self) -> int:
        """0 if every figure holds."""
        return 0 if all(f.holds for f in self.figures) else 1
