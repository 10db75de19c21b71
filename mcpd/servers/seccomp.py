# SPDX-License-Identifier: LGPL-2.1-or-later
"""Filters of system calls (seccomp(2)); denied calls fail with EPERM.

Every worker of a script is denied the calls that change another process of the same user, which Landlock permits: its
limits, its priority, its processors, its memory. It may use them on itself with the id 0, as libraries do. It is also
denied System V IPC and message queues: they outlive the call, and their memory counts for no process.

A worker that must not write is also denied all calls that open a file for more than reading, that change directories,
modes, owners, times and attributes, that make sockets and other ways to communicate with other processes, and those by
which root may affect a system without opening a file.

Programs of ensembles, which come with other people's projects, are denied the same as every worker of a script, and
also the kernel's keys, and unix sockets except connected pairs: a service that listens on one, such as the session bus,
a service manager or a bridge, could do for the program what it must not do itself, and Landlock does not prevent
connecting by path.

A command of the workstation is denied prlimit(2) on other processes, which could never raise their limits again.
Neither these nor the programs of ensembles can create user namespaces, in which they would have all capabilities. One
without network is denied socket(2) for all but the unix and netlink families: Landlock only covers TCP ports.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Final

from mcpd.servers import tree

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILTER: Final = 2

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_AT_LEAST: Final = 0x35
_ANY_BIT: Final = 0x45
_AND: Final = 0x54
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERROR: Final = 0x00050000
_DENY: Final = _ERROR | errno.EPERM
_UNKNOWN: Final = _ERROR | errno.ENOSYS
_X32: Final = 0x40000000

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_CLONE3: Final = 435
"""Its flags are in memory, where filters cannot check them; without it, libraries use clone(2)."""

_FOREIGN: Final = {
    "x86_64": {
        "ptrace": 101, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312, "process_madvise": 440,
        "migrate_pages": 256, "move_pages": 279,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_writev": 271, "pidfd_getfd": 438, "kcmp": 272, "process_madvise": 440,
        "migrate_pages": 238, "move_pages": 239,
    },
}  # fmt: skip
"""Calls that only affect other processes."""
_LASTING: Final = {
    "x86_64": {
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220,
        "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241,
    },
    "aarch64": {
        "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190, "semop": 193, "semctl": 191, "semtimedop": 192,
        "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180, "mq_unlink": 181,
    },
}  # fmt: skip
"""Calls for objects that belong to no process and keep their memory until they are removed."""
_OWN: Final = {
    "x86_64": {
        "prlimit64": 302, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142,
        "sched_setattr": 314,
    },
    "aarch64": {
        "prlimit64": 261, "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118,
        "sched_setattr": 274,
    },
}  # fmt: skip
"""Calls for the process in the first argument, where 0 is the caller."""
_OWN_PRIORITY: Final = {"x86_64": ((141, 0), (251, 1)), "aarch64": ((140, 0), (30, 1))}
"""setpriority and ioprio_set, with the required first argument, a single process; the second must be 0, the caller."""

_NEWER: Final = {
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "open_tree": 428,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount_setattr": 442,
    "open_tree_attr": 467, "quotactl_fd": 443, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    "file_setattr": 469, "openat2": 437,  # Its flags are in memory, where filters cannot check them.
}  # fmt: skip
"""Calls with the same number on all architectures."""

_X86_64: Final = _NEWER | {
    "creat": 85, "truncate": 76, "unlink": 87, "unlinkat": 263, "rename": 82, "renameat": 264, "renameat2": 316,
    "mkdir": 83, "mkdirat": 258, "rmdir": 84, "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266, "mknod": 133,
    "mknodat": 259,
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
    "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189,
    "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    "socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept": 43, "accept4": 288,
    "open_by_handle_at": 304,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272, "swapon": 167,
    "swapoff": 168, "quotactl": 179, "acct": 163, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "sethostname": 170, "setdomainname": 171, "settimeofday": 164, "clock_settime": 227,
    "adjtimex": 159, "clock_adjtime": 305, "iopl": 172, "ioperm": 173, "fanotify_init": 300, "syslog": 103,
    "vhangup": 153,
}  # fmt: skip

_AARCH64: Final = _NEWER | {
    "truncate": 45, "unlinkat": 35, "renameat": 38, "renameat2": 276, "mkdirat": 34, "linkat": 37, "symlinkat": 36,
    "mknodat": 33,
    "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6,
    "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "socket": 198, "connect": 203, "bind": 200, "listen": 201, "accept": 202, "accept4": 242,
    "open_by_handle_at": 265, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97,
    "swapon": 224, "swapoff": 225, "quotactl": 60, "acct": 89, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
    "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "clock_settime": 112,
    "adjtimex": 171, "clock_adjtime": 266, "fanotify_init": 262, "syslog": 116, "vhangup": 58,
}  # fmt: skip

_KEYS: Final = {
    "x86_64": {"add_key": 248, "request_key": 249, "keyctl": 250},
    "aarch64": {"add_key": 217, "request_key": 218, "keyctl": 219},
}
"""The user's keys are shared by all processes with the user's id."""
_SOCKETPAIR: Final = {"x86_64": 53, "aarch64": 199}
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_IOCTL: Final = {"x86_64": 16, "aarch64": 29}
_OPEN: Final = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""The numbers of open and openat, and the index of their argument with the flags."""
_WRITING: Final = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
"""Flags that permit more than reading."""
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}

