# SPDX-License-Identifier: LGPL-2.1-or-later
"""The artifacts of all projects and of the user: those of finished runs, and what running ones have so far.

An ensemble is called ``NAME`` or ``X/NAME`` here, and an artifact by that name with a timestamp. The runs of an
ensemble are below the root of its own tier, even if another tier has a directory of that name: a cloned project brings
what directories it likes.

All methods but :meth:`Artifacts.recording` read or write files, and are called in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import Busy, InvalidConfig, McpdError, NotFound, from_oserror
from mcpd.files import settled, signature
from mcpd.model import printable
from mcpd.servers.ensembles.artifacts import places, recording, stored
from mcpd.servers.ensembles.artifacts.places import AGENTS, EXECUTION, MAX_BYTES
from mcpd.servers.ensembles.artifacts.stored import ArtifactEntry, entry
from mcpd.servers.ensembles.format.models import MAX_AGENTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from mcpd.files import Signature
    from mcpd.servers.ensembles.artifacts.recording import Recording
    from mcpd.servers.ensembles.engine.types import AgentResult
    from mcpd.servers.ensembles.library.library import Entry, Library


def homes(library: Library, entries: Iterable[Entry]) -> dict[str, Path]:
    """The roots of the artifacts of *entries*, all of *library*, by each name that means one of them.

    ``NAME`` is the one that the name alone means; ``X/NAME`` that of the tier, or else of the project's directory, X.
    """
    known = [(known_entry, library.artifact_root(known_entry.origin)) for known_entry in entries]
    found = {known_entry.name: root for known_entry, root in known if not known_entry.shadowed}
    for known_entry, root in known:
        found.setdefault(known_entry.qualified, root)
    for known_entry, root in known:
        if known_entry.origin.project is not None:
            found.setdefault(f"{known_entry.origin.project.name}/{known_entry.name}", root)
    return found


def roots(library: Library) -> list[Path]:
    """Where artifacts are looked for that are of no ensemble any more: the user's own first."""
    *projects, own = library.artifact_roots()
    return [own, *projects]


log: Final = logging.getLogger("llm-orc")

