# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Session, for the running servers of :mod:`mcpd.runtime`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.bus.codec import Variant
from mcpd.bus.dispatcher import Row
from mcpd.bus.names import SESSION, session_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.caller import Call
    from mcpd.runtime.sessions import Session, Sessions


@dataclass(slots=True)
class SessionObject:
    """A running server on the bus."""

    session: Session
    sessions: Sessions
    interface: str = SESSION

    def properties(self) -> Mapping[str, Variant]:
        """Return all properties of the interface."""
        session = self.session
        return {
            "ServerId": Variant("s", session.server_id),
            "Pid": Variant("u", session.pid),
            "Unit": Variant("s", session.unit),
            "OwnerUid": Variant("u", session.owner.uid),
            "State": Variant("s", str(session.state)),
        }

    def listed(self) -> dict[str, Variant]:
        """Return the session as an element of ``ListSessions``."""
        session = self.session
        return {
            "path": Variant("o", session_path(session.number)),
            "server-id": Variant("s", session.server_id),
            "unit": Variant("s", session.unit),
            "state": Variant("s", str(session.state)),
            "pid": Variant("u", session.pid),
            "owner-uid": Variant("u", session.owner.uid),
            "started": Variant("t", int(session.started)),
        }

    async def stop(self, _call: Call, _options: Mapping[str, Any]) -> None:
        """Implement ``Stop``."""
        await self.sessions.stop(self.session.number)


def _foreign_action(target: SessionObject, call: Call, *_args: object) -> str | None:
    owner = target.session.owner
    return None if call.uid == owner.uid or call.sender == owner.name else "cancel-foreign"


def _details(target: SessionObject, _call: Call, *_args: object) -> dict[str, str]:
    session = target.session
    return {"id": session.server_id, "session": str(session.number), "owner-uid": str(session.owner.uid)}


METHODS: Final = {(SESSION, "Stop"): Row(SessionObject.stop, _foreign_action, _details, changes=False)}
