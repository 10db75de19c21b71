# SPDX-License-Identifier: LGPL-2.1-or-later
"""Validation of values by schemas that may take forever, in a process that can be killed.

A regular expression may hold the interpreter for any time, so that neither threads nor the loop can continue. Run as a
program (``python -I -m mcpd.servers.scripts.checking``) this module is that process: it reads requests from stdin and
answers on stdout, in parts with a length each.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from mcpd.servers.scripts.schemas import TOO_DEEP, Checker

if TYPE_CHECKING:
    from asyncio.subprocess import Process

SECONDS: Final = 5.0
"""Time limit of a check in seconds."""
MEMORY: Final = 1 << 30
"""Maximum size of the data of the checking process in bytes."""
MOST_PROCESSES: Final = 4
"""Maximum number of concurrent checks; further ones wait."""
_START: Final = 30.0
"""Time limit for the start of a process in seconds."""
_LENGTH: Final = struct.Struct("!I")


class Checks:
    """Validates values for a server whose calls take at most *seconds*: cheap ones here, others in processes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = min(SECONDS, seconds)
        self._room = asyncio.Semaphore(MOST_PROCESSES)
        self._idle: list[_Helper] = []
        self._all: set[_Helper] = set()

    async def fault(self, checker: Checker, value: object, what: str) -> str:
        """Return the fault of *value* according to *checker*, or an empty string; messages call the value *what*."""
        if checker.is_cheap_for(value):
            return checker.fault(value)
        try:
            question = await asyncio.to_thread(json.dumps, value)
        except RecursionError:
            return TOO_DEEP
        async with self._room:
            return await self._ask(checker, question.encode(), what)

    async def close(self) -> None:
        """End the processes."""
        for helper in list(self._all):
            await self._end(helper)

    async def _ask(self, checker: Checker, value: bytes, what: str) -> str:
        helper = None
        try:
            # Starting it does not count as time of the check.
            async with asyncio.timeout(_START):
                helper = self._idle.pop() if self._idle else await self._start()
                await helper.ready()
            async with asyncio.timeout(self._seconds):
                fault = await helper.ask(checker, value, self._seconds)
        except TimeoutError:
            fault = f"$: checking {what} took more than {self._seconds:g} s"
        except (ConnectionError, EOFError):
            fault = f"$: checking {what} failed: the process that did it has ended"
        except OSError as error:
            fault = f"$: checking {what} failed: {error}"
        except BaseException:
            if helper is not None:
                await asyncio.shield(self._end(helper))
            raise
        else:
            self._idle.append(helper)
            return fault
        if helper is not None:
            await self._end(helper)
        return fault

    async def _start(self) -> _Helper:
        helper = _Helper(
            await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-m", "mcpd.servers.scripts.checking",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )
        )  # fmt: skip
        self._all.add(helper)
        return helper

    async def _end(self, helper: _Helper) -> None:
        self._all.discard(helper)
        await helper.end()


class _Helper:
    """The parent's side of a checking *process*."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._known: set[bytes] = set()
        self._ready = False

    async def ready(self) -> None:
        """Wait until it has started. Raises OSError and EOFError."""
        if not self._ready:
            await self._receive()
            self._ready = True

    async def ask(self, checker: Checker, value: bytes, seconds: float) -> str:
        """Return the fault of the JSON *value*, within about *seconds*. Raises OSError and EOFError."""
        schema, key = checker.written
        for part in (key, b"" if key in self._known else schema, str(math.ceil(seconds) + 1).encode(), value):
            self._send(part)
        if self._process.stdin is not None:
            await self._process.stdin.drain()
        answer = (await self._receive()).decode()
        self._known.add(key)
        return answer

    async def end(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    def _send(self, part: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.writelines([_LENGTH.pack(len(part)), part])

    async def _receive(self) -> bytes:
        if self._process.stdout is None:
            raise EOFError
        (length,) = _LENGTH.unpack(await self._process.stdout.readexactly(_LENGTH.size))
        return await self._process.stdout.readexactly(length)


# ---------------------------------------------------------------------------------------- the process itself


def main() -> None:
    """Answer requests until the end of stdin."""
    questions, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    checkers: dict[bytes, Checker] = {}
    _write(answers, b"")
    while (key := _read(questions)) is not None:
        schema, seconds, value = _read(questions), _read(questions), _read(questions)
        if schema is None or seconds is None or value is None:
            return
        # The kernel ends this process in time, even if the parent has died.
        signal.alarm(int(seconds))
        _write(answers, _answer(checkers, key, schema, value).encode(errors="backslashreplace"))
        signal.alarm(0)


def _answer(checkers: dict[bytes, Checker], key: bytes, schema: bytes, value: bytes) -> str:
    try:
        if key not in checkers:
            checkers[key] = Checker(json.loads(schema))
        given: Any = json.loads(value)
        return checkers[key].fault(given)
    except RecursionError:
        return TOO_DEEP
    except MemoryError:
        return f"$: it cannot be checked with {MEMORY >> 30} GiB of memory"


def _read(file: BinaryIO) -> bytes | None:
    head = file.read(_LENGTH.size)
    return file.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _write(file: BinaryIO, part: bytes) -> None:
    file.write(_LENGTH.pack(len(part)) + part)
    file.flush()


if __name__ == "__main__":
    main()