_HARMLESS: Final = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; others change flags of files or make subvolumes,
even with a descriptor for reading.
"""
_AF_UNIX: Final = 1
_SOCK_STREAM: Final = 1
_SOCK_SEQPACKET: Final = 5
_SOCK_TYPE_MASK: Final = 0xF
_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWNS, …CGROUP, …UTS, …IPC, …USER, …PID and …NET."""

_NEW_USER: Final = 0x10000000
"""CLONE_NEWUSER."""
_UNSHARE: Final = {"x86_64": 272, "aarch64": 97}

_SOCKET: Final = {"x86_64": 41, "aarch64": 198}
_AF_NETLINK: Final = 16
"""Reports the addresses of the machine, but reaches nothing else."""
_IO_URING_SETUP: Final = 425
_OPENAT2: Final = 437
"""Its mode is in memory, where filters cannot check set-user-ID bits; mcpd's sandbox allows only these to use it."""
_COMPATIBLE: Final = {"x86_64": (0x40000003, 340, 120, 310), "aarch64": (0x40000028, 369, 120, 337)}
"""The 32-bit architecture that the kernel may also run, and its numbers of prlimit64, clone and unshare."""

_Step = tuple[int, int, "str | int", "str | int"]


def install(*, read_only: bool) -> None:
    """Deny these calls to this process and its descendants, permanently; it gets no more rights by executing.

    Raises ``KeyError`` for an unknown architecture, and ``OSError`` if the kernel does not support filters.
    """
    _install(program(os.uname().machine, read_only=read_only))


def install_offline() -> None:
    """Deny this process and its descendants sockets that reach a network. Raises the errors of :func:`install`."""
    _install(offline(os.uname().machine))


def install_limits() -> None:
    """Deny this process and its descendants other processes' limits and new user namespaces.

    Raises the errors of :func:`install`.
    """
    _install(limits(os.uname().machine))


def install_apart(*, network: bool) -> None:
    """Deny this process and its descendants all communication with other processes, except over a *network*.

    Raises the errors of :func:`install`.
    """
    _install(apart(os.uname().machine, network=network))


def _install(code: bytes) -> None:
    tree.prctl(tree.PR_SET_NO_NEW_PRIVS, 1)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    tree.prctl(tree.PR_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(header, len(header)))


