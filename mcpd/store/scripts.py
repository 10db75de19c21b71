# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that are script servers, and what was found in them when they were last read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from mcpd.errors import InvalidManifest, McpdError
from mcpd.model import check_id, load_json, printable
from mcpd.store.files import Signature, is_missing, make_directory, read_file, settled, signature, write_atomic
from mcpd.store.inspection import MAX_SCRIPT, Inspection, Kind, inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)

_DEAR: Final = 0.25
"""Seconds that reading a script may take without being kept at once."""
_OFTEN: Final = 1.0
"""Seconds between two times that the others are, while scripts are read."""
_NO_SIGNATURE: Final[Signature] = (-1, -1, -1, -1)
SUFFIXES: Final[dict[str, Kind]] = {".py": "python", ".sh": "shell"}
"""By precedence: of two files with one stem the first is the server."""


@dataclass(frozen=True, slots=True)
class Script:
    """One script, read."""

    id: str
    """As it is listed; see ``found.problem`` for one that is no server id."""
    path: Path
    """Where it really lies."""
    root: Path
    """The directory that it is a script of; it lies elsewhere if a symlink in there leads to it."""
    kind: Kind
    sha256: str
    """Of its content, in hexadecimal; empty if it cannot be read."""
    found: Inspection
    is_content: bool = False
    """Whether an entry names it by its content, so that it cannot become another one."""

    @property
    def key(self) -> str:
        """Under which :class:`Inspections` knows it."""
        return _key(self.kind, self.sha256)


def _key(kind: Kind, digest: str) -> str:
    return f"{kind}:{digest}"


