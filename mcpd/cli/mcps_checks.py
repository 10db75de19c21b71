# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of the mcps map (``docs/mcps.md``); mcpd itself ignores faulty files and entries."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.checks import Check
from mcpd.errors import InvalidManifest, McpdError
from mcpd.files import is_missing, read_file
from mcpd.model import load_json, printable
from mcpd.model.mcps import parse_entry, policies, script_fields, unknown_fields
from mcpd.paths import Scope
from mcpd.runtime import permissions
from mcpd.scripts import contents
from mcpd.scripts.generator import FILE, content_faults, line_of
from mcpd.scripts.mcps import McpsMap, called_server, files_in, layers, source_fault, too_many, uri_fault
from mcpd.store import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.model.mcps import McpsEntry
    from mcpd.paths import Paths

NAME: Final = "mcps map"
_MOST_NAMED: Final = 10
"""Maximum number of fields or tools named in one message."""
_PIECE: Final = re.compile(r'[{}]|(?P<string>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?')
"""The tokens needed to find the keys of objects in valid JSON."""


@dataclass(frozen=True, slots=True)
class MapFile:
    """The content of one file of the map."""

    origin: str
    """Name of the file in messages."""
    text: str
    data: dict[str, Any]
    scope: Scope
    """The scope that the file belongs to."""

    def where(self, server_id: str) -> str:
        """Return ``FILE:LINE`` of an entry."""
        return f"{self.origin}:{line_of(self.text, server_id)}"


class Known:
    """The servers, their tools and the whole map, to check entries against."""

    def __init__(self, paths: Paths, scope: Scope, ids: Collection[str] = (), tools: Store | None = None) -> None:
        """*ids* are additional servers that mcpd lists; *tools* is the store with the tools, if not that of *paths*."""
        self.paths = paths
        store = Store(paths, scope)
        self.servers = {server.id: server for server in store.list()}
        self._tools = tools or store
        self.ids = {*self.servers, *ids}
        self._map = McpsMap(paths, scope)
        self._map.refresh()
        self._below = McpsMap(paths, Scope.SYSTEM)
        self._below.refresh()

    def definition(self, server_id: str, scope: Scope) -> McpsEntry | None:
        """Return the definition of a script server from all files of *scope*; ``None`` if it is invalid."""
        found = self._map.definition(server_id, scope)
        return None if found.effective.problem else found.entry

    def tools(self, server_id: str, scope: Scope) -> list[str]:
        """Return the names of the tools that an installed server listed, as seen by files of *scope*.

        Empty if its tools are unknown, or if it listed none, e.g. because it is not configured.
        """
        from mcpd.cli.commands.mcps import Features, narrow  # 'mcpctl list' starts faster without

        try:
            listed = self._tools.tools(server_id) or []
        except McpdError:  # A broken server is reported elsewhere.
            return []
        features = Features(server_id, "", "installed", tools=list(listed))
        if scope is Scope.USER:
            narrow(features, self._below.entry(server_id).policy)
        return [str(tool.get("name", "")) for tool in features.tools]


def map_checks(paths: Paths, scope: Scope, known: Known | None = None, *, deep: bool = False) -> Iterator[Check]:
    """Yield a failure for each unusable file and invalid entry.

    With *known*, warn about parts that have no effect on the servers. With *deep*, also check the contents and
    resources that entries name.
    """
    files: list[tuple[Path, Scope]] = []
    faults: list[Check] = []
    for (first, directory), of in zip(layers(paths, scope), (Scope.SYSTEM, Scope.USER), strict=False):
        files += [(path, of) for path in first]
        try:
            files += [(path, of) for path in files_in(directory)]
        except OSError as error:
            if not is_missing(error):
                faults.append(_unused(f"{directory}: {error.strerror}", "the directory"))
    directories = paths.contents(scope)
    read = 0
    for path, of in files:
        try:
            file = read_map(path, directories, of)
        except InvalidManifest as error:
            faults.append(_unused(error.message))
            continue
        if file is not None:
            faults += entry_checks(file, known, directories if deep else None)
            read += 1
    yield from faults
    if read and not faults:
        yield Check(NAME, "ok", f"{read} valid file{'s' if read > 1 else ''}")


