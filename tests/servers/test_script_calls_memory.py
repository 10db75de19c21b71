# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory of a call is bounded as a whole: what its processes have, share, and keep in files that no disk has."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import Limits, Outcome, PythonJob, ShellJob
from tests.servers.test_script_calls_hostile import FINE, WORKERS, X86_64, script

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = Limits(seconds=20, memory=96 << 20, processes=40, output=1 << 20)
TOO_MUCH = "The call used more than 96 MiB of memory and was stopped."


@pytest.mark.parametrize(
    "code",
    [
        "held = mmap.mmap(-1, 200 << 20); [held.__setitem__(at, 1) for at in range(0, 200 << 20, 4096)]",
        "held = mmap.mmap(memory(200 << 20), 200 << 20); [held.__setitem__(at, 1) for at in range(0, 200 << 20, 4096)]",
        "[os.fork() for _ in range(2)]; held = b'x' * (60 << 20)",
        "[os.fork() for _ in range(2)]; only_in_a_thread(lambda: b'x' * (60 << 20))",
        "only_in_a_thread(lambda: os.write(memory(0), bytes(40 << 20)) and b'x' * (60 << 20))",
    ],
)
async def test_memory_is_bounded_for_a_call_as_a_whole(code: str) -> None:
    source = f"""
        import ctypes, mmap, os, threading, time
        def memory(size):
            fd = os.memfd_create("x")
            os.ftruncate(fd, size)
            return fd
        def only_in_a_thread(take):
            def run():
                while ") Z" not in open("/proc/self/stat").read():
                    time.sleep(0.01)
                held = take()
                time.sleep(15)
                os._exit(len(held) & 1)
            threading.Thread(target=run).start()
            ctypes.CDLL(None).pthread_exit(None)
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


async def came_of(source: str) -> Outcome:
    """What comes of the function ``f`` with little memory; a call after it works."""
    async with script(source) as calls:
        outcome = await calls.call(PythonJob("f", {}), SMALL)
        assert (await calls.call(FINE)).value == "fine"
    return outcome


HOLD = """
    import mmap, os, time
    PAGES = range((60 << 20) // 4096)
    def hold(size):
        fd = os.memfd_create("held")
        for _ in range(size >> 20):
            os.write(fd, bytes(1 << 20))
        return fd
    """


@pytest.mark.parametrize(
    "code",
    [
        "hold(200 << 20)",
        "[hold(10 << 20) for _ in range(20)]",
        "[os.fork() for _ in range(2)]; hold(30 << 20)",
        "mmap.mmap(hold(200 << 20), 200 << 20)",
        "held = mmap.mmap(hold(60 << 20), 60 << 20); bytes(held[:1]); hold(60 << 20)",
        "held = mmap.mmap(hold(60 << 20), 60 << 20, flags=mmap.MAP_PRIVATE); [held.write(bytes(4096)) for _ in PAGES]",
    ],
)
async def test_files_in_memory_count_as_memory(code: str) -> None:
    source = f"""{HOLD}
    def f():
        {code}
        time.sleep(15)
    """
    assert (await came_of(source)).error == TOO_MUCH


async def test_files_in_memory_count_for_shell_scripts_as_well() -> None:
    python = "import os, time; fd = os.memfd_create('held'); [os.write(fd, bytes(1 << 20)) for _ in range(200)]"
    async with script(f'python3 -c "{python}; time.sleep(15)"', kind="shell") as calls:
        assert (await calls.call(ShellJob((), {}), SMALL)).error == TOO_MUCH


async def test_a_file_in_memory_counts_once() -> None:
    """However many processes have it, open or mapped."""
    source = f"""{HOLD}
    def f():
        fd = hold(60 << 20)
        again = os.dup(fd)
        held = mmap.mmap(fd, 60 << 20)
        for _ in range(3):
            if os.fork() == 0:
                sum(held[::4096])
                time.sleep(15)
                os._exit(0)
        sum(held[::4096])
        time.sleep(0.5)
        return len(held)
    """
    outcome = await came_of(source)
    assert (outcome.value, outcome.error) == (60 << 20, "")


@pytest.fixture
def _no_segment_of_ours() -> Iterator[None]:
    """Removes what an attack has left, if it could."""
    yield
    libc = ctypes.CDLL(None)
    segment = libc.shmget(KEY, 0, 0)
    if segment >= 0:
        libc.shmctl(segment, 0, None)


KEY = 0x6D637064


@pytest.mark.usefixtures("_no_segment_of_ours")
@WORKERS
async def test_no_memory_outlives_its_call(workers: int) -> None:
    source = f"""
        import ctypes
        def f(flags):
            libc = ctypes.CDLL(None, use_errno=True)
            libc.shmat.restype, size = ctypes.c_long, (200 << 20 if flags else 0)
            segment = libc.shmget({KEY}, ctypes.c_size_t(size), flags)
            if segment < 0:
                return ctypes.get_errno()
            at = libc.shmat(segment, None, 0)
            if at > 0 and flags:
                ctypes.memset(at, 1, size)
                libc.shmdt(ctypes.c_void_p(at))
            return "there"
        """
    async with script(source, workers=workers) as calls:
        left = await calls.call(PythonJob("f", {"flags": 0o1600}))
        assert (left.value, left.error) == (1, "")
        found = await calls.call(PythonJob("f", {"flags": 0}))
        assert (found.value, found.error) == (1, "")


@X86_64
async def test_no_queue_of_messages_outlives_its_call_either() -> None:
    source = """
        import ctypes, os
        def f():
            libc = ctypes.CDLL(None, use_errno=True)
            found = libc.syscall(240, b"mcpd-test", os.O_RDWR | os.O_CREAT, 0o600, None)
            error = ctypes.get_errno()
            libc.syscall(241, b"mcpd-test")
            return error if found < 0 else "there"
        """
    assert (await came_of(source)).value == 1


async def test_few_sockets_can_be_full() -> None:
    source = """
        import errno, socket
        def f():
            pairs = []
            try:
                while len(pairs) < 400:
                    first, second = socket.socketpair()
                    pairs.append((first, second))
                    first.setblocking(False)
                    first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
                    first.send(bytes(1 << 20))
            except OSError as error:
                assert error.errno == errno.EMFILE, error
            return len(pairs)
        """
    outcome = await came_of(source)
    assert outcome.error == ""
    assert 64 < outcome.value < 128


@WORKERS
async def test_what_multiprocessing_shares_is_there(workers: int) -> None:
    source = """
        import multiprocessing
        from multiprocessing.shared_memory import SharedMemory
        def add(queue, lock, total, name):
            with lock:
                total.value += 1
            shared = SharedMemory(name=name)
            shared.buf[0] += 1
            shared.close()
            queue.put("added")
        def f():
            fork = multiprocessing.get_context("fork")
            queue, lock, total = fork.Queue(), fork.Lock(), fork.Value("i", 0)
            shared = SharedMemory(create=True, size=1)
            try:
                for _ in range(3):
                    process = fork.Process(target=add, args=(queue, lock, total, shared.name))
                    process.start()
                    process.join()
                with fork.Pool(2) as pool:
                    squares = pool.map(abs, range(3))
                return [[queue.get() for _ in range(3)], total.value, shared.buf[0], squares]
            finally:
                shared.close()
                shared.unlink()
        """
    async with script(source, workers=workers) as calls:
        outcome = await calls.call(PythonJob("f", {}))
    assert (outcome.value, outcome.error) == ([["added"] * 3, 3, 3, [0, 1, 2]], "")
