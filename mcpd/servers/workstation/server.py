# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``mcp-workstation``: filesystem, git and CI tools over stdio, in both eras of MCP."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpd import __version__
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NotAuthorized, TimedOut, UnknownMethod
from mcpd.model import printable
from mcpd.model.base import first_fault
from mcpd.paths import CONFINED_VARIABLE, HOME_VARIABLE, from_environment
from mcpd.servers import sdk, tree
from mcpd.servers.given_paths import expanded
from mcpd.servers.logs import Log
from mcpd.servers.workstation.roots import ClientRoots
from mcpd.servers.workstation.settings import ErrorMapping, Settings, ToolNameStyle, ToolSet
from mcpd.servers.workstation.tools import tools_of
from mcpd.servers.workstation.workstation import RETRY_AFTER, Workstation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcp.server.lowlevel import Server

    from mcpd.servers.workstation.jail import Jail

NAME: Final = "mcp-workstation"
_INSTRUCTIONS: Final = (
    "Files, git and builds of the user's projects, within the directories that the user has configured. Paths are"
    " absolute, or relative to the first of them; filesystem_list without a path shows what is there."
)
_ROOTS: Final = "roots"
_TRUTH: Final = ("true", "false")
_TITLES: Final = {
    -32601: "Method not found",
    -32602: "Invalid params",
    -32603: "Internal error",
    -32005: "Too many requests",
}
"""Prefix of the message of each JSON-RPC error; a timeout has its own message."""
_OF_PROTOCOL: Final = frozenset({UnknownMethod.jsonrpc_code, InvalidArgument.jsonrpc_code})
"""JSON-RPC codes of calls whose tool was not run."""