PAGE: Final = 100
"""Entries of a listing, where nothing else is asked for."""
MAX_LISTED: Final = 1000
"""The most that there are, and the runs that metrics are made of."""
MAX_SUMMED: Final = 16 * 1024 * 1024
"""Bytes of an artifact that a listing looks into."""
MAX_LISTING: Final = 128 * 1024 * 1024
"""Bytes of all artifacts that one listing looks into."""
MAX_SUMMED_VALUES: Final = 50_000
"""Members and elements of an artifact that a listing looks into: a fan-out over a thousand has half of that."""
VALUE: Final = 64
"""Bytes that a value counts for in :data:`MAX_LISTING`: it takes about as long."""
MAX_EMPTY: Final = 200
"""Directories without a run that a listing passes over; a power cut leaves one."""
MAX_NAMES: Final = 10_000
"""Directories of ensembles that are looked at in a root."""
_MOST_KNOWN: Final = 5000


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that another one can go on from."""

    ensemble: str
    input: str
    results: Mapping[str, AgentResult]
    """By agent, those that have a response."""
    definition: Mapping[str, Any]
    """What ``begin`` was given."""


class Artifacts:
    """The artifacts below some directories."""

    def __init__(
        self,
        roots: Callable[[], Sequence[Path]],
        clock: Callable[[], float] = time.time,
        homes: Callable[[], Mapping[str, Path]] = dict,
    ) -> None:
        """*roots* are directories with one for each ensemble, which need not be there. *homes* gives the only one that
        counts for each name; for a name that it has not that is the first of *roots* that has runs of it. *clock*
        gives seconds since the epoch.
        """
        self._roots = roots
        self._homes = homes
        self._clock = clock
        self._known: dict[Path, tuple[Signature, ArtifactEntry]] = {}

    @classmethod
    def of(cls, library: Library, clock: Callable[[], float] = time.time) -> Artifacts:
        """Those of the ensembles of *library*, each where its own runs are kept, see the module."""
        return cls(lambda: roots(library), clock, lambda: homes(library, library.entries()))

    def begin(self, root: Path, ensemble: str, text: str, definition: Mapping[str, Any]) -> Recording:
        """The record of a run that begins now, see :func:`.recording.begin`. Its ``close`` is the caller's."""
        return recording.begin(root, ensemble, text, definition, self._clock())

    @asynccontextmanager
    async def recording(
        self, root: Path, ensemble: str, text: str, definition: Mapping[str, Any]
    ) -> AsyncIterator[Recording]:
        """The same for the length of a block, which closes it."""
        beginning = asyncio.ensure_future(asyncio.to_thread(self.begin, root, ensemble, text, definition))
        try:
            await recording.outlasted(beginning)
        except asyncio.CancelledError:
            await beginning.result().close()
            raise
        made = beginning.result()
        try:
            yield made
        finally:
            await made.close()

    def names(self, homes: Mapping[str, Path] | None = None) -> list[str]:
        """The ensembles that have a directory for artifacts, by name; quick, however many artifacts there are.

        *homes* are those of this moment, if the caller has them.
        """
        known = self._homes() if homes is None else homes
        there = {root: _ensembles(root) for root in dict.fromkeys([*self._roots(), *known.values()])}
        found: dict[tuple[Path, str], str] = {}
        for name, root in known.items():
            ensemble = places.bare(name)
            if ensemble in there[root]:
                found.setdefault((root, ensemble), name)
        owned = {places.bare(name) for name in known}
        orphans = set().union(*there.values()) - owned
        return sorted([*found.values(), *orphans])

    def ensembles(self) -> dict[str, int]:
        """How many artifacts there are, by ensemble, without a look into them."""
        known = self._homes()
        return {name: count for name in self.names(known) if (count := len(self._found(name, known)[1]))}

    def count(self, ensemble: str) -> int:
        """How many artifacts *ensemble* has."""
        return len(self._found(ensemble)[1])

    def ids(self, ensemble: str) -> list[str]:
        """The ids of all artifacts of *ensemble*, the newest first, without a look into them."""
        return [f"{ensemble}/{timestamp}" for timestamp in self._found(ensemble)[1]]

    def name(self, ensemble: str, root: Path) -> str:
        """The name that means the ensemble *ensemble* whose runs are below *root*: the shortest there is."""
        return _shortest(ensemble, root, self._homes())

    def called(self, ensemble: str) -> str:
        """The shortest name that means what *ensemble* does."""
        known = self._homes()
        return _shortest(ensemble, known[ensemble], known) if ensemble in known else ensemble

    def is_in(self, artifact: str, root: Path) -> bool:
        """Return True if *artifact* is below *root*."""
        name, timestamp = places.parts(self.resolved(artifact))
        found, stamps = self._found(name)
        return found == root and timestamp in stamps

    def listing(self, ensemble: str, limit: int = PAGE, before: str | None = None) -> list[ArtifactEntry]:
        """At most *limit* artifacts of *ensemble*, the newest first; those older than the timestamp *before*.

        The last one's timestamp is the next page's *before*. What cannot be read is among them, with its problem.
        """
        root, stamps = self._found(ensemble)
        made: list[ArtifactEntry] = []
        left, empty = MAX_LISTING, 0
        for timestamp in stamps:
            if before is not None and timestamp >= before:
                continue
            if root is None or len(made) >= min(limit, MAX_LISTED) or empty > MAX_EMPTY:
                break
            known, cost = self._entry(root, ensemble, timestamp, left)
            left -= cost
            if known is None:
                empty += 1
            else:
                made.append(known)
        return made

    def resolved(self, artifact: str) -> str:
        """The id that *artifact* is; ``ensemble/latest`` is the newest. Raises :class:`~mcpd.errors.NotFound`."""
        ensemble, slash, stamp = artifact.rpartition("/")
        ensemble = self.called(ensemble)
        if stamp != places.LATEST:
            return f"{ensemble}{slash}{stamp}"
        root, stamps = self._found(ensemble)
        for timestamp in stamps[: MAX_EMPTY + 1]:
            # A run that was cut off before anything was written has left nothing but a directory.
            with (
                suppress(OSError),
                places.opened(root or Path(), places.bare(ensemble), timestamp) as directory,
            ):
                _status(directory, EXECUTION)
                return f"{ensemble}/{timestamp}"
        raise NotFound(f"{printable(ensemble)} has not run; there is no latest artifact")

    def read(self, artifact: str) -> dict[str, Any]:
        """The document of *artifact*, ``ensemble/timestamp`` or ``ensemble/latest``, see :mod:`.execution`.

        One that goes on, or has been interrupted, says so in its ``status`` and has what its agents have come to.
        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` for what is no such document.
        """
        ensemble, timestamp = places.parts(self.resolved(artifact))
        root, _ = self._found(ensemble)
        if root is not None:
            path = root / places.bare(ensemble) / timestamp
            try:
                with places.opened(root, places.bare(ensemble), timestamp) as directory:
                    return _document(directory, path, _Reading())
            except OSError as error:
                if not places.is_absent(error):
                    raise from_oserror(error, f"reading {path}") from error
        raise NotFound(
            f"{printable(artifact)}: there is no such artifact; those of {printable(ensemble)} are listed by its name"
        )

    def earlier(self, artifact: str) -> Earlier:
        """What a run can use that goes on from *artifact*.

        Raises what :meth:`read` does, :class:`~mcpd.errors.Busy` for a run that goes on itself, and
        :class:`~mcpd.errors.InvalidConfig` for one whose input was not kept as a whole.
        """
        run = stored.parse(self.read(artifact))
        if run.status == "running":
            raise Busy(f"{artifact} still goes on; it can be continued when it has been cut off")
        if run.input_cut:
            raise InvalidConfig(
                f"{artifact} has only the beginning of its input, which was too long to be kept: run the ensemble anew"
            )
        return Earlier(
            ensemble=run.ensemble or places.bare(artifact.rpartition("/")[0]),
            input=run.input or "",
            results={
                name: each.result(name)
                for name, each in run.results.items()
                if each.status == "success" and each.response is not None and not each.cut
            },
            definition=run.definition,
        )

    def _found(self, ensemble: str, homes: Mapping[str, Path] | None = None) -> tuple[Path | None, list[str]]:
        """The root of the artifacts of *ensemble*, and their timestamps, the newest first; None if there are none."""
        name = places.bare(ensemble)
        if not places.is_ensemble(name):
            return None, []
        known = self._homes() if homes is None else homes
        for root in self._candidates(ensemble, known):
            if stamps := _stamps(root, name):
                return root, stamps
        return None, []

    def _candidates(self, ensemble: str, known: Mapping[str, Path]) -> Sequence[Path]:
        """Where artifacts of *ensemble* may be."""
        if ensemble in known:
            return [known[ensemble]]
        # What is left of an ensemble that is not there any more has the name alone.
        return [] if "/" in ensemble else self._roots()

    def _entry(self, root: Path, ensemble: str, timestamp: str, left: int) -> tuple[ArtifactEntry | None, int]:
        """The artifact in short, None if it is none, and what it took of :data:`MAX_LISTING`."""
        path = root / places.bare(ensemble) / timestamp
        reading = _Reading(MAX_SUMMED_VALUES)
        known: Signature | None = None
        try:
            with places.opened(root, places.bare(ensemble), timestamp) as directory:
                status = _status(directory, EXECUTION)
                if (made := self._remembered(path, signature(status), ensemble)) is not None:
                    return made, 0
                much = status.st_size + _unfinished(directory)
                if much > min(left, MAX_SUMMED):
                    raise InvalidConfig(f"{path}: {much} bytes are too many for a list; read it by its id")
                known = signature(status) if settled(status) else None
                run = stored.parse(_document(directory, path, reading))
        except FileNotFoundError:
            return None, reading.cost
        except OSError as error:
            return _unreadable(ensemble, timestamp, path, from_oserror(error, f"reading {path}")), reading.cost
        except McpdError as fault:
            made = _unreadable(ensemble, timestamp, path, fault)
        else:
            made = entry(ensemble, timestamp, path, run)
        if made.status != "running" and known is not None:
            self._remember(path, known, made)
        return made, reading.cost

    def _remembered(self, path: Path, known: Signature, ensemble: str) -> ArtifactEntry | None:
        """What was found in *path* when it was the same, under the name that it is asked for by."""
        there = self._known.get(path)
        if there is None or there[0] != known:
            return None
        return replace(there[1], id=f"{ensemble}/{there[1].timestamp}", ensemble=ensemble)

    def _remember(self, path: Path, known: Signature, made: ArtifactEntry) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path] = (known, made)