class Inspections:
    """What was found in scripts, by content; kept in a file, so that a start reads nothing twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Inspection] = {}
        self._loaded = False
        self._changed = False
        self._written = time.monotonic()
        self._lock = threading.Lock()

    def of(self, data: bytes, kind: Kind) -> tuple[str, Inspection]:
        """The SHA-256 of *data*, and what is to be said of it. Raises what :func:`inspect` does."""
        digest = hashlib.sha256(data).hexdigest()
        key = _key(kind, digest)
        with self._lock:
            if not self._loaded:
                self._load()
            known = self._known.get(key)
        if known is None:
            # Without the lock: whoever asks for what is known does not wait for a shell to read a script.
            began = time.monotonic()
            known = inspect(data, kind)
            took = time.monotonic() - began
            with self._lock:
                self._known[key] = known
                self._changed = True
                is_due = took > _DEAR or time.monotonic() - self._written > _OFTEN
            if is_due:
                self._write()
        return digest, known

    def save(self, used: Iterable[Script]) -> None:
        """Write the file, with what was found in *used*, if that is not what it holds."""
        with self._lock:
            if not self._changed:
                return
            keys = {script.key for script in used}
            self._known = {key: found for key, found in self._known.items() if key in keys}
        self._write()

    def _write(self) -> None:
        """Keep what is known: a start after one that was cut short goes on where that ended."""
        with self._lock:
            self._changed, self._written = False, time.monotonic()
            kept = {key: list(astuple(found)) for key, found in self._known.items()}
        try:
            make_directory(self._path.parent)
            write_atomic(self._path, json.dumps({"by": _reader(), "scripts": kept}).encode())
        except McpdError as error:
            _log.debug("what was found in scripts is not kept: %s", error.message)

    def _load(self) -> None:
        self._loaded = True
        try:
            data = load_json(read_file(self._path), str(self._path))
        except InvalidManifest as error:
            _log.warning("%s; the scripts are read again", error.message)
            return
        except OSError:
            return
        if not isinstance(data, dict) or data.get("by") != _reader() or not isinstance(data.get("scripts"), dict):
            return
        for key, found in data["scripts"].items():
            if isinstance(found, list) and len(found) == 3 and all(isinstance(part, str) for part in found):
                self._known[key] = Inspection(*found)


def _reader() -> str:
    """What is an error to one Python may be none to the next."""
    return f"3 {sys.version}"


def _may_be_script(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return True  # That it cannot be looked at is told of it in the listing.


class ScriptDirectory:
    """The scripts in one directory. Looking again is cheap when nothing changed: one ``stat`` for each."""

    def __init__(self, root: Path, inspections: Inspections) -> None:
        self.root = root
        self._inspections = inspections
        self._cache: dict[str, tuple[Signature, Script]] = {}
        self._fault = ""
        self.hidden: dict[str, Path] = {}
        """Files of the last scan that are not used, as another one has the same stem."""

    def scan(self) -> dict[str, Script]:
        """The scripts, by id; those whose name is no id under what can be shown of it."""
        found: dict[str, Script] = {}
        hidden: dict[str, Path] = {}
        names = set(self._names())
        for name in sorted(names, key=lambda each: (each.rpartition(".")[0], each)):
            script = self._script(name)
            if script is not None and found.setdefault(script.id, script) is not script:
                hidden[script.id] = script.path
        for name in self._cache.keys() - names:
            self._cache.pop(name, None)
        self.hidden = hidden
        return found

    def _names(self) -> Iterator[str]:
        """Hidden files and those with ``_`` before their name are no servers: the latter others may import."""
        fault = ""
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    stem, dot, suffix = entry.name.rpartition(".")
                    if dot and stem and "." + suffix in SUFFIXES and stem[0] not in "._" and _may_be_script(entry):
                        yield entry.name
        except OSError as error:
            if not is_missing(error):
                fault = f"{self.root}: {error.strerror}"
        if fault and fault != self._fault:
            _log.warning("%s; its scripts are no servers until that is mended", fault)
        self._fault = fault

    def _script(self, name: str) -> Script | None:
        path = f"{self.root}/{name}"
        try:
            status = os.stat(path)  # noqa: PTH116 - for every script of a listing
        except OSError as error:
            return None if is_missing(error) else self._broken(name, f"{path}: {error.strerror}")
        now = signature(status)
        known = self._cache.get(name)
        if known is not None and known[0] == now:
            return known[1]
        try:
            script = self._read(name)
        except McpdError as error:
            return self._broken(name, f"{path}: {error.message}")
        except Exception as error:  # noqa: BLE001 -- a boundary: no script takes the others away
            return self._broken(name, f"{path}: it cannot be looked at, by a fault of mcpd's own", error)
        # What is too new to be told from the next edit is not to be taken for unchanged.
        return self._kept(name, now if settled(status) else _NO_SIGNATURE, script)

    def _kept(self, name: str, now: Signature, script: Script) -> Script:
        """*script*, or the same object as before if it is the same."""
        known = self._cache.get(name)
        if known is not None and known[1] == script:
            script = known[1]
        self._cache[name] = (now, script)
        return script

    def _broken(self, name: str, problem: str, fault: Exception | None = None) -> Script:
        """It is read anew at each look; a *fault* of ours is logged once."""
        known = self._cache.get(name)
        if fault is not None and (known is None or known[1].found.problem != problem):
            _log.error("%s", printable(problem), exc_info=fault)
        stem, _, suffix = name.rpartition(".")
        place = self.root / name
        script = Script(printable(stem), place, self.root, SUFFIXES["." + suffix], "", Inspection(problem=problem))
        return self._kept(name, _NO_SIGNATURE, script)

    def _read(self, name: str) -> Script:
        path, root = (self.root / name).resolve(), self.root.resolve()
        stem, _, suffix = name.rpartition(".")
        kind = SUFFIXES["." + suffix]
        try:
            check_id(stem)
            digest, found = self._inspections.of(read_file(path, MAX_SCRIPT), kind)
        except InvalidManifest as error:
            return Script(printable(stem), path, root, kind, "", Inspection(problem=error.message))
        except OSError as error:
            return Script(stem, path, root, kind, "", Inspection(problem=f"{path}: {error.strerror}"))
        if found.problem:
            found = Inspection(found.summary, found.version, f"{path}:{found.problem}")
        return Script(stem, path, root, kind, digest, found)

    def scripts(self) -> Iterator[Script]:
        """All that were found by the last scan."""
        return (script for _, script in self._cache.values())
