# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dispatch of method calls: object, method, limits, caller, arguments, authorization, handler, reply.

The interfaces come from their XML, the handlers from the decorated methods of the objects (:mod:`mcpd.bus.contract`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus import codec, contract
from mcpd.bus.authorization import Quotas
from mcpd.bus.caller import Call, Caller, Callers
from mcpd.bus.idle import Activity
from mcpd.bus.object_manager import STANDARD, Objects, StandardMethods
from mcpd.bus.transport import ALLOW_INTERACTIVE, Fds, Frame
from mcpd.catalog.listing import text
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
    from collections.abc import Callable, Iterator

    from mcpd.bus.authorization import Authority
    from mcpd.bus.connection import Connection
    from mcpd.bus.contract import Method

MAX_IN_FLIGHT: Final = 128
"""Maximum number of unanswered calls of one sender; the bus itself allows as many."""
CALLS_PER_USER: Final = 64
"""Maximum number of unanswered calls of one user on the system bus; root and the bridge have :data:`MAX_IN_FLIGHT`
each."""
CALLS: Final = 512
"""Maximum number of unanswered calls of all users without such a reserve."""
FDS_PER_USER: Final = 256
"""Maximum number of file descriptors in the unanswered calls of one user on the system bus."""
FDS: Final = 1024
"""Maximum number of file descriptors in the unanswered calls of all users without a reserve."""
MAX_CALL: Final = 512 * 1024
"""Maximum size of one call in bytes."""
BYTES_PER_USER: Final = 4 * MAX_CALL
"""Maximum size of the unanswered calls of one user on the system bus in bytes. Decoded, they can take twenty times as
much memory."""
BYTES: Final = 16 * MAX_CALL
"""Maximum size of the unanswered calls of all users without a reserve in bytes."""
MAX_CALL_FDS: Final = 16
MAX_REPLY: Final = 24 * 1024 * 1024
"""Maximum size of one reply in bytes; the bus disconnects clients that send messages over 32 MiB."""

log = logging.getLogger(__name__)


class Dispatcher:
    """Dispatches the method calls of a connection to their handlers."""

    def __init__(
        self,
        connection: Connection,
        objects: Objects,
        callers: Callers,
        authority: Authority,
        *,
        only_uid: int | None = None,
        bridge_uid: int | None = None,
        read_only: Callable[[], bool] = lambda: False,
    ) -> None:
        """With *only_uid*, only that user is served; *bridge_uid* calls on behalf of many users and has a reserve.

        While *read_only* returns True, methods that change something are refused.
        """
        self._connection = connection
        self._objects = objects
        self._callers = callers
        self._authority = authority
        self._only_uid = only_uid
        self._read_only = read_only
        self.activity = Activity()
        """The running calls."""
        self._in_flight: Counter[str] = Counter()
        reserved = {0} if bridge_uid is None else {0, bridge_uid}
        self._calls = Quotas(CALLS_PER_USER, CALLS, dict.fromkeys(reserved, MAX_IN_FLIGHT))
        self._fds = Quotas(FDS_PER_USER, FDS, dict.fromkeys(reserved, MAX_IN_FLIGHT * MAX_CALL_FDS))
        self._bytes = Quotas(BYTES_PER_USER, BYTES, dict.fromkeys(reserved, MAX_IN_FLIGHT * MAX_CALL))
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Answer calls from now on, starting with those that arrived earlier."""
        self._connection.serve(self._on_call)

    async def close(self) -> None:
        """Cancel the running calls."""
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
                self._reply_error(frame, error)
            self.activity.touch()
            return
        self._in_flight[frame.sender] += 1
        self.activity.begin()
        task = asyncio.create_task(self._serve(frame, method, target), name=f"{method.name} for {frame.sender}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, frame))

    def _ended(self, frame: Frame, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # A task that is cancelled before its first step has not closed the descriptors.
        frame.fds.close()
        self.activity.end()
        self._in_flight[frame.sender] -= 1
        if not self._in_flight[frame.sender]:
            del self._in_flight[frame.sender]

    def _resolve(self, frame: Frame) -> tuple[Method, object]:
        """Return the method that *frame* names, with or without an interface, and the object that implements it."""
        names = self._objects.interfaces(frame.path)
        if frame.interface and frame.interface not in names:
            raise UnknownInterface(f"{frame.path} has no interface {frame.interface}")
        for name in [frame.interface] if frame.interface else names:
            method = contract.interfaces()[name].methods.get(frame.member)
            if method is not None:
                standard = name in STANDARD
                return method, StandardMethods(self._objects, frame.path) if standard else self._objects.get(frame.path)
        raise UnknownMethod(f"{frame.interface or frame.path} has no method {frame.member}")

    def _check_limits(self, frame: Frame, method: Method) -> None:
        if self._in_flight[frame.sender] >= MAX_IN_FLIGHT:
            raise LimitExceeded(f"{frame.sender} has {MAX_IN_FLIGHT} unanswered calls; wait for some replies")
        if frame.body is None:
            raise LimitExceeded(f"a call may have at most {MAX_CALL} bytes; pass larger data in a file descriptor")
        if len(frame.fds) > MAX_CALL_FDS:
            raise LimitExceeded(f"a call may have at most {MAX_CALL_FDS} file descriptors, not {len(frame.fds)}")
        if self._connection.congested:
            raise LimitExceeded("too many replies are waiting to be read; try again in a moment")
        if frame.signature != method.in_signature:
            raise InvalidArgument(
                f"{method.interface}.{method.name} takes ({method.in_signature}), not ({frame.signature})"
            )

    async def _serve(self, frame: Frame, method: Method, target: object) -> None:
        """Answer one call. Unexpected exceptions are handled here: they are logged, and hidden from the caller."""
        try:
            caller = await self._callers.get(frame.sender)
            self._check_user(caller)
            with Fds() as reply_fds, self._within_quotas(caller.uid, frame):
                args = _arguments(frame, method)
                call = Call(caller, _interactive(frame, method, args), frame.fds, reply_fds)
                result = await self._run(call, method, target, args)
                body = _marshal(method, result)
                self._connection.reply(
                    frame, method.out_signature, body, [reply_fds.get(index) for index in range(len(reply_fds))]
                )
        except McpdError as error:
            self._reply_error(frame, error)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("Internal error %s in %s.%s", number, method.interface, method.name)
            self._reply_error(frame, McpdError(f"internal error {number}; see the journal"))

    async def _run(self, call: Call, method: Method, target: object, args: list[Any]) -> Any:
        implementation: type = type(target)
        handler = contract.handlers(implementation).get(method.name)
        if handler is None:
            raise UnknownMethod(f"{method.interface}.{method.name} is not available")
        if handler.changes and self._read_only():
            raise ReadOnly(
                f"{method.name}: mcpd is read-only and changes nothing: it was started with --read-only, mcpd.toml has"
                " read_only = true below [daemon], or mcpd.toml is invalid (see the journal)"
            )
        covered = None
        if handler.authorize is not None:
            needed = await _awaited(handler.authorize(target, call, *args))
            covered = needed.covered
            if needed.action is not None:
                await self._authority.check(call, needed.action, _details(needed.details))
        return await _awaited(handler.run(target, call, covered, *args))

    @contextmanager
    def _within_quotas(self, uid: int, frame: Frame) -> Iterator[None]:
        """Count the call *frame* of *uid*, its file descriptors and its bytes towards the quotas.

        Raises :class:`~mcpd.errors.LimitExceeded`.
        """
        counted = (
            (self._calls, 1, "unanswered calls"),
            (self._fds, len(frame.fds), "file descriptors in unanswered calls"),
            (self._bytes, len(frame.body or b""), "bytes in unanswered calls"),
        )
        with ExitStack() as held:
            for quotas, amount, what in counted if self._only_uid is None else ():
                if not quotas.acquire(uid, amount):
                    raise LimitExceeded(f"uid {uid} has too many {what} ({quotas.held(uid)}); wait for some replies")
                held.callback(quotas.release, uid, amount)
            yield

    def _check_user(self, caller: Caller) -> None:
        if self._only_uid is not None and caller.uid != self._only_uid:
            raise NotAuthorized(f"this mcpd serves only uid {self._only_uid}; call mcpd on your own session bus")

    def _reply_error(self, frame: Frame, error: McpdError) -> None:
        log.debug("%s.%s of %s: %s: %s", frame.interface, frame.member, frame.sender, error.dbus_name, error.message)
        with suppress(ServiceUnavailable):
            self._connection.reply_error(frame, error.dbus_name, error.message)


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _details(values: Mapping[str, object]) -> dict[str, str]:
    return {key: text(list(value) if isinstance(value, Mapping) else value) for key, value in values.items()}


def _arguments(frame: Frame, method: Method) -> list[Any]:
    try:
        return frame.values()
    except codec.WireError as error:
        raise InvalidArgument(f"{method.name}: {error}") from error


def _interactive(frame: Frame, method: Method, args: list[Any]) -> bool:
    """Return whether the caller may be asked to authenticate.

    Callers allow it by the message flag, or by the option ``interactive`` if their toolkit cannot set the flag.
    """
    options = args[-1] if method.in_signature.endswith("a{sv}") else {}
    return bool(frame.flags & ALLOW_INTERACTIVE) or options.get("interactive") is True


def _marshal(method: Method, result: Any) -> bytes:
    try:
        count = len(codec.split(method.out_signature))
        values = () if count == 0 else (result,) if count == 1 else result
        body = codec.marshal(method.out_signature, values)
    except codec.WireError as error:
        # A result that does not fit is an error of mcpd, not of the caller's arguments.
        raise RuntimeError(f"{method.name} returned a value that does not fit {method.out_signature!r}") from error
    if len(body) > MAX_REPLY:
        raise LimitExceeded(
            f"the reply of {method.name} is {len(body)} bytes long, more than {MAX_REPLY}; ask for less, with a filter"
            " or limit if the method has one"
        )
    return body
