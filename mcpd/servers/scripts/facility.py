# SPDX-License-Identifier: LGPL-2.1-or-later
"""A script server without the protocol: its lists of tools, resources and prompts, and the execution of requests."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from mcpd.errors import McpdError, UnknownMethod
from mcpd.servers.pagination import PAGE, Pages
from mcpd.servers.scripts import running
from mcpd.servers.scripts.checking import Checks
from mcpd.servers.scripts.offer import Tools
from mcpd.servers.scripts.prompts import MOST_COMPLETIONS, Prompts
from mcpd.servers.scripts.resources import LastResult, Reader, Resources
from mcpd.servers.scripts.transforms import generated
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcpd.servers.scripts.definition import Definition
    from mcpd.servers.scripts.resources import Other
    from mcpd.servers.scripts.running import Progress
    from mcpd.servers.scripts.transforms import Kind, Runs

PROBLEMS: Final = "org.mcpd/problems"
"""Key in the ``_meta`` of a list for the problems of the server."""
LAST: Final = ".last-result.json"
"""The file with the result of the last call, in the server's home."""
MOST_PROBLEMS: Final = 100
LONGEST_PROBLEM: Final = 1000
"""Maximum length in characters."""
MOST_CALLS: Final = 64
"""Maximum number of concurrent calls; others wait."""
AGAIN: Final = 10.0
"""Seconds after a failure before a list is created again on request."""

log = logging.getLogger("mcp-scripts")
T = TypeVar("T")


class _Offer(Protocol):
    """Tools, resources or prompts."""

    problems: list[str]
    listed: list[dict[str, Any]]


M = TypeVar("M", bound=_Offer)


