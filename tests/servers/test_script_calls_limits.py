# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one call uses is bounded, and nothing that one call does ends the server for the others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import subprocess
import sys
import textwrap
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import Calls, PythonJob, ShellJob
from mcpd.servers.scripts.calls.channel import Broken, Silent, Zygote, exchange
from tests.children import marked
from tests.servers.test_script_calls_hostile import (
    FINE,
    LIMITS,
    SCOPED,
    WORKERS,
    X86_64,
    children,
    gone,
    keeper,
    script,
)

if TYPE_CHECKING:
    from pathlib import Path

WAITING = """
import os, time
def wait(gate):
    while not os.path.exists(gate):
        time.sleep(0.01)
    return "waited"
"""


def zygotes() -> list[int]:
    return children(os.getpid())


ATTACKS = [
    "resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))",
    "resource.prlimit(pid, resource.RLIMIT_NOFILE)",
    "os.setpriority(os.PRIO_PROCESS, pid, 19)",
    "os.setpriority(os.PRIO_USER, 0, 19)",
    "os.sched_setaffinity(pid, {0})",
    "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))",
    "os.sched_setparam(pid, os.sched_param(0))",
    "libc(314, pid, ctypes.create_string_buffer((48).to_bytes(4, 'little') + bytes(44), 48), 0)",
    "libc(251, 1, pid, 3 << 13)",
    "libc(256, pid, 64, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))",
    "libc(101, 16, pid, 0, 0)",
    "libc(312, os.getpid(), pid, 0, 0, 0)",
]
"""The numbers are those of sched_setattr, ioprio_set, migrate_pages, ptrace and kcmp on x86-64."""


@WORKERS
@X86_64
async def test_a_call_cannot_change_the_server_or_its_zygote(workers: int) -> None:
    code = textwrap.indent("\n".join(f"attempt(lambda: {attack})" for attack in ATTACKS), " " * 16).lstrip()
    source = f"""
        import ctypes, os, resource
        def libc(*words):
            number, *rest = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
            if ctypes.CDLL(None, use_errno=True).syscall(number, *rest) < 0:
                raise OSError(ctypes.get_errno(), "")
        def f(pids):
            found = []
            def attempt(what):
                try:
                    what()
                    found.append(0)
                except OSError as error:
                    found.append(error.errno)
            for pid in pids:
                {code}
            return found
        def own():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            resource.prlimit(0, resource.RLIMIT_NOFILE, (32, 32))
            os.sched_setaffinity(0, os.sched_getaffinity(0))
            os.nice(1)
            libc(251, 1, 0, 3 << 13)
            return "done"
        """
    async with script(source, workers=workers) as calls:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            pids = [os.getpid(), *zygotes()]
            outcome = await calls.call(PythonJob("f", {"pids": pids}))
            assert outcome.value == [1] * len(ATTACKS) * len(pids), outcome.error
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (await calls.call(PythonJob("own", {}))).value == "done"
        assert (await calls.call(FINE)).value == "fine"


async def test_a_shell_script_cannot_either() -> None:
    source = f"prlimit --pid {os.getpid()} --nofile=3:3 2>/dev/null && echo changed; ulimit -n 64 && echo mine"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with script(source, kind="shell") as calls:
        try:
            assert (await calls.call(ShellJob((), {}))).value == "mine\n"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_server_that_can_open_nothing_says_so() -> None:
    async with script("") as calls:
        assert (await calls.call(FINE)).value == "fine"
        [zygote] = zygotes()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            outcome = await calls.call(FINE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert outcome.error == "The call was ended: the server has no room for it: Too many open files."
        assert (await calls.call(FINE)).value == "fine"
        assert zygotes() == [zygote]


async def test_a_server_that_can_start_nothing_says_so() -> None:
    async with script("") as calls:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            outcome = await calls.call(FINE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert "Too many open files" in outcome.error
        assert (await calls.call(FINE)).value == "fine"


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (3, "The call was ended: the process that watched it was killed."),
        (9, "The call could not be started: Too many open files."),
    ],
)
async def test_a_zygote_that_starts_no_keepers_is_replaced(files: int, error: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with script(WAITING) as calls:
        running = asyncio.create_task(calls.call(PythonJob("wait", {"gate": str(gate)})))
        while not zygotes() or not children(zygotes()[0]):
            await asyncio.sleep(0.01)
        [zygote] = zygotes()
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (files, files))
        assert (await calls.call(FINE)).error == error
        assert (await calls.call(FINE)).value == "fine"
        gate.touch()
        assert (await running).value == "waited"  # What runs already goes on.
        while zygote in zygotes():
            await asyncio.sleep(0.01)


async def test_a_zygote_that_was_replaced_gives_no_workers(tmp_path: Path) -> None:
    imported, gate = tmp_path / "imported", tmp_path / "gate"
    source = f"{WAITING}\nwait({str(imported)!r})\nimporter = os.getpid(), os.getppid()\ndef f(): return importer\n"
    calls = Calls("/nowhere/tool.py", "python", source, workers=1, limits=LIMITS, log=print)
    try:
        running = asyncio.create_task(calls.call(PythonJob("wait", {"gate": str(gate)})))
        while not zygotes() or len(children(zygotes()[0])) < 2:  # One for the call, one for the import ahead.
            await asyncio.sleep(0.01)
        [zygote] = zygotes()
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (3, 3))
        killed = "The call was ended: the process that watched it was killed."
        assert (await calls.call(FINE)).error == killed
        imported.touch()
        found, before = (await calls.call(PythonJob("f", {}))).value, None
        while found != before:  # Until the import ahead is done, a call imports by itself.
            found, before = (await calls.call(PythonJob("f", {}))).value, found
        _, above = found
        assert above not in children(zygote)
        gate.touch()
        assert (await running).value == "waited"
    finally:
        await calls.close()


