# SPDX-License-Identifier: LGPL-2.1-or-later
"""Agents that are scripts: a program that reads JSON from stdin and prints JSON.

It reads ``{"input": …, "parameters": …, "context": …}`` and prints ``{"success": …, "data": …, "error": …}``, or other
JSON, which is then the response. Its permissions are in :mod:`.confinement`.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mcpd.errors import (
    InvalidArgument,
    InvalidConfig,
    InvalidManifest,
    LimitExceeded,
    McpdError,
    NotSupported,
    from_oserror,
)
from mcpd.model import load_json, printable
from mcpd.servers.commands.running import Streams
from mcpd.servers.ensembles.agents.confinement import Confinement
from mcpd.servers.ensembles.engine.types import MAX_RESPONSE
from mcpd.servers.timing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from mcpd.servers.commands.running import Ended, Start
    from mcpd.servers.ensembles.engine.types import Origin, ScriptCall
    from mcpd.servers.ensembles.settings import Settings

MAX_VARIABLE: Final = 64 * 1024
"""Maximum size of a variable in bytes; longer values are on stdin only."""
MAX_ERRORS: Final = 16 * 1024
"""Bytes of stderr to keep, from the end."""
_SHOWN: Final = 2000
"""Characters of the output in an error."""
_INTERPRETERS: Final = {".py": "/usr/bin/python3", ".sh": "/bin/sh"}


class ScriptAgents:
    """Runs scripts; implements :class:`~.engine.types.Scripts` of the engine."""

    def __init__(self, settings: Settings, script: Callable[[Origin, str], Path]) -> None:
        """Run the file that *script* returns, checked to be in the directory of its tier; it is called in a thread."""
        self.confinement = Confinement(settings)
        self._script = script

    def close(self) -> None:
        """Release the runner; no scripts are running any more."""
        self.confinement.close()

    async def run(self, call: ScriptCall) -> str:
        """Run a script; see :meth:`~.engine.types.Scripts.run`."""
        name = f"script {printable(call.script)}"
        try:
            # In a thread, as there may be megabytes of JSON.
            given, env = await asyncio.to_thread(_given, call)
            streams = Streams(stdin=given, most=MAX_RESPONSE, most_errors=MAX_ERRORS)
            async with self.confinement.temporary.one() as temporary:

                def prepare(stack: ExitStack) -> Start:
                    path = self._script(call.origin, call.script)
                    return self.confinement.start(stack, call.origin, _argv(path, name), temporary, env)

                ended = await self.confinement.runner.run(name, prepare, streams)
            return _response(name, ended)
        except OSError as error:
            # For example, no descriptors are left.
            fault = from_oserror(error, f"starting {name}")
            fault.data = {"script": call.script}
            raise fault from error
        except McpdError as fault:
            fault.data = {"script": call.script, **(fault.data or {})}
            raise


def _given(call: ScriptCall) -> tuple[bytes, dict[str, str]]:
    """Return the stdin of the script of *call*, and its variables."""
    try:
        data = _json(load_json(call.input, "the input"))
    except (InvalidManifest, ValueError, RecursionError):
        data = _json(call.input)
    try:
        parameters, context = _json(dict(call.parameters)), _json(dict(call.context))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"script {printable(call.script)}: its parameters are no JSON: {error}") from error
    given = f'{{"input": {data}, "parameters": {parameters}, "context": {context}}}'
    variables = {"INPUT_DATA": data, "INPUT_TEXT": call.input, "AGENT_PARAMETERS": parameters}
    return given.encode(), {name: value for name, value in variables.items() if _fits(value)}


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _fits(value: str) -> bool:
    """Return True if *value* can be the value of a variable."""
    try:
        return len(value.encode()) <= MAX_VARIABLE and "\0" not in value
    except UnicodeEncodeError:
        return False


def _argv(path: Path, name: str) -> tuple[str, ...]:
    """Return the command to run the script at *path*.

    The file may be replaced before it is opened again, but only by one that the confinement lets the script read, and
    it runs with the same confinement.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            mode, begins = os.fstat(fd).st_mode, os.read(fd, 2)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_oserror(error, f"opening {name}") from error
    if not stat.S_ISREG(mode):
        raise InvalidConfig(f"{name} is no file")
    executable = bool(mode & 0o111)
    interpreter = _INTERPRETERS.get(path.suffix)
    if executable and (begins == b"#!" or interpreter is None):
        return (str(path),)
    if interpreter is None:
        raise InvalidConfig(
            f"{name} cannot be run: it is not executable (chmod +x), and no interpreter is known but for .py and .sh"
        )
    return (interpreter, str(path))


def _response(name: str, ended: Ended) -> str:
    """Return the response of a script that has *ended*. Raises McpdError if it failed, or printed no JSON."""
    if ended.truncated:
        raise _fault(LimitExceeded(f"{name} printed more than {MAX_RESPONSE // 1024 // 1024} MiB"), ended)
    text = ended.stdout.decode(errors="replace").strip()
    try:
        printed: Any = load_json(text, "the output")
    except InvalidManifest:
        printed = None
    else:
        if isinstance(printed, dict) and "success" in printed and not printed["success"]:
            raise _fault(McpdError(f"{name}: {_words(printed.get('error'))}"), ended)
    if ended.code != 0:
        _ended_badly(name, ended)
    if printed is None and text != "null":
        raise _fault(McpdError(f"{name} printed no JSON"), ended)
    if not isinstance(printed, dict):
        return _bounded(name, ended, text)
    if printed.get("agent_requests"):
        raise _fault(
            NotSupported(
                f"{name} asks for other agents (agent_requests), which is not supported: write them into the ensemble,"
                " depending on the script"
            ),
            ended,
        )
    return _bounded(name, ended, printed.get("data", text))


def _bounded(name: str, ended: Ended, data: Any) -> str:
    """Return *data* as text, checked for its size."""
    try:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _fault(McpdError(f"{name} printed no JSON: {error}"), ended) from error
    # JSON can contain single surrogates, which UTF-8 cannot.
    encoded = text.encode(errors="replace")
    if len(encoded) > MAX_RESPONSE:
        raise _fault(LimitExceeded(f"the data of {name} has more than {MAX_RESPONSE // 1024 // 1024} MiB"), ended)
    return encoded.decode()


def _ended_badly(name: str, ended: Ended) -> NoReturn:
    code = ended.code or 0
    how = f"was ended by signal {code - 128}" if 128 < code <= 192 else f"ended with status {code}"
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    raise _fault(McpdError(f"{name} {how}: {in_one_line(last)}" if last else f"{name} {how}"), ended)


def _words(error: object) -> str:
    """Return the error message of a script."""
    return in_one_line(error if isinstance(error, str) else json.dumps(error)) if error else "it failed"


def _fault(fault: McpdError, ended: Ended) -> McpdError:
    """Return *fault* with the output of the script in its data."""
    fault.data = {
        "output": ended.stdout[: 4 * _SHOWN].decode(errors="replace")[:_SHOWN],
        "stderr": ended.stderr.decode(errors="replace"),
    }
    return fault
