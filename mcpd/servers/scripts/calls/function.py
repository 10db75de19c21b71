# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a function of a Python script, in the worker."""

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
"""Maximum length of an error's message in characters; the log has all of it."""
_OURS: Final = str(Path(__file__).parent)


def call(script: Script, task: dict[str, Any], module: ModuleType | None) -> dict[str, Any]:
    """Return the answer to *task*: ``{"value"}``, ``{"content", …}`` or ``{"error"}``, see :mod:`.results`."""
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
    """Call *function*, of any kind; the items of a generator are returned as a list, or as one text."""
    value = function(*args, **kwargs)
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        import asyncio  # loading takes longer than most functions

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
    """Return the server's script as a module, named like its file unless a library has that name."""
    path = Path(script.path or "script.py")
    name = path.stem
    if name in sys.modules or PathFinder.find_spec(name):
        # The script must be able to import a library of its own name.
        name += "_script"
    if script.path:
        sys.path.append(str(path.parent))
    return _execute(name, str(path), script.source)


def load_other(path: str, source: str) -> ModuleType:
    """Return other code as a module."""
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
    """Return the answer for an exception of the script; the traceback goes to the log."""
    if isinstance(error, MemoryError):
        error.__traceback__ = None  # Its frames hold the memory.
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
        return f"{name} (its message cannot be read)"
    if isinstance(error, KeyError):
        text = f"KeyError: {text}"
    if isinstance(error, ImportError) and (trace := error.__traceback__) is not None:
        text = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: {text}"
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}…"
    return text or name


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that belongs to the script."""
    while trace and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace
