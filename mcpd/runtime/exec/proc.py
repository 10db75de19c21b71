# SPDX-License-Identifier: LGPL-2.1-or-later
# pathlib and contextlib take longer to load than this program runs:
# ruff: noqa: PTH123, PTH208, SIM105
"""Processes: information from /proc, prctl(2) and signals."""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]
import _socket
import os

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGSTOP, SIGXFSZ = 2, 9, 13, 15, 19, 25
"""Signal numbers; defined here because :mod:`signal` takes longer to load than everything else."""


_LIBC = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]
_PRCTL = _ctypes.dlsym(_LIBC, "prctl")
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1


def prctl(option: int, value: int) -> None:
    """Call prctl(2), for which Python has no function; :mod:`ctypes` would take as long to load as all the rest."""
    _ctypes.call_cdeclfunction(_PRCTL, (option, value, 0, 0, 0))


def join_session_keyring() -> None:
    """Replace the user's session keyring with a new one, which the sandbox inherits; keyrings have no namespaces."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _ctypes.call_cdeclfunction(_ctypes.dlsym(_LIBC, "syscall"), (number, _JOIN_SESSION_KEYRING, None))


def close_inherited() -> None:
    """Close inherited descriptors, which a server must not get."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # The directory's own descriptor.


def reap_orphans() -> bool:
    """Reap all ended children; return False if there are no children left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of *pid*, oldest first."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def descendants_of(pid: int) -> list[int]:
    """Return all processes below *pid*; zombies are included, since they may still have running threads."""
    found: list[int] = []
    for child in children_of(pid):
        found += [child, *descendants_of(child)]
    return found


def unit() -> str:
    """Return the name of this process's systemd unit; empty if it has none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            last = file.read().strip().rpartition("/")[2]
    except OSError:
        return ""
    return last if last.endswith((".service", ".scope")) else ""


def notify_status(text: str) -> None:
    """Set the status text of our unit (sd_notify(3)); errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] in {"/", "@"}:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
        try:
            sock.sendto(f"STATUS={text}".encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            pass
        sock.close()


def signal_pidfd(pidfd: int, number: int) -> None:
    """Send signal *number* to the process of *pidfd*, unless it has ended or *pidfd* is negative."""
    if pidfd >= 0:
        try:
            _signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass
