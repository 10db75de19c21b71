# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether one more server may run: no user takes the places of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.errors import LimitExceeded
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.runtime.sessions import Owner
    from mcpd.settings import RuntimeSettings


def check_room(server_id: str, owner: Owner, running: Sequence[Owner], settings: RuntimeSettings, scope: Scope) -> None:
    """Return if *owner* may start *server_id* beside what *running*, the owners of all sessions, have.

    Where there are several users each has a share, and an eighth is kept for root and for mcpd itself. Raises
    :class:`~mcpd.errors.LimitExceeded` that names the setting.
    """
    limit = settings.max_sessions
    shared = limit if scope is Scope.USER or _has_reserve(owner) else limit - limit // 8
    if len(running) >= shared:
        kept = f", of {limit}: the others are kept for root" if shared < limit else ""
        raise LimitExceeded(
            f"{server_id}: {len(running)} servers run already, more are not allowed (runtime.max_sessions{kept}); "
            "stop one first"
        )
    if scope is Scope.USER or _has_reserve(owner):
        return
    share = settings.max_sessions_per_user or max(1, limit // 4)
    own = sum(other.uid == owner.uid and not other.is_mcpd for other in running)
    if own >= share:
        raise LimitExceeded(
            f"{server_id}: uid {owner.uid} runs {own} servers already, more are not allowed to one user "
            "(runtime.max_sessions_per_user); stop one first"
        )


def _has_reserve(owner: Owner) -> bool:
    return owner.uid == 0 or owner.is_mcpd