def program(machine: str, *, read_only: bool) -> bytes:
    """Return the filter for *machine*, with the returns that it jumps to at its end. Raises ``KeyError`` if unknown."""
    architecture, numbers = _ARCHITECTURES[machine]
    denied = (*numbers.values(), *_KEYS[machine].values()) if read_only else ()
    body = _beginning(architecture) + _others(machine, denied)
    if read_only:
        body += _reading(machine)
    return _assembled(body)


def offline(machine: str) -> bytes:
    """Return the filter against sockets that reach a network, for *machine*. Raises ``KeyError`` if unknown."""
    architecture, _ = _ARCHITECTURES[machine]
    return _assembled(_beginning(architecture) + _sockets(machine, (_AF_UNIX, _AF_NETLINK), _DENY))


def apart(machine: str, *, network: bool) -> bytes:
    """Return the filter against communication but over a *network*, for *machine*. Raises ``KeyError`` if unknown."""
    architecture, _ = _ARCHITECTURES[machine]
    body = _beginning(architecture) + _others(machine, _KEYS[machine].values())
    body += [(_EQUAL, _OPENAT2, "unknown", 0), (_EQUAL, _CLONE3, "unknown", 0)]
    for number in (_CLONE[machine], _UNSHARE[machine]):
        body += [(_EQUAL, number, 0, 2), *_no_user_namespace()]
    body += _pairs(machine, (_SOCK_STREAM, _SOCK_SEQPACKET))
    body += _sockets(machine, (_AF_UNIX,), _ALLOW) if network else _sockets(machine, (_AF_NETLINK,), _DENY)
    return _assembled(body)


def limits(machine: str) -> bytes:
    """Return the filter against prlimit(2) for others and new user namespaces, for *machine*. ``KeyError`` if unknown.

    Programs of a 32-bit architecture run with it, too.
    """
    architecture, _ = _ARCHITECTURES[machine]
    compatible, limit, clone, unshare = _COMPATIBLE[machine]
    body: list[_Step] = [
        (_LOAD, _ARCHITECTURE_AT, 0, 0),
        (_EQUAL, architecture, 0, 7),
        (_LOAD, _NUMBER_AT, 0, 0),
        (_AND, 0xFFFFFFFF ^ _X32, 0, 0),
        (_EQUAL, _OPENAT2, "unknown", 0),
        (_EQUAL, _CLONE3, "unknown", 0),
        (_EQUAL, _CLONE[machine], 10, 0),
        (_EQUAL, _UNSHARE[machine], 9, 0),
        (_EQUAL, _OWN[machine]["prlimit64"], 6, "allow"),
        (_EQUAL, compatible, 0, "allow"),
        (_LOAD, _NUMBER_AT, 0, 0),
        (_EQUAL, _CLONE3, "unknown", 0),
        (_EQUAL, clone, 4, 0),
        (_EQUAL, unshare, 3, 0),
        (_EQUAL, limit, 0, "allow"),
        (_LOAD, _argument(0), 0, 0),
        (_EQUAL, 0, "allow", "deny"),
        *_no_user_namespace(),
    ]
    return _assembled(body)


def _no_user_namespace() -> list[_Step]:
    """Return the steps that check the flags of clone(2) or unshare(2)."""
    return [(_LOAD, _argument(0), 0, 0), (_ANY_BIT, _NEW_USER, "deny", "allow")]


def _others(machine: str, denied: Iterable[int]) -> list[_Step]:
    """Return the steps that deny calls that affect other processes or outlive one, and *denied*."""
    numbers = {*_FOREIGN[machine].values(), *_LASTING[machine].values(), *denied}
    body: list[_Step] = [(_EQUAL, number, "deny", 0) for number in sorted(numbers)]
    for number in _OWN[machine].values():
        body += [(_EQUAL, number, 0, 2), (_LOAD, _argument(0), 0, 0), (_EQUAL, 0, "allow", "deny")]
    for number, which in _OWN_PRIORITY[machine]:
        body += [(_EQUAL, number, 0, 4), (_LOAD, _argument(0), 0, 0), (_EQUAL, which, 0, "deny")]
        body += [(_LOAD, _argument(1), 0, 0), (_EQUAL, 0, "allow", "deny")]
    return body


