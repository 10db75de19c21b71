# SPDX-License-Identifier: LGPL-2.1-or-later
"""History of deployments: one file per client, with backups of the clients' files next to it.

``<client>.json`` lists the deployments, newest first. ``backups/<sha256>`` are contents of files and of entries; they
may include secrets of the user, so nobody else may read them.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from mcpd.clients.families import Format, Shape  # noqa: TC001 - pydantic reads the annotations
from mcpd.clients.files import digest
from mcpd.clients.tree import NAME
from mcpd.errors import InvalidArgument, InvalidConfig, InvalidManifest, McpdError, ReadOnly, from_oserror
from mcpd.files import MAX_FILE, TEMP_NAME, Staged, WriteLock, make_directory, read_file, write_atomic
from mcpd.model import dump_json, load_json, printable
from mcpd.model.base import first_fault
from mcpd.paths import Scope  # noqa: TC001 - pydantic reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

KEPT: Final = 10
"""Maximum number of deployments that are kept for one file."""
MOST: Final = 2_000
"""Maximum number of deployments that are kept for one client, over all its files."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PRIVATE: Final = 0o600

Digest = Annotated[str, Field(pattern=rf"^{_DIGEST.pattern}$")]
Place = Annotated[str, Field(pattern=r"^/[^\x00]+$", max_length=4096)]
TempName = Annotated[str, Field(pattern=r"^\.[^/\x00]{1,250}$")]
Mode = Annotated[int, Field(ge=0, le=0o7777)]


class Part(BaseModel):
    """An object in the history; unknown keys, from later versions, are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Record(Part):
    """One deployment, as stored in the history."""

    number: Annotated[int, Field(ge=1)]
    file: Place
    scope: Scope
    profile_id: str
    artifact_id: str
    deployed_at: str
    format: Format
    key: tuple[str, ...]
    shape: Shape
    changes: tuple[str, ...]
    """Names of the entries that it put, replaced or removed."""
    servers: tuple[str, ...]
    """Names of the entries that mcpctl has managed since this deployment."""
    entries: Digest
    """Digest of the entries that mcpctl has managed since this deployment."""
    entries_before: Digest
    """Digest of the entries that mcpctl managed before."""
    before: Digest | None
    """Digest of the file's content before the deployment; None if there was no file."""
    before_mode: Mode
    after: Digest | None
    after_mode: Mode
    made: tuple[Place, ...] = ()
    """Directories that were created for the file."""
    undone_at: str | None = None
    saved: Digest | None = None
    """Digest of the file's content before the undo, if the file had been changed since the deployment."""

    def contents(self) -> set[str]:
        """Return the digests of the contents that it needs."""
        given = (self.entries, self.entries_before, self.before, self.saved)
        return {each for each in given if each is not None}


class Pending(Part):
    """A change of a file that was begun, and may have been completed; :attr:`record` describes its result."""

    record: Record
    temp: TempName
    """Name under which the new file was written."""
    old: Digest | None
    new: Digest | None


