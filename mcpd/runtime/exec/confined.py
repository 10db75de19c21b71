# SPDX-License-Identifier: LGPL-2.1-or-later
# pathlib and contextlib take longer to load than this program runs:
# ruff: noqa: PTH108, PTH115, SIM105
"""The process tree in its sandbox: bubblewrap, and a filtering D-Bus proxy if the session bus is granted."""

from __future__ import annotations

import os
import select

from mcpd.runtime.exec import seccomp
from mcpd.runtime.exec.proc import (
    SIGINT,
    SIGKILL,
    SIGPIPE,
    SIGTERM,
    SIGXFSZ,
    children_of,
    signal_pidfd,
)
from mcpd.runtime.exec.tree import Tree
from mcpd.runtime.exec.wire import Failure, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from mcpd.runtime.exec.wire import Request

ENTER: Final = ("/usr/bin/python3", "-IS", "/proc/self/fd/{0}", "{0}", "{1}", "{2}", "{3:d}")
"""Command line of :mod:`mcpd.runtime.exec.enter`: its own descriptor and the arguments explained there."""
EXECUTED: Final = b"x"
UNSHARE: Final = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
ALWAYS: Final = ("--cap-drop", "ALL", "--clearenv", "--die-with-parent", "--new-session")
PROXY_TIMEOUT: Final = 10
"""Seconds within which xdg-dbus-proxy must be listening."""
TMPFS_SIZE: Final = 1 << 30
"""Maximum size of each tmpfs in the sandbox, in bytes."""
FD_BINDS: Final = {"ro-bind": "--ro-bind-fd", "bind": "--bind-fd"}


