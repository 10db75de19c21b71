# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bridge needs of the world that runs servers; :mod:`.mcpd_source` and :mod:`.commands` provide it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mcpd.errors import SpawnFailed

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.policy import Policy


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the bridge has to know of a server before it starts it; ``None`` stands for the bridge's own setting."""

    id: str
    call_timeout: float | None = None
    """Seconds a call may take without an answer or progress."""
    idle_timeout: float | None = None
    """Seconds without a call after which the server is stopped."""
    sharing: str | None = None
    """``session``, ``caller`` or ``all``: who may share a process."""
    state: str = ""
    """Changes with the installed generation, its configuration and its ``mcps`` entry."""
    handshake: bool | None = None
    """Whether it speaks the revisions with ``initialize``; ``None`` if nobody has found out yet."""
    modern: bool | None = None
    """The same for 2026-07-28."""
    policy: Policy | None = None
    """What its ``mcps`` entry changes, if it has one."""


class Ends:
    """Our ends of a server's stdin and stdout, until somebody takes them."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._fds: tuple[int, int] | None = (stdin, stdout)

    def take(self) -> tuple[int, int]:
        """The two, to be closed by the caller."""
        fds, self._fds = self._fds, None
        if fds is None:
            raise SpawnFailed("the descriptors of this server were taken already")
        return fds

    def close(self) -> None:
        """Close what nobody took."""
        if self._fds is not None:
            for fd in self.take():
                os.close(fd)


class Upstream(Protocol):
    """A running server. Its descriptors pass to whoever calls :meth:`take`."""

    def take(self) -> tuple[int, int]:
        """Our ends of the server's stdin and stdout, to be closed by the caller."""

    async def stop(self, *, died: bool = False) -> None:
        """End it with everything it started; returns when it is gone. May be called again.

        Its stdin was closed before. *died* tells that it ended by itself, as far as its stdout shows.
        """


class ServerSource(Protocol):
    """Where servers come from."""

    async def describe(self, server: str) -> ServerInfo:
        """What is known of *server*, without starting it.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.Disabled` or what else forbids to use it.
        """

    async def start(self, server: str, caller: Caller) -> Upstream:
        """Start *server* for *caller*. Raises the :class:`~mcpd.errors.McpdError` that tells why it cannot."""

    async def close(self) -> None:
        """Let go of everything, after all servers were stopped."""