async def test_a_keeper_that_says_nothing_is_told_from_one_that_was_killed() -> None:
    zygote = await Zygote.start("", "", "")
    with zygote.channel() as sock:
        await zygote.kill()
        with pytest.raises(Silent):
            await exchange(sock, b"", 100, print, None)


async def test_a_zygote_that_takes_no_wishes_is_not_waited_for() -> None:
    zygote = await Zygote.start("", "", "")
    [pid] = zygotes()
    os.kill(pid, 19)  # SIGSTOP: it reads none of them.

    def wish(channels: ExitStack) -> None:
        for _ in range(5000):
            channels.enter_context(zygote.channel())

    try:
        with ExitStack() as channels, pytest.raises(Broken, match="takes no more calls"):
            wish(channels)
    finally:
        await zygote.kill()


async def test_a_server_without_room_for_more_workers_lets_calls_go_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with script(WAITING, workers=1) as calls:
        running = asyncio.create_task(calls.call(PythonJob("wait", {"gate": str(gate)})))
        assert (await calls.call(FINE)).value == "fine"  # Now there is another worker.
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            assert (await calls.call(FINE)).value == "fine"
            assert "Too many open files" in (await calls.call(FINE)).error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (await calls.call(FINE)).value == "fine"
        gate.touch()
        assert (await running).value == "waited"


async def test_the_processes_of_calls_at_once_do_not_count_together() -> None:
    async with script("import resource\ndef f(): return resource.getrlimit(resource.RLIMIT_NPROC)[0]") as calls:
        most = (await calls.call(PythonJob("f", {}))).value
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        assert most >= 64 * LIMITS.processes or 0 <= limit == most


async def test_a_log_without_end_is_cut() -> None:
    log: list[str] = []
    source = "import sys\ndef f():\n    for n in range(2000): print('x' * 50, file=sys.stderr)\n    return 1"
    async with script(source, log=log.append) as calls:
        assert (await calls.call(PythonJob("f", {}))).value == 1
    assert log == ["x" * 50] * 1000 + ["… more"]


async def test_long_lines_are_fewer() -> None:
    log: list[str] = []
    source = "def f():\n    for n in range(500): print('x' * 1500)\n    return 1"
    async with script(source, log=log.append) as calls:
        assert (await calls.call(PythonJob("f", {}))).value == 1
    assert log == ["x" * 1500] * ((1 << 18) // 1500) + ["… more"]


async def test_a_line_without_end_is_cut() -> None:
    log: list[str] = []
    source = "import sys\ndef f():\n    sys.stderr.write('é' * (1 << 18))\n    return 1"
    async with script(source, log=log.append) as calls:
        assert (await calls.call(PythonJob("f", {}))).value == 1
    assert log == ["é" * 2000 + "…"]


async def test_a_shell_script_that_was_changed_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "tool.sh"
    data = b"#!/bin/sh\n# \xff\necho old\n"
    path.write_bytes(data)
    source, digest = data.decode(errors="replace"), hashlib.sha256(data).hexdigest()
    calls = Calls(str(path), "shell", source, limits=LIMITS, log=print, digest=digest)
    unchecked = Calls(str(path), "shell", source, limits=LIMITS, log=print)
    try:
        assert (await calls.call(ShellJob((), {}))).value == "old\n"
        path.write_bytes(data + b"echo new\n")
        error = f"{path} was changed; the server is about to be started again: try again."
        assert (await calls.call(ShellJob((), {}))).error == error
        assert (await unchecked.call(ShellJob((), {}))).value == "old\nnew\n"
        path.unlink()
        assert (await calls.call(ShellJob((), {}))).error == error
    finally:
        await calls.close()
        await unchecked.close()


async def test_a_cancelled_call_keeps_its_place_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.servers.scripts.calls.calls.AT_ONCE", 1)
    mark = uuid.uuid4().hex
    async with script('[ "$1" ] || exec sleep 1000', kind="shell") as calls:
        task = asyncio.create_task(calls.call(ShellJob((), {"MARK": mark})))
        while not marked(mark):
            await asyncio.sleep(0.01)
        stopped = keeper()
        os.kill(stopped, 19)  # SIGSTOP: it cannot end anything now.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = asyncio.create_task(calls.call(ShellJob(("now",), {})))
        await asyncio.wait([after], timeout=0.3)
        assert marked(mark)
        assert not after.done()
        os.kill(stopped, 18)
        assert (await after).error == ""
        assert not marked(mark)


async def test_an_answer_does_not_wait_for_the_end_of_its_processes() -> None:
    """But nothing is left of them soon after, and what the script said before is in the log."""
    mark = uuid.uuid4().hex
    log: list[str] = []
    source = f"""
        import subprocess, sys
        def f():
            subprocess.Popen(["sleep", "1000"], env={{"MARK": "{mark}"}}, start_new_session=True)
            print("said", end="")
            sys.stderr.write("there")
            return 1
        """
    async with script(source, log=log.append) as calls:
        for _ in range(5):
            assert (await calls.call(PythonJob("f", {}))).value == 1
            assert log == ["said", "there"]
            log.clear()
        await gone(mark)


@SCOPED
def test_what_cannot_be_confined_any_more_has_nothing_open_of_it() -> None:
    code = "import os; from mcpd.servers.scripts.calls.confine import keep_to_own as keep; "
    code += "print([keep() for _ in range(20)][-1], len(os.listdir('/proc/self/fd')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "4"]
