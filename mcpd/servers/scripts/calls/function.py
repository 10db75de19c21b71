# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a function of a Python script, in the worker."""

from __future__ import annotations

import atexit
import inspect
import linecache
import sys
import traceback
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from mcpd.servers.scripts.calls import arguments, results
from mcpd.servers.scripts.calls.job import size

if TYPE_CHECKING:
    from types import TracebackType

    from mcpd.servers.scripts.calls.worker import Script

LONGEST_MESSAGE: Final = 10_000
"""Characters of an error's message; the log has the rest."""
_OURS: Final = str(Path(__file__).parent)


def call(script: Script, task: dict[str, Any], module: ModuleType | None) -> dict[str, Any]:
    """The answer to *task*: ``{"value"}``, ``{"content", …}`` or ``{"error"}``, see :mod:`.results`."""
    try:
        if module is None:
            module = load(script) if task["source"] is None else load_other(task["path"], task["source"])
        name = task["function"]
        function = getattr(module, name, None)
        if not callable(function):
            return {"error": f"{module.__file__} has no function {name!r}."}
        args, kwargs = arguments.bind(function, task["arguments"], task["positional"], task["context"])
        found = results.message(_run(function, args, kwargs))
    except arguments.BadArgument as error:
        return {"error": str(error)}
    except SystemExit as error:
        if error.code is not None and error.code != 0:
            return failure(error, task["limits"]["memory"])
        found = results.message(None)
    except BaseException as error:  # noqa: BLE001 -- a boundary: whatever a script raises is its answer
        return failure(error, task["limits"]["memory"])
    with suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001 -- what the end of an interpreter does
    return found


def _run(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call *function*, whatever kind of function it is; what a generator yields is a list, or one text."""
    value = function(*args, **kwargs)
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        import asyncio  # takes longer to load than most functions to run

        value = asyncio.run(_await(value))
    if inspect.isgenerator(value):
        return _joined(list(value))
    return value


async def _await(value: Any) -> Any:
    if inspect.isasyncgen(value):
        return _joined([item async for item in value])
    return await value


def _joined(items: list[Any]) -> Any:
    return "".join(items) if items and all(isinstance(item, str) for item in items) else items


def load(script: Script) -> ModuleType:
    """The server's script as a module, under its own name unless that is the name of a library."""
    path = Path(script.path or "script.py")
    name = path.stem
    if name in sys.modules or PathFinder.find_spec(name):
        # The script shall be able to import what it is named after.
        name += "_script"
    if script.path:
        sys.path.append(str(path.parent))
    return _execute(name, str(path), script.source)


def load_other(path: str, source: str) -> ModuleType:
    """Other code as a module."""
    return _execute("mcp_transform", path or "transform.py", source)


def _execute(name: str, path: str, source: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    sys.argv = [path]
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- what scripts are for
    return module


def failure(error: BaseException, memory: int) -> dict[str, Any]:
    """The answer for what a script raised; the traceback goes to the log."""
    if isinstance(error, MemoryError):
        error.__traceback__ = None  # Its frames hold what there is too much of.
        return {"error": f"The call used more than {size(memory)} of memory."}
    with suppress(BaseException):
        error.__traceback__ = _theirs(error.__traceback__)
        traceback.print_exception(error, file=sys.stderr)
    return {"error": _message(error)}


def _message(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {error.msg}"
    try:
        text = str(error).strip()
    except BaseException:  # noqa: BLE001 -- the script's own __str__
        return f"{name} (and its message cannot be had)"
    if isinstance(error, KeyError):
        text = f"KeyError: {text}"
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}…"
    return text or name


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the script's."""
    while trace and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace
