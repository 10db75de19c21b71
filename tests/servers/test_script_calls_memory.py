# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a call keeps in memory beside the data of its processes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import Limits, Outcome, PythonJob
from tests.servers.test_script_calls_hostile import FINE, WORKERS, X86_64, script

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = Limits(seconds=20, memory=96 << 20, processes=40, output=1 << 20)


async def came_of(source: str) -> Outcome:
    """What comes of the function ``f`` with little memory; a call after it works."""
    async with script(source) as calls:
        outcome = await calls.call(PythonJob("f", {}), SMALL)
        assert (await calls.call(FINE)).value == "fine"
    return outcome


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
