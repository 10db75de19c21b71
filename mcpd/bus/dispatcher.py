# SPDX-License-Identifier: LGPL-2.1-or-later
"""From a received call to its reply: object, method, limits, caller, arguments, authorization, handler, result.

The interfaces come from their XML, the handlers from one table (:class:`Row`). A method without a row is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcpd.bus import codec, contract
from mcpd.bus.authorization import Shares
from mcpd.bus.caller import Call, Caller, Callers
from mcpd.bus.idle import Activity
from mcpd.bus.object_manager import STANDARD, Objects, Target
from mcpd.bus.transport import ALLOW_INTERACTIVE, Fds, Frame
from mcpd.errors import (
    InvalidArgument,
    LimitExceeded,
    McpdError,
    NotAuthorized,
    ReadOnly,
    ServiceUnavailable,
    UnknownInterface,
    UnknownMethod,
)

if TYPE_CHECKING:
    from mcpd.bus.authorization import Authority
    from mcpd.bus.connection import Connection
    from mcpd.bus.contract import Method

MAX_IN_FLIGHT: Final = 128
"""Calls of one sender that may be unanswered at once; as many as the bus itself allows."""
CALLS_EACH: Final = 64
"""The same for one user, where there are several; root and the system's bridge may have :data:`MAX_IN_FLIGHT`."""
CALLS: Final = 512
"""The same for all users without such a reserve."""
FDS_EACH: Final = 256
"""File descriptors that came with the unanswered calls of one user, where there are several."""
FDS: Final = 1024
"""The same for all users without a reserve."""
MAX_CALL: Final = 512 * 1024
"""Bytes of one call."""
MAX_CALL_FDS: Final = 16
MAX_REPLY: Final = 24 * 1024 * 1024
"""Bytes of one reply; a message bus ends the connection of who sends more than 32 MiB."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """What a method does, and what its caller must be allowed to do."""

    handler: Callable[..., Any]
    """Called with the target, the :class:`~mcpd.bus.caller.Call` and the arguments; may be a coroutine function."""
    action: str | Callable[..., str | Awaitable[str | None] | None] | None = None
    """The polkit action (without its prefix), or what chooses it from the same arguments; ``None``: anybody may."""
    details: Callable[..., dict[str, str] | Awaitable[dict[str, str]]] | None = None
    """From the same arguments, what the prompt and an administrator's rules are told."""
    _: KW_ONLY
    changes: bool
    """Whether it changes what is installed or configured, which a read-only mcpd refuses; said of every method."""


Table: TypeAlias = Mapping[tuple[str, str], Row]