class State(Part):
    """The history of one client."""

    version: Literal[1] = 1
    deployments: tuple[Record, ...] = ()
    """Newest first."""
    pending: Pending | None = None

    def of(self, file: Path) -> list[Record]:
        """Return the deployments into *file*, newest first."""
        return [each for each in self.deployments if each.file == str(file)]

    def active(self, file: Path | None = None) -> Record | None:
        """Return the newest deployment (into *file*, if given) that was not undone; None if there is none."""
        given = self.deployments if file is None else self.of(file)
        return _active(given)

    def standing(self) -> list[Record]:
        """Return the newest deployment into each file that was not undone, newest first."""
        found: dict[str, Record] = {}
        for each in self.deployments:
            if each.undone_at is None:
                found.setdefault(each.file, each)
        return [*found.values()]

    def owned(self, file: Path) -> str | None:
        """Return the digest of the entries in *file* that mcpctl manages; None if mcpctl never wrote the file."""
        if (record := self.active(file)) is not None:
            return record.entries
        records = self.of(file)
        return records[-1].entries_before if records else None

    def next_number(self) -> int:
        """Return the number of the next deployment."""
        return max((each.number for each in self.deployments), default=0) + 1

    def put(self, record: Record) -> State:
        """Return the state with *record* added, or replacing the record with the same number, and nothing pending."""
        rest = [each for each in self.deployments if each.number != record.number]
        every = sorted([*rest, record], key=lambda each: each.number, reverse=True)
        of_file = [each for each in every if each.file == record.file]
        while len(of_file) > KEPT:
            of_file.remove(_dispensable(of_file))
        kept = [each for each in every if each.file != record.file or each in of_file]
        return self.model_copy(update={"deployments": tuple(kept[:MOST]), "pending": None})

    def contents(self) -> set[str]:
        """Return the digests of the contents that it needs."""
        needed = set().union(*(each.contents() for each in self.deployments))
        if self.pending is not None:
            given = (self.pending.old, self.pending.new)
            needed |= self.pending.record.contents() | {each for each in given if each is not None}
        return needed


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment, as shown to users."""

    client_id: str
    number: int
    file: Path
    scope: Scope
    profile_id: str
    artifact_id: str
    deployed_at: str
    """ISO 8601."""
    servers: tuple[str, ...]
    """Names of the entries that mcpctl manages since then."""
    changes: tuple[str, ...]
    """Names of the entries that it put, replaced or removed."""
    created: bool
    """True if there was no file before."""
    backup: Path | None
    """Copy of the file as it was before the deployment."""
    undone_at: str | None
    saved: Path | None
    """Copy of the file as it was before the undo, if it had been changed since the deployment."""
    warning: str = ""
    """A failure that did not prevent the deployment; else empty."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form."""
        return {
            "client_id": self.client_id,
            "number": self.number,
            "file": str(self.file),
            "scope": self.scope.value,
            "profile_id": self.profile_id,
            "artifact_id": self.artifact_id,
            "deployed_at": self.deployed_at,
            "servers": list(self.servers),
            "changes": list(self.changes),
            "created": self.created,
            "backup": None if self.backup is None else str(self.backup),
            "undone_at": self.undone_at,
            "saved": None if self.saved is None else str(self.saved),
        }


