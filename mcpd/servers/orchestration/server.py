# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcp-orchestration``: signed configurations of MCP clients over stdio, in both eras of MCP."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from mcpd import __version__
from mcpd.clients.errors import INTERNAL, error_object
from mcpd.clients.service import Orchestration
from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.model import printable
from mcpd.paths import Scope, from_environment
from mcpd.servers import sdk
from mcpd.servers.logs import Log
from mcpd.servers.orchestration.resources import VERSION, Resources
from mcpd.servers.orchestration.tools import Tools
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mcp_types as types
    from mcp.server.lowlevel import Server

    from mcpd.paths import Paths

NAME: Final = "mcp-orchestration"
BATCH: Final = 16
"""Calls per switch to the thread, which takes longer than most calls."""
_INSTRUCTIONS: Final = (
    "Signed configurations of MCP clients. get_config returns one, diff_config tells whether one is current. Only the"
    " user changes the files of clients: deploy_config returns the command."
)
_TO_CHANGE: Final = (
    " To change one, edit its draft (add_server_to_config, remove_server_from_config), check it (validate_config) and"
    " publish it (publish_config)."
)

log = logging.getLogger(NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the end of stdin or SIGTERM; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=NAME, description="Make and serve signed configurations of MCP clients, as an MCP server on stdio."
    )
    parser.add_argument(
        "--system", action="store_true", help="serve the configurations that root published for everybody, read-only"
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}", help="print the version")
    arguments = parser.parse_args(argv)
    lines = Log(NAME)
    logging.basicConfig(handlers=[lines], level=logging.INFO, format=f"{NAME}: %(message)s")
    try:
        return asyncio.run(_serve(from_environment(), lines, system=arguments.system))
    except McpdError as fault:
        print(f"{NAME}: {fault.message}", file=sys.stderr)  # noqa: T201 - a usage message
        return fault.exit_code
    finally:
        lines.end()


async def _serve(paths: Paths, lines: Log, *, system: bool) -> int:
    scope = Scope.SYSTEM if system else Scope.USER
    server = make_server(Orchestration(paths, scope, writable=not system))
    return await sdk.serve(server, list_changed=False, lines=lines, log=log)


def make_server(service: Orchestration) -> Server[Any]:
    """Return the SDK's server for *service*; it offers only tools that read if the service is read-only."""
    handlers = Handlers(service)
    return sdk.make_server(
        NAME,
        version=VERSION,
        title="Configurations of MCP clients",
        instructions=_INSTRUCTIONS + (_TO_CHANGE if service.writable else ""),
        log=log,
        list_changed=False,
        handlers=handlers,
    )


class Handlers:
    """Handlers of the SDK's requests; *service* is called in one thread."""

    def __init__(self, service: Orchestration) -> None:
        self._tools = Tools(service)
        self._resources = Resources(service, self._tools, sdk.REVISIONS)
        self._calls = SerialCalls()

    async def list_tools(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``tools/list``."""
        return sdk.complete({"tools": self._tools.offered})

    async def call_tool(self, _ctx: sdk.Context, params: types.CallToolRequestParams) -> Any:
        """Handle ``tools/call``: an error is a result, not an error of the protocol."""
        if not self._tools.has(params.name):
            raise InvalidArgument(f"Unknown tool: {printable(params.name)}")
        arguments = params.arguments or {}
        try:
            answer = await self._calls.run(lambda: self._tools.call(params.name, arguments))
            return {"content": [_text(answer)], "structuredContent": answer, "resultType": "complete"}
        except McpdError as fault:
            found = error_object(fault)
        except Exception as error:  # the boundary: an unexpected error ends this call only
            log.exception("%s", in_one_line(params.name))
            found = {"error": INTERNAL, "message": f"{params.name}: internal error: {type(error).__name__}"}
        content = [_text(found)]
        return {"content": content, "isError": True, "_meta": {sdk.ERROR_META: found}, "resultType": "complete"}

    async def list_resources(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/list``."""
        return sdk.complete({"resources": self._resources.listing()})

    async def list_resource_templates(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/templates/list``."""
        return sdk.complete({"resourceTemplates": self._resources.templates()})

    async def read_resource(self, _ctx: sdk.Context, params: types.ReadResourceRequestParams) -> Any:
        """Handle ``resources/read``."""
        uri = str(params.uri)
        try:
            return sdk.complete(await self._calls.run(lambda: self._resources.read(uri)))
        except NotFound as fault:
            fault.data = {"uri": uri, **error_object(fault)}
            raise

    async def list_prompts(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``prompts/list``: none yet, but the capability is part of the server's interface."""
        return sdk.complete({"prompts": []})

    async def get_prompt(self, _ctx: sdk.Context, params: types.GetPromptRequestParams) -> Any:
        """Handle ``prompts/get``."""
        raise InvalidArgument(f"unknown prompt: {printable(params.name)}")

    async def complete(self, _ctx: sdk.Context, params: types.CompleteRequestParams) -> Any:
        """Handle ``completion/complete``: values of arguments of resource templates."""
        argument, context = params.argument, params.context
        known = dict(context.arguments or {}) if context is not None else {}
        template = str(getattr(params.ref, "uri", ""))
        values = await self._calls.run(lambda: self._resources.complete(template, argument.name, argument.value, known))
        shown = {"values": values[:100], "total": len(values), "hasMore": len(values) > 100}
        return sdk.complete({"completion": shown})


class SerialCalls:
    """Runs calls one after the other in one thread: the service has one owner, and a slow disk blocks no message."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "orchestration")
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def run(self, call: Callable[[], Any]) -> Any:
        """Return what *call* returns in the thread; raise what it raises there."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                asked = [each for each in self._waiting[:BATCH] if not each[1].cancelled()]
                del self._waiting[:BATCH]
                answers = await loop.run_in_executor(self._thread, _made, [call for call, _ in asked])
                for (_, answer), (value, error) in zip(asked, answers, strict=True):
                    if answer.cancelled():
                        continue
                    if error is not None:
                        answer.set_exception(error)
                    else:
                        answer.set_result(value)
        finally:
            self._runner = None


def _made(calls: Sequence[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
    answers: list[tuple[Any, Exception | None]] = []
    for call in calls:
        try:
            answers.append((call(), None))
        except Exception as error:  # noqa: BLE001 - raised where the call was made
            answers.append((None, error))
    return answers


def _text(value: object) -> dict[str, Any]:
    """Return *value* as the text of a result. Raises McpdError if it is not encodable, which would end the SDK."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise McpdError("the result contains a lone surrogate, which is not a character") from error
    return {"type": "text", "text": text}


if __name__ == "__main__":
    sys.exit(main())