class Dispatcher:
    """Serves the calls of a connection."""

    def __init__(
        self,
        connection: Connection,
        objects: Objects,
        table: Table,
        callers: Callers,
        authority: Authority,
        *,
        only_uid: int | None = None,
        bridge_uid: int | None = None,
        read_only: Callable[[], bool] = lambda: False,
    ) -> None:
        """With *only_uid* nobody else is served; *bridge_uid*, which calls for many users, has a reserve.

        While *read_only* says so, nothing is changed.
        """
        self._connection = connection
        self._objects = objects
        self._table = table
        self._callers = callers
        self._authority = authority
        self._only_uid = only_uid
        self._read_only = read_only
        self.activity = Activity()
        """The calls under way."""
        self._in_flight: Counter[str] = Counter()
        reserved = {0} if bridge_uid is None else {0, bridge_uid}
        self._calls = Shares(CALLS_EACH, CALLS, dict.fromkeys(reserved, MAX_IN_FLIGHT))
        self._fds = Shares(FDS_EACH, FDS, dict.fromkeys(reserved, MAX_IN_FLIGHT * MAX_CALL_FDS))
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Answer calls from now on, those that waited first."""
        self._connection.serve(self._on_call)

    async def close(self) -> None:
        """Give up the calls under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_call(self, frame: Frame) -> None:
        try:
            method, target = self._resolve(frame)
            self._check_limits(frame, method)
        except McpdError as error:
            with frame.fds:
                self._fail(frame, error)
            self.activity.touch()
            return
        self._in_flight[frame.sender] += 1
        self.activity.begin()
        task = asyncio.create_task(self._serve(frame, method, target), name=f"{method.name} for {frame.sender}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, frame))

    def _ended(self, frame: Frame, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A call that is given up before its first step has closed nothing.
        frame.fds.close()
        self.activity.end()
        self._in_flight[frame.sender] -= 1
        if not self._in_flight[frame.sender]:
            del self._in_flight[frame.sender]

    def _resolve(self, frame: Frame) -> tuple[Method, Target | None]:
        """The method that *frame* names, the interface being optional, and what it acts on."""
        names = self._objects.interfaces(frame.path)
        if frame.interface and frame.interface not in names:
            raise UnknownInterface(f"{frame.path} has no interface {frame.interface}")
        for name in [frame.interface] if frame.interface else names:
            method = contract.interfaces()[name].methods.get(frame.member)
            if method is not None:
                return method, self._objects.get(frame.path)
        raise UnknownMethod(f"{frame.interface or frame.path} has no method {frame.member}")

    def _check_limits(self, frame: Frame, method: Method) -> None:
        if self._in_flight[frame.sender] >= MAX_IN_FLIGHT:
            raise LimitExceeded(f"{MAX_IN_FLIGHT} calls of {frame.sender} are unanswered; wait for some of them")
        if frame.body is None:
            raise LimitExceeded(f"a call may have {MAX_CALL} bytes; pass more through a file descriptor")
        if len(frame.fds) > MAX_CALL_FDS:
            raise LimitExceeded(f"a call may carry {MAX_CALL_FDS} file descriptors, not {len(frame.fds)}")
        if self._connection.congested:
            raise LimitExceeded("too many replies wait to be read; try again in a moment")
        if frame.signature != method.takes:
            raise InvalidArgument(
                f"{method.interface}.{method.name} takes ({method.takes}), it was called with ({frame.signature})"
            )

    async def _serve(self, frame: Frame, method: Method, target: Target | None) -> None:
        """Answer one call. The boundary where faults of mcpd are logged, and hidden from the caller."""
        try:
            caller = await self._callers.get(frame.sender)
            self._check_user(caller)
            with Fds() as ends, self._counted(caller.uid, len(frame.fds)):
                args = _arguments(frame, method)
                call = Call(caller, _interactive(frame, method, args), frame.fds, ends)
                result = await self._run(call, frame.path, method, target, args)
                body = _marshal(method, result)
                self._connection.reply(frame, method.gives, body, [ends.get(index) for index in range(len(ends))])
        except McpdError as error:
            self._fail(frame, error)
        except Exception:
            fault = secrets.token_hex(4)
            log.exception("Fault %s in %s.%s", fault, method.interface, method.name)
            self._fail(frame, McpdError(f"mcpd met a fault of its own, number {fault}, see its log; please report it"))

    async def _run(self, call: Call, path: str, method: Method, target: Target | None, args: list[Any]) -> Any:
        standard = STANDARD.get((method.interface, method.name))
        if standard is not None:
            return standard(self._objects, path, call, *args)
        row = self._table.get((method.interface, method.name))
        if row is None or target is None:
            raise UnknownMethod(f"{method.interface}.{method.name} is not available")
        if row.changes and self._read_only():
            raise ReadOnly(
                f"{method.name}: mcpd is read-only and changes nothing; it was started with --read-only, or"
                " read_only = true is in mcpd.toml below [daemon], or mcpd.toml cannot be used, as mcpd's log then says"
            )
        action = await _done(row.action(target, call, *args)) if callable(row.action) else row.action
        if action is not None:
            details = await _done(row.details(target, call, *args)) if row.details else {}
            await self._authority.check(call, action, details)
        return await _done(row.handler(target, call, *args))

    @contextmanager
    def _counted(self, uid: int, fds: int) -> Iterator[None]:
        """Count a call of *uid* that came with so many *fds*. Raises :class:`~mcpd.errors.LimitExceeded`."""
        if self._only_uid is not None:
            yield
            return
        if not self._calls.take(uid):
            raise LimitExceeded(f"uid {uid} has too many calls unanswered, {self._calls.held(uid)}; wait for some")
        try:
            if not self._fds.take(uid, fds):
                raise LimitExceeded(
                    f"uid {uid} has too many file descriptors in unanswered calls, {self._fds.held(uid)}; wait for some"
                )
            try:
                yield
            finally:
                self._fds.give_back(uid, fds)
        finally:
            self._calls.give_back(uid)

    def _check_user(self, caller: Caller) -> None:
        if self._only_uid is not None and caller.uid != self._only_uid:
            raise NotAuthorized(f"this is the mcpd of uid {self._only_uid}; call the one of your own session")

    def _fail(self, frame: Frame, error: McpdError) -> None:
        log.debug("%s.%s of %s: %s: %s", frame.interface, frame.member, frame.sender, error.dbus_name, error.message)
        with suppress(ServiceUnavailable):
            self._connection.reply_error(frame, error.dbus_name, error.message)


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _arguments(frame: Frame, method: Method) -> list[Any]:
    try:
        return frame.values()
    except codec.WireError as error:
        raise InvalidArgument(f"{method.name}: {error}") from error


def _interactive(frame: Frame, method: Method, args: list[Any]) -> bool:
    """Whether the caller may be asked: the message flag says so, or the option where a toolkit cannot set the flag."""
    options = args[-1] if method.takes.endswith("a{sv}") else {}
    return bool(frame.flags & ALLOW_INTERACTIVE) or options.get("interactive") is True


def _marshal(method: Method, result: Any) -> bytes:
    try:
        count = len(codec.split(method.gives))
        values = () if count == 0 else (result,) if count == 1 else result
        body = codec.marshal(method.gives, values)
    except codec.WireError as error:
        # A value of our own that does not fit is our fault, not the caller's argument.
        raise RuntimeError(f"{method.name} gave what its signature {method.gives!r} cannot carry") from error
    if len(body) > MAX_REPLY:
        raise LimitExceeded(
            f"the answer of {method.name} has {len(body)} bytes, and {MAX_REPLY} can be sent; ask for less of it, if it"
            " takes a filter or a limit"
        )
    return body
