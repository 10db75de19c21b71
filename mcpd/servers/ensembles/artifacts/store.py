# SPDX-License-Identifier: LGPL-2.1-or-later
"""The artifacts of all projects and of the user: what runs have left behind, and what those that go on have so far.

All methods but :meth:`Artifacts.recording` read or write files, and are called in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidConfig, McpdError, NotFound, from_oserror
from mcpd.model import printable
from mcpd.servers.ensembles.artifacts import places, recording, stored
from mcpd.servers.ensembles.artifacts.entries import ArtifactEntry, entry
from mcpd.servers.ensembles.artifacts.places import AGENTS, EXECUTION, MAX_BYTES
from mcpd.servers.ensembles.format.models import MAX_AGENTS
from mcpd.store.files import settled, signature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.servers.ensembles.artifacts.recording import Recording
    from mcpd.servers.ensembles.engine.types import AgentResult
    from mcpd.store.files import Signature

log: Final = logging.getLogger("llm-orc")

PAGE: Final = 100
"""Entries of a listing, where nothing else is asked for."""
MAX_LISTED: Final = 1000
"""The most that there are, and the runs that metrics are made of."""
MAX_SUMMED: Final = 16 * 1024 * 1024
"""Bytes of an artifact that a listing looks into."""
MAX_LISTING: Final = 128 * 1024 * 1024
"""Bytes of all artifacts that one listing looks into."""
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

    def __init__(self, roots: Callable[[], Sequence[Path]], clock: Callable[[], float] = time.time) -> None:
        """*roots* are directories with one for each ensemble, which need not be there; the first one that has an id
        counts. *clock* gives seconds since the epoch.
        """
        self._roots = roots
        self._clock = clock
        self._known: dict[Path, tuple[Signature, ArtifactEntry]] = {}

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

    def ensembles(self) -> dict[str, int]:
        """How many artifacts there are, by ensemble, without a look into them."""
        counts: dict[str, int] = {}
        for root in self._roots():
            with _present(root), places.opened(root) as top:
                for name in filter(places.is_ensemble, places.names(top)):
                    counts[name] = counts.get(name, 0) + len(_stamps(root, name))
        return {name: count for name, count in sorted(counts.items()) if count}

    def count(self, ensemble: str) -> int:
        """How many artifacts *ensemble* has."""
        return len(self._found(ensemble))

    def ids(self, ensemble: str) -> list[str]:
        """The ids of all artifacts of *ensemble*, the newest first, without a look into them."""
        return [f"{ensemble}/{timestamp}" for timestamp in sorted(self._found(ensemble), reverse=True)]

    def listing(self, ensemble: str, limit: int = PAGE, before: str | None = None) -> list[ArtifactEntry]:
        """At most *limit* artifacts of *ensemble*, the newest first; those older than the timestamp *before*.

        The last one's timestamp is the next page's *before*. What cannot be read is among them, with its problem.
        """
        found = self._found(ensemble)
        made: list[ArtifactEntry] = []
        left = MAX_LISTING
        for timestamp in sorted(found, reverse=True):
            if before is not None and timestamp >= before:
                continue
            if len(made) >= min(limit, MAX_LISTED):
                break
            known, size = self._entry(found[timestamp], ensemble, timestamp, left)
            left -= size
            if known is not None:
                made.append(known)
        return made

    def resolved(self, artifact: str) -> str:
        """The id that *artifact* is; ``ensemble/latest`` is the newest. Raises :class:`~mcpd.errors.NotFound`."""
        ensemble, _, stamp = artifact.partition("/")
        if stamp != places.LATEST:
            return artifact
        newest = next(iter(self.ids(ensemble)), None)
        if newest is None:
            raise NotFound(f"{printable(ensemble)} has not run; there is no latest artifact")
        return newest

    def read(self, artifact: str) -> dict[str, Any]:
        """The document of *artifact* (L-4), ``ensemble/timestamp`` or ``ensemble/latest``, see :mod:`.execution`.

        One that goes on, or has been interrupted, says so in its ``status`` and has what its agents have come to.
        Raises :class:`~mcpd.errors.NotFound`, and :class:`~mcpd.errors.InvalidConfig` for what is no such document.
        """
        ensemble, timestamp = places.parts(self.resolved(artifact))
        for root in self._roots():
            path = root / ensemble / timestamp
            try:
                with places.opened(root, ensemble, timestamp) as directory:
                    return _document(directory, path)
            except OSError as error:
                if not places.is_absent(error):
                    raise from_oserror(error, f"reading {path}") from error
        raise NotFound(f"{artifact}: there is no such artifact; those of {ensemble} are listed by its name")

    def earlier(self, artifact: str) -> Earlier:
        """What a run can use that goes on from *artifact*. Raises what :meth:`read` does."""
        run = stored.parse(self.read(artifact))
        return Earlier(
            ensemble=run.ensemble or artifact.partition("/")[0],
            input=run.input or "",
            results={
                name: each.result(name)
                for name, each in run.results.items()
                if each.status == "success" and each.response is not None and not each.cut
            },
            definition=run.definition,
        )

    def _found(self, ensemble: str) -> dict[str, Path]:
        """The roots that have artifacts of *ensemble*, by timestamp."""
        found: dict[str, Path] = {}
        if places.is_ensemble(ensemble):
            for root in self._roots():
                for timestamp in _stamps(root, ensemble):
                    found.setdefault(timestamp, root)
        return found

    def _entry(self, root: Path, ensemble: str, timestamp: str, left: int) -> tuple[ArtifactEntry | None, int]:
        """The artifact in short, None if it is none, and the bytes that were read."""
        path = root / ensemble / timestamp
        size = 0
        try:
            with places.opened(root, ensemble, timestamp) as directory:
                status = _status(directory, EXECUTION)
                if (known := self._known.get(path)) is not None and known[0] == signature(status):
                    return known[1], 0
                much = status.st_size + _unfinished(directory)
                if much > min(left, MAX_SUMMED):
                    raise InvalidConfig(f"{path}: {much} bytes are too many for a list; read it by its id")
                size = much
                run = stored.parse(_document(directory, path))
        except FileNotFoundError:
            return None, size
        except OSError as error:
            return _unreadable(ensemble, timestamp, path, from_oserror(error, f"reading {path}")), size
        except McpdError as fault:
            return _unreadable(ensemble, timestamp, path, fault), size
        made = entry(ensemble, timestamp, path, run)
        if made.status != "running" and settled(status):
            self._remember(path, signature(status), made)
        return made, size

    def _remember(self, path: Path, known: Signature, made: ArtifactEntry) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path] = (known, made)


def _stamps(root: Path, ensemble: str) -> list[str]:
    found: list[str] = []
    with _present(root), places.opened(root, ensemble) as directory:
        found += filter(places.is_stamp, places.names(directory))
    return found


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


def _document(directory: int, path: Path) -> dict[str, Any]:
    """What the run in *directory* has come to."""
    document = _load(directory, path)
    if document.get("status") != "running":
        return document
    agents = _agents(directory, path)
    if not places.goes_on(directory):
        # It may have ended between the two looks.
        document = _load(directory, path)
        if document.get("status") != "running":
            return document
        document["status"] = "interrupted"
    document["results"] = agents
    return document


def _load(directory: int, path: Path) -> dict[str, Any]:
    with places.opened_file(directory, EXECUTION) as file:
        data = places.read(file, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidConfig(f"{path / EXECUTION}: larger than {MAX_BYTES} bytes")
    return stored.load(data, str(path / EXECUTION))


def _agents(directory: int, path: Path) -> dict[str, Any]:
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
            result = stored.load(line, str(path / AGENTS))
        except InvalidConfig as fault:
            log.warning("%s", fault.message)
            continue
        if isinstance(name := result.pop("name", None), str):
            made[name] = result
    return made
