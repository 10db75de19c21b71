# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client of Plexus, a knowledge graph that learns from runs.

Plexus is an MCP server over stdio; its command is in a project's configuration. It is started for each call, and
confined like the project's scripts, as the command comes from the project's files.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidConfig, InvalidManifest, LimitExceeded, McpdError, TimedOut, from_oserror
from mcpd.mcp_client import Closed, ConnectionFault, McpClient, TooMuch, limit_noise
from mcpd.model import load_json, printable
from mcpd.servers.commands.output import Output
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from mcpd.servers.commands.keepers import Keeping
    from mcpd.servers.commands.running import Start
    from mcpd.servers.ensembles.agents.confinement import Confinement
    from mcpd.servers.ensembles.engine.types import Origin

TOOL: Final = "analyze_ensemble"
SECONDS: Final = 10.0
"""Seconds for a call, including the start of the server."""
MOST: Final = 4 * 1024 * 1024
"""Maximum output of the server in bytes."""
_GRACE: Final = 2.0
"""Seconds for the server to exit by itself after its answer."""
_LAST: Final = 1.0
"""Seconds to wait for the exit status after the end of the output."""
_ERRORS: Final = 4096


class PlexusClient:
    """Sends runs to a Plexus server."""

    def __init__(self, command: str, origin: Origin, confinement: Confinement, *, seconds: float = SECONDS) -> None:
        """Use the server *command*, in shell syntax, confined like scripts of *origin*.

        *seconds* is the time limit of a call.
        """
        self._command = command
        self._origin = origin
        self._confinement = confinement
        self._seconds = seconds

    async def analyze_ensemble(
        self, context_id: str, ensemble_config: dict[str, Any], execution_metadata: dict[str, Any]
    ) -> dict[str, Any]:
        """Send the ensemble and the result of a run.

        Returns the structured content, the object in the text, or ``{"text": …}``. Raises McpdError for all failures,
        including :class:`~mcpd.errors.TimedOut`.
        """
        argv = self._argv()
        name = f"the Plexus server {printable(argv[0])}"
        arguments = {
            "context_id": context_id,
            "ensemble_config": ensemble_config,
            "execution_metadata": execution_metadata,
        }
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._call(argv, name, arguments, limit)
        except TimeoutError:
            raise TimedOut(f"{name} did not answer within {self._seconds:g} s") from None
        except OSError as error:
            raise from_oserror(error, f"starting {name}") from error

    def _argv(self) -> tuple[str, ...]:
        try:
            argv = tuple(shlex.split(self._command))
        except ValueError as error:
            raise InvalidConfig(f"plexus.server_command {printable(self._command)!r}: {error}") from error
        if not argv:
            raise InvalidConfig("plexus.server_command is empty: name the command of the Plexus server")
        return argv

    async def _call(
        self, argv: tuple[str, ...], name: str, arguments: dict[str, Any], limit: asyncio.Timeout
    ) -> dict[str, Any]:
        """Start the server, call the tool *name*, and end the server."""
        runner = self._confinement.runner
        async with self._confinement.temporary.one() as temporary:

            def prepare(stack: ExitStack) -> Start:
                return self._confinement.start(stack, self._origin, argv, temporary, {})

            with ExitStack() as stack:
                errors = stack.enter_context(closing(Output(_ERRORS, keep="tail")))
                ours, theirs = (stack.enter_context(each) for each in socket.socketpair())
                pipes = (theirs.fileno(), theirs.fileno(), errors.end.fileno())
                async with runner.started(name, prepare, *pipes) as keeping:
                    theirs.close()
                    errors.end.close()
                    try:
                        answer = await _asked(ours, name, arguments)
                    except Closed as error:
                        raise await self._fault(name, keeping, errors) from error
                    # Not SIGTERM at once: the server may have to save what it received.
                    grace = min(_GRACE, (limit.when() or 0.0) - asyncio.get_running_loop().time())
                    if not limit.expired():
                        limit.reschedule(None)
                    await _until(keeping.done, grace)
            return answer

    async def _fault(self, name: str, keeping: Keeping, errors: Output) -> McpdError:
        """Return the error for a server that closed its output: it could not be started, or has exited."""
        if not await _until(keeping.done, _LAST):
            return McpdError(f"{name} closed its stdout before it answered")
        code = self._confinement.runner.code(name, keeping.said)
        await _until(errors.ended, _LAST)
        last = bytes(errors.kept).decode(errors="replace").strip().rpartition("\n")[2]
        return McpdError(f"{name} ended with status {code} before it answered: {in_one_line(last) or 'no word'}")


async def _until(event: asyncio.Event, seconds: float) -> bool:
    """Return True if *event* is set within *seconds*."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    return event.is_set()


async def _asked(ours: socket.socket, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call the tool of the server connected to *ours*, close its stdin, and return its answer.

    Raises :class:`~mcpd.mcp_client.Closed` if the server closes the connection, and McpdError for other errors.
    """
    fd = ours.detach()
    try:
        async with McpClient(fd, fd, name, client="llm-orc", max_bytes=MOST, on_noise=limit_noise) as client:
            await client.initialize()
            result = await client.call(TOOL, arguments)
    except Closed:
        raise
    except TooMuch as fault:
        raise LimitExceeded(f"{name}: {fault}") from fault
    except ConnectionFault as fault:
        raise McpdError(f"{name}: {fault}") from fault
    content = result.get("content")
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise McpdError(f"{name}: the answer of {TOOL} has no content")
    text = "\n".join(str(each.get("text", "")) for each in content if each.get("type") == "text")
    if result.get("isError"):
        raise McpdError(f"{name}: tool {TOOL}: {in_one_line(text) or 'it failed'}")
    if isinstance(result.get("structuredContent"), dict):
        return dict(result["structuredContent"])
    try:
        found = load_json(text, "the answer")
    except InvalidManifest:
        found = None
    return found if isinstance(found, dict) else {"text": text}
