# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bridge needs of the world that runs servers; :mod:`.mcpd_source` and :mod:`.commands` provide it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from mcpd.errors import SpawnFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Raw
    from mcpd.bridge.upstream.policy import Policy


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Information about a server that is needed to start it; ``None`` stands for the bridge's own setting."""

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
    """True if it speaks the revisions with ``initialize``; ``None`` if nobody has found out yet."""
    modern: bool | None = None
    """The same for 2026-07-28."""
    policy: Policy | None = None
    """What its ``mcps`` entry changes, if it has one."""

    def is_same(self, other: ServerInfo) -> bool:
        """Return True if processes of the one can go on as those of the other; the policy is a part of the state."""
        return replace(self, policy=None) == replace(other, policy=None)


@dataclass(frozen=True, slots=True)
class Listed:
    """A server as pages show it; all but the id may be unknown."""

    id: str
    name: str = ""
    summary: str = ""
    description: str = ""
    version: str = ""
    state: str = ""
    """``installed``, ``updatable``, ``disabled`` or ``broken``."""
    problem: str = ""
    """The problem with it."""
    homepage: str = ""
    permissions: tuple[str, ...] = ()
    sandboxed: bool | None = None


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
    """A source of servers."""

    async def describe(self, server: str) -> ServerInfo:
        """Return what is known about *server* without starting it.

        Raises :class:`~mcpd.errors.NotFound`, :class:`~mcpd.errors.Disabled` or what else forbids to use it.
        """

    async def listing(self) -> list[Listed]:
        """All servers that this bridge serves, without starting any. Raises what hinders to tell."""

    async def tools(self, server: str) -> list[Raw]:
        """The tools that *server* listed when it was installed, without starting it; none where nobody knows.

        Raises what hinders to tell.
        """

    def known(self, server: str) -> ServerInfo | None:
        """What :meth:`describe` returned, as long as it is certain that it would return the same; else ``None``."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Call *listener* whenever what was known of servers may hold no longer."""

    async def authorize(self, server: str, caller: Caller) -> None:
        """Check that *caller* may use a process of *server* that was started for somebody else.

        Raises :class:`~mcpd.errors.NotAuthorized`, or what hinders to find out.
        """

    async def start(self, server: str, caller: Caller, environment: Mapping[str, str]) -> Upstream:
        """Start *server* for *caller*, with what of the *environment* may be passed on to it.

        Raises the :class:`~mcpd.errors.McpdError` that tells why it cannot.
        """

    async def close(self) -> None:
        """Let go of everything, after all servers were stopped."""
