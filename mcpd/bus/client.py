# SPDX-License-Identifier: LGPL-2.1-or-later
"""D-Bus client of mcpd for ``mcpctl`` and ``mcpd-bridge``.

::

    async with connect(system=False) as bus:
        servers = await bus.manager.call("ListServers", "a{sv}", [{}])

Variants arrive unwrapped; a plain value sent as a variant gets the type that suits it (:func:`variant`
chooses another). Errors are those of :mod:`mcpd.errors`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcpd import errors
from mcpd.bus.codec import Handle, Variant, WireError, variant
from mcpd.bus.connection import Connection, Match, Signal, bus_address
from mcpd.bus.names import BUS_NAME, DBUS, DBUS_PATH, JOB, MANAGER, PROPERTIES, ROOT, SERVER, SESSION, server_path
from mcpd.bus.transport import ALLOW_INTERACTIVE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from mcpd.bus.transport import Fds

__all__ = ["Client", "Handle", "JobResult", "Remote", "Signal", "Variant", "connect", "variant"]

CALL_TIMEOUT: Final = 30.0
"""Seconds that a call may take without a password prompt."""
INTERACTIVE_TIMEOUT: Final = 330.0
"""Seconds that a call with a possible prompt may take; longer than mcpd itself waits for the prompt."""


class JobResult(NamedTuple):
    """The end of a job: ``done``, or ``failed`` or ``cancelled`` with an error."""

    result: str
    error: str
    message: str

    def check(self) -> None:
        """Raise the job's error unless the result is ``done``."""
        if self.result != "done":
            raise errors.from_dbus(self.error, self.message)


@asynccontextmanager
async def connect(system: bool, *, interactive: bool = False) -> AsyncIterator[Client]:
    """Connect to the system bus or the session bus; the first call starts mcpd if it is not running.

    With *interactive*, calls may make polkit ask the user for a password. Raises
    :class:`~mcpd.errors.ServiceUnavailable` if there is no bus.
    """
    try:
        connection = await Connection.open(bus_address(system=system))
    except errors.ServiceUnavailable as error:
        raise errors.ServiceUnavailable(error.message + _user_hint(system=system)) from error
    async with connection:
        yield Client(connection, system=system, interactive=interactive)


class Remote:
    """A proxy for one interface of one object of mcpd."""

    def __init__(self, client: Client, path: str, interface: str) -> None:
        self._client = client
        self.path = path
        self.interface = interface

    async def call(
        self,
        member: str,
        signature: str = "",
        args: Sequence[object] = (),
        *,
        fds: Sequence[int] = (),
        timeout: float | None = None,  # noqa: ASYNC109 -- D-Bus calls have a timeout
    ) -> Any:
        """Call *member*; return its single result, a tuple of several, or ``None``.

        An argument of type ``h`` is an index into *fds*; the caller keeps ownership of them. *timeout* is in seconds.
        Raises the error of the reply.
        """
        values, received = await self.call_fds(member, signature, args, fds=fds, timeout=timeout)
        received.close()
        return values

    async def call_fds(
        self,
        member: str,
        signature: str = "",
        args: Sequence[object] = (),
        *,
        fds: Sequence[int] = (),
        timeout: float | None = None,  # noqa: ASYNC109 -- D-Bus calls have a timeout
    ) -> tuple[Any, Fds]:
        """Like :meth:`call`, but also return the file descriptors of the reply, which the caller must close."""
        return await self._client.invoke(self.path, self.interface, member, signature, args, fds, timeout)

    async def properties(self) -> dict[str, Any]:
        """Return all properties."""
        values: dict[str, Any] = await Remote(self._client, self.path, PROPERTIES).call("GetAll", "s", [self.interface])
        return values