class Confined(Tree):
    """A bubblewrap sandbox, which ends with this process, together with all processes in its pid namespace."""

    def __init__(self, request: Request, stderr: int) -> None:
        super().__init__(request, stderr)
        self.argv = request.argv
        self._keep: list[int] = []
        self._line = b""
        self._top = self._top_pidfd = self._pidfd = -1
        self._report = b""
        self._executed = False
        self._proxy = 0
        self._confines = "confines" in request.permissions
        # Nested user namespaces need a writable /proc, which would let root do much more.
        self._nests = self._confines and os.getuid() != 0

    def start(self) -> None:
        """Start bubblewrap."""
        self.status, status_write = os.pipe()
        self.report, report_write = os.pipe()
        os.set_blocking(self.status, False)
        os.set_blocking(self.report, False)
        try:
            self._inherit(status_write)
            self._inherit(report_write)
            args = ["--json-status-fd", str(status_write), *self._arguments()]
            args_fd = self._data("args", "\0".join(args).encode())
            env = [f"{name}={value}" for name, value in self.request.env.items()]
            launch = self._data("launch", "\0".join([str(len(self.argv)), *self.argv, *env]).encode())
            script = self._inherit(os.open(__file__.removesuffix("confined.py") + "enter.py", os.O_RDONLY))
            given = (script, launch, report_write, not self._nests)
            null = os.open(os.devnull, os.O_RDWR)
            self._keep.append(null)
            self.child = os.posix_spawnp(
                "bwrap",
                ["bwrap", "--args", str(args_fd), "--", *(word.format(*given) for word in ENTER)],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, self.fds.get(number, null), number) for number in (0, 1, 2)],
                setsigmask=(),
                setsigdef=(SIGPIPE, SIGXFSZ, SIGTERM, SIGINT),
            )
        except FileNotFoundError as error:
            raise Failure("SandboxUnavailable", "bubblewrap is missing: install the package bubblewrap") from error
        finally:
            while self._keep:
                os.close(self._keep.pop())
        self.pidfd = os.pidfd_open(self.child)

    def _inherit(self, fd: int) -> int:
        self._keep.append(fd)
        os.set_inheritable(fd, True)
        return fd

    def _data(self, name: str, data: bytes) -> int:
        fd = self._inherit(os.memfd_create(name))
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _pin(self, path: str) -> int:
        """Open *path*, so that the checked file is mounted even if its path is then replaced by a symlink."""
        try:
            fd = self._inherit(os.open(path, os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            raise Failure("SandboxUnavailable", f"{path} cannot be mounted: {error.strerror}") from error
        if os.readlink(f"/proc/self/fd/{fd}") != path:
            raise Failure("SandboxUnavailable", f"{path} cannot be mounted: its path contains a symlink")
        return fd

    def _arguments(self) -> list[str]:
        request = self.request
        args = [*UNSHARE, *([] if "network" in request.permissions else ["--unshare-net"]), *ALWAYS]
        args += ["--proc", "/proc", "--dev", "/dev"]
        # /proc is read-only, since the kernel lets uid 0 write its settings without any capability, whatever the
        # namespaces.
        args += [] if self._nests else ["--disable-userns", "--remount-ro", "/proc"]
        if os.access("/proc/keys", os.F_OK):
            # Keyrings have no namespaces, so /proc/keys lists the keys of the user's processes outside the sandbox.
            args += ["--dev-bind", os.devnull, "/proc/keys"]
        for kind, target, source in request.mounts:
            if kind in FD_BINDS:
                fd = self._pin(source)
                if kind == "bind" and os.statvfs(fd).f_flag & os.ST_RDONLY:
                    raise Failure(
                        "SpawnFailed",
                        f"{source} must be writable, but is read-only here; for a system server, also add it to"
                        " ReadWritePaths= of its unit",
                    )
                args += [FD_BINDS[kind], str(fd), target]
            elif kind == "file":
                args += ["--perms", "0444", "--ro-bind-data", str(self._data("file", source.encode())), target]
            elif kind in {"tmpfs", "dir"}:
                args += ["--size", str(TMPFS_SIZE)] if kind == "tmpfs" else []
                args += ["--perms", "1777" if target == "/tmp" else "0700", "--" + kind, target]  # noqa: S108 - inside
            else:
                args += ["--" + kind, source, target]
        if request.manifest is not None:
            os.lseek(request.manifest_fd, 0, os.SEEK_SET)
            manifest = self._inherit(os.dup(request.manifest_fd))
            args += ["--perms", "0400", "--ro-bind-data", str(manifest), request.manifest]
        if request.bus:
            args += ["--ro-bind-fd", str(self._pin(self._start_proxy())), request.bus["socket"]]
        if code := seccomp.program(os.uname().machine, openat2=self._confines):
            args += ["--seccomp", str(self._data("seccomp", code))]
        return [*args, "--remount-ro", "/", "--chdir", request.cwd]

    def _start_proxy(self) -> str:
        """Start xdg-dbus-proxy, which ends when we close our end of its pipe, and wait until it listens."""
        bus = self.request.bus
        ready, held = os.pipe()
        os.set_inheritable(held, True)
        rules = []
        for permission in self.request.permissions:
            kind, _, name = permission.rpartition(":")
            if kind == "session-bus:talk":
                rules += [f"--talk={name}"]
            elif kind == "session-bus:call":
                interfaces = (name, "org.freedesktop.DBus.Introspectable")
                rules += [*(f"--call={name}={each}.*" for each in interfaces), f"--broadcast={name}={name}.*"]
        try:
            argv = ["xdg-dbus-proxy", f"--fd={held}", bus["address"], bus["proxy"], "--filter", *rules]
            self._proxy = os.posix_spawnp(argv[0], argv, {}, setsigmask=(), setsigdef=(SIGPIPE, SIGTERM, SIGINT))
        except FileNotFoundError as error:
            raise Failure("SpawnFailed", "session-bus: requires xdg-dbus-proxy, which is not installed") from error
        finally:
            os.close(held)
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        if not poll.poll(PROXY_TIMEOUT * 1000):
            raise Failure("SpawnFailed", f"session-bus: xdg-dbus-proxy was not ready within {PROXY_TIMEOUT} s")
        if not os.read(ready, 1):
            raise Failure("SpawnFailed", "session-bus: xdg-dbus-proxy exited immediately; see the journal")
        return bus["proxy"]

    def read_status(self) -> bool:
        """Read the namespace's first process from bubblewrap's status pipe; return False at the end of the stream."""
        try:
            data = os.read(self.status, 4096)
        except BlockingIOError:
            return True
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            status = parse(line.decode())
            if "child-pid" in status:
                self._top = status["child-pid"]
                try:
                    self._top_pidfd = os.pidfd_open(self._top)
                except OSError:
                    self._top = -1
        return bool(data)

    def read_report(self) -> bool:
        """Read the report of :mod:`.enter`; return False once the pipe is closed, by the execution or an exit."""
        try:
            while data := os.read(self.report, 4096):
                self._report += data
        except BlockingIOError:
            return True
        if self._report == EXECUTED and not self._executed:
            self._executed = True
            self.read_status()
            self._find_program()
        return False

    def executed(self) -> bool:
        """Return whether the program itself has been executed."""
        return self._executed

    def _find_program(self) -> None:
        self.pid = next(iter(children_of(self._top)), 0) if self._top > 0 else 0
        self._forget_proxy_socket()
        if self.pid:
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:
                self._pidfd = -1
        # A program that has already ended is not found; bubblewrap stands in for it.
        self.pid = self.pid or self.child

    def terminate(self) -> None:
        """Send SIGTERM to the program: the namespace's first process ignores it, and bubblewrap does not forward it."""
        signal_pidfd(self._pidfd if self._pidfd >= 0 else self.pidfd, SIGTERM if self._pidfd >= 0 else SIGKILL)

    def kill(self) -> None:
        """Send SIGKILL to the namespace's first process, which also ends all other processes in it."""
        signal_pidfd(self._top_pidfd, SIGKILL)
        super().kill()

    def end_all(self) -> None:
        """End the tree, including what bubblewrap leaves behind if it is killed before the namespace depends on it."""
        super().end_all()
        self._forget_proxy_socket()

    def _forget_proxy_socket(self) -> None:
        """Remove the proxy's socket from the host; its mount in the sandbox keeps working."""
        if self.request.bus:
            try:
                os.unlink(self.request.bus["proxy"])
            except FileNotFoundError:
                pass

    def failure(self, stderr: str | None) -> Failure:
        """Return the launch error, with the last message of bubblewrap or :mod:`.enter`."""
        program = self.request.argv[0]
        if self._report.startswith(EXECUTED):
            reason = self._report.removeprefix(EXECUTED).decode(errors="replace")
            return Failure("SpawnFailed", f"{program} cannot be executed in the sandbox: {reason}")
        words = self._report.decode(errors="replace") or (self._repeat() if stderr is None else stderr)
        words = words.strip().removeprefix("bwrap: ") or "bubblewrap did not execute the program"
        return Failure("SandboxUnavailable", f"the sandbox cannot be built: {words}")

    def _repeat(self) -> str:
        """Run bubblewrap again, with an invalid command, to get the error that went to the caller's stderr."""
        read, write = os.pipe()
        again = Confined(self.request, write)
        again.fds, again.argv = {2: write}, ["/"]
        again.start()
        os.close(write)
        again.reap()
        again.read_status()
        again.end_all()
        return os.read(read, 65536).decode(errors="replace")
