# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sessions: the running servers of this instance, their limits, and the delay after crashes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from mcpd.errors import (
    Busy,
    Disabled,
    HeldBack,
    InvalidArgument,
    InvalidManifest,
    LimitExceeded,
    NotFound,
    SpawnFailed,
    SystemInstanceOnly,
)
from mcpd.journal import SESSION_ENDED, SESSION_STARTED
from mcpd.paths import Scope
from mcpd.runtime.exec.wire import unsuitable
from mcpd.runtime.launch import Leash
from mcpd.runtime.sandbox import server_spec

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.paths import Paths
    from mcpd.runtime.fdstore import SessionRecord
    from mcpd.runtime.launch import Exit, Launcher, LaunchSpec
    from mcpd.runtime.sandbox import McpSocket
    from mcpd.settings import RuntimeSettings, Settings
    from mcpd.store import InstalledServer, LaunchManifest

FREE_CRASHES: Final = 2
"""Number of consecutive crashes without a delay, since a client restarts a server for its next call."""
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 300.0
LONG_ENOUGH: Final = 60.0
"""Seconds of uptime after which a crash does not count as a failed start."""


_Starter: TypeAlias = tuple[int, bool, bool]
"""The part of an :class:`Owner` that is the same for all its clients: uid, ``is_mcpd`` and ``is_shared``."""


def _starter(owner: Owner) -> _Starter:
    return owner.uid, owner.is_mcpd, owner.is_shared


@dataclass(slots=True)
class _Record:
    crashes: int = 0
    until: float = 0.0
    code: int = 0


class Backoff:
    """Counts consecutive crashes per server and user; the delay doubles from 1 s to 5 min.

    Every client can make a server crash, as by not reading its answers. So one user's crashes delay no other user, nor
    what the bridge starts for all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, dict[_Starter, _Record]] = {}

    def check(self, server_id: str, owner: Owner) -> None:
        """Raise :class:`~mcpd.errors.HeldBack`, with the remaining time, if *owner* may not start *server_id* yet."""
        record = self._records.get(server_id, {}).get(_starter(owner))
        left = record.until - self._clock() if record else 0.0
        if record and left > 0:
            raise HeldBack(
                f"{server_id} crashed {record.crashes} times in a row (last exit status {record.code}) and is held back"
                f" for {math.ceil(left)} s; see: mcpctl logs {server_id}"
            )

    def crashed(self, server_id: str, owner: Owner, code: int, lived: float) -> None:
        """Record that *server_id*, started for *owner*, ended by itself with status *code* after *lived* seconds."""
        if lived >= LONG_ENOUGH:
            self.forget(server_id, owner)
        record = self._records.setdefault(server_id, {}).setdefault(_starter(owner), _Record())
        record.crashes += 1
        record.code = code
        if record.crashes > FREE_CRASHES:
            delay = FIRST_DELAY * 2.0 ** min(record.crashes - FREE_CRASHES - 1, 32)
            record.until = self._clock() + min(delay, LONGEST_DELAY)

    def forget(self, server_id: str, owner: Owner | None = None) -> None:
        """Reset the count of *server_id*: for *owner*, where it ended normally; for all, as it was changed."""
        if owner is None:
            self._records.pop(server_id, None)
        elif (records := self._records.get(server_id)) is not None:
            records.pop(_starter(owner), None)
            if not records:
                del self._records[server_id]


def check_limits(
    server_id: str, owner: Owner, running: Sequence[Owner], settings: RuntimeSettings, scope: Scope
) -> None:
    """Check that *owner* may start *server_id* in addition to *running*, the owners of all sessions.

    In the system scope each user has a limit, and an eighth of the sessions is reserved for root and for mcpd itself.
    Raises :class:`~mcpd.errors.LimitExceeded` that names the setting.
    """
    limit = settings.max_sessions
    shared = limit if scope is Scope.USER or _has_reserve(owner) else limit - limit // 8
    if len(running) >= shared:
        kept = f", of {limit}: the rest are reserved for root" if shared < limit else ""
        raise LimitExceeded(
            f"{server_id}: the limit of {len(running)} running servers is reached (runtime.max_sessions{kept}); "
            "stop one first"
        )
    if scope is Scope.USER or _has_reserve(owner):
        return
    share = settings.max_sessions_per_user or max(1, limit // 4)
    own = sum(other.uid == owner.uid and not other.is_mcpd for other in running)
    if own >= share:
        raise LimitExceeded(
            f"{server_id}: uid {owner.uid} has reached the limit of {own} running servers "
            "(runtime.max_sessions_per_user); stop one first"
        )


def _has_reserve(owner: Owner) -> bool:
    return owner.uid == 0 or owner.is_mcpd


TRIAL_TIMEOUT: Final = 20.0
"""Seconds that a start waits for the end of a trial; shorter than the timeout of callers on the bus."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A client that waits for the end of a trial."""

    client: str
    is_gone: bool = False


class Trials:
    """The trials in progress, at most one per server."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Event] = {}
        """Events that are set at the end of the trial, by server id."""
        self._waiting: list[_Waiting] = []

    @contextmanager
    def of(self, server_id: str) -> Iterator[None]:
        """Mark *server_id* as on trial."""
        ended = self._running[server_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._running[server_id]
            ended.set()

    async def over(self, server_id: str, client: str) -> None:
        """Wait until *server_id* is not on trial, so that *client* may start it.

        Raises :class:`~mcpd.errors.Busy` after :data:`TRIAL_TIMEOUT`, and :class:`~mcpd.errors.SpawnFailed` if the
        client leaves before that.
        """
        waiting = _Waiting(client)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT):
                while trial := self._running.get(server_id):
                    await trial.wait()
        except TimeoutError:
            raise Busy(f"{server_id} is being installed or updated; try again when that is done") from None
        finally:
            self._waiting.remove(waiting)
        if waiting.is_gone:
            raise SpawnFailed(f"{server_id}: the client that requested it has disconnected")

    def leave(self, client: str) -> None:
        """Record that *client* is gone, so that nothing is started for it."""
        for waiting in self._waiting:
            if waiting.client == client:
                waiting.is_gone = True


CLOSE_TIMEOUT: Final = 4.0
"""Seconds to wait for the end of all sessions when mcpd stops; a server is killed after three."""

State: TypeAlias = Literal["running", "stopping", "exited"]
StopReason: TypeAlias = Literal["", "asked", "owner-gone", "server-changed", "shutdown"]

log = logging.getLogger(__name__)


class ServerSource(Protocol):
    """The methods of :class:`mcpd.store.Store` that sessions need."""

    def get(self, server_id: str) -> InstalledServer:
        """Return the server; raise :class:`~mcpd.errors.NotFound`."""

    def launch_manifest(self, server_id: str) -> LaunchManifest:
        """Return the configuration of the server with its secrets; raise :class:`~mcpd.errors.ConfigMissing`."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a session."""

    uid: int
    name: str
    """Unique name on the bus, or another string that is unique to the client."""
    is_mcpd: bool = False
    """True if mcpd itself runs the session, on behalf of :attr:`uid`."""
    is_shared: bool = False
    """True if the system's bridge, the client :attr:`name`, started it for :attr:`uid` but lets others use it, too."""


class Session:
    """One running server. Created by :class:`Sessions` only."""

    def __init__(self, number: int, server_id: str, owner: Owner, leash: Leash, generation: str) -> None:
        self.number = number
        self.server_id = server_id
        self.generation = generation
        """The directory that the server was started from."""
        self.owner = owner
        self.leash = leash
        self.pid = leash.pid
        self.unit = leash.unit
        self.state: State = "running"
        self.started = time.time()
        """Seconds since the epoch."""
        self.since = time.monotonic()
        self.stopped_for: StopReason = ""
        self.exit: Exit | None = None

    def stderr_tail(self) -> str:
        """Return the last 64 KiB of the server's stderr; empty before it has exited, or if the client took fd 2."""
        return self.exit.stderr_tail if self.exit else ""

    async def wait(self) -> Exit:
        """Wait until the server has ended, and return how it ended."""
        return await self.leash.wait()


