# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts every call, and has those of tools recorded: the :class:`~mcpd.bridge.observe.watch.Watch` of a bridge.

All of it is on the path of calls, so it does no more than it must: who, what and how long. What costs more is done
when somebody asks (:mod:`.exposition`) or by a thread (:mod:`.audit`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from mcpd.bridge.budget import COUNTED_FROM
from mcpd.bridge.observe.audit import Audit, Params, Unread, read_params
from mcpd.bridge.observe.metrics import BOUNDS
from mcpd.bridge.observe.watch import Outcome

if TYPE_CHECKING:
    from mcpd.bridge.callers import Caller
    from mcpd.bridge.jsonrpc import Raw
    from mcpd.bridge.observe.audit import Output
    from mcpd.bridge.observe.metrics import Metrics
    from mcpd.bridge.upstream.call import Call

TOOL_CALL: Final = "tools/call"
TOOL_ERROR: Final = "tool-error"
"""The outcome of a call whose result says ``isError``."""
_SEARCHED: Final = 4096
"""Bytes at both ends of a large response in which ``isError`` is looked for: it stands before or after all content."""
_SEARCHED_WHOLE: Final = 32_768

_KEY: Final = b'"isError"'
_USUAL_END: Final = b'"isError":false}}'
_says_error: Final = re.compile(rb"\s*:\s*true").match
_RESULT: Final = Outcome.RESULT


class _Result(msgspec.Struct):
    is_error: bool = msgspec.field(default=False, name="isError")


class _Response(msgspec.Struct):
    result: _Result = msgspec.field(default_factory=_Result)


_decode_response = msgspec.json.Decoder(_Response).decode
_NOTHING: Final = Params()
_name_first = re.compile(rb'\{"name":"([^"\\]{1,128})",').match
"""The name of the tool, where most clients write it."""


class Observer:
    """Takes down what happens into *metrics*, and has calls of tools recorded in *output*, if that is wanted."""

    def __init__(self, metrics: Metrics, output: Output | None = None) -> None:
        self.metrics = metrics
        self._calls: Final = metrics.calls
        self._replies: Final = metrics.replies
        self.audit = audit = None if output is None else Audit(output)
        if audit is not None:
            metrics.unrecorded = lambda: audit.lost

    def ended(self, server: str, call: Call, outcome: Outcome, response: bytes) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        caller = call.sink.caller
        if caller is None:
            return
        now = monotonic()
        seconds = now - call.started
        method = call.method
        size = len(response)
        key = (caller, server, method)
        calls = self._calls.get(key) or self.metrics.of_calls(key)
        times = calls.times
        times.counts[bisect_left(BOUNDS, seconds)] += 1
        times.total += seconds
        calls.sent += call.size
        calls.received += size
        if method != TOOL_CALL:
            if outcome is _RESULT:
                calls.results += 1
            else:
                calls.add(outcome.value)
            return
        if outcome is not _RESULT:
            word = outcome.value
        elif response.endswith(_USUAL_END):
            word = "result"
        else:
            word = TOOL_ERROR if is_tool_error(response, size) else "result"
        raw = call.params
        arguments: Raw | Unread
        if raw is not None and call.size > COUNTED_FROM and (found := _name_first(raw)) is not None:
            # To look for what else there is would take longer than all the rest of the call.
            name, arguments = found.group(1).decode(errors="replace"), Unread(raw)
        else:
            params = read_params(raw) if raw is not None else _NOTHING
            name, arguments = params.name, params.arguments
        both = (name, word)
        if both in calls.tools:
            calls.tools[both] += 1
        else:
            calls.add_tool(name, word)
        if self.audit is not None:
            record = (now, caller, server, name, word, seconds, arguments, size, call.sink.request_id, call.id)
            self.audit.take(record, call.size)

    def refused(
        self, caller: Caller | None, server: str, method: str, params: Raw | None, reason: str, request: str = ""
    ) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        if caller is None:
            return
        self.metrics.refused(caller, server, reason)
        if self.audit is not None and method == TOOL_CALL:
            given = read_params(params) if params is not None else _NOTHING
            # The whole is kept in memory with them.
            size = memoryview(params).nbytes if params is not None else 0
            self.audit.take(
                (monotonic(), caller, server, given.name, f"refused:{reason}", 0.0, given.arguments, 0, request, b""),
                size,
            )

    def started(self, caller: Caller, server: str, seconds: float, *, failed: bool) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        numbers = self.metrics.process(caller, server)
        if failed:
            numbers.failures += 1
            return
        numbers.starts.observe(seconds)
        numbers.restarts += numbers.is_restart
        numbers.is_restart = False

    def opened(self, caller: Caller, server: str) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        self.metrics.process(caller, server).running += 1

    def gone(self, caller: Caller, server: str, *, died: bool, served: bool) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        numbers = self.metrics.process(caller, server)
        numbers.running -= 1
        if not served:
            numbers.failures += 1
        elif died:
            numbers.crashes += 1
            numbers.is_restart = True

    def http(self, route: str, status: int, seconds: float) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        key = (route, status)
        times = self._replies.get(key) or self.metrics.of_replies(key)
        times.counts[bisect_left(BOUNDS, seconds)] += 1
        times.total += seconds

    def reopen(self) -> None:
        """Record in the file that has the name now. Raises :class:`~mcpd.errors.McpdError`."""
        if self.audit is not None:
            self.audit.output.reopen()

    async def close(self) -> None:
        """See :class:`~mcpd.bridge.observe.watch.Watch`."""
        if self.audit is not None:
            await self.audit.close()


def is_tool_error(response: bytes, size: int) -> bool:
    """Return True if the result in *response* has ``isError``. Text cannot contain it, as its quotes are escaped."""
    ends = response if size <= _SEARCHED_WHOLE else response[:_SEARCHED] + b" " + response[-_SEARCHED:]
    found = ends.find(_KEY)
    while found >= 0:
        found += len(_KEY)
        # What is no "false" is looked at closely: it may have blanks before it, or belong to something inside.
        if not ends.startswith(b":false", found) and _says_error(ends, found) is not None:
            return _is_error(response)
        found = ends.find(_KEY, found)
    return False


def _is_error(response: bytes) -> bool:
    try:
        return _decode_response(response).result.is_error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Written as what it is not, such as the text "true": not what a client takes for an error either.
        return False