class Facility:
    """The server *definition*, whose functions are run by *runs*; *other* calls tools of other servers.

    Lists have pages of *size*. Transforms run once, when their result is first needed. The last result is saved in
    *home*, by default the server's own.
    """

    def __init__(
        self, definition: Definition, runs: Runs, other: Other, size: int = PAGE, home: Path | None = None
    ) -> None:
        self.definition = definition
        self._runs = runs
        self._server = running.Server(definition, runs, Checks(definition.limits().seconds))
        self._other = other
        self._size = size
        self._room = asyncio.Semaphore(MOST_CALLS)
        self._running: set[asyncio.Future[Any]] = set()
        self._last = LastResult(definition, (home or Path(os.environ.get("HOME") or "/")) / LAST)
        self._tools = _Once(partial(self._make, "tools", Tools))
        self._resources = _Once(partial(self._make, "resources", Resources))
        self._prompts = _Once(partial(self._make, "prompts", Prompts))

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        """Return the result of ``tools/list``. Raises :class:`~mcpd.errors.InvalidArgument` for an invalid cursor."""
        return self._page("tools", await self._tools(), cursor)

    async def list_resources(self, cursor: str | None) -> dict[str, Any]:
        """Return the result of ``resources/list``; raises the same."""
        return self._page("resources", await self._resources(), cursor)

    async def list_prompts(self, cursor: str | None) -> dict[str, Any]:
        """Return the result of ``prompts/list``; raises the same."""
        return self._page("prompts", await self._prompts(), cursor)

    async def call_tool(self, name: str, arguments: dict[str, Any], on_progress: Progress | None) -> dict[str, Any]:
        """Return the result of ``tools/call``. Cancellation ends the call's processes.

        Failures are results, so that a model can react to them; if the entry's ``errorMapping`` is ``json-rpc``, they
        raise :class:`~mcpd.errors.McpdError` with the matching code.
        """
        try:
            tool = (await self._tools()).made.get(name)
            if tool is None:
                raise UnknownMethod(f"Unknown tool: {name[:1000]}")
            found = await self._apart(partial(running.call, self._server, tool, arguments, on_progress))
        except McpdError as error:
            if self._raises:
                raise
            return running.failed(error.message)
        if not found["isError"]:
            await self._keep(found)
        elif self._raises:
            raise McpdError(running.text_of(found))
        return found

    async def _keep(self, result: dict[str, Any]) -> None:
        if not self._last.is_kept:
            return
        try:
            await asyncio.to_thread(self._last.keep, result)
        except McpdError as error:
            log.warning("the result is not kept for resources: %s", in_one_line(error.message))

    @property
    def _raises(self) -> bool:
        return self.definition.entry.runtime.error_mapping == "json-rpc"

    async def read_resource(self, uri: str, hops: int) -> dict[str, Any]:
        """Return the result of ``resources/read``; raises as :meth:`~mcpd.servers.scripts.resources.Reader.read`."""
        reader = Reader(self._server, (await self._resources()).made, self._made_tools, self._other, self._last)
        return {"contents": await self._apart(partial(reader.read, uri, hops))}

    async def _made_tools(self) -> Tools:
        return (await self._tools()).made

    async def check_prompt(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise :class:`~mcpd.errors.InvalidArgument` for an unknown prompt, and for arguments that are not strings.

        The SDK's own error would not name them.
        """
        (await self._prompts()).made.get(name).check_strings(arguments)

    async def get_prompt(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the result of ``prompts/get``. Raises :class:`~mcpd.errors.InvalidArgument`."""
        prompt = (await self._prompts()).made.get(name)
        return await self._apart(partial(prompt.get, self._server, arguments))

    async def complete(self, prompt: str, argument: str, begun: str) -> dict[str, Any]:
        """Return the result of ``completion/complete`` for an *argument* of a prompt. Raises the same."""
        values = (await self._prompts()).made.get(prompt).complete(argument, begun)
        some = values[:MOST_COMPLETIONS]
        return {"completion": {"values": some, "total": len(values), "hasMore": len(some) < len(values)}}

    async def describe(self) -> dict[str, Any]:
        """Return everything that is offered, with all problems."""
        tools, resources = (await self._tools()).made, (await self._resources()).made
        prompts = (await self._prompts()).made
        return {
            "tools": tools.listed,
            "resources": resources.listed,
            "prompts": prompts.listed,
            "problems": _shown(
                [*tools.problems, *resources.problems, *resources.without_tool(tools), *prompts.problems]
            ),
        }

    async def close(self) -> None:
        """End everything that runs."""
        for once in (self._tools, self._resources, self._prompts):
            await once.close()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._server.checks.close()
        await self._runs.close()

    async def _apart(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run *work* in a task of its own, when a slot is free.

        If cancelled, the task ends its processes without interruption; the SDK would cancel each of its awaits.
        """
        task = asyncio.ensure_future(self._in_room(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _in_room(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._room:
            return await work()

    async def _make(self, kind: Kind, make: Callable[[Definition, list[Any], list[str]], M]) -> _List[M]:
        """Return what *make* creates from the results of the transform, in a thread, as it may read and check much."""
        given, problems = await generated(self.definition, self._runs, kind)
        found = await asyncio.to_thread(self._listed, kind, make, given, problems)
        _report(found.made.problems)
        return found

    def _listed(
        self,
        kind: Kind,
        make: Callable[[Definition, list[Any], list[str]], M],
        given: list[Any],
        problems: list[str],
    ) -> _List[M]:
        made = make(self.definition, given, problems)
        return _List(made, Pages(kind, made.listed, self._size), whole=not problems)

    def _page(self, kind: Kind, found: _List[Any], cursor: str | None) -> dict[str, Any]:
        some, following = found.pages.page(cursor)
        result: dict[str, Any] = {kind: some}
        if following is not None:
            result["nextCursor"] = following
        if found.made.problems:
            result["_meta"] = {PROBLEMS: _shown(found.made.problems)}
        return result


@dataclass(frozen=True, slots=True)
class _List(Generic[M]):
    """Tools, resources or prompts, and the list of them in pages."""

    made: M
    pages: Pages[dict[str, Any]]
    whole: bool
    """True if the results of the transform are complete."""


class _Once(Generic[M]):
    """The result of *make*, created once on the first request, even if the requester is cancelled.

    After a failure, or if a transform has failed, it is created again on a request at least :data:`AGAIN` seconds
    later.
    """

    def __init__(self, make: Callable[[], Awaitable[_List[M]]]) -> None:
        self._make = make
        self._task: asyncio.Future[_List[M]] | None = None
        self._failed_at = 0.0

    async def __call__(self) -> _List[M]:
        if self._task is None or (self._has_failed() and monotonic() >= self._failed_at + AGAIN):
            self._task = asyncio.ensure_future(self._made())
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _made(self) -> _List[M]:
        try:
            return await self._make()
        finally:
            self._failed_at = monotonic()

    def _has_failed(self) -> bool:
        task = self._task
        if task is None or not task.done():
            return False
        return task.cancelled() or task.exception() is not None or not task.result().whole


def _shown(problems: Sequence[str]) -> list[str]:
    return [problem[:LONGEST_PROBLEM] for problem in problems[:MOST_PROBLEMS]]


def _report(problems: Sequence[str]) -> None:
    for problem in _shown(problems):
        log.warning("%s", in_one_line(problem))
