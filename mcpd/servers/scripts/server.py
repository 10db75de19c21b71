# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcp-scripts``: one script server over stdio, in both eras of MCP."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd import __version__
from mcpd.errors import McpdError
from mcpd.servers import tree
from mcpd.servers.logs import Log
from mcpd.servers.others import HOPS, Others
from mcpd.servers.scripts import definition as definitions
from mcpd.servers.scripts.calls import Calls
from mcpd.servers.scripts.facility import Facility
from mcpd.servers.scripts.running import failed
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server

    from mcpd.servers.scripts.definition import Definition

    Context = ServerRequestContext[Any, Any]


log = logging.getLogger("mcp-scripts")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the end of stdin or SIGTERM; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.file is None) == (arguments.manifest is None):
        parser.error("name a script, or a manifest with --manifest")
    lines = Log("mcp-scripts")
    logging.basicConfig(handlers=[lines], level=logging.INFO, format="mcp-scripts: %(message)s")
    try:
        found = definitions.read(arguments.manifest) if arguments.manifest else definitions.alone(arguments.file)
        return asyncio.run(_describe(found) if arguments.describe else _serve(found, lines))
    except McpdError as fault:
        print(f"mcp-scripts: {fault.message}", file=sys.stderr)  # noqa: T201 - a usage message
        return fault.exit_code
    finally:
        lines.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-scripts",
        description="Run a Python file or a shell script as an MCP server on stdio.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="the script to serve")
    parser.add_argument("--manifest", metavar="FILE", type=Path, help="serve the script in a manifest of mcpd")
    parser.add_argument(
        "--describe", action="store_true", help="print the tools, resources and prompts as JSON, and exit"
    )
    parser.add_argument("--version", action="version", version=f"mcp-scripts {__version__}", help="print the version")
    return parser


def _facility(definition: Definition) -> Facility:
    limits = definition.limits()
    calls = Calls(
        definition.path,
        definition.kind,
        definition.source,
        workers=definition.entry.runtime.workers,
        limits=limits,
        digest=definition.digest,
        log=lambda text: log.info("%s", in_one_line(text)),
    )
    return Facility(definition, calls, Others(definition.id, limits.seconds))


async def _describe(definition: Definition) -> int:
    facility = _facility(definition)
    try:
        said = json.dumps(await facility.describe(), indent=2, ensure_ascii=False)
        sys.stdout.buffer.write(said.encode(errors="backslashreplace") + b"\n")
    finally:
        await facility.close()
    return 0


async def _serve(definition: Definition, lines: Log) -> int:
    from mcpd.servers import sdk

    # A script, which runs as the same user, must not write to this process's files in /proc.
    tree.prctl(tree.PR_SET_DUMPABLE, 0)
    facility = _facility(definition)
    return await sdk.serve(
        make_server(facility), list_changed=definition.managed, lines=lines, log=log, close=facility.close
    )


def make_server(facility: Facility) -> Server[Any]:
    """Return the SDK's server, with *facility* behind its handlers."""
    from mcpd.servers import sdk

    handlers = Handlers(facility)
    about = facility.definition
    return sdk.make_server(
        about.id,
        version=about.version,
        title=about.title or None,
        instructions=about.description or None,
        log=log,
        list_changed=about.managed,
        check=handlers.check,
        handlers=handlers,
    )


class Handlers:
    """Handlers of the SDK's requests, which call *facility*."""

    def __init__(self, facility: Facility) -> None:
        self._facility = facility

    async def check(self, ctx: Context) -> None:
        """Check the arguments of a prompt before the SDK does, whose error does not name the invalid one."""
        params = ctx.params or {}
        name, arguments = params.get("name"), params.get("arguments")
        if ctx.method == "prompts/get" and isinstance(name, str) and isinstance(arguments, dict):
            await self._facility.check_prompt(name, arguments)

    async def list_tools(self, _ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``tools/list``."""
        return _complete(await self._facility.list_tools(params.cursor if params else None))

    async def list_resources(self, _ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/list``."""
        return _complete(await self._facility.list_resources(params.cursor if params else None))

    async def list_resource_templates(self, _ctx: Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/templates/list``: there are none."""
        return _complete({"resourceTemplates": []})

    async def list_prompts(self, _ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``prompts/list``."""
        return _complete(await self._facility.list_prompts(params.cursor if params else None))

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        """Handle ``tools/call``, with progress if requested."""
        from mcpd.servers import sdk

        async with sdk.Progress(ctx) as on_progress:
            result = await self._facility.call_tool(params.name, params.arguments or {}, on_progress)
        try:
            return _complete(result)
        except McpdError as fault:
            return _complete(failed(f"tool {params.name}: {fault.message}"))

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        """Handle ``resources/read``."""
        meta = (ctx.params or {}).get("_meta")
        hops = meta.get(HOPS) if isinstance(meta, dict) else 0
        return _complete(await self._facility.read_resource(str(params.uri), hops if isinstance(hops, int) else 0))

    async def get_prompt(self, _ctx: Context, params: types.GetPromptRequestParams) -> Any:
        """Handle ``prompts/get``."""
        return _complete(await self._facility.get_prompt(params.name, dict(params.arguments or {})))

    async def complete(self, _ctx: Context, params: types.CompleteRequestParams) -> Any:
        """Handle ``completion/complete``: values of arguments of prompts."""
        name = getattr(params.ref, "name", None)
        if name is None:
            return _complete({"completion": {"values": [], "total": 0, "hasMore": False}})
        return _complete(await self._facility.complete(name, params.argument.name, params.argument.value))


def _complete(result: dict[str, Any]) -> dict[str, Any]:
    from mcpd.servers import sdk

    return sdk.complete(result)


if __name__ == "__main__":
    sys.exit(main())
