# SPDX-License-Identifier: LGPL-2.1-or-later
"""Authorization: polkit's decisions, and quotas that leave something for every user.

The session instance asks nobody. The bus lets mcpd wait for 128 answers at once. All users share them, so nobody gets
more than a few: checks that polkit can decide by itself wait for their turn, and few authentication prompts may be
open.
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

_SAID_EVERY: Final = 60.0
"""Seconds between two warnings about the same."""


class Shares:
    """Counts what users hold: so much each, and so much together. Who has a reserve is counted beside the others."""

    def __init__(self, each: int, together: int, reserves: Mapping[int, int]) -> None:
        """*reserves* has what certain uids may hold, whatever the others do."""
        self._each = each
        self._together = together
        self._reserves = reserves
        self._held: Counter[int] = Counter()
        self._common = 0
        """What those without a reserve hold together."""

    def take(self, uid: int, amount: int = 1) -> bool:
        """Count *amount* for *uid*, if it may have that much more."""
        held = self._held[uid] + amount
        if uid in self._reserves:
            if held > self._reserves[uid]:
                return False
        elif held > self._each or self._common + amount > self._together:
            return False
        else:
            self._common += amount
        self._held[uid] = held
        return True

    def give_back(self, uid: int, amount: int = 1) -> None:
        """Count *amount* of what *uid* took no more."""
        self._held[uid] -= amount
        if not self._held[uid]:
            del self._held[uid]
        if uid not in self._reserves:
            self._common -= amount

    def held(self, uid: int) -> int:
        """What *uid* holds."""
        return self._held[uid]


class Turns:
    """Lets a number in at once, few of them of one user; the users that wait take turns."""

    def __init__(self, together: int, each: int) -> None:
        self._together = together
        self._each = each
        self._inside: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """By user, who is next first."""

    async def enter(self, uid: int) -> None:
        """Wait until *uid* may come in; :meth:`leave` has to follow."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(uid)
            else:
                self._forget(uid, turn)
            raise

    def leave(self, uid: int) -> None:
        """Make room for the next."""
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]
        self._admit()

    def _admit(self) -> None:
        while self._inside.total() < self._together:
            uid = next((uid for uid in self._waiting if self._inside[uid] < self._each), None)
            if uid is None:
                return
            turns = self._waiting.pop(uid)
            turn = turns.popleft()
            if turns:
                self._waiting[uid] = turns  # behind everybody else
            if not turn.done():
                self._inside[uid] += 1
                turn.set_result(None)

    def _forget(self, uid: int, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(uid)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[uid]


class Seldom:
    """Warns at most once a minute about the same, for those who can cause it as often as they like."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, float] = {}

    def warning(self, text: str, *args: object) -> None:
        """Log *text* filled with *args*, unless it was logged less than a minute ago, perhaps with others."""
        now = time.monotonic()
        if now - self._said.get(text, -_SAID_EVERY) >= _SAID_EVERY:
            self._said[text] = now
            self._log.warning(text, *args)


ACTION_PREFIX: Final = "org.mcpd.mcp1."
POLKIT: Final = "org.freedesktop.PolicyKit1"
AUTHORITY: Final = POLKIT + ".Authority"
AUTHORITY_PATH: Final = "/org/freedesktop/PolicyKit1/Authority"
_ALLOW_INTERACTION: Final = 1

PROMPT_TIMEOUT: Final = 300.0
"""Seconds in which a prompt must be answered."""
PROMPTS_EACH: Final = 4
"""Prompts that one user may have open."""
PROMPTS: Final = 32
"""Prompts that may be open, besides those of root."""
CHECK_TIMEOUT: Final = 25.0
"""Seconds in which polkit must decide where nobody is asked."""
_ROOTS_TIMEOUT: Final = 5.0
"""The same for root, who does not depend on the answer."""
_CANCEL_TIMEOUT: Final = 25.0
"""Seconds for polkit to confirm that it gave up; its answer counts on the bus until then."""
_CHECKS, _CHECKS_EACH = 32, 4
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
    """The session instance: its user may do everything, and is the only one served."""

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """Every call that gets here is the user's own."""


class _Question(NamedTuple):
    call: Call
    action_id: str
    details: Mapping[str, str]


class _Decision(NamedTuple):
    authorized: bool
    challenge: bool = False
    details: Mapping[str, str] = {}


class Polkit:
    """polkitd on the system bus."""

    def __init__(
        self, connection: Connection, *, bridge_uid: int | None = None, prompt_timeout: float = PROMPT_TIMEOUT
    ) -> None:
        """*bridge_uid* asks for many users; *prompt_timeout* is in seconds."""
        self._connection = connection
        self._bridge_uid = bridge_uid
        self._prompt_timeout = prompt_timeout
        self._numbers = itertools.count(1)
        self._prompts = Shares(PROMPTS_EACH, PROMPTS, {0: PROMPTS_EACH})
        self._checks = Turns(_CHECKS, _CHECKS_EACH)
        self._roots_checks = Turns(_CHECKS_OF_ROOT, _CHECKS_OF_ROOT)
        self._bridges_checks = Turns(_CHECKS_OF_BRIDGE, _CHECKS_EACH)
        self._asking: set[asyncio.Task[Reply]] = set()
        """Until polkit answers, or its connection is lost."""
        self._seldom = Seldom(log)

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """See :class:`Authority`. A prompt that stays open holds up this call only, and ends with the caller.

        Raises also :class:`~mcpd.errors.LimitExceeded` and :class:`~mcpd.errors.TimedOut`, and
        :class:`~mcpd.errors.ServiceUnavailable` if the caller has left. Root may do what polkit is not able to decide.
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
        """What polkit says without asking anybody."""
        call, action_id = question.call, question.action_id
        turns, whose = self._turns(question)
        limit = _ROOTS_TIMEOUT if call.uid == 0 else CHECK_TIMEOUT
        try:
            try:
                async with asyncio.timeout(limit):
                    await turns.enter(whose)
            except TimeoutError:
                raise LimitExceeded("too many decisions are waited for") from None
            return await self._ask(question, 0, limit, partial(turns.leave, whose))
        except (ServiceUnavailable, LimitExceeded, TimedOut) as error:
            if call.caller.gone.is_set():
                raise
            self._seldom.warning("polkit does not decide (%s): only root may do what needs it", error.message)
            if call.uid == 0:
                return _Decision(authorized=True)
            if isinstance(error, ServiceUnavailable):
                raise NotAuthorized(f"{action_id}: polkit is not there, and only root may do this without") from error
            raise type(error)(f"{action_id}: polkit has too much to decide; try again in a moment") from error

    def _turns(self, question: _Question) -> tuple[Turns, int]:
        """Where the question waits, and whose it is."""
        uid = question.call.uid
        if uid == 0:
            return self._roots_checks, uid
        if uid == self._bridge_uid:
            return self._bridges_checks, int(question.details.get("caller-uid", uid))
        return self._checks, uid

    async def _prompt(self, question: _Question) -> _Decision:
        """What polkit says after it asked the caller, or whoever may authenticate."""
        call, action_id = question.call, question.action_id
        if not self._prompts.take(call.uid):
            if self._prompts.held(call.uid):
                raise LimitExceeded(
                    f"{action_id} needs authentication, and a prompt is open already for uid {call.uid} "
                    f"({PROMPTS_EACH} at most); answer or dismiss it first"
                )
            raise LimitExceeded(f"{action_id} needs authentication, and {PROMPTS} prompts are open; try again later")
        give_back = partial(self._prompts.give_back, call.uid)
        try:
            return await self._ask(question, _ALLOW_INTERACTION, self._prompt_timeout, give_back)
        except TimedOut as error:
            raise NotAuthorized(
                f"{action_id}: nobody answered the authentication prompt in {self._prompt_timeout:.0f} s; try again"
            ) from error
        except (ServiceUnavailable, LimitExceeded) as error:
            if call.caller.gone.is_set():
                raise
            raise NotAuthorized(f"{action_id}: polkit could not ask: {error.message}") from error

    async def _ask(self, question: _Question, flags: int, limit: float, done: Callable[[], None]) -> _Decision:
        """Ask polkit, for *limit* seconds or until the caller leaves. *done* is called once polkit has answered."""
        call, action_id, details = question
        if call.caller.gone.is_set():
            done()
            raise _left(call)
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
                raise _left(call)
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
            self._seldom.warning("polkit did not decide on %s: %s", action_id, error.message)
            raise NotAuthorized(f"polkit did not decide on {action_id}: {error.message}") from error


def _left(call: Call) -> ServiceUnavailable:
    return ServiceUnavailable(f"{call.sender} has left the message bus")


def _refusal(question: _Question, decision: _Decision, *, asked: bool) -> NotAuthorized:
    action_id, details = question.action_id, decision.details
    if details.get("polkit.dismissed"):
        return NotAuthorized(f"{action_id}: the authentication was dismissed; try again to be asked again")
    if decision.challenge and not question.call.interactive:
        return InteractionRequired(
            f"{action_id} needs authentication, and the call does not allow to ask for it; "
            "allow interactive authorization, or call as root"
        )
    if decision.challenge:
        return NotAuthorized(
            f"{action_id} needs authentication, and no polkit agent is there to ask; see pkttyagent(1)"
        )
    if asked:
        return NotAuthorized(f"{action_id}: the authentication failed; try again to be asked again")
    return NotAuthorized(f"{action_id} is not allowed to this user; an administrator can grant it in polkit's rules")
