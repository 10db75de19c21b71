# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mcps map on disk (``docs/mcps.md``): the vendor's, the administrator's and the user's files combined.

System files are merged, and later ones take precedence. The user's files are applied to the result of the system's
entries instead of being merged with them: they can restrict a server further, but cannot lift a restriction.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from mcpd.errors import InvalidManifest, McpdError
from mcpd.files import MAX_FILE, Signature, is_missing, read_file, settled, settled_signature, signature
from mcpd.model import check_id, load_json, printable
from mcpd.model.mcps import McpsEntry, merge, parse_entry, policies
from mcpd.paths import Scope
from mcpd.scripts import contents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.paths import Paths

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
"""URI with the characters that RFC 3986 allows."""
_LONGEST_URI: Final = 8192


def is_uri(text: str) -> bool:
    """Return whether *text* is a URI as defined in RFC 3986, of a reasonable length."""
    return len(text) <= _LONGEST_URI and _URI.fullmatch(text) is not None


def uri_fault(uri: str) -> str:
    """Return an error message if the resource URI *uri* is invalid; else empty."""
    return "" if is_uri(uri) else f"{uri[:100]!a} is not a URI (RFC 3986)"


def variable(source: str) -> str:
    """Return the name in the source ``variable://NAME``. It is case-sensitive, unlike the host of a URI."""
    return unquote(source.partition("://")[2])


def last_result(server_id: str) -> str:
    """Return the source of a resource that shows the result of the server's last tool call."""
    return f"{server_id}://last"


def called_server(source: str) -> str:
    """Return the id of the server that the valid resource source *source* calls; empty if it calls none."""
    parts = urlsplit(source)
    return parts.netloc if parts.scheme == "server" else ""


def source_fault(source: str, server_id: str, entry: McpsEntry) -> str:
    """Return an error message if the server cannot have a resource with *source*; else empty. Reads no content."""
    try:
        parts = urlsplit(source)
    except ValueError:
        return f"{source[:100]!a} is not a URI (RFC 3986)"
    fault = ""
    if parts.scheme == "cid":
        fault = "" if contents.is_content_id(source) else f"{source[:100]!a} is not a content id"
    elif parts.scheme == "variable":
        name = variable(source)
        fault = "" if name in entry.variables else f"the entry has no variable {name[:100]!a}"
    elif parts.scheme == "server":
        fault = uri_fault(source)
        try:
            check_id(parts.netloc)
        except InvalidManifest as error:
            fault = f"{source[:100]!a}: {error.message}"
    elif source != last_result(server_id):
        fault = (
            f'{source[:100]!a} cannot be read; give the resource a "source": cid://CONTENT, '
            f"server://SERVER/TOOL?ARGUMENT=VALUE, variable://NAME or {last_result(server_id)}"
        )
    elif entry.runtime.run_as == "system":
        fault = f"{source[:100]!a} would show each user the calls of others, because runtime.runAs is 'system'"
    return fault


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """Combined effect of all files of the map on one server."""

    disabled: str = ""
    """Reason why the server is disabled; empty if it is not."""
    problem: str = ""
    """Fault of the entry, which disables the server; empty if there is none."""
    summary: str = ""
    """Replaces the manifest's summary, unless empty."""
    description: str = ""
    """Replaces the manifest's description, unless empty."""
    policy: str = ""
    """Changes that the bridge makes to tools, resources and prompts, as JSON; empty if there are none."""


NO_ENTRY: Final = ServerEntry()
MOST_SERVERS: Final = 1000
"""Maximum number of script servers that one file may define; each one slows down every listing."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A script server as described by the map: one layer's entry defines it, the others change what clients see."""

    effective: ServerEntry
    entry: McpsEntry
    raw: Mapping[str, Any]
    """The defining entry as written, merged from all files of its layer."""


NO_DEFINITION: Final = Definition(NO_ENTRY, McpsEntry(), {})


@dataclass(frozen=True, slots=True)
class _FileEntry:
    """Entry for one server in one file of the map."""

    raw: Mapping[str, Any]
    origin: str
    fault: str
    is_server: bool = False
    """True if this entry alone defines a script server."""


