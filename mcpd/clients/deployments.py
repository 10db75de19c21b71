# SPDX-License-Identifier: LGPL-2.1-or-later
"""Deployments of configurations into the user's own files of MCP clients, and their undo.

No data of the user is lost: their part of a file stays, its earlier content is kept, and a process that is killed
leaves the old or the new file and a history that records which.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mcpd.clients import editing, plans
from mcpd.clients.editing import same
from mcpd.clients.files import (
    digest,
    make_directories,
    missing_directories,
    real_place,
    remove_directories,
    replace,
    settle,
    snapshot,
    temp_name,
)
from mcpd.clients.history import KEPT, Deployment, History, Pending, Record, State
from mcpd.clients.plans import holds
from mcpd.clients.tree import NAME
from mcpd.errors import Busy, InvalidConfig, McpdError, NoSpace, NotFound, ReadOnly
from mcpd.model import dump_json
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from mcpd.clients.families import Family
    from mcpd.clients.files import Snapshot
    from mcpd.clients.plans import Plan
    from mcpd.clients.tree import Tree
    from mcpd.model import JsonValue
    from mcpd.paths import Layout

Status = Literal["none", "in-sync", "drifted", "file-missing", "unreadable"]


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences between one file and what was deployed into it, by names of servers."""

    file: Path | None
    """None if nothing is deployed to any file, or the file is not known."""
    deployed: bool
    missing: tuple[str, ...] = ()
    """Servers that were deployed but are missing now."""
    modified: tuple[str, ...] = ()
    """Servers that were changed since their deployment."""
    extended: tuple[str, ...] = ()
    """Servers with members added since their deployment; later deployments keep these."""
    unexpected: tuple[str, ...] = ()
    """Servers in the file that were not deployed."""
    status: Status = "none"
    problem: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form."""
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
    """Return how *file* differs from the entries *deployed* into it; a file that cannot be read is ``unreadable``.

    No deployment repairs such a file, so its problem asks for a repair by hand.
    """
    try:
        found_file = snapshot(file)
        if found_file.data is None:
            return Drift(file, deployed=True, missing=tuple(deployed), status="file-missing")
        found = editing.read(found_file.data, family.format, family.key, family.shape, str(file))
    except Busy as error:
        return unreadable(file, error)
    except McpdError as error:
        return unreadable(file, error, "; repair the file first, as a deployment does not change it")
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
    """Return the result for *file*, which cannot be compared because of *fault*; None means all files of a client."""
    return Drift(file, deployed=True, status="unreadable", problem=fault.message + way_out)


_TRIES: Final = 5
"""Attempts to replace a file that its client keeps writing."""
_PAUSE: Final = 0.05
"""Seconds between attempts."""


@dataclass(frozen=True, slots=True)
class About:
    """The configuration that is deployed."""

    scope: Scope
    profile_id: str
    artifact_id: str


class Deployments:
    """All deployments of one user."""

    def __init__(self, layout: Layout, clock: Callable[[], datetime], *, home: Path | None = None) -> None:
        """*layout* is the user's, *clock* returns aware times, missing directories may be created below *home*."""
        self._history = History(layout.deployments)
        self._own_tree = layout.orchestration
        self._clock = clock
        self._home = home or Path.home()

    def plan(
        self, family: Family, file: Path, entries: Mapping[str, JsonValue], *, take_over: Collection[str] = ()
    ) -> Plan:
        """Return the plan for writing *entries*, in the format of *family*, into *file*.

        Servers that the user added to the file stay, unless they are in *take_over*; servers that were deployed and are
        not in *entries* are removed. Members that were added to a deployed entry stay as well. Raises
        :class:`~mcpd.errors.McpdError` for a file that cannot be read, edited or created.
        """
        file = real_place(file)
        missing_directories(file, self._home)
        with self._history.reading():
            state = self._load(family.id)
            active = state.active(file)
            before = self._history.entries(family.id, state.owned(file))
        return plans.make(family, file, entries, take_over, before, active.number if active else 0)

    def apply(self, plan: Plan, about: About, *, tree: Tree | None = None) -> Deployment:
        """Carry out *plan*, and record it in *tree* for the orchestration server.

        If anything but the servers has changed in the file in the meantime, the plan is made again. Raises
        :class:`~mcpd.errors.Busy` if the servers were changed, or if the file keeps changing, and another
        :class:`~mcpd.errors.McpdError` if it cannot be written; then it is unchanged.
        """
        client_id, file = plan.family.id, plan.file
        with self._history.lock():
            state = self._load(client_id)
            active = state.active(file)
            if (active.number if active else 0) != plan.base:
                raise Busy(f"{file}: another deployment changed it in the meantime; review the difference again")
            for left in reversed(range(_TRIES)):
                try:
                    state, record = self._carry_out(state, plan, about)
                    break
                except Busy:
                    again = plans.make(plan.family, file, plan.entries, plan.take_over, plan.before, plan.base)
                    if not left or not again.is_like(plan):
                        raise
                    plan = again
                    time.sleep(_PAUSE)
            self._history.prune()
            return self._history.show(client_id, record, self._note_deployment(tree, client_id, state))

    def undo(
        self,
        family: Family,
        file: Path | None = None,
        *,
        force: bool = False,
        keep_edits: bool = False,
        tree: Tree | None = None,
    ) -> Deployment:
        """Undo the latest deployment into *file*, or into any file, that was not undone yet; return that deployment.

        The file is then byte for byte what it was before, with the same permissions, or is removed again. If it was
        changed since, *force* restores it anyway; *keep_edits* undoes only the changes to the servers. The content that
        is replaced is kept next to the history.

        Raises :class:`~mcpd.errors.NotFound` if there is none, :class:`~mcpd.errors.InvalidConfig` if the file was
        changed since or its earlier content is gone, and another :class:`~mcpd.errors.McpdError` if it cannot be
        written.
        """
        with self._history.lock():
            state = self._load(family.id)
            record = state.active(None if file is None else real_place(file))
            if record is None:
                raise NotFound(f"{family.name}: no deployment{f' to {file}' if file else ''} that could be undone")
            found = snapshot(Path(record.file))
            before = None if record.before is None else self._history.fetch(family.id, record.before)
            mode = record.before_mode
            as_left = found.digest == record.after and (found.data is None or found.mode == record.after_mode)
            is_back = found.data == before and (before is None or found.mode == mode)
            replaced = None if as_left or found.data == before else found.data
            if keep_edits and not as_left and not is_back:
                before, mode = self._without(family.id, record, found, before, force=force), found.mode
            elif not (as_left or is_back or force):
                raise InvalidConfig(
                    f"{found.path}: was changed since the deployment. --force restores the whole earlier file (and"
                    f" saves the current one), --keep-edits reverts only the servers"
                )
            saved = None if replaced is None else self._history.keep(replaced)
            undone = record.model_copy(update={"undone_at": self._now(), "saved": saved})
            if found.data == before and (before is None or found.mode == mode):
                state = self._put(family.id, state, undone)
            else:
                state = self._replace(family.id, state, undone, found, before, mode)
            if before is None:
                remove_directories([Path(each) for each in record.made])
            self._history.prune()
            return self._history.show(family.id, undone, self._note_deployment(tree, family.id, state))

    def history(self, client_id: str, file: Path | None = None) -> list[Deployment]:
        """Return the latest deployments of *client_id*, into *file* or any file, newest first; at most ten."""
        state = self._load(client_id)
        records = state.deployments if file is None else state.of(real_place(file))
        return [self._history.show(client_id, record) for record in records[:KEPT]]

    def managed(self, client_id: str, file: Path) -> dict[str, JsonValue]:
        """Return the entries that mcpctl manages in *file*, as they were deployed."""
        with self._history.reading():
            return self._history.entries(client_id, self._load(client_id).owned(real_place(file)))

    def drift(self, family: Family, file: Path | None = None) -> list[Drift]:
        """Return how *file*, or each file with a deployment, differs from its deployment; newest deployment first.

        If there is no deployment, the only result says so. An unreadable history or file yields a result instead of an
        error, so that it does not hide the results for other files.
        """
        place = None if file is None else real_place(file)
        try:
            with self._history.reading():
                standing = self._load(family.id).standing()
                records = [each for each in standing if place is None or each.file == str(place)]
                deployed = [(Path(each.file), self._entries(family.id, each)) for each in records]
        except McpdError as error:
            return [unreadable(place, error)]
        return [
            unreadable(path, entries) if isinstance(entries, McpdError) else compare(family, path, entries)
            for path, entries in deployed
        ] or [Drift(place, deployed=False)]

    def _entries(self, client_id: str, record: Record) -> dict[str, JsonValue] | McpdError:
        """Return the entries that *record* deployed, or the error if they cannot be read."""
        try:
            return self._history.entries(client_id, record.entries)
        except McpdError as error:
            return error

    def _carry_out(self, state: State, plan: Plan, about: About) -> tuple[State, Record]:
        family, old = plan.family, plan.snapshot
        now = snapshot(old.path)
        if (now.path, now.data) != (old.path, old.data):
            raise Busy(f"{old.path}: was changed by another program in the meantime; review the difference again")
        active = state.active(old.path)
        if active is not None and plan.is_empty:
            record = active.model_copy(update=self._about(about))
            return self._put(family.id, state, record), record
        record = Record(
            number=state.next_number(),
            file=str(old.path),
            **self._about(about),
            format=family.format,
            key=family.key,
            shape=family.shape,
            changes=tuple(plan.changes),
            servers=tuple(plan.owned),
            entries=self._history.keep_entries(dict(plan.owned)),
            entries_before=self._history.keep_entries(dict(plan.before)),
            before=None if now.data is None else self._history.keep(now.data),
            before_mode=now.mode,
            after=digest(plan.new),
            after_mode=now.mode,
            made=tuple(str(each) for each in missing_directories(old.path, self._home)) if plan.new is not None else (),
        )
        if plan.new == now.data:
            return self._put(family.id, state, record), record
        return self._replace(family.id, state, record, now, plan.new, None), record

    def _about(self, about: About) -> dict[str, object]:
        return {
            "scope": about.scope,
            "profile_id": about.profile_id,
            "artifact_id": about.artifact_id,
            "deployed_at": self._now(),
        }

    def _without(
        self, client_id: str, record: Record, found: Snapshot, before: bytes | None, *, force: bool
    ) -> bytes | None:
        """Return the current content of the file, with the entries that *record* changed as they were *before*."""
        if found.data is None:
            return None
        where = (record.format, record.key, record.shape)
        now = editing.read(found.data, *where, record.file)
        then = editing.read(before or b"", *where, record.file)
        deployed = self._history.entries(client_id, record.entries)
        touched = [
            name
            for name in record.changes
            if not (holds(now.get(name), deployed[name]) if name in deployed else name not in now)
            and not same(now.get(name), then.get(name))
        ]
        if touched and not force:
            raise InvalidConfig(
                f"{record.file}: {', '.join(map(ascii, touched))}: also changed since; --force reverts them anyway"
            )
        changes = {name: then.get(name) for name in record.changes}
        return editing.edit(found.data, *where, changes, record.file)

    def _put(self, client_id: str, state: State, record: Record) -> State:
        state = state.put(record)
        self._history.save(client_id, state)
        return state

    def _replace(
        self, client_id: str, state: State, record: Record, old: Snapshot, new: bytes | None, mode: int | None
    ) -> State:
        """Replace the content *old* with *new* and save *record*; everything that needs disk space is done first."""
        done = state.put(record)
        pending = Pending(
            record=record,
            temp=temp_name(old.path),
            old=None if old.data is None else self._history.keep(old.data),
            new=None if new is None else self._history.keep(new),
        )
        self._history.save(client_id, state.model_copy(update={"pending": pending}))
        try:
            with self._history.staged(client_id, done) as staged:
                if new is not None:
                    make_directories(missing_directories(old.path, self._home))
                replace(old, new, mode=mode, temp=pending.temp)
                staged.commit()
        except McpdError:
            with suppress(McpdError):  # if this fails, the next change recovers
                self._load(client_id)
            raise
        return done

    def _load(self, client_id: str) -> State:
        """Return the state of *client_id*, after recovery from an interrupted change."""
        state = self._history.load(client_id)
        if state.pending is None:
            return state
        with self._history.lock():
            state = self._history.load(client_id)
            if state.pending is not None:
                state = self._recovered(client_id, state, state.pending)
                with suppress(NoSpace, ReadOnly):  # the next change recovers again
                    self._history.save(client_id, state)
        return state

    def _recovered(self, client_id: str, state: State, pending: Pending) -> State:
        record = pending.record
        written = None
        if pending.new is not None:
            with suppress(McpdError):  # needed in rare cases only
                written = self._history.fetch(client_id, pending.new)
        happened = settle(Path(record.file), pending.temp, pending.old, pending.new, written)
        if happened is None:
            happened = self._seems_done(client_id, pending, written)
        if happened:
            if pending.new is None:
                remove_directories([Path(each) for each in record.made])
            return state.put(record)
        if record.undone_at is None:
            remove_directories([Path(each) for each in record.made])
        return state.model_copy(update={"pending": None})

    def _seems_done(self, client_id: str, pending: Pending, new: bytes | None) -> bool:
        """Return True if the servers in a file, written again since, are closer to the new than to the old content.

        If that is unknown, assume that a deployment was done and that an undo was not, so that the backup is kept.
        """
        record = pending.record
        otherwise = record.undone_at is None
        where = (record.format, record.key, record.shape, record.file)
        try:
            old = self._history.fetch(client_id, pending.old) if pending.old is not None else b""
            data = snapshot(Path(record.file)).data
            before, after, now = (editing.read(each or b"", *where) for each in (old, new, data))
        except McpdError:
            return otherwise
        if data is None:
            return otherwise
        different = [name for name in {**before, **after} if not same(before.get(name), after.get(name))]
        return any(same(now.get(name), after.get(name)) for name in different) if different else otherwise

    def _note_deployment(self, tree: Tree | None, client_id: str, state: State) -> str:
        """Record the current deployments in *tree*; return an error message if that failed, else empty."""
        if tree is None:
            return ""
        scope = Scope.USER if tree.root == self._own_tree else Scope.SYSTEM
        records = [each for each in state.deployments if each.scope is scope]
        try:
            names = tree.names(tree.deployment(client_id, "any").parent)
            noted = {name.removesuffix(".json") for name in names if NAME.fullmatch(name.removesuffix(".json"))}
            for profile_id in sorted(noted.union(each.profile_id for each in records)):
                mine = (each for each in records if each.profile_id == profile_id)
                record = next((each for each in mine if state.active(Path(each.file)) is each), None)
                self._note(tree, client_id, profile_id, record)
        except McpdError as error:
            return f"the server mcp-orchestration was not notified: {error.message}"
        return ""

    def _note(self, tree: Tree, client_id: str, profile_id: str, record: Record | None) -> None:
        path = tree.deployment(client_id, profile_id)
        if record is not None:
            shown = self._history.show(client_id, record).to_json()
            data = dump_json({name: value for name, value in shown.items() if name not in ("backup", "saved")})
            if tree.read(path) != data:
                tree.write(path, data)
        else:
            tree.remove(path)

    def _now(self) -> str:
        return self._clock().astimezone(UTC).isoformat().replace("+00:00", "Z")
