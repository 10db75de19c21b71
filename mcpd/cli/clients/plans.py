# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a deployment will do to a client's file: looked at, agreed to, and only then carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpd.cli.clients import editing
from mcpd.cli.clients.merging import holds, renewed
from mcpd.cli.clients.shown import difference
from mcpd.cli.clients.target import snapshot
from mcpd.cli.clients.texts import same
from mcpd.errors import InvalidArgument
from mcpd.model import check_json, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from mcpd.cli.clients.target import Snapshot
    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family


@dataclass(frozen=True, slots=True)
class Plan:
    """The change of one file. Names are in the order of the payload."""

    family: Family
    snapshot: Snapshot
    """The file as it is."""
    new: bytes | None = field(repr=False)
    """What it will be; None if there is none and none is needed."""
    diff: str
    """For people, in the unified format; without what others keep in the file."""
    added: list[str]
    changed: list[str]
    removed: list[str]
    """Were deployed before and are no longer wanted."""
    kept: list[str]
    """In the file by hand, and also wanted: left as they are, unless taken over."""
    restored: list[str]
    """Of those changed: somebody had changed in them what was deployed."""
    left: list[str]
    """No longer wanted, but somebody has made something else of them: left, and theirs from now on."""
    entries: Mapping[str, JsonValue] = field(repr=False)
    """What is wanted, in the client's form."""
    take_over: tuple[str, ...]
    changes: Mapping[str, JsonValue | None] = field(repr=False)
    """What is done to the file: entries to put, None for those to remove."""
    replaced: Mapping[str, JsonValue] = field(repr=False)
    """What the file holds under those names."""
    owned: Mapping[str, JsonValue] = field(repr=False)
    """The entries in the file that will be mcpctl's."""
    before: Mapping[str, JsonValue] = field(repr=False)
    """Those that are now."""
    base: int
    """The number of the deployment that the file is in, 0 for none."""

    @property
    def file(self) -> Path:
        """The client's file."""
        return self.snapshot.path

    @property
    def is_empty(self) -> bool:
        """Whether everything is as it should be."""
        return self.new == self.snapshot.data and same(dict(self.owned), dict(self.before))

    def is_like(self, other: Plan) -> bool:
        """Whether both do the same to the same servers, whatever else is in the file."""
        return (
            same(dict(self.changes), dict(other.changes))
            and same(dict(self.replaced), dict(other.replaced))
            and same(dict(self.owned), dict(other.owned))
            and (self.kept, self.left, self.restored) == (other.kept, other.left, other.restored)
            and self.snapshot.path == other.snapshot.path
        )


def make(
    family: Family,
    file: Path,
    entries: Mapping[str, JsonValue],
    take_over: Collection[str],
    before: Mapping[str, JsonValue],
    base: int,
) -> Plan:
    """The plan for *entries* in *file*, where the entries *before* are mcpctl's since the deployment number *base*.

    Raises :class:`~mcpd.errors.InvalidArgument` for what no file can hold and for names in *take_over* that are not in
    *entries*, and the errors of :func:`~mcpd.cli.clients.target.snapshot` and :func:`~mcpd.cli.clients.editing.read`.
    """
    wanted = _checked(family, entries)
    if unknown := sorted(set(take_over) - wanted.keys()):
        raise InvalidArgument(
            f"{printable(unknown[0])} cannot be taken over: the configuration has no server of that name"
        )
    old = snapshot(file)
    where = (family.format, family.key, family.shape)
    found = editing.read(old.data or b"", *where, str(old.path))
    kept = [name for name in wanted if name in found and name not in before and name not in take_over]
    owned = {name: entry for name, entry in wanted.items() if name not in kept}
    put = {
        name: renewed(family, before[name], found[name], entry) if name in before and name in found else entry
        for name, entry in owned.items()
    }
    changes: dict[str, JsonValue | None] = {
        name: entry for name, entry in put.items() if name not in found or not same(entry, found[name])
    }
    added = [name for name in changes if name not in found]
    changed = [name for name in changes if name in found]
    unwanted = [name for name in before if name in found and name not in wanted]
    removed = [name for name in unwanted if holds(found[name], before[name])]
    changes.update(dict.fromkeys(removed))
    new = editing.edit(old.data or b"", *where, changes, str(old.path)) if changes else old.data
    after = {name: entry for name, entry in {**found, **changes}.items() if entry is not None}
    return Plan(
        family=family,
        snapshot=old,
        new=new,
        diff=difference(family, old.path, old.data, new, (found, after), (wanted, before)),
        added=added,
        changed=changed,
        removed=removed,
        kept=kept,
        restored=[name for name in changed if name in before and not holds(found[name], before[name])],
        left=[name for name in unwanted if name not in removed],
        entries=wanted,
        take_over=tuple(take_over),
        changes=changes,
        replaced={name: found[name] for name in changes if name in found},
        owned=owned,
        before=before,
        base=base,
    )


def _checked(family: Family, entries: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """*entries* as the file holds them: in a list, each says its name."""
    wanted = dict(entries)
    try:
        check_json(wanted)
    except ValueError as error:
        raise InvalidArgument(f"the configuration for {family.name} cannot be written: {error}") from error
    if family.shape == "list":
        return {name: {"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in wanted.items()}
    return wanted