def read_map(path: Path, directories: Sequence[Path], scope: Scope) -> MapFile | None:
    """Read the file *path* of the map of *scope*, which may instead contain the id of a content in *directories*.

    Returns ``None`` if the file does not exist. Raises :class:`~mcpd.errors.InvalidManifest`, which names the file, if
    it is invalid.
    """
    origin = str(path)
    try:
        text = read_file(path)
        data = load_json(text, origin)
        if isinstance(data, str):
            origin = f"{path}: {printable(data)}"
            text = contents.read(data, directories)
            data = load_json(text, origin)
    except OSError as error:
        if is_missing(error):
            return None
        raise InvalidManifest(f"{path}: {error.strerror}") from error
    except InvalidManifest:
        raise
    except McpdError as error:
        raise InvalidManifest(f"{path}: {error.message}") from error
    if not isinstance(data, dict):
        raise InvalidManifest(f"{origin}:1: the map must be an object of server ids and entries")
    return MapFile(origin, text.decode(errors="replace"), data, scope)


def entry_checks(file: MapFile, known: Known | None, directories: Sequence[Path] | None = None) -> Iterator[Check]:
    """Check the entries of *file*, and with *known* also for fields that have no effect on the servers.

    With *directories* of contents, also check the contents and resources that entries name.
    """
    for line, key in doubled(file.text):
        message = f"{file.origin}:{line}: duplicate key {printable(key)!r}; only the last one is used"
        yield Check(NAME, "warn", message, "merge them into one")
    makers = []
    for server_id, raw in file.data.items():
        where = file.where(server_id)
        try:
            entry = parse_entry(server_id, raw, where)
        except InvalidManifest as error:
            advice = "fix the entry; its server is disabled until then"
            yield Check(NAME, "fail", error.message, advice)
            continue
        makers += [server_id] * entry.is_server
        yield from _permission_checks(server_id, entry, where)
        if directories is not None:
            for field, fault in content_faults(raw, entry, directories):
                message = f"{where}: entry {printable(server_id)!r}: {field}: {fault}"
                yield Check(
                    NAME, "fail", message, "'mcpctl mcps build' builds a map and its contents from a source file"
                )
        for field in unknown_fields(raw):
            message = f"{where}: unknown field {field!r} has no effect"
            yield Check(NAME, "warn", message, 'the page "The mcps map" (mcps.md) lists all fields')
        if known is not None:
            yield from _effect_checks(file, raw, entry, server_id, known)
            if directories is not None:
                yield from _resource_checks(file, entry, server_id, known)
    if fault := too_many(file.origin, makers):
        yield Check(NAME, "fail", fault, "split the file into several in mcps.d")


def _effect_checks(
    file: MapFile, raw: Mapping[str, Any], entry: McpsEntry, server_id: str, known: Known
) -> Iterator[Check]:
    """Warn about an *entry* for a missing server, and about fields that have no effect on its server."""
    if file.origin == str(known.paths.vendor_mcps):
        return  # An installed server may replace a shipped script, and users cannot edit the shipped map.
    server = known.servers.get(server_id)
    if server is None:
        if server_id not in known.ids and not entry.is_server:
            message = f"{file.where(server_id)}: there is no server {server_id!r}, so its entry has no effect"
            advice = (
                "'mcpctl list' shows the ids of the servers; an entry defines a server of its own if it has a"
                " definition_cid, a transform, resources or prompts"
            )
            yield Check(NAME, "warn", message, advice)
        return
    begin = f"{file.where(server_id)}: entry {printable(server_id)!r}: "
    is_script = server.script is not None
    # Files of the system cannot know that a user replaced the script by a server.
    fields = script_fields(raw) if file.scope is Scope.USER or server.scope is Scope.SYSTEM else []
    if fields and not is_script:
        message = f"{begin}ignoring {_listed(fields)}: {server_id} is an installed server, not a script"
        yield Check(NAME, "warn", message, "remove it; the manifest and 'mcpctl config' define how the server runs")
    elif fields and server.scope is not file.scope:
        place = known.paths.layout(server.scope).mcps_dir
        message = f"{begin}ignoring {_listed(fields)}: {server_id} is a system script"
        yield Check(NAME, "warn", message, f"move it to a file in {place}, or add a script with another name")
    if is_script:
        return
    changes = policies([entry])
    tools = known.tools(server_id, file.scope) if changes else []
    if not tools:
        return
    from mcpd.bridge.upstream.policy import without_tool  # 'mcpctl list' starts faster without

    if vain := without_tool(json.dumps(changes), tools):
        message = f"{begin}ignoring {_listed(vain)}: {server_id} listed no such tool when it was installed"
        yield Check(NAME, "warn", message, f"'mcpctl tools {server_id}' lists its current tools")


