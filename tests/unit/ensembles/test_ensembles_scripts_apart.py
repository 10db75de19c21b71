# SPDX-License-Identifier: LGPL-2.1-or-later
"""Script agents, and commands of the workstation: what they may do to processes that are none of theirs."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import NotSupported
from mcpd.servers import seccomp
from mcpd.servers.workstation.processes import Command
from tests.unit.ensembles.confined_parts import Den
from tests.unit.seccomp_verdicts import verdict
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
KNOWN = pytest.mark.skipif(os.uname().machine not in {"x86_64", "aarch64"}, reason="system calls are not known")
X86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
NETWORK = pytest.mark.parametrize("network", [False, True], ids=["offline", "online"])

TRY = """
import asyncio, ctypes, errno, json, multiprocessing, os, resource, socket, subprocess, sys
other, path = %d, %r
def libc(*words):
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    found = call(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words])
    if found == -1:
        raise OSError(ctypes.get_errno(), "")
    return found
def tried(code):
    try:
        exec(code)
    except OSError as error:
        return errno.errorcode.get(error.errno)
    return "done"
print(json.dumps([tried(code) for code in %r]))
"""


@pytest.fixture
def den(tmp_path: Path) -> Iterator[Den]:
    with Den(tmp_path) as made:
        yield made


@pytest.fixture
def other() -> Iterator[int]:
    """A process of the user's that runs meanwhile."""
    process = subprocess.Popen(("sleep", "600"))
    yield process.pid
    process.kill()
    process.wait()


def trying(codes: list[str], path: object = "", other: int = 0) -> str:
    """A program that says with which error each of *codes* fails."""
    return TRY % (other, str(path), codes)


async def tried(den: Den, codes: list[str], path: object = "", other: int = 0) -> list[str]:
    """With which error each of *codes* fails in a script."""
    den.write("try.py", trying(codes, path, other))
    found = json.loads(await den.run("try.py"))
    assert isinstance(found, list)
    return found


CONNECTIONS = [
    "socket.socket(socket.AF_UNIX).connect(path)",
    "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)",
    "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', path)",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', path)",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', path)",
]


@KNOWN
@NETWORK
async def test_a_script_connects_to_no_unix_socket(den: Den, network: bool) -> None:
    kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)
    with Den(den.directory, script_network=network) as made:
        for kind in kinds:
            path = made.project / f"s{int(kind)}"
            with socket.socket(socket.AF_UNIX, kind) as server:
                server.bind(str(path))
                if kind != socket.SOCK_DGRAM:
                    server.listen()
                found = await tried(made, CONNECTIONS, path)
                server.setblocking(False)
                with pytest.raises(BlockingIOError):
                    server.accept() if kind != socket.SOCK_DGRAM else server.recv(1)
            assert found == ["EPERM"] * len(CONNECTIONS)


@X86_64
@NETWORK
async def test_nor_does_it_make_one_behind_a_filters_back(den: Den, network: bool) -> None:
    codes = [
        "libc(425, 1, ctypes.create_string_buffer(120))",
        "libc(41, 1 | 1 << 32, 1, 0)",
        "libc(1 << 30 | 41, 1, 1, 0)",
    ]
    with Den(den.directory, script_network=network) as made:
        assert await tried(made, codes) == ["ENOSYS", "EPERM", "EPERM"]


PAIRS = [
    "socket.socketpair()",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "multiprocessing.Pipe()",
    "asyncio.run(asyncio.sleep(0))",
    "subprocess.run(['true'], check=True)",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "socket.getaddrinfo('127.0.0.1', 80)",
    "__import__('pwd').getpwuid(os.getuid())",
]


@NETWORK
async def test_what_is_connected_from_the_start_works(den: Den, network: bool) -> None:
    with Den(den.directory, script_network=network) as made:
        assert await tried(made, PAIRS) == ["done"] * len(PAIRS)


