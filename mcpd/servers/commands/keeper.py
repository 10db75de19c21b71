# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keepers: a small process for each command, which confines it and ends all processes that it has started.

``python -m mcpd.servers.commands.keeper`` reads its stdin, a socket, and forks a keeper for each message: so a command
costs no start of an interpreter, and is not forked from a process with threads. A message is a byte with descriptors:
the keeper's own socket; a file with a :class:`Task` as JSON; the command's stdin, stdout, stderr and directory; then
the readable and the writable directories. A message without descriptors ends the processes whose keeper has died.

The keeper is the subreaper of the command, so that no descendant escapes. Its socket takes one byte,
:data:`TERMINATE`; when it is closed, because the call was cancelled or the server has died, all processes are ended at
once. It sends one answer, as JSON: ``{"unheld": how, "why": why}``, ``{"error": why}`` if the command could not be
started, or ``{"code": status, "left": bool}`` when all processes have ended, or could not be ended.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, NoReturn

from mcpd.servers import landlock, seccomp, tree
from mcpd.servers.commands import mounts

TERMINATE: Final = b"T"
GRACE: Final = 0.5
"""Seconds between SIGTERM and SIGKILL, in which git, for example, removes its locks."""
MOST_DESCRIPTORS: Final = 250
"""Maximum number of descriptors in one message; the kernel's limit is 253."""
_STDIN: Final = 0
_DIRECTORY: Final = 5
"""Index of the directory among the descriptors: after stdin, stdout and stderr, before the accessible directories."""


@dataclass(frozen=True, slots=True)
class Task:
    """A command to run."""

    argv: tuple[str, ...]
    program: str
    """The absolute path of the file to execute."""
    env: dict[str, str]
    readable: int
    """Number of descriptors that are only readable; the remaining ones are writable, too."""
    offline: bool
    """True if the keeper has to isolate it from the network."""
    unheld: bool
    """True to run it even if the kernel cannot confine it."""
    apart: bool
    """True to isolate it from all other processes, except over the network if permitted."""
    read_only: tuple[str, ...] = ()
    """Absolute paths in writable directories that are read-only for it."""
    fixed: tuple[str, ...] = ()
    """The directories above those, which it cannot rename or remove."""
    required: bool = True
    """True to refuse it if read-only paths are impossible, for lack of user namespaces."""

    def encoded(self) -> bytes:
        """Return the task as JSON for the keeper."""
        return json.dumps(asdict(self)).encode()


def main() -> None:
    """Fork keepers until the end of stdin."""
    # Exited keepers need not be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # If a command kills its keeper, this process becomes the parent of its other processes.
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    keepers: set[int] = set()
    with socket.socket(fileno=_STDIN) as asked:
        while (fds := _received(asked)) is not None:
            if not fds:
                keepers = _sweep(keepers)
                continue
            pid = os.fork()
            if pid == 0:
                _keep(fds)
            keepers.add(pid)
            for fd in fds:
                os.close(fd)


def _sweep(keepers: set[int]) -> set[int]:
    """End the processes whose keeper has died; return those of *keepers* that still run."""
    children = tree.children_of(os.getpid())
    for child in children:
        if child not in keepers:
            tree.kill_below(child)
            tree.send(child, signal.SIGKILL)
    return keepers.intersection(children)


def _received(asked: socket.socket) -> list[int] | None:
    """Return the descriptors of the next message, or None at the end."""
    fds = array.array("i")
    content, said, _, _ = asked.recvmsg(1, socket.CMSG_SPACE(MOST_DESCRIPTORS * fds.itemsize))
    for level, kind, data in said:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return [*fds] if content else None


