# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entry point of ``mcpctl``: run one command, and turn every failure into one line and an exit status."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from mcpd.cli.parser import build_parser, parse
from mcpd.cli.streams import fill_closed
from mcpd.errors import EXIT_FAILED, McpdError, from_oserror

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

DEBUG_VARIABLE = "MCPCTL_DEBUG"
"""If set, an internal error prints its traceback instead of one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mcpctl`` with *argv* (default: the process's own arguments) and return its exit status.

    0 done, 1 failed, 2 invalid usage, 3 not authorized, 4 not found, 130 interrupted; ``run`` returns the status of
    the server. argparse exits by itself after ``--help`` and ``--version``, and for invalid usage.
    """
    fill_closed()
    try:
        if "_ARGCOMPLETE" in os.environ:
            from mcpd.cli.completion import complete  # only for completion in a shell

            complete(build_parser())
        words = sys.argv[1:] if argv is None else argv
        code = _run(parse(build_parser(words), words))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output is gone: prevent the interpreter from flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


def _run(args: argparse.Namespace) -> int:
    try:
        result = _handler(args.handler)(args)
        if isinstance(result, Coroutine):
            import asyncio  # synchronous commands start faster without it

            return int(asyncio.run(result))
    except McpdError as error:
        return _fail(error)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except OSError as error:
        return _fail(from_oserror(error, str(error.filename or args.command)))
    # Users see one line instead of a traceback.
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        return _fail(
            McpdError(
                f"internal error: {type(error).__name__}: {error}. Please report it; {DEBUG_VARIABLE}=1 shows where."
            )
        )
    return result


def _handler(name: str) -> Callable[[argparse.Namespace], int | Coroutine[object, object, int]]:
    module, _, function = name.partition(":")
    handler: Callable[[argparse.Namespace], int | Coroutine[object, object, int]] = getattr(
        importlib.import_module(module), function
    )
    return handler


def _fail(error: McpdError) -> int:
    sys.stdout.flush()
    text = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in error.message)
    sys.stderr.write(f"mcpctl: {text}\n")
    return error.exit_code or EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
