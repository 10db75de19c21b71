# SPDX-License-Identifier: LGPL-2.1-or-later
"""Leashes that outlive mcpd: stored in the service manager's FD store, with a record for each.

A server ends when the last copy of its leash is closed. The service manager holds one, so the server continues when
mcpd is killed; the next mcpd gets the leash back and reads the session's owner from the record. The records are in a
directory that only mcpd can access, but are validated like untrusted input.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mcpd.errors import InvalidManifest, McpdError
from mcpd.files import make_directory, read_file, write_atomic
from mcpd.model import check_id
from mcpd.notify import remove_fd, store_fd
from mcpd.runtime.sessions import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcpd.runtime.sessions import Session, SessionEvent, Sessions

MAX_RECORD: Final = 64 * 1024
"""Maximum size of a record in bytes."""
MAX_NUMBER: Final = 2**31 - 1
PREFIX: Final = "session-"
_NAME: Final = re.compile(rf"{PREFIX}([1-9][0-9]{{0,9}})")
_FILE: Final = re.compile(r"([1-9][0-9]{0,9})\.json")

log = logging.getLogger(__name__)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _server_id(value: str) -> str:
    try:
        return check_id(value)
    except McpdError as error:
        raise ValueError(error.message) from error


class SessionRecord(BaseModel):
    """The data that a later mcpd needs, besides the leash, to take over a session."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", strict=True, frozen=True, defer_build=True
    )

    number: Annotated[int, Field(ge=1, le=MAX_NUMBER)]
    server_id: Annotated[str, AfterValidator(_server_id)]
    generation: Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=4096)]
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9:_.@\\-]*$", max_length=255)]
    owner_uid: Annotated[int, Field(ge=0, lt=2**32 - 1)]
    owner_name: Annotated[str, Field(pattern=r"^[ -~]*$", max_length=255)]
    owner_bus: Annotated[str, Field(pattern=r"^[ -~]*$", max_length=255)]
    """Id of the bus that the owner's name is on; after a restart of the bus the name may belong to another client."""
    owner_is_shared: bool = False
    started: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @classmethod
    def of(cls, session: Session, owner_bus: str) -> Self:
        """Return the record of *session*."""
        return cls(
            number=session.number,
            server_id=session.server_id,
            generation=session.generation,
            pid=session.pid,
            unit=session.unit,
            owner_uid=session.owner.uid,
            owner_name=session.owner.name,
            owner_bus=owner_bus,
            owner_is_shared=session.owner.is_shared,
            started=session.started,
        )

    def owner(self, bus: str) -> Owner:
        """Return the owner of the session, for an mcpd on the bus with the id *bus*."""
        name = self.owner_name if self.owner_bus == bus else f"{self.owner_name} of an earlier bus"
        return Owner(self.owner_uid, name, is_shared=self.owner_is_shared)


