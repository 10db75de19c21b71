# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workstation: its tools, and what every call of one goes through, in this order (A-9, A-14).

The name is looked up, the rate held, the arguments checked against the schema, what changes something recorded before;
then the tool runs, for as long as it may; and every call is recorded, however it ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from jsonschema.exceptions import best_match
from pydantic import ValidationError

from mcpd.errors import InvalidArgument, LimitExceeded, McpdError, UnknownMethod
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.servers.workstation.audit import Audit
from mcpd.servers.workstation.bucket import Bucket
from mcpd.servers.workstation.call import Call
from mcpd.servers.workstation.environment import Environment
from mcpd.servers.workstation.processes import Processes
from mcpd.servers.workstation.roots import Roots
from mcpd.servers.workstation.settings import ToolNameStyle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from jsonschema.exceptions import ValidationError as JsonSchemaError

    from mcpd.model import JsonValue
    from mcpd.servers.workstation.call import Progress
    from mcpd.servers.workstation.jail import Jail
    from mcpd.servers.workstation.settings import Settings
    from mcpd.servers.workstation.tool import Answer, Arguments, Tool

SECONDS: Final = 30.0
"""What a call may take whose tool has no ``timeout_seconds`` (A-6)."""
RETRY_AFTER: Final = "retry_after"
_ENDING: Final = 10.0
"""Seconds more for a command to be ended with all it has started."""
_THREADS: Final = 16
_SEPARATORS: Final = {ToolNameStyle.SLASH: "/", ToolNameStyle.DOT: ".", ToolNameStyle.UNDERSCORE: "_"}

log = logging.getLogger("mcp-workstation")


