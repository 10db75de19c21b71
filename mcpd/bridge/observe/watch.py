# SPDX-License-Identifier: LGPL-2.1-or-later
"""Notification of audit and metrics about each call. :mod:`.observer` records it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from mcpd.bridge import jsonrpc

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Raw
    from mcpd.bridge.upstream.call import Call


MOST_OF_BATCH: Final = 100
"""Messages of a batch that is refused as a whole of which a watch is told."""


class Outcome(Enum):
    """The outcome of a call."""

    RESULT = "result"
    """The server answered with a result, which may still say ``isError``."""
    ERROR = "error"
    """The server answered with a JSON-RPC error."""
    TIMED_OUT = "timeout"
    CANCELLED = "cancelled"
    """Its client cancelled it or went away."""
    BROKEN = "broken"
    """The server ended, or answered with what is no JSON."""


class Watch(Protocol):
    """Is told what happens. It is on the path of every call, so it only takes that down."""

    def ended(self, server: str, call: Call, outcome: Outcome, response: bytes) -> None:
        """*call* has ended with *response*, which is empty if the bridge gave it."""

    def refused(
        self, caller: Caller | None, server: str, method: str, params: Raw | None, reason: str, request: str = ""
    ) -> None:
        """No server has seen this call. *reason* is one of few words, *request* the id of the HTTP request."""

    def started(self, caller: Caller, server: str, seconds: float, *, failed: bool) -> None:
        """A process of *server* was greeted after so many seconds, or *failed* to be there at all."""

    def opened(self, caller: Caller, server: str) -> None:
        """A process of *server* is there."""

    def gone(self, caller: Caller, server: str, *, died: bool, served: bool) -> None:
        """A process that was opened is gone; *died*: by itself, *served*: after it was greeted."""

    def http(self, route: str, status: int, seconds: float) -> None:
        """A request to *route*, one of few words, was replied to."""

    async def close(self) -> None:
        """Nothing more happens: finish what was taken down."""


class Nobody:
    """Takes nothing down."""

    def ended(self, server: str, call: Call, outcome: Outcome, response: bytes) -> None:
        """See :class:`Watch`."""

    def refused(
        self, caller: Caller | None, server: str, method: str, params: Raw | None, reason: str, request: str = ""
    ) -> None:
        """See :class:`Watch`."""

    def started(self, caller: Caller, server: str, seconds: float, *, failed: bool) -> None:
        """See :class:`Watch`."""

    def opened(self, caller: Caller, server: str) -> None:
        """See :class:`Watch`."""

    def gone(self, caller: Caller, server: str, *, died: bool, served: bool) -> None:
        """See :class:`Watch`."""

    def http(self, route: str, status: int, seconds: float) -> None:
        """See :class:`Watch`."""

    async def close(self) -> None:
        """See :class:`Watch`."""


def refuse_all(watch: Watch, caller: Caller | None, server: str, body: bytes, reason: str, request: str = "") -> None:
    """Tell *watch* that no server sees the messages in *body*; the arguments are those of :meth:`Watch.refused`."""
    for message in jsonrpc.messages(body, MOST_OF_BATCH):
        watch.refused(caller, server, jsonrpc.method_of(message), message.get("params"), reason, request)
