# SPDX-License-Identifier: LGPL-2.1-or-later
"""Execution of a tool's call: as a function of the Python file, or as the shell script with arguments as words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument, McpdError, TimedOut
from mcpd.servers.scripts.calls import PythonJob, ShellJob
from mcpd.servers.scripts.discover import shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.servers.scripts.calls import Outcome
    from mcpd.servers.scripts.checking import Checks
    from mcpd.servers.scripts.definition import Definition
    from mcpd.servers.scripts.offer import Offered
    from mcpd.servers.scripts.tool import Tool
    from mcpd.servers.scripts.transforms import Runs

    Progress = Callable[[float, float | None, str], None]

ARGS: Final = "args"
"""Argument of a shell tool that is a whole command line."""
TOOL: Final = "MCP_TOOL"
"""Variable of a shell script with the name of the called tool."""
_SILENT: Final = re.compile(r"(ended with status \d+(?: and without a result)?)(?:; see the server's log)?\.\Z")
"""Matches a failure about which only the log may say more."""


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a server that a call uses: its *definition*, *runs* for its processes, *checks* for values."""

    definition: Definition
    runs: Runs
    checks: Checks


async def call(
    server: Server, offered: Offered, arguments: dict[str, Any], on_progress: Progress | None = None
) -> dict[str, Any]:
    """Return the result of ``tools/call``, even a failure if the script returned it. Raises as :func:`outcome`."""
    found = await _outcome(server, offered, arguments, on_progress)
    if found.raw is not None:
        return found.raw
    if found.error:
        raise _failure(server.definition, found)
    return result(found)


async def outcome(server: Server, offered: Offered, arguments: dict[str, Any]) -> Outcome:
    """Return the outcome of a successful call, with defaults added, and arguments and result validated.

    Raises :class:`~mcpd.errors.InvalidArgument` for invalid arguments, :class:`~mcpd.errors.TimedOut`, and
    :class:`~mcpd.errors.McpdError` for other failures.
    """
    found = await _outcome(server, offered, arguments)
    if found.error:
        raise _failure(server.definition, found)
    return found


async def _outcome(
    server: Server, offered: Offered, arguments: dict[str, Any], on_progress: Progress | None = None
) -> Outcome:
    name = offered.tool.name
    if offered.missing:
        raise McpdError(f"tool {name} cannot be called: {offered.missing}")
    given = arguments if offered.found else _with_defaults(offered.tool, arguments)
    fault = await server.checks.fault(offered.arguments, given, "the arguments")
    if fault:
        raise InvalidArgument(f"tool {name} cannot be called with these arguments: {fault}")
    found = await server.runs.call(job(server.definition, offered, given), None, on_progress)
    if offered.results is not None and not found.error:
        wrong = "it is not an object"
        if found.structured is not None:
            wrong = await server.checks.fault(offered.results, found.structured, "the result")
        if wrong:
            raise McpdError(f"tool {name} returned a result that its outputSchema does not allow: {wrong}")
    return found


def _failure(definition: Definition, found: Outcome) -> McpdError:
    text = found.error
    if definition.managed:
        text = _SILENT.sub(rf"\1; see 'mcpctl logs {definition.id}'.", text)
    return TimedOut(text) if found.timed_out else McpdError(text)


def failed(text: str) -> dict[str, Any]:
    """Return the result of a call that failed with the message *text*."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def text_of(found: dict[str, Any]) -> str:
    """Return the joined texts in the result *found*."""
    texts = [each["text"] for each in found["content"] if each.get("type") == "text"]
    return "\n".join(texts) or "The tool failed."


def result(outcome: Outcome) -> dict[str, Any]:
    """Return the result of a successful call."""
    found: dict[str, Any] = {"content": outcome.content, "isError": False}
    if outcome.structured is not None:
        found["structuredContent"] = outcome.structured
    return found


def job(definition: Definition, offered: Offered, arguments: dict[str, Any]) -> PythonJob | ShellJob:
    """Return the job for a call of a tool. Raises :class:`~mcpd.errors.InvalidArgument` if a word is impossible.

    A shell script whose entry declares the arguments also gets them on stdin, as a JSON object. Those that the schema
    allows without naming them are only there, so that no client can invent an option.
    """
    tool = offered.tool
    if definition.kind == "python":
        return PythonJob(function=tool.function, arguments=arguments, context=definition.context())
    if offered.found:
        return ShellJob(words=tuple(shell.words(tool.function, arguments)), environment={TOOL: tool.name})
    return ShellJob(
        words=tuple(_words(tool, arguments)),
        environment={TOOL: tool.name},
        stdin=json.dumps(arguments, ensure_ascii=False).encode(),
    )


def _words(tool: Tool, arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the words for a tool whose entry declares the arguments: the command, and ``--NAME=VALUE`` for each.

    A list yields a word for each item, ``true`` yields ``--NAME``, and ``false`` and ``null`` none. An argument
    ``args``, if it is the only one, is a command line.
    """
    named = tool.input_schema.get("properties", {})
    line = {ARGS: arguments[ARGS]} if set(named) == {ARGS} and ARGS in arguments else {}
    yield from shell.words(tool.function, line)
    for name in () if line else named:
        value = arguments.get(name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each is not False:
                yield _word(name, each)


def _word(name: str, value: Any) -> str:
    if value is True:
        word = f"--{name}"
    else:
        word = f"--{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
    if "\0" in word or len(word.encode()) > shell.MAX_WORD:
        raise InvalidArgument(
            f"{name[:100]}: a word of a command line holds no NUL, and {shell.MAX_WORD} bytes at most"
        )
    return word


def _with_defaults(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return *arguments* with the defaults in the schema of an entry, which the function need not know."""
    properties = tool.input_schema.get("properties", {})
    described = {name: said for name, said in properties.items() if isinstance(said, dict)}
    defaults = {name: said["default"] for name, said in described.items() if "default" in said}
    return {**defaults, **arguments}
