# SPDX-License-Identifier: LGPL-2.1-or-later
"""What listings say of each ensemble, kept on disk: reading YAML takes milliseconds for each file.

The file is a cache. It may be lost, somebody else's, or of another version; that costs time and nothing else.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from mcpd import __version__
from mcpd.errors import McpdError
from mcpd.files import make_directory, read_file, write_atomic
from mcpd.servers.ensembles.format import graph
from mcpd.servers.ensembles.format.models import EnsembleName, kind_of
from mcpd.servers.ensembles.library.tiers import Signature  # noqa: TC001 - pydantic reads the annotations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from mcpd.servers.ensembles.format.loading import Loaded

FILE: Final = "ensembles.json"
VERSION: Final = f"2 {__version__}"
"""Of what a record says; another version of the program may find other faults."""
MOST: Final = 20_000
"""Records, of all that use the cache."""
LONGEST: Final = 2000
"""Characters of a text."""

log = logging.getLogger("llm-orc")

_Text = Annotated[str, Field(max_length=LONGEST)]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a listing says of a file."""

    name: EnsembleName | None
    """None if it is not known."""
    description: _Text = ""
    agents: Annotated[int, Field(ge=0)] = 0
    kinds: Annotated[tuple[Annotated[str, Field(max_length=20)], ...], Field(max_length=10)] = ()
    """Those of its agents, each once, in the order of the alphabet."""
    problem: _Text | None = None
    """Why it cannot be run."""


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
    """What a listing says of *loaded*, what *file* holds."""
    ensemble = loaded.ensemble
    kinds = tuple(sorted({kind_of(agent) for agent in ensemble.agents}))
    fault = graph.fault(ensemble, loaded, file)
    problem = None if fault is None else _shown(fault.message)
    return Summary(ensemble.name, _shown(ensemble.description), len(ensemble.agents), kinds, problem)


def faulty(problem: str) -> Summary:
    """What a listing says of a file that is no ensemble."""
    return Summary(None, problem=_shown(problem))


class Summaries:
    """Those of all files, also of earlier processes; any thread may use it."""

    def __init__(self, directory: Path) -> None:
        """*directory* is where the cache is, if it can be there."""
        self._path = directory / FILE
        self._lock = Lock()
        self._records: dict[str, _Record] | None = None
        self._is_new = False

    def get(self, path: Path, signature: Signature) -> Summary | None:
        """That of *path*, if it is known as it is now."""
        with self._lock:
            if self._records is None:
                self._records = self._read()
            record = self._records.get(str(path))
        return record.summary if record is not None and record.signature == signature else None

    def put(self, path: Path, signature: Signature, summary: Summary) -> None:
        """Know *summary* until *path* changes."""
        with self._lock:
            if self._records is None:
                self._records = self._read()
            self._records[str(path)] = _Record(signature, summary)
            self._is_new = True

    def save(self, paths: Collection[Path], bases: Collection[Path]) -> None:
        """Keep what is new for other processes. *paths* are all files there are now below *bases*."""
        with self._lock:
            if not self._is_new or self._records is None:
                return
            self._is_new = False
            present = {str(path) for path in paths}
            self._records = {path: record for path, record in self._records.items() if path in present}
            own = {path: record for path, record in self._records.items() if _is_text(path)}
        # Meanwhile another process may have written what it knows of other projects.
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
    """The *records* of files that are not below *bases*."""
    prefixes = tuple(f"{base}/" for base in bases)
    return {path: record for path, record in records.items() if not path.startswith(prefixes)}


def _shown(text: str) -> str:
    """*text* as far as it can be kept."""
    return text[:LONGEST].encode(errors="replace").decode()


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
