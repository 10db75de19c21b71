# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls that must not write: not into a file, not about a file, not to a socket."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from mcpd.servers.scripts.calls import Calls, Limits, Outcome, PythonJob
from tests.servers.test_script_calls_hostile import X86_64, have_zygotes_begin_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

LIMITS = Limits(seconds=20, memory=1 << 30, processes=64, output=1 << 20)


async def outcome(source: str, *, read_only: bool = True) -> Outcome:
    calls = Calls("", "", "", limits=LIMITS, log=lambda _: None)
    try:
        job = PythonJob("f", {}, textwrap.dedent(source), "transform.py", read_only=read_only)
        return await calls.call(job)
    finally:
        await calls.close()


def state(directory: Path) -> list[tuple[object, ...]]:
    """All there is to see of *directory*."""
    found: list[tuple[object, ...]] = []
    for path in sorted([directory, *directory.rglob("*")]):
        stat = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        names = os.listxattr(path, follow_symlinks=False)
        found.append((str(path), stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_nlink, names, data))
    return found


WRITES = [
    "open(d + '/new', 'w')",
    "open(d + '/file', 'a')",
    "open(d + '/file', 'r+')",
    "os.open(d + '/file', os.O_RDONLY | os.O_TRUNC)",
    "os.open(d + '/new', os.O_RDONLY | os.O_CREAT)",
    "os.open(d, os.O_TMPFILE | os.O_RDWR)",
    "os.truncate(d + '/file', 0)",
    "os.unlink(d + '/file')",
    "os.rmdir(d + '/empty')",
    "os.mkdir(d + '/new')",
    "os.mkfifo(d + '/new')",
    "os.mknod(d + '/new', 0o600 | stat.S_IFCHR, os.makedev(1, 3))",
    "os.rename(d + '/file', d + '/new')",
    "os.rename(d + '/file', d + '/empty/new')",
    "os.link(d + '/file', d + '/new')",
    "os.symlink('x', d + '/new')",
    "os.chmod(d + '/file', 0o777)",
    "os.fchmod(os.open(d + '/file', os.O_RDONLY), 0o777)",
    "os.chmod('file', 0o777, dir_fd=os.open(d, os.O_RDONLY))",
    "os.chown(d + '/file', 1, 1)",
    "os.fchown(os.open(d + '/file', os.O_RDONLY), 1, 1)",
    "os.lchown(d + '/link', 1, 1)",
    "os.utime(d + '/file', (1, 1))",
    "os.utime(os.open(d + '/file', os.O_RDONLY), (1, 1))",
    "os.setxattr(d + '/file', 'user.x', b'1')",
    "fcntl.ioctl(os.open(d + '/file', os.O_RDONLY), 0x40086602, b'\\0' * 8)",
    "subprocess.run(['/bin/sh', '-c', 'echo 1 > ' + d + '/file; touch ' + d + '/file'], check=True)",
    "open('/proc/self/comm', 'w')",
    "open('/dev/shm/mcpd-test', 'w')",
    "multiprocessing.Lock()",
]
NETWORK = [
    "socket.socket(socket.AF_INET)",
    "socket.socket(socket.AF_UNIX)",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "socket.create_connection(('127.0.0.1', port))",
    "urllib.request.urlopen(f'http://127.0.0.1:{port}')",
    "subprocess.run([sys.executable, '-c', CONNECT, str(port)], check=True, stderr=subprocess.DEVNULL)",
]
LASTING = [
    "libc(66, libc(64, 0, 1, 0o1600), 0, 0)",  # semget, and away with it
    "libc(65, queue, ctypes.create_string_buffer(6), 1)",  # semop
    "libc(66, queue, 0, 16, 1)",  # semctl: SETVAL
    "libc(220, queue, ctypes.create_string_buffer(6), 1, None)",  # semtimedop
    "libc(71, libc(68, 0, 0o1600), 0, None)",  # msgget, and away with it
    "libc(69, queue, (1).to_bytes(8, 'little') + b'x', 1, 0o4000)",  # msgsnd
    "libc(70, queue, ctypes.create_string_buffer(16), 1, 0, 0o4000)",  # msgrcv
    "libc(71, queue, 2, ctypes.create_string_buffer(256))",  # msgctl: IPC_STAT
    "libc(31, libc(29, 0, 4096, 0o1600), 0, None)",  # shmget, and away with it
    "libc(30, segment, None, 0)",  # shmat
    "libc(31, segment, 2, ctypes.create_string_buffer(256))",  # shmctl: IPC_STAT
    "libc(240, b'mcpd-test', os.O_RDWR | os.O_CREAT, 0o600, None); libc(241, b'mcpd-test')",  # mq_open, mq_unlink
]
KEYS = [
    "libc(248, b'user', b'mcpd-test', b'x', 1, -2)",  # add_key, to the process's own
    "libc(249, b'user', b'mcpd-test', None, -2)",  # request_key
    "libc(250, 0, -2, 1)",  # keyctl: the process's own keyring
]
OTHERS = [
    "libc(101, 0, 0, 0, 0)",  # ptrace: PTRACE_TRACEME
    "libc(425, 1, ctypes.create_string_buffer(120))",  # io_uring_setup
    "libc(272, 0x20000)",  # unshare: CLONE_NEWNS
    "libc(165, b'none', d.encode(), b'tmpfs', 0, None)",  # mount
    "libc(467, -100, d.encode(), 1, None, 0)",  # open_tree_attr
    "libc(300, 0, 0)",  # fanotify_init
    "libc(103, 10, 0, 0)",  # syslog
    "libc(302, os.getppid(), 7, None, ctypes.create_string_buffer(16))",  # prlimit64
]