def _shortest(ensemble: str, root: Path, known: Mapping[str, Path]) -> str:
    """The name among *known* that means the ensemble *ensemble* of *root*; those that stand alone come first there."""
    name = places.bare(ensemble)
    return next((each for each, home in known.items() if home == root and places.bare(each) == name), ensemble)


class _Reading:
    """Reads documents of at most so many values, and notes what that takes, in bytes."""

    def __init__(self, values: int = stored.MAX_VALUES) -> None:
        self._values = values
        self.cost = 0

    def load(self, data: bytes, origin: str) -> dict[str, Any]:
        """The document that *data* is. Raises :class:`~mcpd.errors.InvalidConfig`."""
        self.cost += len(data)
        count = stored.check_values(data, origin, self._values)
        self.cost += VALUE * count
        return stored.load(data, origin)


def _ensembles(root: Path) -> set[str]:
    found: set[str] = set()
    with _present(root), places.opened(root) as top:
        found |= set(islice(filter(places.is_ensemble, places.names(top)), MAX_NAMES))
    return found


def _stamps(root: Path, ensemble: str) -> list[str]:
    """The timestamps of the artifacts of *ensemble* below *root*, the newest first."""
    found: list[str] = []
    with _present(root), places.opened(root, ensemble) as directory:
        found += filter(places.is_stamp, places.names(directory))
    return sorted(found, reverse=True)