OTHERS = [
    "resource.prlimit(other, resource.RLIMIT_NOFILE, (8, 8))",
    "resource.prlimit(other, resource.RLIMIT_CPU, (1, 1))",
    "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (8, 8))",
    "os.sched_setaffinity(other, {0})",
    "os.sched_setaffinity(os.getppid(), {0})",
    "os.sched_setscheduler(other, os.SCHED_IDLE, os.sched_param(0))",
    "os.setpriority(os.PRIO_PROCESS, other, 19)",
    "os.setpriority(os.PRIO_USER, 0, 0)",
]
LASTING = [
    "libc(31, libc(29, 0, 4096, 0o1600), 0, None)",
    "libc(71, libc(68, 0, 0o1600), 0, None)",
    "libc(66, libc(64, 0, 1, 0o1600), 0, 0)",
    "libc(240, b'mcpd-test', os.O_RDWR | os.O_CREAT, 0o600, None); libc(241, b'mcpd-test')",
]
KEYS = ["libc(248, b'user', b'mcpd-test', b'x', 1, -2)", "libc(249, b'user', b'x', None, -2)", "libc(250, 0, -4, 0)"]
OWN = [
    "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "os.nice(1)",
]


def state(pid: int) -> list[object]:
    """What of the process *pid* others could change."""
    limits = [resource.prlimit(pid, what) for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)]
    return [limits, os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)]


@KNOWN
@NETWORK
async def test_a_script_changes_none_but_itself(den: Den, other: int, network: bool) -> None:
    before = state(other)
    with Den(den.directory, script_network=network) as made:
        assert await tried(made, OTHERS, other=other) == ["EPERM"] * len(OTHERS)
        assert await tried(made, OWN) == ["done"] * len(OWN)
    assert state(other) == before


@X86_64
@NETWORK
async def test_nor_does_it_leave_memory_or_read_keys(den: Den, network: bool) -> None:
    with Den(den.directory, script_network=network) as made:
        assert await tried(made, [*LASTING, *KEYS]) == ["EPERM"] * len([*LASTING, *KEYS])