log = logging.getLogger(NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the end of stdin or SIGTERM, and return the exit status."""
    arguments = _parser().parse_args(argv)
    lines = Log(NAME)
    logging.basicConfig(handlers=[lines], level=logging.INFO, format=f"{NAME}: %(message)s")
    try:
        return asyncio.run(_serve(arguments, lines))
    except McpdError as fault:
        print(f"{NAME}: {fault.message}", file=sys.stderr)  # noqa: T201 - a usage message
        return fault.exit_code
    finally:
        lines.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Serve files, git and builds in selected directories, as an MCP server on stdio.",
        allow_abbrev=False,
    )
    repeated: dict[str, Any] = {"action": "append", "default": [], "metavar": "DIR"}
    switch: dict[str, Any] = {"nargs": "?", "const": "true", "default": "false", "metavar": "true|false"}
    parser.add_argument("--root", **repeated, help="accessible directory; repeatable")
    parser.add_argument("--toolchain", **repeated, help="additional directory with programs for commands; repeatable")
    parser.add_argument("--allow-network", **switch, help="allow commands to use the network")
    parser.add_argument("--allow-hooks", **switch, help="allow git to run hooks, filters and drivers of a repository")
    parser.add_argument("--allow-hard-links", **switch, help="allow reading files with several names")
    parser.add_argument("--commands-write-git", **switch, help="allow ci tools to write to .git directories")
    sets, styles, mappings = "|".join(ToolSet), "|".join(ToolNameStyle), "|".join(ErrorMapping)
    parser.add_argument("--tools", default=ToolSet.COMMON, metavar=sets, help="tools to offer (common)")
    parser.add_argument(
        "--tool-name-style",
        default=ToolNameStyle.UNDERSCORE,
        metavar=styles,
        help="how tools are listed (underscore); calls accept all three",
    )
    parser.add_argument("--error-mapping", default=ErrorMapping.MCP, metavar=mappings, help="form of errors (mcp)")
    parser.add_argument(
        "--rate", default="20", metavar="N", help="calls per second on average (20); three times as many at once"
    )
    parser.add_argument("--call-timeout", default="1800", metavar="SECONDS", help="maximum of timeout_seconds (1800)")
    parser.add_argument(
        "--state", metavar="DIR", help="directory of the audit log and of the home directory of commands"
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}", help="print the version")
    return parser


def _settings(arguments: argparse.Namespace, state: Path, home: Path) -> Settings:
    """Return the settings in *arguments*. Raises :class:`~mcpd.errors.InvalidConfig`."""
    rate = _number(arguments, "rate", 0.001, 10_000)
    return Settings(
        roots=expanded(arguments.root, home),
        toolchains=expanded(arguments.toolchain, home),
        home=home,
        state=state,
        confined=os.environ.get(CONFINED_VARIABLE) == "1",
        allow_network=_choice(arguments, "allow_network", _TRUTH) == "true",
        allow_hooks=_choice(arguments, "allow_hooks", _TRUTH) == "true",
        allow_hard_links=_choice(arguments, "allow_hard_links", _TRUTH) == "true",
        commands_write_git=_choice(arguments, "commands_write_git", _TRUTH) == "true",
        tools=ToolSet(_choice(arguments, "tools", ToolSet)),
        tool_name_style=ToolNameStyle(_choice(arguments, "tool_name_style", ToolNameStyle)),
        error_mapping=ErrorMapping(_choice(arguments, "error_mapping", ErrorMapping)),
        rate=rate,
        burst=max(1, round(3 * rate)),
        call_timeout=_number(arguments, "call_timeout", 1, 7200),
    )


def _choice(arguments: argparse.Namespace, key: str, choices: Iterable[str]) -> str:
    given: str = getattr(arguments, key)
    if given not in set(choices):
        raise InvalidConfig(f"{key} is {printable(given)!r}; it can be {', '.join(choices)}")
    return given


def _number(arguments: argparse.Namespace, key: str, least: float, most: float) -> float:
    given: str = getattr(arguments, key)
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidConfig(f"{key} is {printable(given)!r}; it can be from {least:g} to {most:g}")
    return number


def _directories(given: str | None) -> tuple[Path, Path]:
    """Return the state directory and the user's home. Raises :class:`~mcpd.errors.InvalidConfig`."""
    paths = from_environment()
    if given is not None:
        return expanded([given], paths.home)[0], paths.home
    if os.environ.get(HOME_VARIABLE) is not None:
        # A server of mcpd has its state directory as HOME, and gets the user's from another variable.
        return Path.home(), paths.home
    return paths.user.state / "workstation", paths.home


def _opened(arguments: argparse.Namespace) -> tuple[Workstation, Settings]:
    """Return the workstation for *arguments*; if they are invalid, one that answers every call with the error.

    Clients show the errors of tools, but seldom why a server has not started.
    """
    state, home = _directories(arguments.state)
    try:
        settings = _settings(arguments, state, home)
        return Workstation(settings, tools_of(settings.tools)), settings
    except InvalidConfig as fault:
        log.error("%s", fault.message)  # noqa: TRY400 - it is no fault of the program's
        settings = Settings(roots=(), toolchains=(), home=home, state=state, problem=fault.message)
        return Workstation(settings, tools_of(settings.tools)), settings


async def _serve(arguments: argparse.Namespace, lines: Log) -> int:
    # Become the parent of orphaned processes, to end them; keep commands from reading this process's memory.
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    tree.prctl(tree.PR_SET_DUMPABLE, 0)
    workstation, settings = _opened(arguments)
    # Exempt imported objects from garbage collection: scanning them would delay calls by 0.1 s each time.
    gc.collect()
    gc.freeze()
    return await sdk.serve(
        make_server(workstation, settings), list_changed=False, lines=lines, log=log, close=workstation.close
    )


def make_server(workstation: Workstation, settings: Settings) -> Server[Any]:
    """Return the SDK's server, with *workstation* behind its handlers."""
    handlers = Handlers(workstation, settings)
    server = sdk.make_server(
        NAME,
        version=__version__,
        title="Workstation",
        instructions=_INSTRUCTIONS,
        log=log,
        list_changed=False,
        handlers=handlers,
        check=check_roots,
    )
    server.add_notification_handler(
        "notifications/roots/list_changed", types.NotificationParams, handlers.roots_changed
    )
    return server


class Handlers:
    """Handlers of the SDK's requests, which call *workstation*."""

    def __init__(self, workstation: Workstation, settings: Settings) -> None:
        self._workstation, self._settings = workstation, settings
        self._roots = ClientRoots(workstation.roots)

    async def list_tools(self, _ctx: sdk.Context, _params: types.PaginatedRequestParams | None) -> Any:
        """Handle ``tools/list``."""
        return sdk.complete({"tools": self._workstation.offered})

    async def roots_changed(self, _ctx: sdk.Context, _params: types.NotificationParams) -> None:
        """Handle ``notifications/roots/list_changed``."""
        self._roots.changed()

    async def call_tool(self, ctx: sdk.Context, params: types.CallToolRequestParams) -> Any:
        """Handle ``tools/call``."""
        try:
            if _needs_roots(ctx, params):
                # From revision 2026-07-28 on, a server requests input by an incomplete result; only for valid calls.
                await self._workstation.check(params.name, params.arguments or {}, client=_client(ctx))
                return {"resultType": "input_required", "inputRequests": {_ROOTS: {"method": "roots/list"}}}
            async with sdk.Progress(ctx) as progress:
                result = await self._workstation.call(
                    params.name,
                    params.arguments or {},
                    lambda: self._jail(ctx, params),
                    client=_client(ctx),
                    progress=progress,
                    when_sent=_when_sent,
                )
            return sdk.complete(result)
        except McpdError as fault:
            return self._failed(params.name, fault)

    def _failed(self, name: str, fault: McpdError) -> Any:
        """Return the result for *fault*, or raise a JSON-RPC error, depending on ``error_mapping``."""
        code = _code(fault)
        fault.data = {"tool": name, "error": fault.word, **(fault.data or {})}
        mapping = self._settings.error_mapping
        is_protocol = mapping is ErrorMapping.JSON_RPC or (mapping is ErrorMapping.MCP and code in _OF_PROTOCOL)
        if is_protocol or code == TimedOut.jsonrpc_code:
            message = f"{_TITLES[code]}: {fault.message}" if code in _TITLES else fault.message
            raise MCPError(code, message, fault.data) from fault
        return sdk.failed(fault, code)

    async def _jail(self, ctx: sdk.Context, params: types.CallToolRequestParams) -> Jail:
        if not _has_roots(ctx):
            return self._workstation.roots.jail
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._workstation.roots.narrowed(_told(params))

        async def ask() -> list[str]:
            try:
                found = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
            except (MCPError, ValidationError) as error:
                reason = first_fault(error) if isinstance(error, ValidationError) else error.error.message
                raise NotAuthorized(
                    f"the client has roots of its own, but does not say which: {printable(reason)}"
                ) from error
            return [str(root.uri) for root in found.roots]

        return await self._roots.jail(ask)


def _has_roots(ctx: sdk.Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and capabilities.roots is not None


def _needs_roots(ctx: sdk.Context, params: types.CallToolRequestParams) -> bool:
    return (
        ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS
        and _has_roots(ctx)
        and _ROOTS not in (params.input_responses or {})
    )


async def check_roots(ctx: sdk.Context) -> None:
    """Check the client's roots in ``inputResponses`` before the SDK does, whose error would not name the fault.

    Raises :class:`~mcpd.errors.InvalidArgument`.
    """
    if ctx.method != "tools/call" or ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return
    answers = (ctx.params or {}).get("inputResponses")
    if not isinstance(answers, dict) or _ROOTS not in answers:
        return
    try:
        types.ListRootsResult.model_validate(answers[_ROOTS])
    except ValidationError as error:
        raise InvalidArgument(
            f"{_TITLES[-32602]}: inputResponses.{_ROOTS}: {printable(first_fault(error))}; it is the result of"
            " roots/list"
        ) from error


def _when_sent(done: Callable[[], None]) -> None:
    """Call *done* when the result of this task was sent: the SDK's task of a request ends with that."""
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda _: done())


def _told(params: types.CallToolRequestParams) -> list[str]:
    """Return the URIs in the client's answer. Raises :class:`~mcpd.errors.InvalidArgument` for a different answer."""
    answer = (params.input_responses or {})[_ROOTS]
    if not isinstance(answer, types.ListRootsResult):
        raise InvalidArgument(f'"inputResponses" has no roots at "{_ROOTS}"')
    return [str(root.uri) for root in answer.roots]


def _client(ctx: sdk.Context) -> str:
    about = ctx.session.client_params
    return f"{about.client_info.name} {about.client_info.version}" if about is not None else ""


def _code(fault: McpdError) -> int:
    """Return the JSON-RPC code for *fault*; that of an execution error if the tool itself failed."""
    if isinstance(fault, (UnknownMethod, InvalidArgument, TimedOut)) or RETRY_AFTER in (fault.data or {}):
        return fault.jsonrpc_code
    return McpdError.jsonrpc_code


if __name__ == "__main__":
    sys.exit(main())