def attempt(code: str, directory: Path, port: int, **ids: int) -> str:
    """A script whose function says with which error *code* fails."""
    return f"""
        import ctypes, errno, fcntl, multiprocessing, os, socket, stat, subprocess, sys, urllib.error, urllib.request
        d, port, queue, segment = {str(directory)!r}, {port}, {ids.get("queue", 0)}, {ids.get("segment", 0)}
        CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        def libc(*words):
            call = ctypes.CDLL(None, use_errno=True).syscall
            call.restype = ctypes.c_long
            found = call(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words])
            if found == -1:
                raise OSError(ctypes.get_errno(), "")
            return found
        def f():
            try:
                {code}
            except urllib.error.URLError as error:
                return errno.errorcode.get(error.reason.errno)
            except OSError as error:
                return errno.errorcode.get(error.errno)
            except subprocess.CalledProcessError as error:
                return "EPERM"
            return "done"
        """


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Where something listens, and answers as a web server does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(1)
            writer.write(b"HTTP/1.0 204 No Content\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
def ids() -> Iterator[dict[str, int]]:
    """A set of semaphores and a queue of messages that have one number, and a segment of memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    queues: list[int] = []
    sets: list[int] = []
    while not set(queues) & set(sets):
        queues.append(libc.msgget(0, 0o1600))
        sets.append(libc.semget(0, 1, 0o1600))
        assert len(queues) < 20
        assert min(queues[-1], sets[-1]) >= 0
    [both] = set(queues) & set(sets)
    libc.msgsnd(both, (1).to_bytes(8, "little") + b"x", 1, 0o4000)
    segment = libc.shmget(0, 4096, 0o1600)
    yield {"queue": both, "segment": segment}
    for queue in queues:
        libc.msgctl(queue, 0, None)
    for semaphores in sets:
        libc.semctl(semaphores, 0, 0, 0)
    libc.shmctl(segment, 0, None)


@pytest.mark.parametrize("code", [*WRITES, *NETWORK])
async def test_what_writes_is_refused(code: str, tmp_path: Path, port: int) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "file").chmod(0o644)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("file")
    before = state(tmp_path)
    found = await outcome(attempt(code, tmp_path, port))
    assert (found.value, found.error) == ("EPERM", "")
    assert state(tmp_path) == before


@X86_64
@pytest.mark.parametrize("code", [*LASTING, *KEYS, *OTHERS])
async def test_what_reaches_others_is_refused(code: str, tmp_path: Path, ids: dict[str, int]) -> None:
    found = await outcome(attempt(code, tmp_path, 0, **ids))
    assert (found.value, found.error) == ("EPERM", "")


@pytest.mark.parametrize("code", NETWORK)
async def test_each_of_these_connects_where_nobody_minds(code: str, tmp_path: Path, port: int) -> None:
    found = await outcome(attempt(code, tmp_path, port), read_only=False)
    assert (found.value, found.error) == ("done", "")


@X86_64
@pytest.mark.parametrize("code", LASTING)
async def test_no_call_reaches_what_outlives_it(code: str, tmp_path: Path, ids: dict[str, int]) -> None:
    found = await outcome(attempt(code, tmp_path, 0, **ids), read_only=False)
    assert (found.value, found.error) == ("EPERM", "")


@X86_64
@pytest.mark.parametrize("code", LASTING)
def test_each_of_these_reaches_it_from_elsewhere(code: str, tmp_path: Path, ids: dict[str, int]) -> None:
    source = textwrap.dedent(attempt(code, tmp_path, 0, **ids)) + "print(f())"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    reached(done.stdout.strip())


@X86_64
@pytest.mark.parametrize("code", KEYS)
async def test_each_of_these_reaches_others_where_nobody_minds(code: str, tmp_path: Path, ids: dict[str, int]) -> None:
    found = await outcome(attempt(code, tmp_path, 0, **ids), read_only=False)
    assert found.error == ""
    reached(found.value)


def reached(found: str) -> None:
    if found == "ENOSYS":
        pytest.skip("this kernel has none of it")
    # EAGAIN, ENOKEY and ENOMSG come from what would be changed: the call was made.
    assert found in {"done", "EAGAIN", "ENOKEY", "ENOMSG"}


@pytest.mark.parametrize("code", WRITES[:-4])
async def test_each_of_these_writes_where_nobody_minds(code: str, tmp_path: Path) -> None:
    """The attempts of the test above do write, so that their being refused means something."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("file")
    before = state(tmp_path)
    source = f"import fcntl, os, stat\nd = {str(tmp_path)!r}\ndef f(): {code}"
    found = await outcome(source, read_only=False)
    if found.error:
        pytest.skip(f"not possible here at all: {found.error}")
    unseen = "O_TMPFILE" in code or "'a')" in code or "'r+')" in code or "0x40086602" in code
    assert unseen or state(tmp_path) != before


async def test_what_only_reads_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("read")
    source = f"""
        import asyncio, os, subprocess, sys, tempfile
        async def f():
            process = await asyncio.create_subprocess_exec("cat", "{tmp_path}/file", stdout=subprocess.PIPE)
            shown, _ = await process.communicate()
            return [open("{tmp_path}/file").read(), shown.decode(), sys.stdout.isatty(), os.listdir("{tmp_path}")]
        """
    found = await outcome(source)
    assert (found.value, found.error) == (["read", "read", False, ["file"]], "")


async def test_an_import_cannot_write_either(tmp_path: Path) -> None:
    found = await outcome(f"open({str(tmp_path / 'new')!r}, 'w')\ndef f(): pass")
    assert "Operation not permitted" in found.error
    assert not list(tmp_path.iterdir())


async def test_where_it_cannot_be_seen_to_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = 'uname = os.uname(); os.uname = lambda: os.uname_result((*uname[:4], "vax"))'
    have_zygotes_begin_with(other, monkeypatch, tmp_path)
    found = await outcome("def f(): return 1")
    assert "needs seccomp" in found.error
    assert "vax" in found.error
    assert (await outcome("def f(): return 1", read_only=False)).value == 1