class Workstation:
    """The tools of one client."""

    def __init__(self, settings: Settings, tools: Sequence[Tool], *, adopts: bool = False) -> None:
        """*adopts* is whether this process is a subreaper. Raises McpdError for roots that are not there."""
        self._stack = ExitStack()
        self.roots = Roots(settings)
        environment = Environment(settings)
        self._stack.callback(environment.close)
        self._processes = Processes(environment, adopts=adopts)
        self._audit = Audit(settings.state)
        self._stack.callback(self._audit.close)
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")
        self._bucket = Bucket(settings.rate, settings.burst, time.monotonic)
        self._settings = settings
        self._tools = {tool.name.replace("/", separator): tool for tool in tools for separator in _SEPARATORS.values()}
        separator = _SEPARATORS[settings.tool_name_style]
        self.offered = [tool.offered(tool.name.replace("/", separator)) for tool in tools]
        """What ``tools/list`` shows."""
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Answer]] = set()
        self._unrecorded: set[asyncio.Future[None]] = set()
        """One for each call that has not been recorded yet."""
        self._held_back = 0

    async def close(self) -> None:
        """End what runs."""
        for task in self._running:
            task.cancel()
        if self._unrecorded:
            await asyncio.wait(self._unrecorded, timeout=_ENDING)
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        jail: Callable[[], Awaitable[Jail]],
        *,
        client: str = "",
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """The result of ``tools/call`` for *client*, who may touch what *jail* says. Raises McpdError.

        Of a call that came too fast ``data`` says in how many seconds to try again (``retry_after``).
        """
        self._hold_the_rate()
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unrecorded.add(recorded)
        try:
            return await self._recorded(name, arguments, jail, client, progress)
        finally:
            self._unrecorded.discard(recorded)
            recorded.set_result(None)

    async def _recorded(
        self,
        name: str,
        arguments: Mapping[str, Any],
        jail: Callable[[], Awaitable[Jail]],
        client: str,
        progress: Progress | None,
    ) -> dict[str, Any]:
        """What :meth:`call` says, within the rate."""
        entry = _Entry(self._audit, next(self._numbers), name, client, arguments, self._held_back)
        self._held_back = 0
        try:
            tool = self._tool(name)
            entry.tool = tool.name
            given = _checked(tool, arguments)
            seconds = self._seconds(given)
            if not tool.read_only:
                await entry.begin()
            call = Call(
                jail=await jail(),
                settings=self._settings,
                processes=self._processes,
                executor=self._executor,
                seconds=seconds,
                progress=progress,
            )
            result = _result(await self._answer(tool.run(call, given), call))
        except McpdError as fault:
            await entry.end(fault.word, fault.message)
            raise
        except BaseException as error:
            # Nobody waits for it any more, or it is a fault of ours.
            await asyncio.shield(entry.end("Cancelled" if isinstance(error, asyncio.CancelledError) else "Failed"))
            raise
        await entry.end("", strict=tool.read_only)
        return result

    def _tool(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownMethod(f"there is no tool {printable(name)}; tools/list names those there are") from None

    def _hold_the_rate(self) -> None:
        seconds = self._bucket.take()
        if seconds:
            self._held_back += 1
            fault = LimitExceeded(f"more than {self._settings.rate:g} calls a second; try again in {seconds:.2f} s")
            fault.data = {RETRY_AFTER: seconds}
            raise fault

    def _seconds(self, given: Arguments) -> float:
        """What the call may take."""
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
        """What *work* comes to, in time."""
        task = asyncio.create_task(work)
        self._running.add(task)
        try:
            await asyncio.wait({task}, timeout=call.left)
            if not task.done() and call.runs_command:
                # It is being ended with all it has started, and says itself that it took too long.
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
    """What the audit trail has of one call."""

    def __init__(
        self, audit: Audit, number: int, name: str, client: str, arguments: Mapping[str, Any], held_back: int
    ) -> None:
        """*held_back* is how many calls were refused before this one, as they came too fast."""
        self.tool = printable(name)
        self._audit, self._arguments = audit, arguments
        self._began = time.monotonic()
        self._fields: dict[str, JsonValue] = {"call": number, "client": printable(client)}
        if held_back:
            self._fields["held_back"] = held_back

    async def begin(self) -> None:
        """Record that it begins. Raises McpdError, and then it must not."""
        await self._audit.record({"event": "begin", "tool": self.tool, **self._fields}, self._arguments)

    async def end(self, error: str, message: str = "", *, strict: bool = False) -> None:
        """Record how it ended, with *error* unless that is empty. Raises McpdError if *strict*, and logs otherwise."""
        said: dict[str, JsonValue] = {"error": error, "message": printable(message)} if error else {}
        taken = round((time.monotonic() - self._began) * 1000, 1)
        fields = {"event": "end", "tool": self.tool, **self._fields, "ok": not error, **said, "milliseconds": taken}
        try:
            await self._audit.record(fields, self._arguments)
        except McpdError as fault:
            if strict:
                raise
            log.error("%s: %s", fault.message, json.dumps(fields))  # noqa: TRY400 - it is no fault of the program's


def _checked(tool: Tool, arguments: Mapping[str, Any]) -> Arguments:
    """*arguments* of *tool*. What is null is as good as left out. Raises :class:`~mcpd.errors.InvalidArgument`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    fault = best_match(tool.validator.iter_errors(given))
    if fault is not None:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path).lstrip(".")
        error = InvalidArgument(f"{tool.name}: {printable(where) + ': ' if where else ''}{_message(fault)}")
        error.data = {"argument": printable(where)}
        raise error
    try:
        return tool.arguments.model_validate(given)
    except ValidationError as error:
        raise InvalidArgument(f"{tool.name}: {first_fault(error)}") from error


def _message(fault: JsonSchemaError) -> str:
    """What *fault* says, without the value, which may be megabytes long."""
    schema, instance = fault.schema, fault.instance
    rule, wanted = fault.validator, fault.validator_value
    if isinstance(schema, dict) and isinstance(instance, dict):
        known: dict[str, Any] = schema.get("properties", {})
        extra = next((name for name in instance if name not in known), None)
        if rule == "additionalProperties" and extra is not None:
            return f"there is no argument {printable(extra)!r}; there are {', '.join(known)}"
        missing = next((name for name in schema.get("required", ()) if name not in instance), None)
        if rule == "required" and missing is not None:
            return f"the argument {missing!r} is missing"
    shown = printable(json.dumps(instance))
    if rule == "enum" and isinstance(wanted, list):
        return f"{shown} is none of {', '.join(map(str, wanted))}"
    return f"{shown} does not fit {printable(json.dumps({str(rule): wanted}))}"


def _result(answer: Answer) -> dict[str, Any]:
    structured = answer.result.model_dump(mode="json", exclude_none=True)
    content = [*answer.content] or [{"type": "text", "text": json.dumps(structured, ensure_ascii=False)}]
    return {"content": content, "structuredContent": structured}
