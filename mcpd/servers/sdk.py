# SPDX-License-Identifier: LGPL-2.1-or-later
"""The common base of bundled servers on the SDK: both eras of MCP over stdio, until the client has gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args, runtime_checkable

import anyio
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import DiscoverResult, ErrorData, JSONRPCError, JSONRPCNotification, RequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from mcpd.errors import McpdError, NotFound
from mcpd.model.base import first_fault
from mcpd.servers.draining import Incoming, Outgoing, Pending
from mcpd.servers.notices import Progress as Progress  # noqa: PLC0414 -- for the servers
from mcpd.servers.stdio_lines import Lines, Refusal, claim_stdin, overlooked, refusals
from mcpd.servers.timing import Timing, in_one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.models import InitializationOptions

    from mcpd.servers.changes import Changes
    from mcpd.servers.logs import Log

    Context = ServerRequestContext[Any, Any]
    Next = Callable[[Any], Awaitable[Any]]

REVISIONS: Final = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)
"""The supported revisions of MCP, oldest first."""
ERROR_META: Final = "org.mcpd/error"
"""Key of the error in the ``_meta`` of a result."""
RESOURCE_NOT_FOUND: Final = -32002
"""JSON-RPC code before revision 2026-07-28, in which it is -32602."""


class Tools(Protocol):
    """Handlers of requests for tools; results are made by :func:`complete`."""

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None, /) -> Any:
        """Handle ``tools/list``."""

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams, /) -> Any:
        """Handle ``tools/call``."""


@runtime_checkable
class Resources(Protocol):
    """Handlers of requests for resources."""

    async def list_resources(self, ctx: Context, params: types.PaginatedRequestParams | None, /) -> Any:
        """Handle ``resources/list``."""

    async def list_resource_templates(self, ctx: Context, params: types.PaginatedRequestParams | None, /) -> Any:
        """Handle ``resources/templates/list``."""

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams, /) -> Any:
        """Handle ``resources/read``."""


@runtime_checkable
class Prompts(Protocol):
    """Handlers of requests for prompts."""

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None, /) -> Any:
        """Handle ``prompts/list``."""

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams, /) -> Any:
        """Handle ``prompts/get``."""


@runtime_checkable
class Completions(Protocol):
    """Handler of completions for arguments of prompts and of resource templates."""

    async def complete(self, ctx: Context, params: types.CompleteRequestParams, /) -> Any:
        """Handle ``completion/complete``."""


def make_server(  # noqa: PLR0913 -- all but the first go by their names
    name: str,
    *,
    version: str,
    title: str | None,
    instructions: str | None,
    log: logging.Logger,
    handlers: Tools,
    list_changed: bool,
    check: Callable[[Context], Awaitable[None]] | None = None,
    changes: Changes | None = None,
) -> Server[Any]:
    """Return a server of the SDK with *handlers*, for both eras.

    Its capabilities are those of *handlers*: :class:`Tools`, and optionally :class:`Resources`, :class:`Prompts` and
    :class:`Completions`. Messages are timed, and exceptions become errors of the protocol. *check* is called with each
    request before the SDK validates it, and may raise McpdError. *list_changed* declares that lists may change. With
    *changes*, clients can subscribe to resources.
    """
    resources = handlers if isinstance(handlers, Resources) else None
    prompts = handlers if isinstance(handlers, Prompts) else None
    completions = handlers if isinstance(handlers, Completions) else None
    server: Server[Any] = (_Changing if changes else Server)(
        name,
        version=version,
        title=title,
        instructions=instructions,
        cache_hints={method: CacheHint() for method in get_args(CacheableMethod)},
        on_subscriptions_listen=changes.listen if changes else ListenHandler(InMemorySubscriptionBus()),
        on_subscribe_resource=changes.subscribe if changes else None,
        on_unsubscribe_resource=changes.unsubscribe if changes else None,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=resources.list_resources if resources else None,
        on_list_resource_templates=resources.list_resource_templates if resources else None,
        on_read_resource=resources.read_resource if resources else None,
        on_list_prompts=prompts.list_prompts if prompts else None,
        on_get_prompt=prompts.get_prompt if prompts else None,
        on_completion=completions.complete if completions else None,
    )

    async def discover(ctx: Context, _params: RequestParams | None) -> DiscoverResult:
        capabilities = server.get_capabilities(protocol_version=ctx.protocol_version)
        for each in (capabilities.tools, capabilities.resources, capabilities.prompts):
            if each is not None:
                each.list_changed = list_changed
        if capabilities.resources is not None:
            capabilities.resources.subscribe = changes is not None
            capabilities.resources.list_changed = list_changed or changes is not None
        versions = list(MODERN_PROTOCOL_VERSIONS)
        return DiscoverResult(supported_versions=versions, capabilities=capabilities, instructions=server.instructions)

    server.add_request_handler("server/discover", RequestParams, discover)
    server.middleware[:] = [Timing(log), _Guard(log, check), *([changes.notice] if changes else [])]
    return server


class _Changing(Server[Any]):
    """A server whose list of resources changes."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *others: Any, **more: Any
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions()
        options.resources_changed = True
        return super().create_initialization_options(options, *others, **more)


