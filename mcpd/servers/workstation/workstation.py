# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workstation: its tools, and the steps of each call.

In this order: the rate is limited, the tool looked up, its arguments checked against the schema, the client's roots
requested and, for a tool that changes something, the beginning recorded; then the tool runs, until the time limit.
Every call is recorded, however it ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mcpd.errors import InvalidArgument, LimitExceeded, McpdError, UnknownMethod
from mcpd.model import printable
from mcpd.servers.checking import checked, is_large, size_of
from mcpd.servers.workstation.audit import PLACES, Audit, Named
from mcpd.servers.workstation.bucket import Bucket
from mcpd.servers.workstation.call import Call, timed_out
from mcpd.servers.workstation.processes import Environment, Processes
from mcpd.servers.workstation.roots import Roots
from mcpd.servers.workstation.settings import ToolNameStyle, ToolSet
from mcpd.servers.workstation.tool import Answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence

    from mcpd.model import JsonValue
    from mcpd.servers.workstation.call import Progress
    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.settings import Settings
    from mcpd.servers.workstation.tool import Answer, Arguments, Tool

SECONDS: Final = 30.0
"""Time limit in seconds of tools without ``timeout_seconds``."""
RETRY_AFTER: Final = "retry_after"
SUMMARY: Final = 0.5
"""Seconds after a call above the rate, in which further ones are counted in the same line of the audit log."""
_ENDING: Final = 10.0
"""Additional seconds for ending a command with all its processes."""
_THREADS: Final = 16
_SEPARATORS: Final = {ToolNameStyle.SLASH: "/", ToolNameStyle.DOT: ".", ToolNameStyle.UNDERSCORE: "_"}

T = TypeVar("T")

log = logging.getLogger("mcp-workstation")