class _File:
    """One file of the map; a missing or malformed one counts as empty."""

    def __init__(self, path: Path, contents: Sequence[Path]) -> None:
        self._path = path
        self._contents = contents
        self._fault = ""
        self._read: tuple[Signature | None, dict[str, _FileEntry]] = (None, {})
        self._content: tuple[Path, Signature | None] | None = None
        """Path and signature of the content store's file, if this file contains a content id instead of the map."""

    def read(self) -> dict[str, _FileEntry]:
        """Return the entries by server id; the same object until the file changes."""
        known: Signature | None = None
        found: dict[str, _FileEntry] = {}
        try:
            status = self._path.stat()
            now = signature(status)
            if now == self._read[0] and self._is_content_unchanged():
                return self._read[1]
            known = now if settled(status) else None
            found = self._entries()
            self._fault = ""
        except InvalidManifest as error:
            self._unusable(error.message)
        except OSError as error:
            known = None
            if is_missing(error):
                self._fault = ""
            else:
                self._unusable(f"{self._path}: {error.strerror}")
        if found == self._read[1]:
            found = self._read[1]
        self._read = (known, found)
        return found

    def _is_content_unchanged(self) -> bool:
        if self._content is None:
            return True
        path, known = self._content
        return known is not None and settled_signature(path) == known

    def _entries(self) -> dict[str, _FileEntry]:
        self._content = None
        data = load_json(read_file(self._path), str(self._path))
        if isinstance(data, str):
            data = self._read_by_content_id(data)
        if not isinstance(data, dict):
            raise InvalidManifest(f"{self._path}: the map must be an object of server ids and entries")
        found = {server_id: self._parse_entry(server_id, raw) for server_id, raw in data.items()}
        makers = [server_id for server_id, part in found.items() if part.is_server]
        if fault := too_many(str(self._path), makers):
            found |= dict.fromkeys(makers[MOST_SERVERS:], _FileEntry({}, str(self._path), fault))
        return found

    def _read_by_content_id(self, text: str) -> Any:
        """Return the map with the content id *text*, which is all that the file contains."""
        self._content = (self._path, None)  # Content that is missing may appear without a change of this file.
        try:
            data, path = contents.find(text, self._contents, MAX_FILE)
        except McpdError as error:
            raise InvalidManifest(f"{self._path}: {error.message}") from error
        self._content = (path, settled_signature(path)) if path is not None else None
        return load_json(data, f"{self._path}: {text}")

    def _parse_entry(self, server_id: str, raw: object) -> _FileEntry:
        origin = str(self._path)
        try:
            entry = parse_entry(server_id, raw, origin)
        except InvalidManifest as error:
            return _FileEntry({}, origin, error.message)
        return _FileEntry(raw if isinstance(raw, dict) else {}, origin, "", entry.is_server)

    def _unusable(self, fault: str) -> None:
        if fault != self._fault:
            _log.warning("%s; treating the file as empty", fault)
        self._fault = fault


def too_many(origin: str, makers: Sequence[str]) -> str:
    """Return an error message if the file *origin* defines too many servers, *makers* by id; else empty."""
    if len(makers) <= MOST_SERVERS:
        return ""
    return (
        f"{origin}: {len(makers)} entries define servers, and one file may define {MOST_SERVERS}:"
        f" {printable(makers[MOST_SERVERS])!r} and those after it are ignored; move them to another file"
    )


def layers(paths: Paths, scope: Scope) -> list[tuple[list[Path], Path]]:
    """Return the layers of the map for *scope*, lowest precedence first: files, then a directory of more files."""
    own = [([paths.user.mcps], paths.user.mcps_dir)] if scope is Scope.USER else []
    return [([paths.vendor_mcps, paths.system.mcps], paths.system.mcps_dir), *own]


def files_in(directory: Path) -> list[Path]:
    """Return the files of the map in *directory*, lowest precedence first. Raises OSError."""
    return sorted(path for path in directory.iterdir() if path.suffix == ".json" and path.name[0] != ".")


