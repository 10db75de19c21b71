# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looks at all files of ensembles, in a limited time however many there are and however long each takes.

Files come with cloned projects, and the YAML parser is slow: what a few of them ask for may be minutes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidConfig, McpdError
from mcpd.model import printable
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.library.summaries import faulty, summary_of
from mcpd.servers.ensembles.library.tiers import decoded, shown, unreadable, unusable
from mcpd.servers.ensembles.library.walking import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.library.summaries import Summaries, Summary
    from mcpd.servers.ensembles.library.tiers import Tier
    from mcpd.servers.ensembles.library.walking import File

PROJECT_SECONDS: Final = 5.0
"""For what is new in a project, in one look."""
OTHER_SECONDS: Final = 10.0
"""The same for the user's own, and for the package's."""
SAVED_AFTER: Final = 1.0
"""Seconds of reading, after which what it has brought is kept for other processes."""
LEFT_OUT: Final = "not looked at: the files before it took too long to read"

log = logging.getLogger("llm-orc")


@dataclass(frozen=True, slots=True)
class Known:
    """A file, and what is known of it."""

    tier: Tier
    file: File
    summary: Summary

    @property
    def name(self) -> str:
        """The ensemble's, or the file's if there is none that is known."""
        return self.summary.name or printable(self.file.path.stem)


@dataclass(frozen=True, slots=True)
class Look:
    """What there was at a time."""

    number: int = 0
    """Later looks have greater ones."""
    known: tuple[Known, ...] = ()
    by_name: Mapping[Tier, Mapping[str, Known]] = field(default_factory=dict)
    """What each name means in each tier."""


class Looking:
    """One look at a time; any thread may ask for one."""

    def __init__(self, tiers: Sequence[Tier], summaries: Summaries, clock: Callable[[], float]) -> None:
        """*clock* tells seconds of the calling thread."""
        self.latest = Look()
        self._tiers = tiers
        self._summaries = summaries
        self._clock = clock
        self._numbers = count(1)
        self._turn = Lock()

    def look(self) -> Look:
        """A look that began after the call did: those who wait for one that is under way share the next.

        What cannot be read within :data:`PROJECT_SECONDS` or :data:`OTHER_SECONDS` is left out with a problem that says
        so, and is read by later looks, which find the rest known. Small files come first.
        """
        asked = next(self._numbers)
        with self._turn:
            if self.latest.number > asked:
                return self.latest
            number = next(self._numbers)
            known = self._known()
            self.latest = Look(number, known, _by_name(known))
            return self.latest

    def _known(self) -> tuple[Known, ...]:
        found = [(tier, Walk(tier).files) for tier in self._tiers]
        paths = {file.path for _, files in found for file in files}
        bases = {tier.base for tier in self._tiers}
        known: list[Known] = []
        for tier, files in found:
            reading = _Reading(tier, self._summaries, self._clock, lambda: self._summaries.save(paths, bases))
            known += reading.known(files)
        self._summaries.save(paths, bases)
        return tuple(known)


@dataclass(slots=True)
class _Reading:
    """Of the files of a tier."""

    tier: Tier
    summaries: Summaries
    clock: Callable[[], float]
    save: Callable[[], None]
    spent: float = 0.0
    """Seconds."""
    saved: float = 0.0
    """Of these, what had been spent when summaries were last saved."""

    def known(self, files: Sequence[File]) -> list[Known]:
        """What is known of *files*, in their order."""
        order = sorted(range(len(files)), key=lambda index: files[index].size)
        summaries = {index: self._summary(files[index]) for index in order}
        return [Known(self.tier, file, summaries[index]) for index, file in enumerate(files)]

    def _summary(self, file: File) -> Summary:
        if file.signature is None:
            return faulty(unusable(file.path, file.problem or "").message)
        known = self.summaries.get(file.path, file.signature)
        if known is not None:
            return known
        if self.spent >= (OTHER_SECONDS if self.tier.project is None else PROJECT_SECONDS):
            return faulty(unusable(file.path, LEFT_OUT).message)
        begun = self.clock()
        summary = self._read(file)
        self.spent += self.clock() - begun
        if self.spent - self.saved >= SAVED_AFTER:
            self.saved = self.spent
            self.save()
        return summary

    def _read(self, file: File) -> Summary:
        try:
            data, settled = self.tier.data(file.relative)
        except OSError as error:
            return faulty(unreadable(file.path, error).message)
        except InvalidConfig as error:
            return faulty(error.message)
        summary = _summarized(data, file.path)
        if settled is not None:
            self.summaries.put(file.path, settled, summary)
        return summary


def _summarized(data: bytes, path: Path) -> Summary:
    file = shown(path)
    try:
        return summary_of(load(decoded(data, path), file), file)
    except McpdError as error:
        return faulty(error.message)
    except Exception as error:  # What somebody else wrote hides nothing, whatever the parser makes of it.
        log.exception("%s cannot be read", path)
        return faulty(f"{file}: cannot be read ({type(error).__name__})")


def _by_name(known: Iterable[Known]) -> dict[Tier, dict[str, Known]]:
    """What each name means in each tier; a file whose own name is not known takes that of none beside it."""
    found: dict[Tier, dict[str, Known]] = {}
    for each in sorted(known, key=lambda each: each.summary.name is None):
        found.setdefault(each.tier, {}).setdefault(each.name, each)
    return found