class Workstation:
    """The tools of one client."""

    def __init__(self, settings: Settings, tools: Sequence[Tool]) -> None:
        """Open the roots. Raises McpdError for one that cannot be a root."""
        self._stack = ExitStack()
        self.roots = Roots(settings)
        for missing in self.roots.missing:
            log.warning("%s", missing.refusal)
        environment = Environment(settings)
        self._stack.callback(environment.close)
        self._processes = Processes(environment)
        self._stack.callback(self._processes.close)
        self._audit = Audit(settings.state)
        self._stack.callback(self._audit.close)
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")
        self._bucket = Bucket(settings.rate, settings.burst, time.monotonic)
        self._settings = settings
        self._tools = {_styled(tool.name, style): tool for tool in tools for style in ToolNameStyle}
        self.offered = [
            tool.offered(_styled(tool.name, settings.tool_name_style), results=settings.tools is ToolSet.ALL)
            for tool in tools
        ]
        """The tools as listed by ``tools/list``."""
        self._numbers = itertools.count(1)
        self._answers = Answers()
        self._running: set[asyncio.Task[Any]] = set()
        self._unrecorded: set[asyncio.Future[None]] = set()
        """One future for each call that has not been recorded yet."""
        self._held_back = 0
        """Number of calls above the rate that are not recorded yet."""
        self._closing = asyncio.Event()

    async def close(self) -> None:
        """End all running calls."""
        for task in self._running:
            task.cancel()
        self._closing.set()
        if self._unrecorded:
            await asyncio.wait(self._unrecorded, timeout=_ENDING)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    async def check(self, name: str, arguments: Mapping[str, Any], *, client: str = "") -> None:
        """Raise the errors that :meth:`call` would raise before it requests the roots.

        A valid call is neither counted nor recorded: it comes again with the roots.
        """
        self._hold_the_rate(client)
        with self._recording():
            entry = self._entry(name, arguments, client)
            try:
                await self._prepared(name, arguments, entry)
            except McpdError as fault:
                await entry.end(fault.word, fault.message)
                raise
            self._bucket.give_back()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        jail: Callable[[], Awaitable[Jail]],
        *,
        client: str = "",
        progress: Progress | None = None,
        when_sent: Callable[[Callable[[], None]], None] | None = None,
    ) -> dict[str, Any]:
        """Return the result of ``tools/call`` for *client*, which may access *jail*. Raises McpdError.

        The error of a call above the rate has the seconds to wait in ``data`` (``retry_after``). *when_sent* is called
        with a function to call when the result was sent, as its memory is counted until then.
        """
        self._hold_the_rate(client)
        with self._recording(), ExitStack() as taken:
            entry = self._entry(name, arguments, client)
            try:
                result = await self._run(name, arguments, jail, entry, progress, taken)
            except McpdError as fault:
                await entry.end(fault.word, fault.message)
                raise
            except BaseException as error:
                # The call was cancelled, or this is an internal error.
                await asyncio.shield(entry.end("Cancelled" if isinstance(error, asyncio.CancelledError) else "Failed"))
                raise
            await entry.end("")
            if when_sent is not None:
                when_sent(taken.pop_all().close)
        return result

    async def _run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        jail: Callable[[], Awaitable[Jail]],
        entry: _Entry,
        progress: Progress | None,
        taken: ExitStack,
    ) -> dict[str, Any]:
        """Run the tool as :meth:`call` does, within the rate; *taken* gets the callback that releases the memory."""
        began = time.monotonic()
        tool, given, seconds = await self._prepared(name, arguments, entry)
        async with self._in_time(began, seconds):
            found = await jail()
            share = await self._answers.share(small="timeout_seconds" in tool.arguments.model_fields)
        taken.callback(share.is_now, 0)
        entry.named.resolve(found)
        for place in PLACES:
            path = getattr(given, place, None)
            if isinstance(path, str):
                found.check_root(path)
        if not tool.read_only:
            await entry.begin()
        call = Call(
            jail=found,
            settings=self._settings,
            processes=self._processes,
            executor=self._executor,
            seconds=seconds,
            began=began,
            progress=progress,
        )
        answer = await self._answer(tool.run(call, given), call)
        async with self._in_time(began, seconds):
            result, size = await self._out_of_the_way(lambda: _result(answer), answer.result, answer.content)
        share.is_now(size)
        return result

    async def _prepared(self, name: str, arguments: Mapping[str, Any], entry: _Entry) -> tuple[Tool, Arguments, float]:
        """Return the tool, its arguments, and the call's time limit in seconds. Raises McpdError."""
        tool = self._tool(name)
        entry.tool, entry.strict = tool.name, tool.read_only
        async with self._in_time(time.monotonic(), SECONDS):
            given = await self._out_of_the_way(lambda: checked(tool, arguments), arguments)
        return tool, given, self._seconds(given)

    async def _out_of_the_way(self, function: Callable[[], T], *about: object) -> T:
        """Run *function* and return its result; in a thread if the objects *about* are so large that it takes long."""
        if not is_large(about):
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    @asynccontextmanager
    async def _in_time(self, began: float, seconds: float) -> AsyncIterator[None]:
        """Raise :class:`~mcpd.errors.TimedOut` *seconds* after *began*, and cancel at :meth:`close`."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running.add(task)
        try:
            async with asyncio.timeout(began + seconds - time.monotonic()) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise timed_out(seconds) from None
        finally:
            self._running.discard(task)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Make :meth:`close` wait until the call was recorded."""
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unrecorded.add(recorded)
        try:
            yield
        finally:
            self._unrecorded.discard(recorded)
            recorded.set_result(None)

    def _entry(self, name: str, arguments: Mapping[str, Any], client: str) -> _Entry:
        return _Entry(self._audit, next(self._numbers), name, client, Named(arguments))

    def _tool(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            others = "" if self._settings.tools is ToolSet.ALL else "; to get all tools, set tools=all"
            raise UnknownMethod(f"unknown tool {printable(name)}; see tools/list{others}") from None

    def _hold_the_rate(self, client: str) -> None:
        seconds = self._bucket.take()
        if seconds:
            self._held_back += 1
            if self._held_back == 1:
                recorded = asyncio.create_task(self._record_held_back(client))
                self._unrecorded.add(recorded)
                recorded.add_done_callback(self._unrecorded.discard)
            fault = LimitExceeded(f"more than {self._settings.rate:g} calls a second; try again in {seconds:.2f} s")
            fault.data = {RETRY_AFTER: seconds}
            raise fault

    async def _record_held_back(self, client: str) -> None:
        """Record in one line how many calls of *client* exceed the rate within :data:`SUMMARY` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SUMMARY):
                await self._closing.wait()
        fields: dict[str, JsonValue] = {
            "event": "held_back",
            "client": printable(client),
            "calls": self._held_back,
            "ok": False,
            "error": LimitExceeded("").word,
        }
        self._held_back = 0
        try:
            await self._audit.record(fields)
        except McpdError as fault:
            log.error("%s: %s", fault.message, json.dumps(fields))  # noqa: TRY400 - it is no fault of the program's

    def _seconds(self, given: Arguments) -> float:
        """Return the call's time limit in seconds. Raises :class:`~mcpd.errors.InvalidArgument` if it is too long."""
        asked = getattr(given, "timeout_seconds", None)
        if asked is None:
            return SECONDS
        most = self._settings.call_timeout
        if "timeout_seconds" not in given.model_fields_set:
            return min(float(asked), most)
        if asked > most:
            raise InvalidArgument(
                f"timeout_seconds is {printable(str(asked))}, and a call may take {most:g} at most (call_timeout)"
            )
        return float(asked)

    async def _answer(self, work: Coroutine[Any, Any, Answer], call: Call) -> Answer:
        """Return the result of *work*, within the time limit."""
        task = asyncio.create_task(work)
        self._running.add(task)
        try:
            await asyncio.wait({task}, timeout=call.left)
            if not task.done() and call.runs_command:
                # Its command is being ended with all its processes, and then raises TimedOut itself.
                await asyncio.wait({task}, timeout=_ENDING)
            if not task.done():
                raise call.timed_out()
            return task.result()
        finally:
            call.end()
            self._running.discard(task)
            if not task.done():
                task.cancel()
                # A command ends before this does; a thread that waits for a disk may not end at all.
                await asyncio.wait({task}, timeout=_ENDING)


class _Entry:
    """The lines of the audit log about one call."""

    def __init__(self, audit: Audit, number: int, name: str, client: str, named: Named) -> None:
        self.tool = printable(name)
        self.strict = False
        """True if a successful end that cannot be recorded is an error: no other line records the call."""
        self.named = named
        self._audit = audit
        self._began = time.monotonic()
        self._fields: dict[str, JsonValue] = {"call": number, "client": printable(client)}

    async def begin(self) -> None:
        """Record the beginning. Raises McpdError if that fails; the tool must not run then."""
        await self._audit.record({"event": "begin", "tool": self.tool, **self._fields}, self.named)

    async def end(self, error: str, message: str = "") -> None:
        """Record the end, with *error* and *message* if it failed.

        Raises McpdError if a successful end that has to be recorded cannot be; otherwise that is logged.
        """
        said: dict[str, JsonValue] = {"error": error, "message": printable(message)} if error else {}
        taken = round((time.monotonic() - self._began) * 1000, 1)
        fields = {"event": "end", "tool": self.tool, **self._fields, "ok": not error, **said, "milliseconds": taken}
        try:
            await self._audit.record(fields, self.named)
        except McpdError as fault:
            if self.strict and not error:
                raise
            log.error("%s: %s", fault.message, json.dumps(fields))  # noqa: TRY400 - it is no fault of the program's


def _styled(name: str, style: ToolNameStyle) -> str:
    """Return the tool's *name*, such as ``filesystem_read``, in *style*."""
    return name.replace("_", _SEPARATORS[style], 1)


def _result(answer: Answer) -> tuple[dict[str, Any], int]:
    """Return *answer* as it is sent, and its approximate size in memory in bytes."""
    structured = answer.result.model_dump(mode="json", exclude_none=True)
    content = [*answer.content] or [{"type": "text", "text": json.dumps(structured, ensure_ascii=False)}]
    result = {"content": content, "structuredContent": structured}
    return result, size_of(result)