class _Guard:
    """Middleware that converts exceptions into errors of the protocol."""

    def __init__(self, log: logging.Logger, check: Callable[[Context], Awaitable[None]] | None) -> None:
        self._log, self._check = log, check

    async def __call__(self, ctx: Context, call_next: Next) -> Any:
        if ctx.request_id is None:
            return await call_next(ctx)
        try:
            if self._check is not None:
                await self._check(ctx)
            return await call_next(ctx)
        except McpdError as fault:
            data: Mapping[str, object] | None = fault.data
            code = fault.jsonrpc_code
            older = ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
            if ctx.method == "resources/read" and isinstance(fault, NotFound) and data is not None and older:
                code = RESOURCE_NOT_FOUND
            raise MCPError(code, fault.message, data) from fault
        except ValidationError as error:
            raise MCPError(-32602, f"{ctx.method}: {first_fault(error)}") from error
        except MCPError:
            raise
        except Exception as error:
            self._log.exception("%s", in_one_line(str(ctx.method)))
            raise MCPError(-32603, "Internal error") from error


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Return *result* in the form of revision 2026-07-28; the SDK removes new members for older clients.

    Raises McpdError for a value that cannot be encoded, with which the SDK would exit.
    """
    try:
        to_json(result)
    except ValueError as error:
        raise McpdError(
            "what was to be sent holds half a surrogate pair, which is no character, or is nested too deeply"
        ) from error
    return {**result, "resultType": "complete"}


def failed(fault: McpdError, code: int) -> dict[str, Any]:
    """Return the result of a tool that failed: the message for the model, the whole error in ``_meta``.

    Raises the errors of :func:`complete`.
    """
    error = {"code": code, "message": fault.message, **(fault.data or {})}
    content = [{"type": "text", "text": fault.message}]
    return complete({"content": content, "isError": True, "_meta": {ERROR_META: error}})


def hush() -> None:
    """Prevent libraries from logging each message, as one line is logged here."""
    for name in ("mcp", "httpx2", "httpcore2", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)


async def serve(
    server: Server[Any],
    *,
    list_changed: bool,
    lines: Log,
    log: logging.Logger,
    close: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Serve over stdio until the end of stdin or SIGTERM, then call *close*, and end the process with status 0."""
    hush()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(_run(server, list_changed=list_changed, log=log))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if close is not None:
        await close()
    if serving.done():
        try:
            serving.result()
        except* OSError:
            log.info("the client has gone without waiting for answers")
    lines.end()
    # A thread may be blocked by a stdin that never ends, or by a stdout or stderr that nobody reads.
    os._exit(0)


async def _run(server: Server[Any], *, list_changed: bool, log: logging.Logger) -> None:
    """Serve until the end of stdin, and then wait some seconds for the answers to in-flight requests."""
    # The bridge starts another process when a list changes, and notifies clients. Without it, nobody would.
    options = server.create_initialization_options(
        NotificationOptions(prompts_changed=list_changed, resources_changed=list_changed, tools_changed=list_changed)
    )
    lines: Any = Lines(claim_stdin())
    async with stdio_server(stdin=lines) as (incoming, outgoing):
        pending = Pending()
        readable = _Readable(incoming, outgoing, lines, log)
        await server.run(Incoming(readable, pending), Outgoing(outgoing, pending), options)


class _Readable:
    """The messages that the SDK has parsed from *lines*; unparsable ones, which the SDK drops, are refused here.

    *incoming* has one item for each line, in order.
    """

    def __init__(self, incoming: Any, outgoing: Any, lines: Lines, log: logging.Logger) -> None:
        self._incoming, self._outgoing, self._lines, self._log = incoming, outgoing, lines, log

    @property
    def last_context(self) -> Any:
        """The sender's context of the last received message."""
        return self._incoming.last_context

    async def aclose(self) -> None:
        """Close the stream."""
        await self._incoming.aclose()

    async def receive(self) -> Any:
        """Return the next message. Raises :class:`anyio.EndOfStream`."""
        while True:
            found = await self._incoming.receive()
            line = self._lines.taken()
            refused: list[Refusal] = []
            if isinstance(found, Exception):
                reason = first_fault(found) if isinstance(found, ValidationError) else type(found).__name__
                refused = await anyio.to_thread.run_sync(refusals, line, reason)
            elif _is_doubtful(found.message):
                refused = [each for each in (overlooked(line),) if each is not None]
            if not refused:
                return found
            for refusal in refused:
                await self._refuse(refusal)
            if len(refused) == 1 and (answer := _unread(refused[0])) is not None:
                return answer

    async def _refuse(self, refusal: Refusal) -> None:
        kind = "a message was refused" if refusal.answered else "a message was not read"
        self._log.info("%s: %s", kind, in_one_line(refusal.message))
        if refusal.answered:
            error = ErrorData(code=refusal.code, message=refusal.message)
            # Writers notice themselves that the client has gone.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._outgoing.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=refusal.identity, error=error)))


def _unread(refusal: Refusal) -> SessionMessage | None:
    """Return an error in place of an unparsable answer, for the request that waits for it; else None."""
    if refusal.answered or refusal.identity is None:
        return None
    error = ErrorData(code=refusal.code, message=f"the answer cannot be read: {refusal.message}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=refusal.identity, error=error))


def _is_doubtful(message: object) -> bool:
    """Return True if *message* may be a request with an invalid id, which the SDK takes for something else."""
    if isinstance(message, JSONRPCNotification):
        return not message.method.startswith("notifications/")
    return isinstance(message, JSONRPCError)