class McpsMap:
    """The mcps map of one scope. Thread-safe."""

    def __init__(self, paths: Paths, scope: Scope) -> None:
        # Content that the administrator's files name is only read from directories that users cannot write.
        known = (paths.contents(Scope.SYSTEM), paths.contents(scope))
        self._layers = [_Files(*files, each) for files, each in zip(layers(paths, scope), known, strict=False)]
        self._seen: list[dict[str, _FileEntry]] = []
        self._entries: dict[str, ServerEntry] = {}
        self._parts: dict[str, list[list[_FileEntry]]] = {}
        self._definitions: dict[tuple[str, int], Definition] = {}
        self._servers: dict[str, Scope] | None = None
        self._lock = threading.RLock()
        self.version = 0
        """Changes whenever :meth:`refresh` finds a difference."""

    def refresh(self) -> None:
        """Read the files that changed since the last call."""
        with self._lock:
            found = [layer.read() for layer in self._layers]
            flat = [part for layer in found for part in layer]
            if len(flat) == len(self._seen) and all(a is b for a, b in zip(flat, self._seen, strict=True)):
                return
            self._entries = self._merged(found)
            self._seen, self._servers = flat, None
            self.version += 1

    def entry(self, server_id: str) -> ServerEntry:
        """Return the map's effect on *server_id* as of the last :meth:`refresh`; the same object until it changes."""
        return self._entries.get(server_id, NO_ENTRY)

    def definition(self, server_id: str, scope: Scope) -> Definition:
        """Return the definition of a script server whose script belongs to *scope*, from that scope's files."""
        with self._lock:
            if server_id not in self._parts:
                return NO_DEFINITION
            layer = 0 if scope is Scope.SYSTEM else 1
            known = self._definitions.get((server_id, layer))
            if known is None:
                known = self._definitions[server_id, layer] = _combined(server_id, self._parts[server_id], layer)
            return known

    def servers(self) -> Mapping[str, Scope]:
        """Return the servers that only the map defines, without a script file, with the scope of the defining files."""
        with self._lock:
            if self._servers is None:
                self._servers = dict(self._made())
            return self._servers

    def _made(self) -> Iterator[tuple[str, Scope]]:
        scopes = (Scope.USER, Scope.SYSTEM)[2 - len(self._layers) :]
        for server_id, layers in self._parts.items():
            if not any(part.is_server for files in layers for part in files):
                continue
            makers = (scope for scope in scopes if self.definition(server_id, scope).entry.is_server)
            if (scope := next(makers, None)) is not None:
                yield server_id, scope

    def _merged(self, layers: list[list[dict[str, _FileEntry]]]) -> dict[str, ServerEntry]:
        ids = dict.fromkeys(server_id for layer in layers for file in layer for server_id in file)
        merged: dict[str, ServerEntry] = {}
        parts: dict[str, list[list[_FileEntry]]] = {}
        logged: set[str] = set()
        for server_id in ids:
            parts[server_id] = [[file[server_id] for file in layer if server_id in file] for layer in layers]
            entry = _combined(server_id, parts[server_id]).effective
            old = self._entries.get(server_id)
            if entry.problem and entry.problem not in logged and (old is None or old.problem != entry.problem):
                logged.add(entry.problem)  # Several entries may share the fault of their file.
                _log.warning("%s; the server is disabled until this is fixed", entry.problem)
            merged[server_id] = old if old == entry else entry
        same = {server_id for server_id in ids if parts[server_id] == self._parts.get(server_id)}
        self._definitions = {key: found for key, found in self._definitions.items() if key[0] in same}
        self._parts = parts
        return merged


class _Files:
    """The files of one layer of the map, lowest precedence first."""

    def __init__(self, first: Iterable[Path], directory: Path, contents: Sequence[Path]) -> None:
        self.first = [_File(path, contents) for path in first]
        self._contents = contents
        self._directory = directory
        self._more: dict[str, _File] = {}
        self._listed: Signature | None = None
        self._fault = ""

    def read(self) -> list[dict[str, _FileEntry]]:
        self._list()
        return [file.read() for file in (*self.first, *self._more.values())]

    def _list(self) -> None:
        try:
            status = self._directory.stat()
            now = signature(status)
            if now == self._listed:
                return
            names = [path.name for path in files_in(self._directory)]
        except OSError as error:
            fault = "" if is_missing(error) else f"{self._directory}: {error.strerror}"
            if fault and fault != self._fault:
                _log.warning("%s; treating the directory as empty", fault)
            self._more, self._listed, self._fault = {}, None, fault
            return
        self._fault = ""
        self._more = {name: self._more.get(name) or _File(self._directory / name, self._contents) for name in names}
        self._listed = now if settled(status) else None


def _combined(server_id: str, layers: list[list[_FileEntry]], defining: int | None = None) -> Definition:
    """Return the combined effect of the entries for *server_id* in *layers*, the system's layer first.

    *defining* is the index of the layer that defines a script server; None for an installed server.
    """
    entries: list[McpsEntry] = []
    disabled = ""
    definition, written = None, {}
    for number, files in enumerate(layers):
        faults = [part.fault for part in files if part.fault]
        if faults:
            return Definition(ServerEntry(disabled=faults[0], problem=faults[0]), McpsEntry(), {})
        if not files:
            continue
        raw: dict[str, Any] = {}
        for part in files:
            raw = merge(raw, part.raw)
        try:
            entry = parse_entry(server_id, raw, files[-1].origin)
        except InvalidManifest as error:
            return Definition(ServerEntry(disabled=error.message, problem=error.message), McpsEntry(), {})
        if not entry.usable and not disabled:
            switch = "enabled" if not entry.enabled else "mcp_enabled"
            origin = next(part.origin for part in reversed(files) if part.raw.get(switch) is False)
            disabled = f"{origin}: entry {printable(server_id)!r} has {switch} false"
        entries.append(entry)
        if number == defining:
            definition, written = entry, raw
    changes = policies(entries, definition)
    effective = ServerEntry(
        disabled=disabled,
        summary=next((entry.summary for entry in reversed(entries) if entry.summary), ""),
        description=next((entry.description for entry in reversed(entries) if entry.description), ""),
        policy=json.dumps(changes, ensure_ascii=False, separators=(",", ":")) if changes else "",
    )
    return Definition(effective, definition or McpsEntry(), written)