def _sockets(machine: str, families: tuple[int, ...], otherwise: int) -> list[_Step]:
    """Return the steps for socket(2): with *otherwise* :data:`_DENY` only *families*, with :data:`_ALLOW` all others.

    Nothing can follow them.
    """
    listed = "allow" if otherwise == _DENY else "deny"
    return [
        # It can also make sockets, unseen by a filter; its users can do without it.
        (_EQUAL, _IO_URING_SETUP, "unknown", 0),
        (_EQUAL, _SOCKET[machine], 0, "allow"),
        (_LOAD, _argument(0), 0, 0),
        *((_EQUAL, family, listed, 0) for family in families),
        (_RETURN, otherwise, 0, 0),
    ]


def _pairs(machine: str, kinds: tuple[int, ...]) -> list[_Step]:
    """Return the steps for socketpair(2): a connected pair is harmless; a datagram one could send to any socket."""
    return [
        (_EQUAL, _SOCKETPAIR[machine], 0, 5 + len(kinds)),
        (_LOAD, _argument(0), 0, 0),
        (_EQUAL, _AF_UNIX, 0, "deny"),
        (_LOAD, _argument(1), 0, 0),
        (_AND, _SOCK_TYPE_MASK, 0, 0),
        *((_EQUAL, kind, "allow", 0) for kind in kinds),
        (_RETURN, _DENY, 0, 0),
    ]


def _beginning(architecture: int) -> list[_Step]:
    """Return the steps that deny calls of other architectures, which have other numbers, and load the number."""
    return [
        (_LOAD, _ARCHITECTURE_AT, 0, 0),
        (_EQUAL, architecture, 0, "deny"),
        (_LOAD, _NUMBER_AT, 0, 0),
        (_AT_LEAST, _X32, "deny", 0),
    ]


def _assembled(body: list[_Step]) -> bytes:
    """Return the program of *body*, after which all is allowed, and the returns to which it jumps."""
    ends = {"allow": len(body), "deny": len(body) + 1, "unknown": len(body) + 2}
    returns: list[_Step] = [(_RETURN, _ALLOW, 0, 0), (_RETURN, _DENY, 0, 0), (_RETURN, _UNKNOWN, 0, 0)]

    def jump(to: str | int, here: int) -> int:
        return to if isinstance(to, int) else ends[to] - here - 1

    return b"".join(
        struct.pack("HBBI", code, jump(true, here), jump(false, here), value)
        for here, (code, value, true, false) in enumerate([*body, *returns])
    )


def _reading(machine: str) -> list[_Step]:
    """Return the steps that check the arguments of a worker that must not write."""
    body: list[_Step] = [
        (_EQUAL, _CLONE3, "unknown", 0),
        (_EQUAL, _CLONE[machine], 0, 2),
        (_LOAD, _argument(0), 0, 0),
        (_ANY_BIT, _NAMESPACES, "deny", "allow"),
    ]
    # asyncio needs a pair.
    body += _pairs(machine, (_SOCK_STREAM,))
    body += [(_EQUAL, _IOCTL[machine], 0, 1 + len(_HARMLESS) + 1), (_LOAD, _argument(1), 0, 0)]
    body += [(_EQUAL, request, "allow", 0) for request in _HARMLESS]
    body.append((_RETURN, _DENY, 0, 0))
    for number, flags in _OPEN[machine]:
        body += [(_EQUAL, number, 0, 2), (_LOAD, _argument(flags), 0, 0), (_ANY_BIT, _WRITING, "deny", "allow")]
    return body


def _argument(index: int) -> int:
    """Return the offset of the low half of an argument; both architectures are little-endian."""
    return _ARGUMENTS_AT + 8 * index
