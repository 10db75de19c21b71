# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``llm-orc``: ensembles over stdio, or HTTP on this machine, in both eras of MCP."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpd import __version__
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.paths import CONFINED_VARIABLE, from_environment
from mcpd.servers import sdk, tree
from mcpd.servers.changes import Changes
from mcpd.servers.ensembles import directories, status, tools
from mcpd.servers.ensembles.announcing import announce
from mcpd.servers.ensembles.engine.types import Completion
from mcpd.servers.ensembles.providers.keys import Keys
from mcpd.servers.ensembles.request import KEEP, Request, during
from mcpd.servers.ensembles.resources import MOST_VALUES, Resources
from mcpd.servers.ensembles.service import Service
from mcpd.servers.given_paths import expanded
from mcpd.servers.logs import Log
from mcpd.servers.notices import Levels, Messages, Progress
from mcpd.servers.others import HOPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp.server.lowlevel import Server

    from mcpd.servers.ensembles.settings import Settings

NAME: Final = "llm-orc"
_TITLE: Final = "Ensembles"
_INSTRUCTIONS: Final = (
    "Ensembles of models, scripts and tools that work on one input. llm-orc://ensembles lists them, invoke runs"
    " one and keeps the run as llm-orc://artifact/ID, and analyze_execution looks into it. Runs may take minutes: ask"
    " for progress."
)
_TRUTH: Final = ("true", "false")
_PORT: Final = 8080
_LAST_PORT: Final = 65535
_DIGITS: Final = 5
_COMMANDS: Final = ("serve", "status")
_MODEL: Final = 128
"""Maximum length of the name of a client's model, in characters."""

