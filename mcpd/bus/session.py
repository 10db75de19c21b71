# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface Session, for the running servers of :mod:`mcpd.runtime`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.bus.codec import Variant
from mcpd.bus.contract import Authorization, authorized_method
from mcpd.bus.names import SESSION, session_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.bus.arguments import Options
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

    def _authorize_stop(self, call: Call, options: Options) -> Authorization[Session]:
        session, owner = self.session, self.session.owner
        # A process that others use, too, is not stopped for one of them.
        is_own = call.sender == owner.name if owner.is_shared else call.owns(owner)
        action = None if is_own else "cancel-foreign"
        details = {"id": session.server_id, "session": session.number, "owner-uid": owner.uid}
        return Authorization(action, details, session)

    @authorized_method(_authorize_stop, changes=False)
    async def stop(self, call: Call, session: Session, options: Options) -> None:
        """Implement ``Stop``."""
        await self.sessions.stop(session.number)
