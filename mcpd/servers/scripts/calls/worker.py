# SPDX-License-Identifier: LGPL-2.1-or-later
"""The worker: the process that runs a script. Once the script runs, it controls the whole process."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mcpd.servers import tree
from mcpd.servers.scripts.calls import confine, frames, function, shell
from mcpd.servers.scripts.calls.job import AT_ONCE

if TYPE_CHECKING:
    import io
    from types import ModuleType

    from mcpd.servers.scripts.calls.keeper import Ends
    from mcpd.servers.scripts.calls.zygote import Zygote

RESULT_FD: Final = 3
PROGRESS_FD: Final = 4
_TASK_FD: Final = 5
_CONTROL_FD: Final = 6
_FIRST_FREE: Final = 7
_MOST_FDS: Final = 1 << 20
_ROOM: Final = 512
"""Processes that the user may start meanwhile for other purposes; RLIMIT_NPROC counts them together."""


@dataclass(frozen=True, slots=True)
class Script:
    """The server's script: ``kind`` is ``python``, ``shell`` or empty; ``path`` is empty if it is not a file.

    ``digest`` is the SHA-256 of that file in hex, if known.
    """

    path: str
    kind: str
    source: str
    digest: str = ""


def run(script: Script, ends: Ends, base: int, zygote: type[Zygote], module: ModuleType | None = None) -> NoReturn:
    """Become the worker of one call: wait for the task, run it, exit.

    *base* is the number of processes that the user had. *module* is the script if it was imported already; the limits
    set for that import then apply here as well.
    """
    code = 1
    try:
        _settle(ends)
        scoped = bool(module) and confine.keep_to_own()
        task = _task()
        if not module:
            scoped = _confine(task, base)
        if "stem" in task:
            _become_zygote(script, base, zygote, task)
        if scoped:
            # Other calls cannot trace this process, so it may own its files in /proc.
            tree.prctl(tree.PR_SET_DUMPABLE, 1)
        confine.limit_time(task["limits"]["seconds"])
        if "words" in task:
            shell.execute(script, task)
        found = function.call(script, task, module)
        _flush()  # The keeper waits for nothing after the answer.
        answer(found)
        code = 0
    except confine.Unavailable as error:
        answer({"error": f"This call must not write anything, which needs {error}; so it was refused."})
    except shell.Changed as error:
        answer({"error": str(error)})
    except OSError as error:
        answer({"error": f"{error.filename or 'The call could not be started'}: {error.strerror}"})
    except BaseException:  # noqa: BLE001 -- a boundary: this process is nobody's caller
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _confine(task: dict[str, Any], base: int) -> bool:
    """Confine this process for *task*; return True if other calls are kept from it, too."""
    limits = task["limits"]
    # Concurrent calls are counted together here; each keeper counts those of its own.
    confine.limit(limits["memory"], base + _ROOM + AT_ONCE * limits["processes"])
    if task.get("read_only"):
        return confine.forbid_writing()
    scoped = confine.keep_to_own()
    confine.leave_others_alone()
    return scoped


def _flush() -> None:
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()


def answer(message: dict[str, Any]) -> None:
    """Write the complete result."""
    data = memoryview(json.dumps(message, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace"))
    while data:
        data = data[os.write(RESULT_FD, data) :]
    os.close(RESULT_FD)


def _settle(ends: Ends) -> None:
    """Release everything that belongs to the keeper."""
    keeper = os.getppid()
    tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for default in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(default, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    wanted = [null, ends.out, ends.err, ends.result, ends.progress, ends.task, ends.control]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) if fd >= 0 else -1 for fd in wanted]
    for number, fd in enumerate(high):
        if fd >= 0:
            os.dup2(fd, number, inheritable=number in {0, 1, 2, PROGRESS_FD})
    os.closerange(_FIRST_FREE if ends.control >= 0 else _CONTROL_FD, _MOST_FDS)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 -- a descriptor, for good
    sys.stdout, sys.stderr = _printer(1), _printer(2)
    os.environ["MCP_PROGRESS_FD"] = str(PROGRESS_FD)


def _printer(fd: int) -> io.TextIOWrapper:
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _task() -> dict[str, Any]:
    """Wait for the task; an idle worker may wait long."""
    with open(_TASK_FD, "rb") as file:  # noqa: PTH123 -- a descriptor
        head = file.read(frames.HEADER.size)
        if len(head) < frames.HEADER.size:
            os._exit(0)
        task: dict[str, Any] = json.loads(file.read(frames.HEADER.unpack(head)[1]))
    if "stdin" in task:
        task["stdin"] = base64.b64decode(task["stdin"])
    return task


def _become_zygote(script: Script, base: int, zygote: type[Zygote], task: dict[str, Any]) -> NoReturn:
    """Import the script, and fork workers that have it imported."""
    control = socket.socket(fileno=_CONTROL_FD)
    try:
        module = function.load(script)
    except BaseException as error:  # noqa: BLE001 -- the script's own, which each call reports again
        answer(function.failure(error, task["limits"]["memory"]))
        os._exit(1)
    _flush()

    def work(ends: Ends) -> NoReturn:
        run(script, ends, base, zygote, module)

    server = zygote(control, work, clean=False)
    control.sendall(frames.READY)
    server.serve()
    os._exit(0)
