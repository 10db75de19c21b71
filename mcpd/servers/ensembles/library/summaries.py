# SPDX-License-Identifier: LGPL-2.1-or-later
"""Summaries of ensembles for listings, read in a limited time and cached on disk.

Files come with cloned projects, and the YAML parser is slow: a few of them may take minutes. The cache may be missing,
damaged or of another version; that only costs time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from mcpd import __version__
from mcpd.errors import InvalidConfig, McpdError
from mcpd.files import make_directory, read_file, write_atomic
from mcpd.model import printable
from mcpd.servers.ensembles.format import graph
from mcpd.servers.ensembles.format.loading import load
from mcpd.servers.ensembles.format.models import EnsembleName, kind_of
from mcpd.servers.ensembles.library.tiers import Signature, Walk, decoded, shown, unreadable, unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.format.loading import Loaded
    from mcpd.servers.ensembles.library.tiers import File, Tier

FILE: Final = "ensembles.json"
VERSION: Final = f"2 {__version__}"
"""Version of the records; another version of the program may find other faults."""
MOST: Final = 20_000
"""Maximum number of records for all users of the cache."""
LONGEST: Final = 2000
"""Maximum length of a text in characters."""

log = logging.getLogger("llm-orc")

_Text = Annotated[str, Field(max_length=LONGEST)]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a file for listings."""

    name: EnsembleName | None
    """None if unknown."""
    description: _Text = ""
    agents: Annotated[int, Field(ge=0)] = 0
    kinds: Annotated[tuple[Annotated[str, Field(max_length=20)], ...], Field(max_length=10)] = ()
    """Kinds of its agents, unique and sorted."""
    problem: _Text | None = None
    """The reason why it cannot be run."""


@dataclass(frozen=True, slots=True)
class _Record:
    signature: Signature
    summary: Summary


@dataclass(frozen=True, slots=True)
class _Cache:
    version: str
    files: Annotated[dict[str, _Record], Field(max_length=MOST)]


_ADAPTER: Final = TypeAdapter(_Cache)


def summary_of(loaded: Loaded, file: str) -> Summary:
    """Return the summary of *loaded*, the content of *file*."""
    ensemble = loaded.ensemble
    kinds = tuple(sorted({kind_of(agent) for agent in ensemble.agents}))
    fault = graph.fault(ensemble, loaded, file)
    problem = None if fault is None else _shown(fault.message)
    return Summary(ensemble.name, _shown(ensemble.description), len(ensemble.agents), kinds, problem)


def faulty(problem: str) -> Summary:
    """Return the summary of a file that is not a valid ensemble."""
    return Summary(None, problem=_shown(problem))


class Summaries:
    """The summaries of all files, including those of earlier processes; thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Keep the cache in *directory*, if possible."""
        self._path = directory / FILE
        self._lock = Lock()
        self._records: dict[str, _Record] | None = None
        self._is_new = False

    def get(self, path: Path, signature: Signature) -> Summary | None:
        """Return the summary of *path* if it is current, or None."""
        with self._lock:
            if self._records is None:
                self._records = self._read()
            record = self._records.get(str(path))
        return record.summary if record is not None and record.signature == signature else None

    def put(self, path: Path, signature: Signature, summary: Summary) -> None:
        """Store *summary* until *path* changes."""
        with self._lock:
            if self._records is None:
                self._records = self._read()
            self._records[str(path)] = _Record(signature, summary)
            self._is_new = True

    def save(self, paths: Collection[Path], bases: Collection[Path]) -> None:
        """Save new summaries for other processes. *paths* are all existing files below *bases*."""
        with self._lock:
            if not self._is_new or self._records is None:
                return
            self._is_new = False
            present = {str(path) for path in paths}
            self._records = {path: record for path, record in self._records.items() if path in present}
            own = {path: record for path, record in self._records.items() if _is_text(path)}
        # Another process may have added summaries of other projects meanwhile.
        records = {**_elsewhere(self._read(), bases), **own}
        cache = _Cache(VERSION, dict(list(records.items())[-MOST:]))
        try:
            make_directory(self._path.parent, 0o700)
            write_atomic(self._path, _ADAPTER.dump_json(cache), 0o600)
        except McpdError as error:
            log.info("listings of ensembles are not kept: %s", error.message)

    def _read(self) -> dict[str, _Record]:
        try:
            cache = _ADAPTER.validate_json(read_file(self._path))
        except FileNotFoundError:
            return {}
        except (OSError, McpdError, ValidationError) as error:
            log.debug("%s is of no use: %s", self._path, error)
            return {}
        return cache.files if cache.version == VERSION else {}


def _elsewhere(records: Mapping[str, _Record], bases: Collection[Path]) -> dict[str, _Record]:
    """Return the *records* of files that are not below *bases*."""
    prefixes = tuple(f"{base}/" for base in bases)
    return {path: record for path, record in records.items() if not path.startswith(prefixes)}


def _shown(text: str) -> str:
    """Return *text*, cut and encodable as UTF-8."""
    return text[:LONGEST].encode(errors="replace").decode()


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


PROJECT_SECONDS: Final = 5.0
"""Seconds for reading new files of a project, in one scan."""
OTHER_SECONDS: Final = 10.0
"""Seconds for reading new files of the user, and of the package, in one scan."""
SAVED_AFTER: Final = 1.0
"""Seconds of reading after which the summaries are saved for other processes."""
LEFT_OUT: Final = "not looked at: the files before it took too long to read"


@dataclass(frozen=True, slots=True)
class Known:
    """A file with its summary."""

    tier: Tier
    file: File
    summary: Summary

    @property
    def name(self) -> str:
        """The name of the ensemble, or that of the file if unknown."""
        return self.summary.name or printable(self.file.path.stem)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a scan."""

    number: int = 0
    """Increases with each scan."""
    known: tuple[Known, ...] = ()
    by_name: Mapping[Tier, Mapping[str, Known]] = field(default_factory=dict)
    """The file for each name in each tier."""


class Looking:
    """Scans the files, once at a time; thread-safe."""

    def __init__(self, tiers: Sequence[Tier], summaries: Summaries, clock: Callable[[], float]) -> None:
        """Measure with *clock*, the seconds of the calling thread."""
        self.latest = Look()
        self._tiers = tiers
        self._summaries = summaries
        self._clock = clock
        self._numbers = count(1)
        self._turn = Lock()

    def look(self) -> Look:
        """Return a scan that began after the call; those that wait during a scan share the next one.

        Files that cannot be read within :data:`PROJECT_SECONDS` or :data:`OTHER_SECONDS` get a problem saying so, and
        are read by later scans, which find the others cached. Small files are read first.
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
    """Reads the files of a tier."""

    tier: Tier
    summaries: Summaries
    clock: Callable[[], float]
    save: Callable[[], None]
    spent: float = 0.0
    """Seconds spent on reading."""
    saved: float = 0.0
    """Value of :attr:`spent` when summaries were last saved."""

    def known(self, files: Sequence[File]) -> list[Known]:
        """Return *files* with their summaries, in the same order."""
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
    except Exception as error:  # A file of others must not hide the rest, whatever the parser does with it.
        log.exception("%s cannot be read", path)
        return faulty(f"{file}: cannot be read ({type(error).__name__})")


def _by_name(known: Iterable[Known]) -> dict[Tier, dict[str, Known]]:
    """Return the file for each name in each tier; invalid files do not take the names of valid ones."""
    found: dict[Tier, dict[str, Known]] = {}
    for each in sorted(known, key=lambda each: each.summary.name is None):
        found.setdefault(each.tier, {}).setdefault(each.name, each)
    return found
