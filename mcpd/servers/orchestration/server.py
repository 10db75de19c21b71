# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcp-orchestration``: signed configurations of MCP clients over stdio, in both eras of MCP."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from mcpd import __version__
from mcpd.clients.errors import INTERNAL, error_object
from mcpd.clients.service import Orchestration
from mcpd.errors import InvalidArgument, McpdError, NotFound
from mcpd.model import printable
from mcpd.paths import Scope, from_environment
from mcpd.servers import sdk
from mcpd.servers.logs import Log
from mcpd.servers.orchestration import prompts
from mcpd.servers.orchestration.owner import Owner
from mcpd.servers.orchestration.resources import VERSION, Resources
from mcpd.servers.orchestration.tools import Tools
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mcp_types as types
    from mcp.server.lowlevel import Server

    from mcpd.paths import Paths

NAME: Final = "mcp-orchestration"
ERROR_META: Final = "org.mcpd/error"
"""Where the error object is in a result's ``_meta``."""
_INSTRUCTIONS: Final = (
    "Signed configurations of MCP clients. get_config hands one out, diff_config tells whether one is current. The"
    " files of clients are changed by the user only: deploy_config names the command."
)
_TO_CHANGE: Final = (
    " A change is a draft (add_server_to_config, remove_server_from_config), is checked (validate_config) and published"
    " (publish_config)."
)

log = logging.getLogger(NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the end of stdin or SIGTERM; the exit status."""
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
    """The SDK's server whose handlers ask *service*; for one that is not writable it offers what only reads."""
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
    """Answers the SDK's requests with what *service* says, which one thread of its own asks."""

    def __init__(self, service: Orchestration) -> None:
        self._service = service
        self._tools = Tools(service)
        self._resources = Resources(service, self._tools, sdk.REVISIONS)
        self._owner = Owner()

    async def list_tools(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """``tools/list``."""
        return sdk.complete({"tools": self._tools.offered})

    async def call_tool(self, _ctx: sdk.Context, params: types.CallToolRequestParams) -> Any:
        """``tools/call``: a fault is an error object, and no exception."""
        if not self._tools.has(params.name):
            raise InvalidArgument(f"Unknown tool: {printable(params.name)}")
        arguments = params.arguments or {}
        try:
            answer = await self._owner.ask(lambda: self._tools.call(params.name, arguments))
            return {"content": [_text(answer)], "structuredContent": answer, "resultType": "complete"}
        except McpdError as fault:
            found = error_object(fault)
        # The boundary: one call's fault is no other's.
        except Exception as error:
            log.exception("%s", in_one_line(params.name))
            found = {"error": INTERNAL, "message": f"{params.name}: a fault of the server: {type(error).__name__}"}
        content = [_text(found)]
        return {"content": content, "isError": True, "_meta": {ERROR_META: found}, "resultType": "complete"}

    async def list_resources(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """``resources/list``."""
        return sdk.complete({"resources": self._resources.listing()})

    async def list_resource_templates(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """``resources/templates/list``."""
        return sdk.complete({"resourceTemplates": self._resources.templates()})

    async def read_resource(self, _ctx: sdk.Context, params: types.ReadResourceRequestParams) -> Any:
        """``resources/read``."""
        uri = str(params.uri)
        try:
            return sdk.complete(await self._owner.ask(lambda: self._resources.read(uri)))
        except NotFound as fault:
            fault.data = {"uri": uri, **error_object(fault)}
            raise

    async def list_prompts(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """``prompts/list``."""
        return sdk.complete({"prompts": prompts.offered(self._service)})

    async def get_prompt(self, _ctx: sdk.Context, params: types.GetPromptRequestParams) -> Any:
        """``prompts/get``."""
        arguments = dict(params.arguments or {})
        return sdk.complete(await self._owner.ask(lambda: prompts.get(self._service, params.name, arguments)))

    async def complete(self, _ctx: sdk.Context, params: types.CompleteRequestParams) -> Any:
        """``completion/complete``: values of arguments of prompts and of resource templates."""
        argument, context = params.argument, params.context
        known = dict(context.arguments or {}) if context is not None else {}
        template = getattr(params.ref, "uri", None)

        def find() -> list[str]:
            if template is not None:
                return self._resources.complete(str(template), argument.name, argument.value, known)
            found = prompts.complete(self._service, argument.name, known)
            return [each for each in found if each.startswith(argument.value)]

        values = await self._owner.ask(find)
        shown = {"values": values[:100], "total": len(values), "hasMore": len(values) > 100}
        return sdk.complete({"completion": shown})


def _text(value: object) -> dict[str, Any]:
    """*value* as the text of a result. Raises McpdError for what could not be sent, with which the SDK would end."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise McpdError("what was to be sent holds half a surrogate pair, which is no character") from error
    return {"type": "text", "text": text}


if __name__ == "__main__":
    sys.exit(main())
