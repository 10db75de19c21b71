# SPDX-License-Identifier: LGPL-2.1-or-later
"""Callers: the credentials of a sender, looked up once and kept until it leaves the bus."""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mcpd.bus.connection import Connection, Match, Signal
from mcpd.bus.names import DBUS, DBUS_PATH
from mcpd.errors import McpdError, NotAuthorized, ServiceUnavailable

if TYPE_CHECKING:
    from mcpd.bus.transport import Fds
    from mcpd.runtime.sessions import Owner

log = logging.getLogger(__name__)


class Credentials(NamedTuple):
    """The credentials of a sender. The process id is for logging only; decisions use the uid."""

    uid: int
    pid: int


Lookup: TypeAlias = Callable[[Connection, str], Awaitable[Credentials]]


@dataclass(eq=False, slots=True)
class Caller:
    """A client of the bus, from its first call until it leaves."""

    name: str
    """The caller's unique name, which cannot be forged."""
    uid: int
    pid: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the caller has left the bus."""

    def program(self) -> str:
        """Return the name of the caller's program, for messages; empty if it cannot be read, as in the system scope."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        except OSError:
            return ""


@dataclass(slots=True)
class Call:
    """A running method call."""

    caller: Caller
    interactive: bool
    """True if the caller may be asked to authenticate."""
    fds: Fds
    """The descriptors that came with the call; closed when it ends."""
    reply_fds: Fds
    """The descriptors for the reply; closed once the reply is queued."""

    @property
    def uid(self) -> int:
        """The uid of the caller."""
        return self.caller.uid

    @property
    def sender(self) -> str:
        """The unique name of the caller."""
        return self.caller.name

    def owns(self, owner: Owner) -> bool:
        """Return whether the caller is *owner*, or another client of the same user."""
        return self.uid == owner.uid or self.sender == owner.name


async def query_bus(connection: Connection, sender: str) -> Credentials:
    """Return the credentials of *sender*. Raises :class:`~mcpd.errors.NotAuthorized` if the bus knows no uid."""
    reply = await connection.call(DBUS, DBUS_PATH, DBUS, "GetConnectionCredentials", "s", [sender])
    # Newer buses include a pidfd, which is not used.
    reply.fds.close()
    known: dict[str, Any] = reply.values[0]
    uid = known.get("UnixUserID")
    if uid is None:
        raise NotAuthorized(f"the message bus does not know the user of {sender}")
    return Credentials(int(uid), int(known.get("ProcessID", 0)))


class Callers:
    """The senders that have called and have not left the bus."""

    def __init__(self, connection: Connection, lookup: Lookup = query_bus) -> None:
        self._connection = connection
        self._lookup = lookup
        self._known: dict[str, Caller] = {}
        self._pending: dict[str, asyncio.Task[Caller]] = {}
        self._left: set[str] = set()
        """Pending senders that have left the bus in the meantime."""
        self._listeners: list[Callable[[Caller], None]] = []

    def on_vanish(self, listener: Callable[[Caller], None]) -> None:
        """Call *listener* with every caller that leaves the bus."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Watch for senders that leave, with one match rule for all, since a bus limits the rules of a connection."""
        match = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", arg2="")
        await self._connection.subscribe(match, self._on_left)

    async def get(self, sender: str) -> Caller:
        """Return the caller *sender*, looked up at its first call.

        Raises :class:`~mcpd.errors.ServiceUnavailable` if it has already left the bus.
        """
        caller = self._known.get(sender)
        if caller is not None:
            return caller
        task = self._pending.get(sender)
        if task is None:
            task = self._pending[sender] = asyncio.create_task(self._query(sender), name=f"caller {sender}")
            task.add_done_callback(lambda _: self._pending.pop(sender, None))
        return await asyncio.shield(task)

    def names_of(self, uid: int) -> list[str]:
        """Return the unique names of the callers of *uid* and of root."""
        return [caller.name for caller in self._known.values() if caller.uid in (0, uid)]

    async def close(self) -> None:
        """Forget all callers, without calling the listeners."""
        pending = list(self._pending.values())
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._known.clear()

    async def _query(self, sender: str) -> Caller:
        try:
            uid, pid = await self._lookup(self._connection, sender)
            # The sender may have left after the bus answered.
            if sender in self._left:
                raise ServiceUnavailable(f"{sender} has disconnected from the message bus")
        finally:
            self._left.discard(sender)
        caller = self._known[sender] = Caller(sender, uid, pid)
        return caller

    def _on_left(self, signal: Signal) -> None:
        sender = signal.args[0]
        caller = self._known.pop(sender, None)
        if caller is None:
            if sender in self._pending:
                self._left.add(sender)
            return
        caller.gone.set()
        for listener in self._listeners:
            try:
                listener(caller)
            except McpdError as error:
                log.warning("After %s disconnected from the bus: %s", sender, error.message)


class User(NamedTuple):
    """A user of the system."""

    name: str
    groups: tuple[str, ...]
    """Names of all groups, sorted; names with whitespace are left out, as they are later joined by spaces."""


def find_user(uid: int) -> User:
    """Return the user *uid*. Blocks while a user database on the network answers.

    Raises :class:`~mcpd.errors.NotAuthorized` if there is no such user.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise NotAuthorized(f"uid {uid} does not exist on this system; no server was started for it") from None
    groups = set()
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        with suppress(KeyError):
            name = grp.getgrgid(gid).gr_name
            if name and not any(char.isspace() for char in name):
                groups.add(name)
    return User(entry.pw_name, tuple(sorted(groups)))
