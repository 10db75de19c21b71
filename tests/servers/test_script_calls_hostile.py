# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts that mean harm, or do it: they are stopped, it is reported, and the next call works."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.servers import landlock
from mcpd.servers.scripts.calls import Calls, Limits, Outcome, PythonJob, ShellJob
from tests.children import marked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LIMITS = Limits(seconds=20, memory=1 << 30, processes=40, output=1 << 20)
FINE = PythonJob("fine", {})
SHORT = Limits(seconds=0.5, memory=1 << 30, processes=40, output=1 << 20)
PATIENCE = 120.0


async def gone(mark: str) -> None:
    """Wait until no process has *mark*."""
    give_up = time.monotonic() + PATIENCE
    while left := marked(mark):
        assert time.monotonic() < give_up, f"still there: {left}"
        await asyncio.sleep(0.02)


def children(pid: int) -> list[int]:
    """The children that the first thread of *pid* started: of this process zygotes, of a zygote keepers."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def keeper() -> int:
    """The only keeper of the only zygote."""
    [zygote] = children(os.getpid())
    [found] = children(zygote)
    return found


@asynccontextmanager
async def script(
    source: str, *, workers: int = 0, kind: str = "python", log: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Calls]:
    """The script, with a function ``fine`` that shows whether the next call works; with *workers* those are there."""
    code = textwrap.dedent(source).lstrip() + ("\ndef fine(): return 'fine'\n" if kind == "python" else "")
    calls = Calls(f"/nowhere/tool.{kind}", kind, code, workers=workers, limits=LIMITS, log=log)
    try:
        if workers:  # Have the import ahead done.
            for _ in range(20):
                assert (await calls.call(FINE)).value == "fine"
        yield calls
    finally:
        await calls.close()


async def of(source: str, limits: Limits = LIMITS, *, workers: int = 0) -> Outcome:
    """What comes of the function ``f``; a call after it works."""
    async with script(source, workers=workers) as calls:
        outcome = await calls.call(PythonJob("f", {}), None if limits is LIMITS else limits)
        assert (await calls.call(FINE)).value == "fine"
    return outcome


WORKERS = pytest.mark.parametrize("workers", [0, 1])
SCOPED = pytest.mark.skipif(landlock.version() < 6, reason="this kernel has no scoped signals (Landlock of Linux 6.12)")
X86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")


async def test_T12_5_an_infinite_loop_is_stopped() -> None:
    outcome = await of("def f():\n    while True: pass", SHORT)
    assert outcome.error == "The call ran for more than 0.5 s and was stopped."


async def test_T12_5_an_import_that_hangs_is_stopped_at_each_call() -> None:
    source = "while True: pass"
    calls = Calls("/nowhere/a.py", "python", source, workers=1, limits=SHORT, log=lambda _: None)
    try:
        for _ in range(2):
            assert (await calls.call(PythonJob("f", {}))).error == "The call ran for more than 0.5 s and was stopped."
    finally:
        await calls.close()


async def test_a_shell_script_that_does_not_end_is_stopped_with_all_it_started() -> None:
    mark = uuid.uuid4().hex
    async with script("sleep 1000 & (setsid sleep 1000 &) ; cat /dev/zero | sleep 1000", kind="shell") as calls:
        outcome = await calls.call(ShellJob((), {"MARK": mark}), SHORT)
    assert outcome.error == "The call ran for more than 0.5 s and was stopped."
    await gone(mark)


@WORKERS
async def test_a_cancelled_call_is_killed_as_a_tree(workers: int, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    source = f"""
        import subprocess, time
        def f():
            subprocess.Popen(["sleep", "1000"], env={{"MARK": "{mark}"}}, start_new_session=True)
            open("{tmp_path}/started", "w")
            time.sleep(1000)
        """
    async with script(source, workers=workers) as calls:
        task = asyncio.create_task(calls.call(PythonJob("f", {})))
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.01)
        assert marked(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(mark)
        assert (await calls.call(FINE)).value == "fine"


@WORKERS
async def test_no_daemon_outlives_its_call(workers: int) -> None:
    mark = uuid.uuid4().hex
    source = f"""
        import os
        def f():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execvpe("sleep", ["sleep", "1000"], {{"MARK": "{mark}"}})
                os._exit(0)
            os.wait()
            return "started"
        """
    assert (await of(source, workers=workers)).value == "started"
    assert not marked(mark)


async def test_a_fork_bomb_of_a_shell_script_is_stopped() -> None:
    # As ``:(){ :|:& };:``, but after 10 generations it ends by itself, whatever becomes of what is tested.
    mark = uuid.uuid4().hex
    bomb = """#!/bin/bash
        bomb() { [ "$1" -lt 10 ] || exec sleep 30; bomb $(($1 + 1)) | bomb $(($1 + 1)) & }
        bomb 0
        sleep 30
        """
    async with script(bomb, kind="shell") as calls:
        outcome = await calls.call(ShellJob((), {"MARK": mark}))
    assert outcome.error == "The call started more than 40 processes and was stopped."
    assert not marked(mark)


@WORKERS
async def test_a_fork_bomb_of_a_function_is_stopped(workers: int) -> None:
    source = """
        import os, time
        def f():
            for _ in range(300):  # and no more, whatever becomes of what is tested
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(30)
                    os._exit(0)
            time.sleep(30)
        """
    outcome = await of(source, workers=workers)
    assert outcome.error == "The call started more than 40 processes and was stopped."


@pytest.mark.parametrize("fd", [1, 2, 3])
async def test_output_without_end_is_stopped(fd: int) -> None:
    outcome = await of(f"import os\ndef f():\n    while True: os.write({fd}, b'x' * 65536)")
    assert outcome.error == "The call wrote more than 1048576 bytes and was stopped."


async def test_a_result_without_measure_is_stopped() -> None:
    outcome = await of("def f(): return 'x' * (1 << 21)")
    assert outcome.error == "The call wrote more than 1048576 bytes and was stopped."


async def test_shell_output_without_end_is_stopped() -> None:
    async with script("cat /dev/zero", kind="shell") as calls:
        outcome = await calls.call(ShellJob((), {}))
    assert outcome.error == "The call wrote more than 1048576 bytes and was stopped."


async def test_too_much_memory_is_an_error() -> None:
    limits = Limits(seconds=20, memory=128 << 20, processes=40, output=1 << 20)
    source = "def f():\n    a = []\n    while True: a.append(bytes(1 << 20))"
    assert (await of(source, limits)).error == "The call used more than 128 MiB of memory."


@WORKERS
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os.kill(os.getpid(), 11)", "The call was killed by signal SIGSEGV."),
        ("__import__('ctypes').string_at(0)", "The call was killed by signal SIGSEGV."),
        ("os._exit(0)", "The call ended with status 0 and without a result; see the server's log."),
        ("os._exit(7)", "The call ended with status 7 and without a result; see the server's log."),
        ("os.closerange(0, 1 << 16)", "The call ended with status 1 and without a result; see the server's log."),
    ],
)
async def test_a_worker_that_ends_early_is_an_error(code: str, error: str, workers: int) -> None:
    assert (await of(f"import os\ndef f(): {code}", workers=workers)).error == error


async def test_a_stopped_worker_is_ended_in_time() -> None:
    outcome = await of("import os\ndef f(): os.kill(os.getpid(), 19)", SHORT)
    assert outcome.error == "The call ran for more than 0.5 s and was stopped."


@WORKERS
@pytest.mark.parametrize("target", ["os.getppid()", "-1", "-os.getpgid(os.getppid())"])
@SCOPED
async def test_a_script_cannot_kill_what_watches_it(target: str, workers: int) -> None:
    outcome = await of(f"import os\ndef f(): os.kill({target}, 9)", workers=workers)
    refused = "[Errno 1] Operation not permitted"
    assert outcome.error in ({"", refused, "The call was killed by signal SIGKILL."} if target == "-1" else {refused})


async def test_a_killed_keeper_takes_its_tree_along() -> None:
    mark = uuid.uuid4().hex
    async with script("setsid sleep 1000 & wait", kind="shell") as calls:
        task = asyncio.create_task(calls.call(ShellJob((), {"MARK": mark})))
        while len(marked(mark)) < 2:
            await asyncio.sleep(0.01)
        os.kill(keeper(), 9)
        assert (await task).error == "The call was ended: the process that watched it was killed."
        await gone(mark)


async def test_a_killed_zygote_ends_the_calls_in_flight() -> None:
    mark = uuid.uuid4().hex
    async with script("setsid sleep 1000 & wait", kind="shell") as calls:
        task = asyncio.create_task(calls.call(ShellJob((), {"MARK": mark})))
        while len(marked(mark)) < 2:
            await asyncio.sleep(0.01)
        [zygote] = children(os.getpid())
        os.kill(zygote, 9)
        assert (await task).error == "The call was ended: the process that started it was killed."
        await gone(mark)


async def test_a_stopped_keeper_is_ended_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.servers.scripts.calls.calls.GRACE", 0.5)
    mark = uuid.uuid4().hex
    async with script("setsid sleep 1000 & wait", kind="shell") as calls:
        limits = Limits(seconds=2, memory=1 << 30, processes=40, output=1 << 20)
        task = asyncio.create_task(calls.call(ShellJob((), {"MARK": mark}), limits))
        while len(marked(mark)) < 2:
            await asyncio.sleep(0.01)
        os.kill(keeper(), 19)
        assert (await task).error == "The call ran for more than 2 s and was stopped."
        await gone(mark)


async def test_a_script_that_replaces_its_keeper_is_ended_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forked from a process that imported the script has only the server to watch it."""
    monkeypatch.setattr("mcpd.servers.scripts.calls.calls.GRACE", 0.5)
    mark = uuid.uuid4().hex
    source = f"""
        import subprocess, time
        from mcpd.servers.scripts.calls.keeper import Keeper
        Keeper.run = lambda self: subprocess.run(["sleep", "1000"], env={{"MARK": "{mark}"}})
        def f(): return 1
        """
    seconds, error = 0.5, ""
    while not error:
        limits, late = replace(SHORT, seconds=seconds), list[str]()
        calls = Calls("/nowhere/a.py", "python", textwrap.dedent(source), workers=1, limits=limits, log=late.append)
        try:
            while not error and not late:  # The first calls are made before the import ahead is.
                error = (await calls.call(PythonJob("f", {}))).error
        finally:
            await calls.close()
        seconds *= 1 if error else 2  # A busy machine had no time for the import.
    assert error == f"The call ran for more than {seconds:g} s and was stopped."
    await gone(mark)


