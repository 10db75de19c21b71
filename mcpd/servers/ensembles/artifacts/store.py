# SPDX-License-Identifier: LGPL-2.1-or-later
"""The artifacts of all projects and of the user: those of finished runs, and the state of running ones.

An ensemble is named ``NAME`` or ``X/NAME`` here, and an artifact by that name with a timestamp. The runs of an
ensemble are below the root of its own tier, even if another tier has a directory of that name: a cloned project may
contain any directories.

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
    """Return the roots of the artifacts of *entries*, all of *library*, by each name that means one of them.

    ``NAME`` is the ensemble that the name alone means; ``X/NAME`` that of the tier, or the project's directory, X.
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
    """Return the directories searched for artifacts of removed ensembles: the user's own first."""
    *projects, own = library.artifact_roots()
    return [own, *projects]


log: Final = logging.getLogger("llm-orc")

PAGE: Final = 100
"""Default number of entries in a listing."""
MAX_LISTED: Final = 1000
"""Maximum number of entries in a listing, and of runs in metrics."""
MAX_SUMMED: Final = 16 * 1024 * 1024
"""Maximum size of an artifact that a listing reads, in bytes."""
MAX_LISTING: Final = 128 * 1024 * 1024
"""Maximum size of all artifacts that one listing reads, in bytes."""
MAX_SUMMED_VALUES: Final = 50_000
"""Maximum number of members and elements in an artifact that a listing reads: twice those of a fan-out over 1000."""
VALUE: Final = 64
"""Bytes that each value counts as in :data:`MAX_LISTING`, in proportion to the time it takes."""
MAX_EMPTY: Final = 200
"""Maximum number of directories without a run that a listing skips; a power failure leaves one."""
MAX_NAMES: Final = 10_000
"""Maximum number of ensembles' directories that are examined in a root."""
_MOST_KNOWN: Final = 5000


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that can be continued."""

    ensemble: str
    input: str
    results: Mapping[str, AgentResult]
    """The responses by agent."""
    definition: Mapping[str, Any]
    """The definition that was passed to ``begin``."""


class Artifacts:
    """The artifacts below some directories."""

    def __init__(
        self,
        roots: Callable[[], Sequence[Path]],
        clock: Callable[[], float] = time.time,
        homes: Callable[[], Mapping[str, Path]] = dict,
    ) -> None:
        """Search *roots*, directories with one for each ensemble, which need not exist. *homes* returns the only root
        for each name; for other names it is the first of *roots* that has such runs. *clock* returns seconds since the
        epoch.
        """
        self._roots = roots
        self._homes = homes
        self._clock = clock
        self._known: dict[Path, tuple[Signature, ArtifactEntry]] = {}

    @classmethod
    def of(cls, library: Library, clock: Callable[[], float] = time.time) -> Artifacts:
        """Return the artifacts of the ensembles of *library*, each in its own root, see the module."""
        return cls(lambda: roots(library), clock, lambda: homes(library, library.entries()))

    def begin(self, root: Path, ensemble: str, text: str, definition: Mapping[str, Any]) -> Recording:
        """Start the record of a run, see :func:`.recording.begin`. The caller has to call its ``close``."""
        return recording.begin(root, ensemble, text, definition, self._clock())

    @asynccontextmanager
    async def recording(
        self, root: Path, ensemble: str, text: str, definition: Mapping[str, Any]
    ) -> AsyncIterator[Recording]:
        """Start the record of a run, and close it at the end of the block."""
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
        """Return the names of ensembles with a directory for artifacts; fast, however many artifacts there are.

        *homes* are the current ones, if the caller has them.
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
        """Return the number of artifacts for each ensemble, without reading them."""
        known = self._homes()
        return {name: count for name in self.names(known) if (count := len(self._found(name, known)[1]))}

    def count(self, ensemble: str) -> int:
        """Return the number of artifacts of *ensemble*."""
        return len(self._found(ensemble)[1])

    def ids(self, ensemble: str) -> list[str]:
        """Return the ids of all artifacts of *ensemble*, newest first, without reading them."""
        return [f"{ensemble}/{timestamp}" for timestamp in self._found(ensemble)[1]]

    def name(self, ensemble: str, root: Path) -> str:
        """Return the shortest name that identifies the ensemble *ensemble* whose runs are below *root*."""
        return _shortest(ensemble, root, self._homes())

    def called(self, ensemble: str) -> str:
        """Return the shortest name that means the same as *ensemble*."""
        known = self._homes()
        return _shortest(ensemble, known[ensemble], known) if ensemble in known else ensemble

    def is_in(self, artifact: str, root: Path) -> bool:
        """Return True if *artifact* is below *root*."""
        name, timestamp = places.parts(self.resolved(artifact))
        found, stamps = self._found(name)
        return found == root and timestamp in stamps

    def listing(self, ensemble: str, limit: int = PAGE, before: str | None = None) -> list[ArtifactEntry]:
        """Return at most *limit* artifacts of *ensemble*, newest first; those older than the timestamp *before*.

        The last one's timestamp is *before* for the next page. Unreadable artifacts are included, with their problem.
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
        """Return the id for *artifact*; ``ensemble/latest`` is the newest. Raises :class:`~mcpd.errors.NotFound`."""
        ensemble, slash, stamp = artifact.rpartition("/")
        ensemble = self.called(ensemble)
        if stamp != places.LATEST:
            return f"{ensemble}{slash}{stamp}"
        root, stamps = self._found(ensemble)
        for timestamp in stamps[: MAX_EMPTY + 1]:
            # A run that was interrupted before anything was written has left only a directory.
            with (
                suppress(OSError),
                places.opened(root or Path(), places.bare(ensemble), timestamp) as directory,
            ):
                _status(directory, EXECUTION)
                return f"{ensemble}/{timestamp}"
        raise NotFound(f"{printable(ensemble)} has not run; there is no latest artifact")

    def read(self, artifact: str) -> dict[str, Any]:
        """Return the document of *artifact*, ``ensemble/timestamp`` or ``ensemble/latest``, see :mod:`.execution`.

        For a running or interrupted run, ``status`` says so, and the results so far are included. Raises
        :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` for an invalid document.
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
        """Return the parts of *artifact* that a run which continues it can use.

        Raises the errors of :meth:`read`, :class:`~mcpd.errors.Busy` for a run that has not ended, and
        :class:`~mcpd.errors.InvalidConfig` for one whose input was cut.
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
        """Return the root of *ensemble*'s artifacts, None without any, and their timestamps, newest first."""
        name = places.bare(ensemble)
        if not places.is_ensemble(name):
            return None, []
        known = self._homes() if homes is None else homes
        for root in self._candidates(ensemble, known):
            if stamps := _stamps(root, name):
                return root, stamps
        return None, []

    def _candidates(self, ensemble: str, known: Mapping[str, Path]) -> Sequence[Path]:
        """Return the roots that may have artifacts of *ensemble*."""
        if ensemble in known:
            return [known[ensemble]]
        # Artifacts of removed ensembles are found by the name alone.
        return [] if "/" in ensemble else self._roots()

    def _entry(self, root: Path, ensemble: str, timestamp: str, left: int) -> tuple[ArtifactEntry | None, int]:
        """Return the entry of the artifact, or None if there is none, and its cost in terms of :data:`MAX_LISTING`."""
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
        """Return the cached entry of *path* if it is unchanged, with the name *ensemble*."""
        there = self._known.get(path)
        if there is None or there[0] != known:
            return None
        return replace(there[1], id=f"{ensemble}/{there[1].timestamp}", ensemble=ensemble)

    def _remember(self, path: Path, known: Signature, made: ArtifactEntry) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path] = (known, made)


def _shortest(ensemble: str, root: Path, known: Mapping[str, Path]) -> str:
    """Return the first name in *known* that means the ensemble *ensemble* of *root*; unqualified ones come first."""
    name = places.bare(ensemble)
    return next((each for each, home in known.items() if home == root and places.bare(each) == name), ensemble)


class _Reading:
    """Reads documents with a limited number of values, and adds up the cost in bytes."""

    def __init__(self, values: int = stored.MAX_VALUES) -> None:
        self._values = values
        self.cost = 0

    def load(self, data: bytes, origin: str) -> dict[str, Any]:
        """Return the document in *data*. Raises :class:`~mcpd.errors.InvalidConfig`."""
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
    """Return the timestamps of the artifacts of *ensemble* below *root*, newest first."""
    found: list[str] = []
    with _present(root), places.opened(root, ensemble) as directory:
        found += filter(places.is_stamp, places.names(directory))
    return sorted(found, reverse=True)


@contextmanager
def _present(root: Path) -> Iterator[None]:
    """Ignore what does not exist, and log other errors."""
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
    """Return the size of the results of a running or interrupted run in bytes."""
    try:
        return _status(directory, AGENTS).st_size
    except OSError:
        # Most runs have ended. Errors are reported when the file is read.
        return 0


def _document(directory: int, path: Path, reading: _Reading) -> dict[str, Any]:
    """Return the document of the run in *directory*, with the results so far if it has not ended."""
    document = _load(directory, path, reading)
    if document.get("status") != "running":
        return document
    agents = _agents(directory, path, reading)
    if not places.goes_on(directory):
        # It may have ended meanwhile.
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
    """Return the results of the agents that have ended; an incomplete last line is ignored."""
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
