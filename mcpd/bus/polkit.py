# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking polkit whether a caller may do something (design §5). The session instance asks nobody."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcpd.errors import InteractionRequired, McpdError, NotAuthorized, ServiceUnavailable
from mcpd.journal import POLKIT_DECISION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.caller import Call
    from mcpd.bus.connection import Connection

ACTION_PREFIX: Final = "org.mcpd.mcp1."
POLKIT: Final = "org.freedesktop.PolicyKit1"
AUTHORITY: Final = POLKIT + ".Authority"
AUTHORITY_PATH: Final = "/org/freedesktop/PolicyKit1/Authority"
_ALLOW_INTERACTION: Final = 1

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


class Polkit:
    """polkitd on the system bus."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    async def check(self, call: Call, action: str, details: Mapping[str, str]) -> None:
        """See :class:`Authority`. A prompt that stays open holds up this call only, and ends with the caller."""
        action_id = ACTION_PREFIX + action
        asking = asyncio.create_task(self._ask(call, action_id, details), name=f"polkit {action_id} for {call.sender}")
        leaving = asyncio.create_task(call.caller.gone.wait())
        try:
            await asyncio.wait([asking, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ServiceUnavailable(f"{call.sender} has left the message bus")
            authorized, challenge, told = asking.result()
        finally:
            asking.cancel()
            leaving.cancel()
            await asyncio.gather(asking, leaving, return_exceptions=True)
        log.info(
            "uid %d (%s) may %s%s",
            call.uid,
            call.sender,
            "" if authorized else "not ",
            action_id,
            extra={
                "MESSAGE_ID": POLKIT_DECISION,
                "POLKIT_ACTION": action_id,
                "CALLER_UID": call.uid,
                "MCP_SERVER_ID": details.get("id"),
            },
        )
        if authorized:
            return
        raise _refusal(action_id, call.interactive, challenge=challenge, details=told)

    async def _ask(self, call: Call, action_id: str, details: Mapping[str, str]) -> tuple[bool, bool, dict[str, str]]:
        cancellation = f"mcpd-{os.getpid()}-{next(self._numbers)}"
        subject = ("system-bus-name", {"name": call.sender})
        flags = _ALLOW_INTERACTION if call.interactive else 0
        try:
            reply = await self._connection.call(
                POLKIT, AUTHORITY_PATH, AUTHORITY, "CheckAuthorization", "(sa{sv})sa{ss}us",
                [subject, action_id, details, flags, cancellation], timeout=None,
            )  # fmt: skip
        except asyncio.CancelledError:
            self._connection.post(POLKIT, AUTHORITY_PATH, AUTHORITY, "CancelCheckAuthorization", "s", [cancellation])
            raise
        except ServiceUnavailable as error:
            log.warning("polkit is not there (%s): only root may %s", error.message, action_id)
            return call.uid == 0, False, {}
        except McpdError as error:
            log.exception("polkit did not decide on %s", action_id)
            raise NotAuthorized(f"polkit did not decide on {action_id}: {error.message}") from error
        with reply.fds:
            decision: tuple[bool, bool, dict[str, str]] = reply.values[0]
            return decision


def _refusal(action_id: str, interactive: bool, *, challenge: bool, details: Mapping[str, Any]) -> NotAuthorized:
    if details.get("polkit.dismissed"):
        return NotAuthorized(f"{action_id}: the authentication was dismissed; try again to be asked again")
    if challenge and not interactive:
        return InteractionRequired(
            f"{action_id} needs authentication, and the call does not allow to ask for it; "
            "allow interactive authorization, or call as root"
        )
    if challenge:
        return NotAuthorized(
            f"{action_id} needs authentication, and no polkit agent is there to ask; see pkttyagent(1)"
        )
    return NotAuthorized(f"{action_id} is not allowed to this user; an administrator can grant it in polkit's rules")