class LeashStore:
    """Stores the leash of every session in the service manager, from its start to its end."""

    def __init__(self, directory: Path, bus: str, *, outlive: bool = True) -> None:
        """Records are written to *directory*; *bus* is the id of the owners' bus.

        *outlive* is false if servers end with this process in any case: their leashes are not stored, since
        ``mcpd-exec`` would wait for somebody to read its last message.
        """
        self._directory = directory
        self._bus = bus
        self._outlive = outlive
        self._kept: set[int] = set()

    def keeps(self, session: Session) -> bool:
        """Return whether the leash of *session* is stored in the service manager."""
        return session.number in self._kept

    def on_session(self, event: SessionEvent) -> None:
        """Store the leash of a started session, remove the leash of an ended one; a listener for :class:`Sessions`."""
        if event.kind == "exited":
            self._drop(event.session.number)
        elif self._outlive and event.session.number not in self._kept:
            self._keep(event.session)

    async def adopt(self, sessions: Sessions, passed: Mapping[str, Sequence[int]]) -> None:
        """Take over the sessions that have a leash in *passed* (name → descriptors, now ours) and a record.

        A leash without a record is closed, which ends its server, and a record without a leash is removed.
        """
        records = self._read()
        for name, fds in passed.items():
            found = _NAME.fullmatch(name)
            record = records.pop(int(found[1]), None) if found else None
            problem = _problem(record, fds)
            if record is None or problem:
                log.warning("Closing the stored descriptor %s: %s", name, problem)
                _release(name, fds)
                if record is not None:
                    self._unlink(record.number)
                continue
            self._kept.add(record.number)
            sock = socket.socket(fileno=fds[0])
            try:
                await sessions.adopt(record, record.owner(self._bus), sock)
            except OSError as error:
                log.warning("Session %d of %s cannot be taken over: %s", record.number, record.server_id, error)
                sock.close()
                self._drop(record.number)
        for number, record in records.items():
            log.warning("Session %d of %s ended while mcpd was not running", number, record.server_id)
            self._unlink(number)

    def _keep(self, session: Session) -> None:
        """Store the leash of *session*. The record is written first: the next mcpd closes a leash without a record."""
        fd = session.leash.fileno()
        if fd < 0 or not os.environ.get("NOTIFY_SOCKET"):
            return
        try:
            make_directory(self._directory.parent, 0o700)
            make_directory(self._directory, 0o700)
            data = SessionRecord.of(session, self._bus).model_dump_json(by_alias=True, exclude_defaults=True).encode()
            write_atomic(self._file(session.number), data, 0o600)
        except (McpdError, ValidationError) as error:
            log.warning("Session %d will end with mcpd: %s", session.number, error)
            return
        if store_fd(PREFIX + str(session.number), fd):
            self._kept.add(session.number)
        else:
            self._unlink(session.number)

    def _drop(self, number: int) -> None:
        if number in self._kept:
            self._kept.discard(number)
            remove_fd(PREFIX + str(number))
            self._unlink(number)

    def _read(self) -> dict[int, SessionRecord]:
        """Return the valid records by number, and remove all other files."""
        found: dict[int, SessionRecord] = {}
        try:
            entries = list(self._directory.iterdir())
        except FileNotFoundError:
            return found
        except OSError as error:
            log.warning("The records of sessions in %s cannot be read: %s", self._directory, error.strerror)
            return found
        for path in entries:
            name = _FILE.fullmatch(path.name)
            try:
                if name is None:
                    raise ValueError("not the name of a record")  # noqa: TRY301 -- reported like other faults
                record = SessionRecord.model_validate_json(read_file(path, MAX_RECORD))
                if record.number != int(name[1]):
                    raise ValueError(f"it is for session {record.number}")  # noqa: TRY301
            except (ValueError, InvalidManifest, OSError) as error:
                log.warning("Removing the record %s: %s", path.name, _first(error))
                _remove(path)
            else:
                found[record.number] = record
        return found

    def _file(self, number: int) -> Path:
        return self._directory / f"{number}.json"

    def _unlink(self, number: int) -> None:
        _remove(self._file(number))


def _first(error: Exception) -> str:
    """Return *error* as one line of text."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


def _problem(record: SessionRecord | None, fds: Sequence[int]) -> str:
    """Return why *fds* are not the leash of *record*; empty if they are."""
    if record is None:
        return "it has no record"
    if len(fds) != 1:
        return f"there are {len(fds)} with that name"
    if not stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
        return "it is not a socket"
    with socket.socket(fileno=os.dup(fds[0])) as sock:
        if (sock.family, sock.type & ~socket.SOCK_NONBLOCK) != (socket.AF_UNIX, socket.SOCK_STREAM):
            return "it is not a Unix stream socket"
    return ""


def _release(name: str, fds: Sequence[int]) -> None:
    """Close *fds* and remove the service manager's copies."""
    for fd in fds:
        os.close(fd)
    try:
        remove_fd(name)
    except ValueError as error:
        log.warning("The service manager's copy was not removed: %s", error)
