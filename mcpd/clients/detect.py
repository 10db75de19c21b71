# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detection of the MCP clients of this user."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.clients import editing
from mcpd.clients.files import client_file, is_there, snapshot
from mcpd.errors import McpdError, NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from mcpd.clients.families import Family
    from mcpd.model import JsonValue


@dataclass(frozen=True, slots=True)
class DetectedClient:
    """A client found on this machine, with its file."""

    family: Family
    file: Path
    """The client's configuration file, or the path where it will be created."""
    exists: bool
    servers: int | None
    """Number of servers in the file; None if unknown."""
    problem: str
    """Reason why the file cannot be used; empty if it can be used."""
    programs: tuple[str, ...]
    """Paths of the client's programs that were found."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form."""
        return {
            "client_id": self.family.id,
            "display_name": self.family.name,
            "file": str(self.file),
            "exists": self.exists,
            "servers": self.servers,
            "problem": self.problem,
            "programs": list(self.programs),
        }


def detect(families: Iterable[Family], home: Path, environ: Mapping[str, str]) -> list[DetectedClient]:
    """Return the clients among *families* with an existing file, directory or program, in order.

    *home* is the user's directory, *environ* the environment (``PATH``, ``XDG_CONFIG_HOME``, variables of clients). An
    unusable file sets the ``problem`` of its client and does not affect other clients.
    """
    found = []
    for family in families:
        try:
            file = client_file(family, home, environ)
        except NotSupported:
            continue
        if is_installed(family, home, environ):
            found.append(_detected(family, file, _programs(family, environ)))
    return found


def is_installed(family: Family, home: Path, environ: Mapping[str, str]) -> bool:
    """Return True if a file, a directory or a program of *family* exists."""
    places = [*family.linux_locations(home, environ), *family.linux_directories(home, environ)]
    return any(map(is_there, places)) or bool(_programs(family, environ))


def _programs(family: Family, environ: Mapping[str, str]) -> tuple[str, ...]:
    path = environ.get("PATH", "")
    paths = [shutil.which(program, path=path) for program in family.detect.programs] if path else []
    return tuple(each for each in paths if each is not None)


def _detected(family: Family, file: Path, programs: tuple[str, ...]) -> DetectedClient:
    try:
        data = snapshot(file).data
        servers = editing.read(data or b"", family.format, family.key, family.shape, str(file))
    except McpdError as error:
        return DetectedClient(family, file, is_there(file), None, error.message, programs)
    return DetectedClient(family, file, data is not None, len(servers), "", programs)