@contextmanager
def _present(root: Path) -> Iterator[None]:
    """What is not there is passed over, and so is what cannot be looked into."""
    try:
        yield
    except OSError as error:
        if not places.is_absent(error):
            log.warning("looking for artifacts in %s: %s", root, error.strerror or error)


def _unreadable(ensemble: str, timestamp: str, path: Path, fault: McpdError) -> ArtifactEntry:
    return ArtifactEntry(f"{ensemble}/{timestamp}", ensemble, timestamp, path, "unreadable", problem=fault.message)


def _status(directory: int, name: str) -> os.stat_result:
    with places.opened_file(directory, name) as file:
        return os.fstat(file)


def _unfinished(directory: int) -> int:
    """The bytes of what agents have come to in a run that has no end."""
    try:
        return _status(directory, AGENTS).st_size
    except OSError:
        # Most have ended. Whoever reads it says what is wrong with it.
        return 0


def _document(directory: int, path: Path, reading: _Reading) -> dict[str, Any]:
    """What the run in *directory* has come to."""
    document = _load(directory, path, reading)
    if document.get("status") != "running":
        return document
    agents = _agents(directory, path, reading)
    if not places.goes_on(directory):
        # It may have ended between the two looks.
        document = _load(directory, path, reading)
        if document.get("status") != "running":
            return document
        document["status"] = "interrupted"
    document["results"] = agents
    return document


def _load(directory: int, path: Path, reading: _Reading) -> dict[str, Any]:
    with places.opened_file(directory, EXECUTION) as file:
        data = places.read(file, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidConfig(f"{path / EXECUTION}: larger than {MAX_BYTES} bytes")
    return reading.load(data, str(path / EXECUTION))


def _agents(directory: int, path: Path, reading: _Reading) -> dict[str, Any]:
    """What the agents that have ended came to; a last line that is not whole does not count."""
    try:
        with places.opened_file(directory, AGENTS) as file:
            data = places.read(file, MAX_BYTES)
    except OSError as error:
        if not places.is_absent(error):
            log.warning("reading %s: %s", path / AGENTS, error.strerror or error)
        return {}
    made: dict[str, Any] = {}
    for line in data.split(b"\n")[:-1][:MAX_AGENTS]:
        try:
            result = reading.load(line, str(path / AGENTS))
        except InvalidConfig as fault:
            log.warning("%s", fault.message)
            continue
        if isinstance(name := result.pop("name", None), str):
            made[name] = result
    return made