def _keep(fds: list[int]) -> NoReturn:
    """Run as the keeper for *fds*."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Close the socket for requests, which belongs to the parent.
        os.dup2(os.open(os.devnull, os.O_RDWR), _STDIN)
        with socket.socket(fileno=fds[0]) as control:
            said = _kept(control, fds)
            with suppress(OSError):
                control.send(json.dumps(said).encode())
    finally:
        os._exit(0)


def _kept(control: socket.socket, fds: list[int]) -> dict[str, object]:
    """Run the command and end its processes; return the answer."""
    with os.fdopen(fds[1], "rb") as file:
        file.seek(0)
        task = Task(**json.load(file))
    os.setsid()
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    if failed := _go_to(fds[_DIRECTORY], task):
        return dict(failed)
    scoped = _keep_to_own()
    told, tell = os.pipe()
    command = os.fork()
    if command == 0:
        _become(task, fds, tell)
    os.chdir("/")
    for fd in (tell, *fds[2:]):
        os.close(fd)
    with os.fdopen(told, "rb") as words:
        said = words.read()
    if said:
        os.waitpid(command, 0)
        return dict(json.loads(said))
    _watch(control, command)
    code = tree.end_all(scoped=scoped).get(command)
    return {"code": code, "left": bool(tree.children_of(os.getpid()))}


def _go_to(directory: int, task: Task) -> dict[str, str]:
    """Change to *directory*, in new mount and user namespaces if *task* needs them; return the error, if any.

    The command inherits both. Mounting is no longer possible in a domain of Landlock.
    """
    try:
        os.fchdir(directory)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    try:
        if task.read_only:
            mounts.enter(task.fixed, task.read_only)
    except mounts.NoNamespaces as error:
        return {"unheld": "git", "why": str(error.strerror)} if task.required else {}
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return {"unheld": "git", "why": place + (error.strerror or str(error))}
    return {}


def _keep_to_own() -> bool:
    """Return True if from now on signals of this process only reach its descendants."""
    try:
        landlock.restrict(landlock.Rules(signals=True))
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _become(task: Task, fds: list[int], tell: int) -> NoReturn:
    """Execute the command in this process. Errors are written to *tell*."""
    failed: dict[str, str] = {}
    try:
        os.setsid()
        # None of the descriptors is below 3: those numbers were taken before.
        for number, fd in enumerate(fds[_DIRECTORY - 3 : _DIRECTORY]):
            os.dup2(fd, number)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        failed = _hold(task, fds[_DIRECTORY + 1 :])
        if not failed:
            os.execve(task.program, task.argv, task.env)  # noqa: S606 - there is no shell
    except (OSError, ValueError) as error:
        failed = {"error": error.strerror or str(error) if isinstance(error, OSError) else str(error)}
    finally:
        os.write(tell, json.dumps(failed or {"error": "it failed"}).encode())
        os._exit(127)


def _hold(task: Task, fds: list[int]) -> dict[str, str]:
    """Confine this process, which then can no longer affect the keeper; return the error, if any."""
    readable, writable = tuple(fds[: task.readable]), tuple(fds[task.readable :])
    try:
        landlock.restrict(landlock.Rules(readable, writable, files=True, tcp=task.offline, signals=True, sockets=True))
    except OSError as error:
        if not task.unheld:
            return {"unheld": "landlock", "why": error.strerror or str(error)}
    try:
        if task.apart:
            seccomp.install_apart(network=not task.offline)
        else:
            _refuse_calls(offline=task.offline)
    except (KeyError, OSError) as error:
        if not task.unheld:
            return {"unheld": "seccomp", "why": str(error)}
    return {}


def _refuse_calls(*, offline: bool) -> None:
    """Deny system calls that Landlock does not cover to a command of the user, as far as the kernel supports it."""
    # On unknown architectures only TCP is denied, by Landlock.
    with suppress(KeyError, OSError):
        seccomp.install_limits()
        if offline:
            seccomp.install_offline()


def _watch(control: socket.socket, command: int) -> None:
    """Return when *command* has ended, or has to be ended."""
    pidfd = os.pidfd_open(command)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(control, select.POLLIN)
    deadline = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in poll.poll(left)}
        if pidfd in ready or not ready:
            break
        try:
            if control.recv(1) != TERMINATE:
                break
        except OSError:
            break
        with suppress(OSError):
            os.killpg(command, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
    os.close(pidfd)


if __name__ == "__main__":
    main()