def foreign(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keepers see a machine whose calls are not known; *directory* gets a file."""
    python = directory / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -B -c 'import os; uname = os.uname();"
        ' os.uname = lambda: os.uname_result((*uname[:4], "vax"));'
        " from mcpd.servers.commands import keeper; keeper.main()'\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


async def test_where_that_cannot_be_refused_no_script_runs_but_in_mcpds_sandbox(
    den: Den, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(den.directory, monkeypatch)
    with pytest.raises(NotSupported, match=r"script scripts/it\.sh is not run: .*vax.*seccomp"):
        await den.shell("echo >new")
    assert not (den.project / "new").exists()
    with Den(den.directory, confined=True) as confined:
        assert await confined.shell("echo 1") == "1"
    (den.directory / "desk").mkdir()
    with Workbench(den.directory / "desk") as bench:
        call = bench.new_call()
        assert (await call.run(Command(("true",), call.jail.place(".")))).code == 0


@X86_64
@NETWORK
async def test_a_command_of_the_workstation_changes_no_limits_of_others(
    tmp_path: Path, other: int, network: bool
) -> None:
    codes = [
        *OTHERS[:3],
        *OWN,
        *LASTING[:3],
        CONNECTIONS[0],
        "os.sched_setaffinity(os.getpid(), {min(os.sched_getaffinity(0))})",
    ]
    before = state(other)
    with Workbench(tmp_path, allow_network=network) as bench, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(bench.root / "s"))
        server.listen()
        call = bench.new_call()
        program = trying(codes, bench.root / "s", other)
        done = await call.run(Command(("python3", "-c", program), call.jail.place(".")))
    assert json.loads(done.stdout) == ["EPERM"] * 3 + ["done"] * (len(codes) - 3)
    assert state(other) == before


NATIVE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COMPATIBLE = {"x86_64": 0x40000003, "aarch64": 0x40000028}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
PRLIMIT = {"x86_64": 302, "aarch64": 261}
OLD_PRLIMIT = {"x86_64": 340, "aarch64": 369}
REFUSED = {"x86_64": (101, 438, 29, 68, 240, 248, 249, 250), "aarch64": (117, 438, 194, 186, 180, 217, 218, 219)}
ALLOWED = {"x86_64": (0, 1, 2, 42, 49, 59, 90, 257), "aarch64": (63, 64, 56, 203, 200, 221, 53)}


@MACHINES
@NETWORK
def test_the_filter_of_scripts(machine: str, network: bool) -> None:
    program, native = seccomp.apart(machine, network=network), NATIVE[machine]
    kinds = {kind: verdict(program, native, SOCKETPAIR[machine], 1, kind | 0o2000000) for kind in range(1, 7)}
    assert kinds == {1: 0, 2: errno.EPERM, 3: errno.EPERM, 4: errno.EPERM, 5: 0, 6: errno.EPERM}
    assert verdict(program, native, SOCKETPAIR[machine], 2, 1) == errno.EPERM
    assert verdict(program, native, SOCKET[machine], 16, 3) == 0
    assert verdict(program, native, 425) == errno.ENOSYS
    assert {verdict(program, native, number) for number in REFUSED[machine]} == {errno.EPERM}
    assert {verdict(program, native, number) for number in ALLOWED[machine]} == {0}
    assert verdict(program, COMPATIBLE[machine], ALLOWED[machine][0]) == errno.EPERM
    assert verdict(program, native, 1 << 30 | SOCKET[machine], 2) == errno.EPERM


@MACHINES
@NETWORK
@given(family=st.integers(0, 50), high=st.integers(0, 3))
def test_the_families_of_scripts(machine: str, network: bool, family: int, high: int) -> None:
    program = seccomp.apart(machine, network=network)
    allowed = family != 1 if network else family == 16
    found = verdict(program, NATIVE[machine], SOCKET[machine], high << 32 | family, 1)
    assert found == (0 if allowed else errno.EPERM)


@MACHINES
@given(pid=st.integers(1, (1 << 32) - 1))
def test_the_filters_of_limits(machine: str, pid: int) -> None:
    own = seccomp.limits(machine)
    calls = [(NATIVE[machine], PRLIMIT[machine]), (COMPATIBLE[machine], OLD_PRLIMIT[machine])]
    calls += [(NATIVE[machine], 1 << 30 | PRLIMIT[machine])]
    for architecture, number in calls:
        assert verdict(own, architecture, number, 0, 7) == 0
        assert verdict(own, architecture, number, pid, 7) == errno.EPERM
        assert verdict(own, architecture, number + 1, pid) == 0
    assert verdict(own, COMPATIBLE[machine], PRLIMIT[machine], pid) == 0
    assert verdict(own, 0xC0000015, PRLIMIT[machine], pid) == 0
    assert verdict(seccomp.apart(machine, network=True), NATIVE[machine], PRLIMIT[machine], pid) == errno.EPERM


CLONE = {"x86_64": (56, 120), "aarch64": (220, 120)}
UNSHARE = {"x86_64": (272, 310), "aarch64": (97, 337)}


@MACHINES
@given(flags=st.integers(0, (1 << 28) - 1), high=st.integers(0, 3))
def test_the_filter_of_user_namespaces(machine: str, flags: int, high: int) -> None:
    own = seccomp.limits(machine)
    for architecture, number in (
        *((which[machine], call) for which, call in zip((NATIVE, COMPATIBLE), CLONE[machine], strict=True)),
        *((which[machine], call) for which, call in zip((NATIVE, COMPATIBLE), UNSHARE[machine], strict=True)),
        (NATIVE[machine], 1 << 30 | CLONE[machine][0]),
    ):
        assert verdict(own, architecture, number, high << 32 | flags) == 0
        assert verdict(own, architecture, number, high << 32 | flags | 1 << 28) == errno.EPERM
        assert verdict(own, architecture, number + 1, 1 << 28) == 0
    for other in (seccomp.apart(machine, network=True), seccomp.apart(machine, network=False)):
        for number in (CLONE[machine][0], UNSHARE[machine][0]):
            assert verdict(other, NATIVE[machine], number, high << 32 | flags) == 0
            assert verdict(other, NATIVE[machine], number, high << 32 | flags | 1 << 28) == errno.EPERM
        assert verdict(other, NATIVE[machine], 435) == errno.ENOSYS
    assert verdict(own, NATIVE[machine], 435) == errno.ENOSYS
    assert verdict(own, COMPATIBLE[machine], 435) == errno.ENOSYS
    assert verdict(own, 0xC0000015, CLONE[machine][0], 1 << 28) == 0


def test_no_other_machine_has_a_filter() -> None:
    for make in (seccomp.limits, seccomp.offline, lambda machine: seccomp.apart(machine, network=True)):
        with pytest.raises(KeyError):
            make("vax")
