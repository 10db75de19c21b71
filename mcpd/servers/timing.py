# SPDX-License-Identifier: LGPL-2.1-or-later
"""Durations of a bundled server's messages: a line on stderr, which the journal stores, for each message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcpd.model import printable

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable, Mapping

_SUBJECTS: Final = ("name", "uri")


class Request(Protocol):
    """The attributes of a request or notification in the SDK's middleware."""

    @property
    def method(self) -> str:
        """The method, as received."""

    @property
    def params(self) -> Mapping[str, Any] | None:
        """The parameters, as received."""


class Timing:
    """A middleware of the SDK's low-level server that logs ``tools/call echo: 12.3 ms`` to *log* for each message.

    A failure is marked: ``failed`` for an error of the protocol or a result with ``isError``, ``cancelled`` for a
    cancelled request.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    async def __call__(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Process *ctx*, a :class:`Request`, with *call_next*."""
        began = time.perf_counter()
        how = ", cancelled"
        try:
            result = await call_next(ctx)
            how = ", failed" if isinstance(result, dict) and result.get("isError") is True else ""
        except Exception:
            how = ", failed"
            raise
        finally:
            taken = (time.perf_counter() - began) * 1000
            self._log.info("%s: %.1f ms%s", subject(ctx), taken, how)
        return result


def subject(request: Request) -> str:
    """Return the subject of *request* in one printable line: the method, and the name or URI in it."""
    params = request.params or {}
    named = next((params[key] for key in _SUBJECTS if isinstance(params.get(key), str)), "")
    return printable(f"{request.method} {named}".rstrip())


def in_one_line(text: str) -> str:
    """Return untrusted *text* for one line of the log: at most 2,000 characters, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:2000])
