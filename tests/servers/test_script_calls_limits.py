# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one call uses is bounded, and nothing that one call does ends the server for the others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import textwrap
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import Calls, Limits, PythonJob, ShellJob
from mcpd.servers.scripts.calls.channel import Silent, Zygote, exchange
from tests.servers.test_script_calls_hostile import gone, marked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMITS = Limits(seconds=20, memory=1 << 30, processes=40, output=1 << 20)
WORKERS = pytest.mark.parametrize("workers", [0, 1])
FINE = PythonJob("fine", {})


@asynccontextmanager
async def script(source: str, *, workers: int = 0) -> AsyncIterator[Calls]:
    code = textwrap.dedent(source) + "\ndef fine(): return 'fine'\n"
    calls = Calls("/nowhere/tool.py", "python", code, workers=workers, limits=LIMITS, log=lambda _: None)
    try:
        if workers:  # Have the import ahead done.
            for _ in range(20):
                assert (await calls.call(FINE)).value == "fine"
        yield calls
    finally:
        await calls.close()


def zygotes() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


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
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
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
    calls = Calls("/nowhere/a.sh", "shell", source, limits=LIMITS, log=lambda _: None)
    try:
        assert (await calls.call(ShellJob((), {}))).value == "mine\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await calls.close()


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
    source = f"""
        import os, time
        def wait():
            while not os.path.exists({str(gate)!r}):
                time.sleep(0.01)
            return "waited"
    """
    async with script(source) as calls:
        running = asyncio.create_task(calls.call(PythonJob("wait", {})))
        while not zygotes() or not Path(f"/proc/{zygotes()[0]}/task/{zygotes()[0]}/children").read_text():
            await asyncio.sleep(0.01)
        [zygote] = zygotes()
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (files, files))
        assert (await calls.call(FINE)).error == error
        assert (await calls.call(FINE)).value == "fine"
        gate.touch()
        assert (await running).value == "waited"  # What runs already goes on.
        while zygote in zygotes():
            await asyncio.sleep(0.01)


async def test_a_keeper_that_says_nothing_is_told_from_one_that_was_killed() -> None:
    zygote = await Zygote.start("", "", "")
    with await zygote.channel() as sock:
        await zygote.kill()
        with pytest.raises(Silent):
            await exchange(sock, b"", 100, print, None)


SMALL = Limits(seconds=20, memory=96 << 20, processes=40, output=1 << 20)
TOO_MUCH = "The call used more than 96 MiB of memory and was stopped."


@pytest.mark.parametrize(
    "code",
    [
        "held = mmap.mmap(-1, 200 << 20); [held.__setitem__(at, 1) for at in range(0, 200 << 20, 4096)]",
        "held = mmap.mmap(memory(200 << 20), 200 << 20); [held.__setitem__(at, 1) for at in range(0, 200 << 20, 4096)]",
        "[os.fork() for _ in range(2)]; held = b'x' * (60 << 20)",
    ],
)
async def test_memory_is_bounded_for_a_call_as_a_whole(code: str) -> None:
    source = f"""
        import mmap, os, time
        def memory(size):
            fd = os.memfd_create("x")
            os.ftruncate(fd, size)
            return fd
        def f():
            {code}
            time.sleep(15)
        """
    async with script(source) as calls:
        assert (await calls.call(PythonJob("f", {}), SMALL)).error == TOO_MUCH
        assert (await calls.call(FINE)).value == "fine"


async def test_what_processes_share_counts_once() -> None:
    source = """
        import os, time
        def f():
            held = b"x" * (50 << 20)
            for _ in range(3):
                if os.fork() == 0:
                    time.sleep(15)
                    os._exit(0)
            time.sleep(0.5)
            return len(held)
        """
    async with script(source) as calls:
        outcome = await calls.call(PythonJob("f", {}), SMALL)
        assert (outcome.value, outcome.error) == (50 << 20, "")


async def test_the_processes_of_calls_at_once_do_not_count_together() -> None:
    async with script("import resource\ndef f(): return resource.getrlimit(resource.RLIMIT_NPROC)[0]") as calls:
        most = (await calls.call(PythonJob("f", {}))).value
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        assert most >= 64 * LIMITS.processes or 0 <= limit == most


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
    calls = Calls("/nowhere/a.sh", "shell", '[ "$1" ] || exec sleep 1000', limits=LIMITS, log=print)
    try:
        task = asyncio.create_task(calls.call(ShellJob((), {"MARK": mark})))
        while not marked(mark):
            await asyncio.sleep(0.01)
        [zygote] = zygotes()
        [keeper] = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        os.kill(int(keeper), 19)  # SIGSTOP: it cannot end anything now.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = asyncio.create_task(calls.call(ShellJob(("now",), {})))
        await asyncio.wait([after], timeout=0.3)
        assert marked(mark)
        assert not after.done()
        os.kill(int(keeper), 18)
        assert (await after).error == ""
        assert not marked(mark)
    finally:
        await calls.close()


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
    calls = Calls("/nowhere/a.py", "python", textwrap.dedent(source), limits=LIMITS, log=log.append)
    try:
        for _ in range(5):
            assert (await calls.call(PythonJob("f", {}))).value == 1
            assert log == ["said", "there"]
            log.clear()
        await gone(mark)
    finally:
        await calls.close()