def _resource_checks(file: MapFile, entry: McpsEntry, server_id: str, known: Known) -> Iterator[Check]:
    """Yield a failure for each resource of *entry* that cannot be read."""
    server, definition = known.servers.get(server_id), known.definition(server_id, file.scope)
    if server is None or server.script is None or server.scope is not file.scope or definition is None:
        return
    for name, resource in entry.resources.items() if isinstance(entry.resources, dict) else ():
        begin = f"{file.where(server_id)}: entry {printable(server_id)!r}: resource {printable(name)}: "
        source = resource.source or resource.uri
        is_content = source.startswith((contents.SCHEME, FILE))
        fault = uri_fault(resource.uri or source) or ("" if is_content else source_fault(source, server_id, definition))
        if fault:
            advice = 'the page "Scripts as servers" (scripts.md) lists the possible sources of resources'
            yield Check(NAME, "fail", begin + fault, advice)
            continue
        other = called_server(source)
        if other in {"", server_id}:
            continue
        if not any(each.partition("?")[0] in {"mcp", f"mcp:{other}"} for each in definition.permissions):
            message = f"{begin}{source[:100]!r} is the result of a server that {server_id} may not call"
            yield Check(NAME, "fail", message, f'add "mcp:{other}" to the permissions of the entry')
        elif other not in known.ids:
            message = f"{begin}there is no server {other!r}"
            yield Check(NAME, "warn", message, "install it, or use one that 'mcpctl list' shows")


def _listed(names: Sequence[str]) -> str:
    """Return *names* as text, with at most :data:`_MOST_NAMED` of them."""
    shown = ", ".join(map(printable, names[:_MOST_NAMED]))
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown


def check_permissions(server_id: str, entry: McpsEntry) -> Sequence[str]:
    """Return the permissions of *entry* that are plain descriptions and grant nothing.

    Raises :class:`~mcpd.errors.InvalidManifest` for an invalid permission, as mcpd does when it starts the server.
    """
    secret = {item.key for item in entry.configurable_properties if item.sensitive}
    return permissions.parse(server_id, entry.permissions, {}, sensitive=secret).ignored


def _permission_checks(server_id: str, entry: McpsEntry, where: str) -> Iterator[Check]:
    begin = f"{where}: entry {printable(server_id)!r}: "
    try:
        ignored = check_permissions(server_id, entry)
    except InvalidManifest as error:
        message = begin + error.message.removeprefix(f"{server_id}: ")
        yield Check(NAME, "fail", message, "fix the permission; the server does not start with it")
        return
    for text in ignored:
        yield Check(NAME, "warn", f"{begin}{text[:200]!r} is not a permission and grants nothing")


def doubled(text: str) -> Iterator[tuple[int, str]]:
    """Yield duplicate keys of objects in the JSON *text*, with their lines; JSON parsers silently use the last one."""
    objects: list[set[str]] = []
    for found in _PIECE.finditer(text):
        if found[0] in "{}":
            objects = [*objects, set()] if found[0] == "{" else objects[:-1]
        elif found["colon"] and objects:
            key = json.loads(found["string"], strict=False)
            if key in objects[-1]:
                yield text.count("\n", 0, found.start()) + 1, key
            objects[-1].add(key)


def _unused(fault: str, what: str = "the file") -> Check:
    return Check(
        NAME,
        "fail",
        f"{fault}; {what} is ignored: its restrictions are NOT in force",
        f"fix {what}; mcpd reads it again within two seconds",
    )