log = logging.getLogger(NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mcp serve`` until the end of stdin or SIGTERM, or ``mcp status``; return the exit status."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    lines = Log(NAME)
    logging.basicConfig(handlers=[lines], level=logging.INFO, format=f"{NAME}: %(message)s")
    try:
        if arguments.command == "status":
            return _status(arguments)
        return asyncio.run(_serve(arguments, lines))
    except McpdError as fault:
        print(f"{NAME}: {fault.message}", file=sys.stderr)  # noqa: T201 - a usage message
        return fault.exit_code
    finally:
        lines.end()


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse *argv*; exit with status 2 if it is invalid."""
    parser = _parser()
    if argv and argv[0] in _COMMANDS:
        parser.error(f"'{NAME} mcp {argv[0]}' is meant")
    arguments = parser.parse_args(argv)
    if getattr(arguments, "port", None) is not None and not arguments.http:
        parser.error("--port is that of --http: give both")
    return arguments


def _port(text: str) -> int:
    # 65535 is the largest TCP port, and 0 means any free one.
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{printable(text)!r} is no port: it is a number from 1 to {_LAST_PORT}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME, description="Run ensembles of models, scripts and tools, as an MCP server.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}", help="print the version")
    group = parser.add_subparsers(required=True, metavar="mcp").add_parser(
        "mcp", help="the MCP server", description="The MCP server.", allow_abbrev=False
    )
    commands = group.add_subparsers(dest="command", required=True, metavar="serve|status")
    serving = commands.add_parser(
        "serve",
        help="serve MCP on stdio",
        description="Serve ensembles, as an MCP server on stdio.",
        allow_abbrev=False,
    )
    asking = commands.add_parser(
        "status", help="show the status", description="Show the projects, ensembles and keys found.", allow_abbrev=False
    )
    switch: dict[str, Any] = {"nargs": "?", "const": "true", "default": "false", "metavar": "true|false"}
    for each in (serving, asking):
        each.add_argument(
            "--project", action="append", default=[], metavar="DIR",
            help="directory with ensembles in .llm-orc (default: the nearest one upwards); repeatable",
        )  # fmt: skip
        each.add_argument("--state", metavar="DIR", help="home directory of scripts")
    serving.add_argument("--script-network", **switch, help="allow scripts to use the network")
    serving.add_argument("--commands-write-git", **switch, help="allow scripts to write to .git directories")
    serving.add_argument("--http", action="store_true", help="serve over HTTP on 127.0.0.1 instead, for debugging")
    serving.add_argument("--port", type=_port, metavar="PORT", help=f"port for --http ({_PORT}); 0 for a free one")
    asking.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings from *arguments* and the environment; if they are invalid, with the error for every call.

    Clients show the errors of tools, but seldom why a server has not started.
    """
    paths = from_environment()
    confined = os.environ.get(CONFINED_VARIABLE) == "1"
    keys = Keys.from_environment(os.environ)
    for each in keys.faults:
        log.error("%s", each.message)
    # Even without keys, it records which ones were rejected.
    made = replace(directories.settings(paths, (), confined=confined), keys=keys)
    try:
        if arguments.state is not None:
            made = replace(made, state=_directories("state", [arguments.state], paths.home)[0])
        projects = _directories("projects", arguments.project, paths.home)
        if not projects and not confined:
            nearest = directories.nearest_project(Path.cwd())
            projects = (nearest,) if nearest is not None else ()
        return replace(
            made,
            projects=projects,
            script_network=_is_true(arguments, "script_network"),
            commands_write_git=_is_true(arguments, "commands_write_git"),
        )
    except InvalidConfig as fault:
        log.error("%s", fault.message)  # noqa: TRY400 - it is no fault of the program's
        return replace(made, problem=fault.message)


def _directories(key: str, given: Sequence[str], home: Path) -> tuple[Path, ...]:
    """Return the directories *given* for the setting *key*. Raises :class:`~mcpd.errors.InvalidConfig`."""
    try:
        return expanded(given, home)
    except InvalidConfig as fault:
        raise InvalidConfig(f"{key}: {fault.message}") from fault


def _is_true(arguments: argparse.Namespace, key: str) -> bool:
    given: str = getattr(arguments, key, "false")
    if given not in _TRUTH:
        raise InvalidConfig(f"{key} is {printable(given)!r}; it can be {', '.join(_TRUTH)}")
    return given == "true"


def _status(arguments: argparse.Namespace) -> int:
    found = status.health(_settings(arguments))
    print(json.dumps(found, indent=2) if arguments.json else status.as_text(found))  # noqa: T201 - what was asked for
    return 0 if found["status"] == "ok" else 1


async def _serve(arguments: argparse.Namespace, lines: Log) -> int:
    # Become the parent of orphaned processes, to end them; keep scripts from reading this process's memory.
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    tree.prctl(tree.PR_SET_DUMPABLE, 0)
    service = await asyncio.to_thread(lambda: Service(_settings(arguments)))
    changes = Changes()
    server = make_server(service, changes)
    announcing = asyncio.create_task(announce(service, changes))

    async def close() -> None:
        announcing.cancel()
        await asyncio.wait([announcing])
        await service.close()

    # Exempt imported objects from garbage collection: scanning them would delay calls by 0.1 s each time.
    gc.collect()
    gc.freeze()
    if arguments.http:
        from mcpd.servers.ensembles import http  # rarely needed

        sdk.hush()
        await http.serve(
            server.streamable_http_app(host=http.HOST), _PORT if arguments.port is None else arguments.port, close
        )
        return 0
    return await sdk.serve(server, list_changed=False, lines=lines, log=log, close=close)


def make_server(service: Service, changes: Changes) -> Server[Any]:
    """Return the SDK's server, with *service* behind its handlers."""
    levels = Levels()
    server = sdk.make_server(
        NAME,
        version=__version__,
        title=_TITLE,
        instructions=_INSTRUCTIONS,
        log=log,
        list_changed=False,
        handlers=Handlers(service, levels),
        changes=changes,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, levels.set)
    return server


class Handlers:
    """Handlers of the SDK's requests, which call *service*."""

    def __init__(self, service: Service, levels: Levels) -> None:
        self._service, self._levels = service, levels
        keys = service.settings.keys
        self._resources = Resources(service.library, service.artifacts, lambda profile: status.has_key(keys, profile))

    async def list_tools(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``tools/list``."""
        return sdk.complete({"tools": tools.offered()})

    async def call_tool(self, ctx: sdk.Context, params: types.CallToolRequestParams) -> Any:
        """Handle ``tools/call``: failures are results with ``isError``; only an unknown tool is a JSON-RPC error."""
        if params.name not in tools.TOOLS:
            raise InvalidArgument(f"Unknown tool: {printable(params.name)}")
        try:
            self._check()
            streaming = (params.arguments or {}).get("streaming") is not False
            async with Progress(ctx, KEEP, wanted=streaming) as report, Messages(ctx, self._levels, KEEP) as say:
                call = tools.Call(self._service, report, say)
                with during(_request(ctx)):
                    return sdk.complete(await tools.call_tool(call, params.name, params.arguments or {}))
        except McpdError as fault:
            fault.data = {"tool": params.name, "error": fault.word, **(fault.data or {})}
            return sdk.failed(fault, fault.jsonrpc_code)

    async def list_resources(self, _ctx: sdk.Context, params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/list``."""
        cursor = params.cursor if params else None
        return sdk.complete(await asyncio.to_thread(self._resources.list_resources, cursor))

    async def list_resource_templates(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``resources/templates/list``."""
        return sdk.complete(self._resources.list_resource_templates())

    async def read_resource(self, _ctx: sdk.Context, params: types.ReadResourceRequestParams) -> Any:
        """Handle ``resources/read``."""
        self._check()
        return sdk.complete(await asyncio.to_thread(self._resources.read_resource, str(params.uri)))

    async def complete(self, _ctx: sdk.Context, params: types.CompleteRequestParams) -> Any:
        """Handle ``completion/complete``: values of arguments of resource templates."""
        template, argument = getattr(params.ref, "uri", None), params.argument
        if template is None:
            raise InvalidArgument("completion/complete: there are no prompts, only resource templates")
        found = await asyncio.to_thread(self._resources.complete, str(template), argument.name, argument.value)
        shown = {"values": found[:MOST_VALUES], "hasMore": len(found) > MOST_VALUES}
        return sdk.complete({"completion": shown})

    def _check(self) -> None:
        if self._service.settings.problem is not None:
            raise InvalidConfig(self._service.settings.problem)


def _request(ctx: sdk.Context) -> Request:
    meta = (ctx.params or {}).get("_meta")
    hops = meta.get(HOPS) if isinstance(meta, dict) else 0
    capabilities = ctx.session.client_capabilities
    lends = (
        ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        and capabilities is not None
        and capabilities.sampling is not None
    )
    return Request(sampling=ClientsSampling(ctx) if lends else None, hops=hops if isinstance(hops, int) else 0)


class ClientsSampling:
    """Requests completions from the client of *ctx*, in the handshake era: later, servers cannot send requests."""

    def __init__(self, ctx: sdk.Context) -> None:
        self._ctx = ctx

    async def sample(self, system: str | None, text: str, max_tokens: int, temperature: float | None) -> Completion:
        """Return the answer. Raises McpdError if the client refuses, or does not answer with text."""
        content = types.TextContent(type="text", text=text)
        request = types.CreateMessageRequest(
            params=types.CreateMessageRequestParams(
                messages=[types.SamplingMessage(role="user", content=content)],
                system_prompt=system,
                max_tokens=max_tokens,
                temperature=temperature,
            )
        )
        metadata = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        try:
            found = await self._ctx.session.send_request(request, types.CreateMessageResult, metadata=metadata)
        except (MCPError, ValidationError) as error:
            reason = first_fault(error) if isinstance(error, ValidationError) else error.error.message
            raise McpdError(f"the client's model has not answered: {printable(reason)}") from error
        if not isinstance(found.content, types.TextContent):
            raise McpdError(f"the client's model has answered with {found.content.type}, not with text")
        return Completion(text=found.content.text, model=printable(found.model[:_MODEL]))


if __name__ == "__main__":
    sys.exit(main())