@dataclass(slots=True)
class _Pending:
    """A session that is being started."""

    server_id: str
    owner: Owner
    done: asyncio.Event
    launching: asyncio.Task[Leash] | None = None
    stop_for: StopReason = ""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The start or end of a session."""

    kind: Literal["started", "exited"]
    session: Session


class Sessions:
    """The running servers: starts, lists and stops them."""

    def __init__(
        self,
        store: ServerSource,
        launcher: Launcher,
        paths: Paths,
        settings: Settings,
        scope: Scope,
        *,
        backoff: Backoff | None = None,
        mcp_socket: McpSocket | None = None,
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._paths = paths
        self._settings = settings
        self._scope = scope
        self._backoff = backoff or Backoff()
        self._mcp_socket = mcp_socket
        self._sessions: dict[int, Session] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._pending: list[_Pending] = []
        self._trials = Trials()
        self._last_number = 0
        self._closed = False

    async def spawn(
        self, server_id: str, fds: Mapping[int, int], *, owner: Owner, environment: Mapping[str, str] | None = None
    ) -> Session:
        """Start *server_id* for *owner* with *fds* (number in the server → our descriptor, which the caller closes).

        *environment* is the caller's; a server in the user scope gets its harmless variables.

        Raises :class:`~mcpd.errors.InvalidArgument` for descriptors that would give access to files outside
        the sandbox, :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.Disabled`, :class:`~mcpd.errors.NotStdio`,
        :class:`~mcpd.errors.SystemInstanceOnly`, :class:`~mcpd.errors.ConfigMissing`, :class:`~mcpd.errors.HeldBack`,
        :class:`~mcpd.errors.LimitExceeded`, :class:`~mcpd.errors.InvalidManifest`, :class:`~mcpd.errors.InvalidConfig`,
        :class:`~mcpd.errors.SpawnFailed`, and :class:`~mcpd.errors.Busy` for a server on trial (:meth:`reserved`).
        """
        if not set(fds) <= {0, 1, 2}:
            raise InvalidArgument(f"{server_id}: only the descriptors 0, 1 and 2 can be passed, not {sorted(fds)}")
        for number, fd in fds.items():
            if fault := unsuitable(fd, pipes=self._scope is Scope.SYSTEM):
                raise InvalidArgument(
                    f"{server_id}: descriptor {number} {fault}; pass pipes, or none to have mcpd create them"
                )
        if not owner.is_mcpd:
            await self._trials.over(server_id, owner.name)
        running = [session.owner for session in self._sessions.values()]
        running += [pending.owner for pending in self._pending]
        check_limits(server_id, owner, running, self._settings.runtime, self._scope)
        if self._closed:
            raise SpawnFailed(f"{server_id}: mcpd is stopping")
        pending = _Pending(server_id, owner, asyncio.Event())
        self._pending.append(pending)
        try:
            spec, generation = await asyncio.to_thread(self._spec, server_id, environment or {})
            self._backoff.check(server_id, owner)
            leash = await self._launch(pending, spec, fds)
            session = self._register(Session(self._last_number + 1, server_id, owner, leash, generation))
        finally:
            self._pending.remove(pending)
            pending.done.set()
        if pending.stop_for:
            _begin_stop(session, pending.stop_for)
        return session

    @asynccontextmanager
    async def reserved(self, server_id: str) -> AsyncIterator[None]:
        """Put *server_id* on trial: only mcpd can start it, other callers wait.

        Waits first for starts in progress, of any version.
        """
        with self._trials.of(server_id):
            for pending in [pending for pending in self._pending if pending.server_id == server_id]:
                await pending.done.wait()
            yield

    async def _launch(self, pending: _Pending, spec: LaunchSpec, fds: Mapping[int, int]) -> Leash:
        """Launch in a separate task, so that :meth:`close` can cancel it without cancelling the caller."""
        if self._closed:
            raise SpawnFailed(f"{pending.server_id}: mcpd is stopping")
        pending.launching = asyncio.create_task(self._launcher.launch(spec, fds))
        try:
            return await pending.launching
        except asyncio.CancelledError:
            pending.launching.cancel()
            if pending.stop_for == "shutdown":
                raise SpawnFailed(f"{pending.server_id}: mcpd is stopping") from None
            raise

    async def adopt(self, record: SessionRecord, owner: Owner, sock: socket.socket) -> Session:
        """Take over the running session of *record*, started by an earlier mcpd, with its leash *sock*.

        Raises :class:`OSError` if the leash cannot be used; the caller then closes *sock*.
        """
        leash = await Leash.adopt(sock, record.pid, record.unit)
        session = Session(record.number, record.server_id, owner, leash, record.generation)
        session.started = record.started
        session.since -= max(0.0, time.time() - record.started)
        return self._register(session, adopted=True)

    def list(self) -> list[Session]:
        """Return the sessions that have not exited, oldest first."""
        return [self._sessions[number] for number in sorted(self._sessions)]

    def get(self, number: int) -> Session:
        """Return the session *number*. Raises :class:`~mcpd.errors.NotFound` if it does not exist or has exited."""
        if number not in self._sessions:
            raise NotFound(f"no session {number} is running")
        return self._sessions[number]

    def subscribe(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Call *listener* at every start and exit until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def stop(self, number: int) -> Exit:
        """Stop the session *number* and wait for its end. Raises :class:`~mcpd.errors.NotFound`."""
        session = self.get(number)
        await self._stop([session], "asked")
        return await session.wait()

    async def stop_owner(self, name: str) -> None:
        """Stop the sessions, running or starting, of the client *name*, which is gone."""
        self._trials.leave(name)
        for pending in self._pending:
            if pending.owner.name == name:
                pending.stop_for = "owner-gone"
        await self._stop([s for s in self.list() if s.owner.name == name], "owner-gone")

    async def stop_server(self, server_id: str) -> None:
        """Stop all sessions of *server_id*, which is about to change, and reset its count of crashes."""
        for pending in self._pending:
            if pending.server_id == server_id:
                pending.stop_for = "server-changed"
        await self._stop([s for s in self.list() if s.server_id == server_id], "server-changed")
        self._backoff.forget(server_id)

    async def stop_generation(self, server_id: str, generation: Path) -> None:
        """Stop only the sessions of *server_id* that run from *generation*, which is no longer active."""
        for pending in [pending for pending in self._pending if pending.server_id == server_id]:
            await pending.done.wait()  # its generation is not known before that
        chosen = [s for s in self.list() if s.server_id == server_id and s.generation == str(generation)]
        await self._stop(chosen, "server-changed")

    def forget_crashes(self, server_id: str) -> None:
        """Let *server_id*, whose configuration or version has changed, start again at once."""
        self._backoff.forget(server_id)

    @property
    def starting(self) -> int:
        """Number of starts in progress."""
        return len(self._pending)

    async def close(self) -> None:
        """Stop all sessions within :data:`CLOSE_TIMEOUT`, wait for their end, and start no more."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._start_no_more()
                await self._stop(self.list(), "shutdown")
        except TimeoutError:
            for session in self.list():
                log.warning("session %d: %s does not stop; killing it", session.number, session.server_id)
                session.leash.abort()
        while self._watchers:
            await asyncio.wait(self._watchers)

    async def detach(self) -> None:
        """Leave all sessions to the next mcpd, which adopts them, and start no more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._start_no_more()
        watchers = list(self._watchers)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for session in self.list():
            session.leash.release()

    async def _start_no_more(self) -> None:
        """Cancel the starts in progress; their callers get an error."""
        self._closed = True
        for pending in self._pending:
            pending.stop_for = "shutdown"
            if pending.launching is not None:
                pending.launching.cancel()
        for pending in list(self._pending):
            await pending.done.wait()

    async def _stop(self, sessions: Iterable[Session], reason: StopReason) -> None:
        chosen = list(sessions)
        for session in chosen:
            _begin_stop(session, reason)
        await asyncio.gather(*(session.leash.stop() for session in chosen))

    def _register(self, session: Session, *, adopted: bool = False) -> Session:
        self._last_number = max(self._last_number, session.number)
        self._sessions[session.number] = session
        watcher = asyncio.create_task(self._watch(session), name=f"session-{session.number}")
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        log.info(
            "session %d: %s %s for uid %d",
            session.number,
            session.server_id,
            "taken over" if adopted else "started",
            session.owner.uid,
            extra=_fields(session, SESSION_STARTED),
        )
        self._notify(SessionEvent("started", session))
        return session

    async def _watch(self, session: Session) -> None:
        ended = await session.wait()
        lived = time.monotonic() - session.since
        session.exit, session.state = ended, "exited"
        session.leash.close()
        del self._sessions[session.number]
        if session.stopped_for in {"", "asked", "owner-gone"}:
            if session.stopped_for or ended.hangup or ended.code == 0:
                self._backoff.forget(session.server_id, session.owner)
            else:
                self._backoff.crashed(session.server_id, session.owner, ended.code, lived)
        log.info(
            "session %d: %s exited with status %d after %.0f s%s",
            session.number,
            session.server_id,
            ended.code,
            lived,
            f" ({session.stopped_for})" if session.stopped_for else "",
            extra=_fields(session, SESSION_ENDED) | {"EXIT_STATUS": ended.code, "STOP_REASON": session.stopped_for},
        )
        self._notify(SessionEvent("exited", session))

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # A failing listener must not leave a session unwatched.
                log.exception("a listener failed on session %d", event.session.number)

    def _spec(self, server_id: str, environment: Mapping[str, str]) -> tuple[LaunchSpec, str]:
        """Return the launch specification and the generation of *server_id*."""
        server = self._store.get(server_id)
        manifest = server.manifest
        if manifest is None:
            raise InvalidManifest(f"{server_id} is broken: {server.problem}")
        if server.entry.disabled:
            raise Disabled(f"{server_id} is disabled: {server.entry.disabled}")
        if (manifest.model_extra or {}).get("disabled") is True:
            raise Disabled(f"{server_id} is disabled in {server.directory}/manifest.json")
        if manifest.runtime.run_as == "system" and self._scope is Scope.USER:
            raise SystemInstanceOnly(
                f"{server_id} can only be started by the system's mcpd (runAs = system); call it on the system bus"
            )
        launch = self._store.launch_manifest(server_id)
        spec = server_spec(
            server,
            launch,
            paths=self._paths,
            scope=self._scope,
            settings=self._settings,
            caller_environment=environment,
            mcp_socket=self._mcp_socket,
        )
        return spec, str(server.generation)


def _begin_stop(session: Session, reason: StopReason) -> None:
    if session.state == "running":
        session.state, session.stopped_for = "stopping", reason
    session.leash.close()


def _fields(session: Session, message_id: str) -> dict[str, str | int]:
    """Return the journal fields of *session*."""
    return {
        "MESSAGE_ID": message_id,
        "MCP_SERVER_ID": session.server_id,
        "MCP_SESSION": session.number,
        "SESSION_UNIT": session.unit,
        "CALLER_UID": session.owner.uid,
    }
