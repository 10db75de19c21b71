# SPDX-License-Identifier: LGPL-2.1-or-later
"""Authorization by polkit, and quotas that keep every user able to call.

The session instance needs no authorization. On the system bus, mcpd may wait for 128 replies at once, which all users
share. So each user gets a few: checks without a prompt queue for a :class:`FairSemaphore`, and open authentication
prompts count against :class:`Quotas`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mcpd.errors import (
    InteractionRequired,
    LimitExceeded,
    McpdError,
    NotAuthorized,
    ServiceUnavailable,
    TimedOut,
)
from mcpd.journal import POLKIT_DECISION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.bus.caller import Call
    from mcpd.bus.connection import Connection, Reply

_WARNING_INTERVAL: Final = 60.0
"""Seconds between two equal warnings."""


class Quotas:
    """Counts what users hold, up to a limit per user and one in total; users with a reserve are counted separately."""

    def __init__(self, per_user: int, total: int, reserves: Mapping[int, int]) -> None:
        """*reserves* are the limits of single uids, which do not count towards *total*."""
        self._per_user = per_user
        self._total = total
        self._reserves = reserves
        self._held: Counter[int] = Counter()
        self._shared = 0
        """The amount held by all users without a reserve."""

    def acquire(self, uid: int, amount: int = 1) -> bool:
        """Count *amount* for *uid*; return False and count nothing if that exceeds a limit."""
        held = self._held[uid] + amount
        if uid in self._reserves:
            if held > self._reserves[uid]:
                return False
        elif held > self._per_user or self._shared + amount > self._total:
            return False
        else:
            self._shared += amount
        self._held[uid] = held
        return True

    def release(self, uid: int, amount: int = 1) -> None:
        """Return *amount* that *uid* acquired."""
        self._held[uid] -= amount
        if not self._held[uid]:
            del self._held[uid]
        if uid not in self._reserves:
            self._shared -= amount

    def held(self, uid: int) -> int:
        """Return the amount that *uid* holds."""
        return self._held[uid]


class FairSemaphore:
    """Semaphore with a limit in total and for each user; waiting users are served in turn."""

    def __init__(self, total: int, per_user: int) -> None:
        self._total = total
        self._per_user = per_user
        self._active: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """Waiters by user; the user who is next comes first."""

    async def acquire(self, uid: int) -> None:
        """Wait until *uid* may proceed; :meth:`release` must follow."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(uid)
            else:
                self._discard(uid, waiter)
            raise

    def release(self, uid: int) -> None:
        """Release what *uid* acquired, and let the next waiter proceed."""
        self._active[uid] -= 1
        if not self._active[uid]:
            del self._active[uid]
        self._admit()

    def _admit(self) -> None:
        while self._active.total() < self._total:
            uid = next((uid for uid in self._waiting if self._active[uid] < self._per_user), None)
            if uid is None:
                return
            waiters = self._waiting.pop(uid)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[uid] = waiters  # behind the other users
            if not waiter.done():
                self._active[uid] += 1
                waiter.set_result(None)

    def _discard(self, uid: int, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(uid)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[uid]


class RateLimitedLog:
    """Logs warnings that callers could cause as often as they like, each at most once a minute."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last_logged: dict[str, float] = {}

    def warning(self, text: str, *args: object) -> None:
        """Log *text* filled with *args*, unless *text* was logged less than a minute ago with any arguments."""
        now = time.monotonic()
        if now - self._last_logged.get(text, -_WARNING_INTERVAL) >= _WARNING_INTERVAL:
            self._last_logged[text] = now
            self._log.warning(text, *args)


ACTION_PREFIX: Final = "org.mcpd.mcp1."
POLKIT: Final = "org.freedesktop.PolicyKit1"
AUTHORITY: Final = POLKIT + ".Authority"
AUTHORITY_PATH: Final = "/org/freedesktop/PolicyKit1/Authority"
_ALLOW_INTERACTION: Final = 1

PROMPT_TIMEOUT: Final = 300.0
"""Seconds within which a prompt must be answered."""
PROMPTS_PER_USER: Final = 4
"""Maximum number of open prompts of one user."""
PROMPTS: Final = 32
"""Maximum number of open prompts in total, not counting those of root."""
CHECK_TIMEOUT: Final = 25.0
"""Seconds within which polkit must decide without a prompt."""
_ROOT_TIMEOUT: Final = 5.0
"""Seconds within which polkit must decide about root, who is allowed even without an answer."""
_CANCEL_TIMEOUT: Final = 25.0
"""Seconds for polkit to confirm a cancellation; until then the call counts as unanswered on the bus."""
_CHECKS, _CHECKS_PER_USER = 32, 4
_CHECKS_OF_ROOT: Final = 8
_CHECKS_OF_BRIDGE: Final = 16

log = logging.getLogger(__name__)


class Authority(Protocol):
    """Decides what a caller may do."""

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """Return if the caller of *call* may do *action* (without its prefix).

        Raises :class:`~mcpd.errors.NotAuthorized`, or its subclass
        :class:`~mcpd.errors.InteractionRequired`, both naming the action.
        """


class OwnUser:
    """Authority of the session instance, which serves only its own user and allows everything."""

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """Allow the call."""


class _Question(NamedTuple):
    call: Call
    action_id: str
    details: Mapping[str, str]


class _Decision(NamedTuple):
    authorized: bool
    challenge: bool = False
    details: Mapping[str, str] = {}


class Polkit:
    """Authority of the system instance: polkitd on the system bus."""

    def __init__(
        self, connection: Connection, *, bridge_uid: int | None = None, prompt_timeout: float = PROMPT_TIMEOUT
    ) -> None:
        """*bridge_uid* is the user that calls on behalf of many users; *prompt_timeout* is in seconds."""
        self._connection = connection
        self._bridge_uid = bridge_uid
        self._prompt_timeout = prompt_timeout
        self._numbers = itertools.count(1)
        self._prompts = Quotas(PROMPTS_PER_USER, PROMPTS, {0: PROMPTS_PER_USER})
        self._checks = FairSemaphore(_CHECKS, _CHECKS_PER_USER)
        self._root_checks = FairSemaphore(_CHECKS_OF_ROOT, _CHECKS_OF_ROOT)
        self._bridge_checks = FairSemaphore(_CHECKS_OF_BRIDGE, _CHECKS_PER_USER)
        self._asking: set[asyncio.Task[Reply]] = set()
        """Running polkit calls, until polkit answers or the connection is lost."""
        self._rate_limited = RateLimitedLog(log)

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """See :class:`Authority`. An open prompt delays only its own call, and is cancelled when the caller leaves.

        Also raises :class:`~mcpd.errors.LimitExceeded` and :class:`~mcpd.errors.TimedOut`, and
        :class:`~mcpd.errors.ServiceUnavailable` if the caller has left the bus. Root is allowed if polkit cannot
        decide.
        """
        question = _Question(call, ACTION_PREFIX + action, details)
        decision = await self._decide(question)
        asked = decision.challenge and not decision.authorized and call.interactive
        if asked:
            decision = await self._prompt(question)
        log.info(
            "uid %d (%s) may %s%s",
            call.uid,
            call.sender,
            "" if decision.authorized else "not ",
            question.action_id,
            extra={
                "MESSAGE_ID": POLKIT_DECISION,
                "POLKIT_ACTION": question.action_id,
                "CALLER_UID": call.uid,
                "MCP_SERVER_ID": details.get("id"),
            },
        )
        if not decision.authorized:
            raise _refusal(question, decision, asked=asked)

    async def _decide(self, question: _Question) -> _Decision:
        """Return polkit's decision without a prompt."""
        call, action_id = question.call, question.action_id
        semaphore, uid = self._semaphore_for(question)
        limit = _ROOT_TIMEOUT if call.uid == 0 else CHECK_TIMEOUT
        try:
            try:
                async with asyncio.timeout(limit):
                    await semaphore.acquire(uid)
            except TimeoutError:
                raise LimitExceeded("too many checks are waiting") from None
            return await self._ask(question, 0, limit, partial(semaphore.release, uid))
        except (ServiceUnavailable, LimitExceeded, TimedOut) as error:
            if call.caller.gone.is_set():
                raise
            self._rate_limited.warning("polkit cannot decide (%s): only root is authorized", error.message)
            if call.uid == 0:
                return _Decision(authorized=True)
            if isinstance(error, ServiceUnavailable):
                raise NotAuthorized(
                    f"{action_id}: polkit is not available; only root is authorized without it"
                ) from error
            raise type(error)(f"{action_id}: polkit is overloaded; try again in a moment") from error

    def _semaphore_for(self, question: _Question) -> tuple[FairSemaphore, int]:
        """Return the semaphore that the question waits for, and the uid that it counts towards."""
        uid = question.call.uid
        if uid == 0:
            return self._root_checks, uid
        if uid == self._bridge_uid:
            return self._bridge_checks, int(question.details.get("caller-uid", uid))
        return self._checks, uid

    async def _prompt(self, question: _Question) -> _Decision:
        """Return polkit's decision after an authentication prompt."""
        call, action_id = question.call, question.action_id
        if not self._prompts.acquire(call.uid):
            if self._prompts.held(call.uid):
                raise LimitExceeded(
                    f"{action_id} needs authentication, but a prompt is already open for uid {call.uid} "
                    f"({PROMPTS_PER_USER} at most); answer or dismiss it first"
                )
            raise LimitExceeded(f"{action_id} needs authentication, but {PROMPTS} prompts are open; try again later")
        release = partial(self._prompts.release, call.uid)
        try:
            return await self._ask(question, _ALLOW_INTERACTION, self._prompt_timeout, release)
        except TimedOut as error:
            raise NotAuthorized(
                f"{action_id}: the authentication prompt timed out after {self._prompt_timeout:.0f} s; try again"
            ) from error
        except (ServiceUnavailable, LimitExceeded) as error:
            if call.caller.gone.is_set():
                raise
            raise NotAuthorized(f"{action_id}: polkit could not prompt: {error.message}") from error

    async def _ask(self, question: _Question, flags: int, limit: float, done: Callable[[], None]) -> _Decision:
        """Ask polkit, for *limit* seconds or until the caller leaves. *done* is called once polkit has answered."""
        call, action_id, details = question
        if call.caller.gone.is_set():
            done()
            raise _caller_gone(call)
        cancellation = f"mcpd-{os.getpid()}-{next(self._numbers)}"
        subject = ("system-bus-name", {"name": call.sender})
        request = self._connection.call(
            POLKIT, AUTHORITY_PATH, AUTHORITY, "CheckAuthorization", "(sa{sv})sa{ss}us",
            [subject, action_id, details, flags, cancellation], timeout=limit + _CANCEL_TIMEOUT,
        )  # fmt: skip
        asking = asyncio.create_task(request, name=f"polkit {action_id} for {call.sender}")
        self._asking.add(asking)
        asking.add_done_callback(partial(self._answered, done))
        leaving = asyncio.create_task(call.caller.gone.wait())
        try:
            await asyncio.wait([asking, leaving], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return self._read(asking, action_id)
            if call.caller.gone.is_set():
                raise _caller_gone(call)
            raise TimedOut(f"no answer within {limit:.0f} s")
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            if not asking.done():
                self._connection.post(
                    POLKIT, AUTHORITY_PATH, AUTHORITY, "CancelCheckAuthorization", "s", [cancellation]
                )

    def _answered(self, done: Callable[[], None], asking: asyncio.Task[Reply]) -> None:
        self._asking.discard(asking)
        done()
        if not asking.cancelled() and asking.exception() is None:
            asking.result().fds.close()

    def _read(self, asking: asyncio.Task[Reply], action_id: str) -> _Decision:
        try:
            return _Decision(*asking.result().values[0])
        except (ServiceUnavailable, LimitExceeded, TimedOut):
            raise
        except McpdError as error:
            self._rate_limited.warning("polkit failed to check %s: %s", action_id, error.message)
            raise NotAuthorized(f"{action_id}: the polkit check failed: {error.message}") from error


def _caller_gone(call: Call) -> ServiceUnavailable:
    return ServiceUnavailable(f"{call.sender} has disconnected from the message bus")


def _refusal(question: _Question, decision: _Decision, *, asked: bool) -> NotAuthorized:
    action_id, details = question.action_id, decision.details
    if details.get("polkit.dismissed"):
        return NotAuthorized(f"{action_id}: the authentication was dismissed; try again")
    if decision.challenge and not question.call.interactive:
        return InteractionRequired(
            f"{action_id} needs authentication, but the call does not allow a prompt; "
            "allow interactive authorization, or call as root"
        )
    if decision.challenge:
        return NotAuthorized(f"{action_id} needs authentication, but no polkit agent is running; see pkttyagent(1)")
    if asked:
        return NotAuthorized(f"{action_id}: the authentication failed; try again")
    return NotAuthorized(f"{action_id} is not allowed for this user; an administrator can allow it in a polkit rule")