class Client:
    """A connection to one instance of mcpd, created by :func:`connect`."""

    def __init__(self, connection: Connection, *, system: bool, interactive: bool = False) -> None:
        self.connection = connection
        self.system = system
        self.interactive = interactive
        self.manager = Remote(self, ROOT, MANAGER)
        self._mcpd_name = ""
        """The unique name of mcpd, updated when it restarts; empty until something subscribes to its signals."""

    def job(self, path: str) -> Remote:
        """Return a proxy for the job at *path*."""
        return Remote(self, path, JOB)

    def session(self, path: str) -> Remote:
        """Return a proxy for the session at *path*."""
        return Remote(self, path, SESSION)

    def server(self, server_id: str) -> Remote:
        """Return a proxy for the installed server *server_id*."""
        return Remote(self, server_path(server_id), SERVER)

    async def invoke(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str,
        args: Sequence[object],
        fds: Sequence[int],
        timeout: float | None,  # noqa: ASYNC109 -- D-Bus calls have a timeout
    ) -> tuple[Any, Fds]:
        """Call any method of mcpd; see :meth:`Remote.call_fds`."""
        limit = timeout or (INTERACTIVE_TIMEOUT if self.interactive else CALL_TIMEOUT)
        flags = ALLOW_INTERACTIVE if self.interactive else 0
        try:
            reply = await self.connection.call(
                BUS_NAME, path, interface, member, signature, args, fds=fds, flags=flags, timeout=limit
            )
        except WireError as error:
            raise errors.InvalidArgument(f"{member}: {error}") from error
        except errors.ServiceUnavailable as error:
            raise self._unavailable(error) from error
        values = reply.values
        return (values[0] if len(values) == 1 else tuple(values) or None), reply.fds

    async def spawn(
        self,
        server_id: str,
        fds: Mapping[int, int] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        flags: int = 0,
    ) -> tuple[str, dict[int, int]]:
        """Start *server_id*; return the path of its session, and the client's ends of its pipes.

        *fds* are the server's descriptors 0, 1 and optionally 2; the caller keeps ownership of them. Without them mcpd
        creates pipes: the result has the client's end of stdin at 0 and of stdout at 1, which the caller must close.
        """
        given = dict(fds or {})
        indices = dict(zip(given, range(len(given)), strict=True))
        (path, ends), received = await self.manager.call_fds(
            "Spawn", "sa{uh}ta{sv}", [server_id, indices, flags, options or {}], fds=list(given.values())
        )
        with received:
            return str(path), {number: received.take(index) for number, index in ends.items()}

    async def subscribe(
        self, listener: Callable[[Signal], None], *, path: str = "", interface: str = "", member: str = ""
    ) -> Callable[[], None]:
        """Call *listener* for matching signals of mcpd, even after it restarts; return a function that unsubscribes."""
        if not self._mcpd_name:
            followed = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", BUS_NAME)
            await self.connection.subscribe(followed, self._on_owner)
            owner = await self._resolve_owner()
            self._mcpd_name = self._mcpd_name or owner

        def from_mcpd(signal: Signal) -> None:
            # The bus also delivers signals that other senders address to this connection.
            if signal.sender == self._mcpd_name:
                listener(signal)

        return await self.connection.subscribe(Match(BUS_NAME, path, interface, member), from_mcpd)

    @asynccontextmanager
    async def signals(
        self, *, path: str = "", interface: str = "", member: str = ""
    ) -> AsyncIterator[asyncio.Queue[Signal]]:
        """Yield a queue of matching signals of mcpd, filled while the ``async with`` block runs."""
        queue: asyncio.Queue[Signal] = asyncio.Queue()
        unsubscribe = await self.subscribe(queue.put_nowait, path=path, interface=interface, member=member)
        try:
            yield queue
        finally:
            unsubscribe()

    async def run_job(
        self,
        member: str,
        signature: str,
        args: Sequence[object],
        *,
        fds: Sequence[int] = (),
        on_change: Callable[[Remote, dict[str, Any]], None] = lambda _job, _properties: None,
    ) -> JobResult:
        """Call a method of Manager that starts a job, and follow the job to its end.

        *on_change* gets the job and all its properties, at the start and after each change. Cancelling this call leaves
        the job running. Raises the errors of the method, and :class:`~mcpd.errors.ServiceUnavailable` if mcpd exits.
        """
        removed: asyncio.Queue[Signal | None] = asyncio.Queue()
        changed: dict[str, dict[str, Any]] = {}

        def on_signal(signal: Signal) -> None:
            if signal.member == "PropertiesChanged":
                changed.setdefault(signal.path, {}).update(signal.args[1])
            removed.put_nowait(signal)

        async with AsyncExitStack() as stack:
            lost = Match(DBUS, DBUS_PATH, DBUS, "NameOwnerChanged", BUS_NAME)
            await self._resolve_owner()
            stack.callback(await self.connection.subscribe(lost, lambda _: removed.put_nowait(None)))
            stack.callback(await self.subscribe(on_signal, path=ROOT, interface=MANAGER, member="JobRemoved"))
            stack.callback(await self.subscribe(on_signal, interface=PROPERTIES, member="PropertiesChanged"))
            watch = asyncio.ensure_future(self.connection.wait_lost())
            watch.add_done_callback(lambda _: removed.put_nowait(None))
            stack.callback(watch.cancel)
            path = str(await self.manager.call(member, signature, args, fds=fds))
            job = self.job(path)
            properties = await _job_properties(job)
            on_change(job, properties)
            while True:
                signal = await removed.get()
                if signal is None:
                    raise errors.ServiceUnavailable("mcpd exited while the job was running; see the journal")
                if signal.path == path:
                    properties.update(changed.pop(path, {}))
                    on_change(job, properties)
                elif signal.member == "JobRemoved" and signal.args[0] == path:
                    return JobResult(*signal.args[1:4])

    def _on_owner(self, signal: Signal) -> None:
        self._mcpd_name = str(signal.args[2]) or self._mcpd_name

    async def _resolve_owner(self) -> str:
        """Return the unique name of mcpd; start it if necessary."""
        try:
            # dbus-daemon refuses to start a name without an activation file, even one that has an owner.
            if not await self.connection.call_bus("NameHasOwner", "s", BUS_NAME):
                await self.connection.call_bus("StartServiceByName", "su", BUS_NAME, 0)
            return str(await self.connection.call_bus("GetNameOwner", "s", BUS_NAME))
        except errors.McpdError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: errors.McpdError) -> errors.ServiceUnavailable:
        bus = "system" if self.system else "session"
        start = "'systemctl start mcpd'" if self.system else "'systemctl --user start mcpd' or 'mcpd --user &'"
        return errors.ServiceUnavailable(
            f"mcpd is not responding on the {bus} bus: {error.message}; start it with {start}"
            + _user_hint(system=self.system)
        )


def _user_hint(*, system: bool) -> str:
    """Return a hint for root, whose default is the *system* scope."""
    is_meant = system and os.geteuid() == 0
    return ". Root gets the system's servers by default; add --user to use your own" if is_meant else ""


async def _job_properties(job: Remote) -> dict[str, Any]:
    """Return the job's properties, empty if it has already ended and is gone."""
    try:
        return await job.properties()
    except errors.UnknownObject:
        return {}
