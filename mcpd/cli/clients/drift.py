# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a client's file still is what was deployed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mcpd.cli.clients import editing
from mcpd.cli.clients.merging import holds
from mcpd.cli.clients.target import snapshot
from mcpd.cli.clients.texts import same
from mcpd.errors import Busy, McpdError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family

Status = Literal["none", "in-sync", "drifted", "file-missing", "unreadable"]


@dataclass(frozen=True, slots=True)
class Drift:
    """The state of one file. Names are those of servers."""

    file: Path | None
    """None where nothing is deployed to any, or that is not known."""
    deployed: bool
    missing: tuple[str, ...] = ()
    """Were deployed, and are gone."""
    modified: tuple[str, ...] = ()
    """Something that was deployed was changed in them."""
    extended: tuple[str, ...] = ()
    """Something was added to them, which is as it may be: a deployment keeps it."""
    unexpected: tuple[str, ...] = ()
    """Others that are in the file."""
    status: Status = "none"
    problem: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """For programs."""
        return {
            "file": None if self.file is None else str(self.file),
            "deployed": self.deployed,
            "status": self.status,
            "missing": list(self.missing),
            "modified": list(self.modified),
            "extended": list(self.extended),
            "unexpected": list(self.unexpected),
            "problem": self.problem,
        }


def compare(family: Family, file: Path, deployed: Mapping[str, JsonValue]) -> Drift:
    """How *file* differs from what was *deployed* there; a file that cannot be read is ``unreadable``.

    No deployment repairs such a file, so its problem says that somebody has to mend it.
    """
    try:
        found_file = snapshot(file)
        if found_file.data is None:
            return Drift(file, deployed=True, missing=tuple(deployed), status="file-missing")
        found = editing.read(found_file.data, family.format, family.key, family.shape, str(file))
    except Busy as error:
        return unreadable(file, error)
    except McpdError as error:
        return unreadable(file, error, "; the file has to be mended first, a deployment leaves it as it is")
    missing = tuple(name for name in deployed if name not in found)
    modified = tuple(name for name in deployed if name in found and not holds(found[name], deployed[name]))
    return Drift(
        file,
        deployed=True,
        missing=missing,
        modified=modified,
        extended=tuple(
            name
            for name in deployed
            if name in found and name not in modified and not same(found[name], deployed[name])
        ),
        unexpected=tuple(name for name in found if name not in deployed),
        status="drifted" if missing or modified else "in-sync",
    )


def unreadable(file: Path | None, fault: McpdError, way_out: str = "") -> Drift:
    """The answer where *fault* keeps from comparing *file*, or any file of a client."""
    return Drift(file, deployed=True, status="unreadable", problem=fault.message + way_out)