async def test_a_killed_server_leaves_nothing() -> None:
    mark = uuid.uuid4().hex
    code = f"""
        import asyncio
        from mcpd.servers.scripts.calls import Calls, Limits, ShellJob
        async def main():
            calls = Calls("", "shell", "setsid sleep 1000 & wait", limits=Limits(900, 1 << 30, 40, 1 << 20), log=print)
            await calls.call(ShellJob((), {{"MARK": "{mark}"}}))
        asyncio.run(main())
        """
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(code), env={"MARK": mark})
    while len(marked(mark)) < 5:  # itself, the zygote, the keeper, the shell, and what it started
        await asyncio.sleep(0.01)
    server.kill()
    await server.wait()
    await gone(mark)


def have_zygotes_begin_with(statements: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have the zygotes to come execute *statements* first; a program for that is written to *directory*."""
    code = f"import os; from mcpd.servers.scripts.calls import confine, zygote; {statements}; zygote.main()"
    python = directory / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -I -B -c '{code}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.fixture
def _without_landlock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls as on a kernel that cannot scope signals."""
    have_zygotes_begin_with("confine.landlock.version = lambda: -1", monkeypatch, tmp_path)


@pytest.mark.usefixtures("_without_landlock")
@WORKERS
async def test_without_landlock_no_daemon_outlives_its_call_either(workers: int) -> None:
    await test_no_daemon_outlives_its_call(workers)


@pytest.mark.usefixtures("_without_landlock")
async def test_without_landlock_fork_bombs_are_stopped_as_well() -> None:
    await test_a_fork_bomb_of_a_shell_script_is_stopped()
    await test_a_fork_bomb_of_a_function_is_stopped(0)


@WORKERS
async def test_garbage_on_the_descriptors_of_others_is_no_result(workers: int) -> None:
    source = """
        import os
        def f():
            for fd in range(3, 100):
                try:
                    os.write(fd, b"\\xff{[" + b"\\n1 2 3\\nnan\\n-\\n1e999\\n")
                except OSError:
                    pass
            return 1
        """
    assert "cannot be read" in (await of(source, workers=workers)).error


async def test_a_forged_result_is_looked_at() -> None:
    source = """
        import os
        def f():
            os.write(3, b'{"content": [{"type": "text"}], "structured": 1}')
            os._exit(0)
        """
    assert "is none" in (await of(source)).error


async def test_recursion_without_end_is_an_error() -> None:
    assert "recursion" in (await of("def f(): return f()")).error
    deep = "def f():\n    a = []\n    for _ in range(100000): a = [a]\n    return a"
    assert (await of(deep)).error == "The result is nested too deeply for JSON."


async def test_messages_are_cut() -> None:
    assert (await of("def f(): raise ValueError('x' * (1 << 19))")).error == "x" * 10000 + "…"


async def test_an_exception_without_a_message_that_can_be_had() -> None:
    source = """
        class Odd(Exception):
            def __str__(self): raise self
        def f(): raise Odd
        """
    assert (await of(source)).error == "Odd (its message cannot be read)"


async def test_a_context_and_arguments_of_a_megabyte_arrive() -> None:
    async with script("def f(x, context): return [len(x), len(context['x'])]") as calls:
        big = "é" * (1 << 20)
        assert (await calls.call(PythonJob("f", {"x": big}, context={"x": big}))).value == [1 << 20, 1 << 20]
