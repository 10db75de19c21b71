# SPDX-License-Identifier: LGPL-2.1-or-later
"""The project's programs, forked from a process that has imported them already.

An interpreter spends 0.1 to 1.2 s of CPU time on imports before a program of this project does anything, and the tests
start thousands of them. :func:`python` is a stand-in for ``sys.executable``: for ``-m mcpd.MODULE`` it asks the
*server* here for a process, passes on its arguments, environment, directory and descriptors, and ends as that process
ends; signals that a program can handle go on to it. Whatever else it is started for it leaves to the real interpreter.

Use ``sys.executable`` where a test is about the process itself: its parent, terminal, limits, owner or signal mask,
what /proc says of its environment, options of the interpreter, or what holds once the process was killed and waited
for: only the stand-in has ended then.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import os
import pkgutil
import random
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[1]
PROGRAMS: Final = ("mcpd.cli.main", "mcpd.daemon", "mcpd.bridge.main", "mcpd.servers.", "tests.")
"""Prefixes of the names of the modules that can be run."""
_SCRIPTS: Final = (
    "mcpd.install.proxied", "mcpd.install.wheels_only", "mcpd.runtime.exec.enter", "mcpd.runtime.exec.mcpd_exec",
)  # fmt: skip
"""Modules that cannot be imported without being run."""
PATIENCE: Final = 120.0
_HIGH: Final = 500
"""Descriptors below are for the program."""
_STAND_IN: Final = Path(__file__).with_name("preloaded_stand_in.c")


@functools.cache
def python() -> str:
    """The stand-in for ``sys.executable``. The first call in a process starts the server."""
    directory = Path(tempfile.mkdtemp(prefix="mcpd-preloaded-"))
    address = directory / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    alive, _ = os.pipe()  # The server ends with the last writer, this process: nothing here closes the other end.
    with listener:
        # A shell between leaves no child here: some tests count those.
        command = f'"$@" {listener.fileno()} {alive} {directory} &'
        argv = ["sh", "-c", command, "sh", sys.executable, "-m", "tests.preloaded"]
        fds = (listener.fileno(), alive)
        subprocess.run(argv, pass_fds=fds, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(alive)
    program = directory / "python"
    texts = {"REAL": sys.executable, "ADDRESS": str(address)}
    defined = [f'-D{name}="{text}"' for name, text in texts.items()]
    defined.append("-DPROGRAMS=" + ",".join(f'"{name}"' for name in PROGRAMS))
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", *defined, "-o", program, _STAND_IN], check=True)
    return str(program)


def process_of(pid: int) -> int:
    """Return the process behind the stand-in *pid*, or *pid* itself if it is no stand-in."""
    place = Path(python()).with_name(str(pid))
    give_up = time.monotonic() + PATIENCE
    while not place.is_symlink() and Path(f"/proc/{pid}/exe").readlink() == Path(python()):
        assert time.monotonic() < give_up, f"{pid} got no process"
        time.sleep(0.01)
    return int(place.readlink().name) if place.is_symlink() else pid


class Server:
    """Makes processes for the stand-ins that connect to *listener*, until the pipe *alive* is at its end.

    Then it removes *directory*, where the stand-in is.
    """

    def __init__(self, listener: socket.socket, alive: int, directory: Path) -> None:
        self._listener = listener
        self._directory = directory
        self._processes: dict[socket.socket, int] = {}
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ, self._start)
        self._events.register(alive, selectors.EVENT_READ, self._stop)
        self._program: Callable[[], None] | None = None

    def run(self) -> Callable[[], None]:
        """Serve. Returns in each new process with what it has to run."""
        while True:
            for key, _ in self._events.select():
                key.data()
                if self._program is not None:
                    return self._program

    def _start(self) -> None:
        conn, _ = self._listener.accept()
        try:
            request, fds = _receive(conn)
        except (OSError, struct.error):  # it was killed meanwhile
            conn.close()
            return
        pid = os.fork()
        if pid == 0:
            # None of these may close what gets their numbers.
            self._events.close()
            for each in (self._listener, conn, *self._processes):
                each.detach()
            self._program = functools.partial(_become, request, fds)
            return
        for fd in fds:
            os.close(fd)
        link = self._link(conn, pid)
        with contextlib.suppress(OSError):
            conn.sendall(b"+")
        self._processes[conn] = pid
        ended = os.pidfd_open(pid)
        self._events.register(conn, selectors.EVENT_READ, functools.partial(self._pass_on, conn))
        self._events.register(ended, selectors.EVENT_READ, functools.partial(self._report, conn, ended, link))

    def _link(self, conn: socket.socket, pid: int) -> Path:
        """Record *pid* under the number of its stand-in, for :func:`process_of`; numbers are used again."""
        (stand_in,) = struct.unpack("i8x", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        link = self._directory / str(stand_in)
        link.unlink(missing_ok=True)
        link.symlink_to(str(pid))
        return link

    def _pass_on(self, conn: socket.socket) -> None:
        """Send on the signals that a stand-in got; SIGKILL if it is gone."""
        if (pid := self._processes.get(conn)) is None:
            return
        signals = b""
        with contextlib.suppress(OSError):
            signals = conn.recv(64)
        if not signals:
            self._events.unregister(conn)
        for number in signals or [signal.SIGKILL]:
            os.kill(pid, number)

    def _report(self, conn: socket.socket, ended: int, link: Path) -> None:
        """Tell a stand-in how its process ended."""
        pid = self._processes.pop(conn)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if link.is_symlink() and link.readlink() == Path(str(pid)):
            link.unlink()
        self._events.unregister(ended)
        os.close(ended)
        with contextlib.suppress(KeyError):
            self._events.unregister(conn)
        with conn, contextlib.suppress(OSError):
            conn.sendall(struct.pack("i", status))

    def _stop(self) -> None:
        for pid in self._processes.values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._directory)
        sys.exit()


def _receive(conn: socket.socket) -> tuple[list[bytes], list[int]]:
    """What a stand-in asks for, and the descriptors it passed on."""
    data, ancillary, _, _ = conn.recvmsg(1 << 16, socket.CMSG_SPACE(250 * 4))
    (size,) = struct.unpack("I", data[:4])
    while len(data) < size + 4:
        data += conn.recv(size + 4 - len(data))
    fds = array.array("i")
    for _, _, content in ancillary:
        fds.frombytes(content)
    return data[4:-1].split(b"\0"), list(fds)


def _become(request: list[bytes], fds: list[int]) -> None:
    """Be the process that was asked for."""
    os.setsid()
    mask, numbers, directory, *rest = request
    at = rest.index(b"")
    arguments, environ = rest[:at], rest[at + 1 :]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in fds]
    os.closerange(0, _HIGH)
    for fd, number in zip(high, numbers.split(), strict=True):
        os.dup2(fd, int(number))
    os.closerange(_HIGH, 2 * _HIGH)
    os.environb.clear()
    os.environb.update((name, value) for name, _, value in (variable.partition(b"=") for variable in environ))
    time.tzset()
    os.umask(int(mask))
    os.chdir(directory)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115 - as long as the process
    sys.stdout = sys.__stdout__ = _output(1, "strict", line_buffering=os.isatty(1))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _output(2, "backslashreplace", line_buffering=True)  # type: ignore[misc]
    random.seed()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _leave(_run([os.fsdecode(argument[1:]) for argument in arguments]))


def _output(fd: int, errors: str, *, line_buffering: bool) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(fd, "wb", closefd=False), errors=errors, line_buffering=line_buffering)


def _run(argv: list[str]) -> int:
    """Run a program and return its exit status, as the interpreter does."""
    try:
        _call(argv)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        return 1
    return 0


def _call(argv: list[str]) -> None:
    module, *arguments = argv
    sys.argv = [module, *arguments]
    found = sys.modules.get(module)
    if found is not None and hasattr(found, "main"):
        sys.argv[0] = found.__file__ or module
        sys.exit(found.main())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _leave(status: int) -> None:
    """End as an interpreter does, but without taking apart all that was imported, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _preload() -> None:
    import mcpd

    for found in pkgutil.walk_packages(mcpd.__path__, "mcpd."):
        if not found.name.endswith("__main__") and found.name not in _SCRIPTS:
            importlib.import_module(found.name)


def main() -> Callable[[], None]:
    """Import everything, and serve."""
    # Jobs in the background are started with these ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Until a process is what was asked for; the server itself ends with the tests.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _preload()
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    return Server(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])).run()


if __name__ == "__main__":
    main()()
