# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with the files of the mcps map (``docs/mcps.md``), as mcpd itself goes on without them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.checks import Check
from mcpd.errors import InvalidManifest, McpdError
from mcpd.model import load_json, printable
from mcpd.model.mcps import parse_entry, unknown_fields
from mcpd.runtime import permissions
from mcpd.store import contents
from mcpd.store.files import is_missing, read_file
from mcpd.store.generator import content_faults, line_of
from mcpd.store.mcps import files_in, layers, too_many

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from mcpd.model.mcps import McpsEntry
    from mcpd.paths import Paths, Scope

NAME: Final = "mcps map"
_PIECE: Final = re.compile(r'[{}]|(?P<string>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?')
"""What tells apart the keys of JSON, which is known to be right."""


@dataclass(frozen=True, slots=True)
class MapFile:
    """One file of the map, read."""

    origin: str
    """What messages call it."""
    text: str
    data: dict[str, Any]

    def where(self, server_id: str) -> str:
        """``FILE:LINE`` of an entry."""
        return f"{self.origin}:{line_of(self.text, server_id)}"


def map_checks(
    paths: Paths, scope: Scope, installed: Collection[str] | None = None, *, deep: bool = False
) -> Iterator[Check]:
    """A failure for each file that is not used, and for each entry that is not understood.

    *installed*, if it is known, are the ids of the installed servers: what is said of others has no effect, which is
    a warning. *deep* also reads the contents that entries name.
    """
    known: list[Path] = []
    faults: list[Check] = []
    for first, directory in layers(paths, scope):
        known += first
        try:
            known += files_in(directory)
        except OSError as error:
            if not is_missing(error):
                faults.append(_unused(f"{directory}: {error.strerror}", "the directory"))
    directories = paths.contents(scope)
    read = 0
    for path in known:
        try:
            file = read_map(path, directories)
        except InvalidManifest as error:
            faults.append(_unused(error.message))
            continue
        if file is not None:
            faults += entry_checks(file, installed, directories if deep else None)
            read += 1
    yield from faults
    if read and not faults:
        yield Check(NAME, "ok", f"{read} file{'s' if read > 1 else ''} understood")


def read_map(path: Path, directories: Sequence[Path]) -> MapFile | None:
    """The file *path* of the map, which may hold the content id of one in *directories*; ``None`` if there is none.

    Raises :class:`~mcpd.errors.InvalidManifest` that names it, if it cannot be used.
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
        raise InvalidManifest(f"{origin}:1: the map is an object, from server ids to entries")
    return MapFile(origin, text.decode(errors="replace"), data)


def entry_checks(
    file: MapFile, installed: Collection[str] | None, directories: Sequence[Path] | None = None
) -> Iterator[Check]:
    """What is wrong with the entries of *file*; with *directories*, also with the contents that they name."""
    for line, key in doubled(file.text):
        message = f"{file.origin}:{line}: {printable(key)!r} is in its object a second time; only the last one counts"
        yield Check(NAME, "warn", message, "remove all but one, or put what they say into one")
    makers = []
    for server_id, raw in file.data.items():
        where = file.where(server_id)
        try:
            entry = parse_entry(server_id, raw, where)
        except InvalidManifest as error:
            advice = "mend the entry; its server is disabled until then"
            yield Check(NAME, "fail", error.message, advice)
            continue
        makers += [server_id] * entry.is_server
        yield from _permission_checks(server_id, entry, where)
        if directories is not None:
            for field, fault in content_faults(raw, entry, directories):
                message = f"{where}: entry {printable(server_id)!r}: {field}: {fault}"
                yield Check(NAME, "fail", message, "'mcpctl mcps build' makes a map with its contents from a source")
        for field in unknown_fields(raw):
            message = f"{where}: the entry has {field!r}, which is no field of it and has no effect"
            yield Check(NAME, "warn", message, 'the page "The mcps map" (mcps.md) has all fields')
        if installed is not None and server_id not in installed and not entry.is_server:
            message = f"{where}: there is no server {server_id!r}, so its entry has no effect"
            advice = (
                "'mcpctl list' shows the ids of what is installed; an entry is a server of its own if it has a"
                " definition_cid, a transform, resources or prompts"
            )
            yield Check(NAME, "warn", message, advice)
    if fault := too_many(file.origin, makers):
        yield Check(NAME, "fail", fault, "mcps.d takes any number of files")


def check_permissions(server_id: str, entry: McpsEntry) -> Sequence[str]:
    """The words for people among the permissions of *entry*, which grant nothing.

    Raises :class:`~mcpd.errors.InvalidManifest` for what is to be a permission and is none, as mcpd does when it
    starts the server.
    """
    secret = {item.key for item in entry.configurable_properties if item.sensitive}
    return permissions.parse(server_id, entry.permissions, {}, sensitive=secret).ignored


def _permission_checks(server_id: str, entry: McpsEntry, where: str) -> Iterator[Check]:
    begin = f"{where}: entry {printable(server_id)!r}: "
    try:
        ignored = check_permissions(server_id, entry)
    except InvalidManifest as error:
        message = begin + error.message.removeprefix(f"{server_id}: ")
        yield Check(NAME, "fail", message, "mend the permission; the server is not started with it")
        return
    for text in ignored:
        yield Check(NAME, "warn", f"{begin}{text[:200]!r} is no permission and grants nothing")


def doubled(text: str) -> Iterator[tuple[int, str]]:
    """Keys that an object of the JSON *text* has already, and their lines: JSON readers take the last silently."""
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
        f"{fault}; {what} counts as empty: what it takes away is NOT taken away",
        f"mend {what}; mcpd looks at it every other second",
    )