class History:
    """The directory with the records and backups of all deployments of a user."""

    def __init__(self, root: Path) -> None:
        """Nothing is created at *root* until something is written."""
        self._root = root
        self._backups = root / "backups"
        self._lock = WriteLock(root / ".lock")

    def lock(self) -> AbstractContextManager[None]:
        """Return a context manager that excludes other writers. Raises :class:`~mcpd.errors.Busy` after a time-out."""
        make_directory(self._root, 0o700)
        return self._lock.hold()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Exclude writers as :meth:`lock` does, if the directory exists and is writable."""
        with ExitStack() as stack:
            if self._root.is_dir():
                with suppress(ReadOnly):  # nobody can write there, so no lock is needed
                    stack.enter_context(self.lock())
            yield

    def load(self, client_id: str) -> State:
        """Return the state of *client_id*.

        Raises :class:`~mcpd.errors.InvalidConfig`, naming the file and how to fix it, if it is invalid.
        """
        path = self.file(client_id)
        try:
            return State.model_validate(load_json(read_file(path), str(path)))
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise from_oserror(error, f"reading {path}") from error
        except (InvalidManifest, ValidationError) as error:
            fault = f"{path}: {first_fault(error)}" if isinstance(error, ValidationError) else error.message
            raise InvalidConfig(f"{fault}. {self._way_out(client_id)}") from error

    def save(self, client_id: str, state: State) -> None:
        """Write *state*. Raises :class:`~mcpd.errors.McpdError`."""
        write_atomic(self.file(client_id), _dump(state), _PRIVATE)

    def staged(self, client_id: str, state: State) -> Staged:
        """Return a staged file with *state*; committing it needs no further disk space."""
        return Staged(self.file(client_id), _dump(state), _PRIVATE)

    def keep(self, data: bytes) -> str:
        """Store *data* as a backup and return its digest. Raises :class:`~mcpd.errors.McpdError`."""
        name = str(digest(data))
        path = self.path(name)
        if _found(path) != data:
            make_directory(self._backups, 0o700)
            write_atomic(path, data, _PRIVATE)
        return name

    def keep_entries(self, entries: dict[str, JsonValue]) -> str:
        """Store *entries* as a backup and return the digest, by which :meth:`entries` finds them."""
        return self.keep(json.dumps(entries, ensure_ascii=True, allow_nan=False).encode())

    def fetch(self, client_id: str, name: str) -> bytes:
        """Return the backup with the digest *name*, which a deployment of *client_id* needs.

        Raises :class:`~mcpd.errors.InvalidConfig`, naming how to fix it, if it is gone or damaged.
        """
        path = self.path(name)
        data = _found(path)
        if digest(data) != name or data is None:
            what = "is missing" if data is None else "is damaged"
            raise InvalidConfig(f"{path}: {what}, so its deployments cannot be undone. {self._way_out(client_id)}")
        return data

    def entries(self, client_id: str, name: str | None) -> dict[str, JsonValue]:
        """Return the entries stored under the digest *name*; none if it is None. Raises as :meth:`fetch` does."""
        if name is None:
            return {}
        found: dict[str, JsonValue] = load_json(self.fetch(client_id, name), str(self.path(name)))
        return found

    def _way_out(self, client_id: str) -> str:
        return (
            f"Move {self.file(client_id)} away to continue without it. Then nothing can be undone, the earlier contents"
            f" in {self._backups} will be deleted, and what mcpctl wrote is treated as written by hand"
        )

    def path(self, name: str) -> Path:
        """Return the path of the backup with the digest *name*."""
        return self._backups / name

    def show(self, client_id: str, record: Record, warning: str = "") -> Deployment:
        """Return *record* as it is shown to users."""
        return Deployment(
            client_id=client_id,
            number=record.number,
            file=Path(record.file),
            scope=record.scope,
            profile_id=record.profile_id,
            artifact_id=record.artifact_id,
            deployed_at=record.deployed_at,
            servers=record.servers,
            changes=record.changes,
            created=record.before is None and record.after is not None,
            backup=None if record.before is None else self.path(record.before),
            undone_at=record.undone_at,
            saved=None if record.saved is None else self.path(record.saved),
            warning=warning,
        )

    def prune(self) -> None:
        """Remove backups that no deployment needs, unless the history of a client cannot be read.

        The caller holds the lock.
        """
        try:
            needed = set().union(*(self.load(client_id).contents() for client_id in self._clients()))
            for path in self._backups.iterdir():
                if (_DIGEST.fullmatch(path.name) and path.name not in needed) or TEMP_NAME.fullmatch(path.name):
                    path.unlink()
        except (OSError, McpdError):
            return  # they only take up space; the next change tries again

    def _clients(self) -> Iterator[str]:
        for path in self._root.iterdir():
            if path.suffix == ".json" and NAME.fullmatch(path.stem):
                yield path.stem
            elif TEMP_NAME.fullmatch(path.name):
                path.unlink()

    def file(self, client_id: str) -> Path:
        """Return the path of the history of *client_id*. Raises :class:`~mcpd.errors.InvalidArgument` if invalid."""
        if not NAME.fullmatch(client_id):
            raise InvalidArgument(f"{printable(client_id)!r} is not the id of a client")
        return self._root / f"{client_id}.json"


def _dispensable(records: list[Record]) -> Record:
    """Return which of *records*, the deployments into one file, to forget: one that was undone, else the oldest."""
    undone = [each for each in records if each.undone_at is not None and each.saved is None]
    return undone[-1] if undone else next(each for each in reversed(records) if each is not _active(records))


def _active(records: Iterable[Record]) -> Record | None:
    return next((each for each in records if each.undone_at is None), None)


def _dump(state: State) -> bytes:
    """Return *state* as JSON, without the oldest deployments if the file would be too large to be read again."""
    data = dump_json(state.model_dump(mode="json"))
    if len(data) <= MAX_FILE or len(state.deployments) < 2:
        return data
    return _dump(state.model_copy(update={"deployments": state.deployments[: len(state.deployments) * 3 // 4]}))


def _found(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_oserror(error, f"reading {path}") from error
