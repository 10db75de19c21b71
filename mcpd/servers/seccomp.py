# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls that a process cannot make (seccomp(2)); they fail with EPERM.

For every worker of a script these are the ways to change another process of the same user, which Landlock leaves open:
its limits, its priority, its processors, its memory. It may do so to itself by the id 0, which is what libraries say.
So are what System V has for processes to share, and queues of messages: they outlive the call, and count as nobody's
memory.

For one that must not write they are, in addition, all that open a file for more than reading, change directories,
modes, owners, times and attributes, make sockets and other ways to talk to processes elsewhere, and what root may do to
a system without opening a file.

For the programs of ensembles, which come with somebody else's project, they are those for every worker of a script, in
addition the kernel's keys, and unix sockets but for a connected pair: what listens at one, such as the session's bus, a
service manager or a bridge, would do for the program what it must not do itself, and Landlock does not keep it from
connecting by a path.

For a command of the workstation it is prlimit(2) for others, who would never get their limits back. Neither these nor
the programs of ensembles make user namespaces, in which they would have all capabilities. One that is to have
no network has no socket(2) for any but the unix and netlink families: Landlock knows the ports of TCP only.
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
"""Its flags are in memory, where no filter looks; where it is not to be had, libraries use clone(2)."""

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
"""What is there only for other processes."""
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
"""What belongs to no process: it stays, with its memory, until somebody removes it."""
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
"""What is for the process that the first argument says, where 0 is the caller."""
_OWN_PRIORITY: Final = {"x86_64": ((141, 0), (251, 1)), "aarch64": ((140, 0), (30, 1))}
"""setpriority and ioprio_set: their first argument has to be this, a single process, and their second 0, the caller."""

_NEWER: Final = {
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "open_tree": 428,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount_setattr": 442,
    "open_tree_attr": 467, "quotactl_fd": 443, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466,
    "file_setattr": 469, "openat2": 437,  # Its flags are in memory, where no filter looks.
}  # fmt: skip
"""Those with one number on every architecture."""

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
"""The user's are everybody's who has the user's id."""
_SOCKETPAIR: Final = {"x86_64": 53, "aarch64": 199}
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_IOCTL: Final = {"x86_64": 16, "aarch64": 29}
_OPEN: Final = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""The numbers of open and openat, and which of their arguments is the flags."""
_WRITING: Final = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
"""Any of these in the flags is more than reading."""
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}

_HARMLESS: Final = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; others change flags of a file, or make subvolumes,
and are content with a descriptor for reading."""
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
"""It tells which addresses the machine has, and leads nowhere."""
_IO_URING_SETUP: Final = 425
_OPENAT2: Final = 437
"""Its mode is in memory, where no filter sees set-user-ID bits; mcpd's sandbox allows it to these servers alone."""
_COMPATIBLE: Final = {"x86_64": (0x40000003, 340, 120, 310), "aarch64": (0x40000028, 369, 120, 337)}
"""The 32-bit architecture that the kernel may run beside it, and the numbers of prlimit64, clone and unshare there."""

_Step = tuple[int, int, "str | int", "str | int"]


def install(*, read_only: bool) -> None:
    """Deny these calls to this process and all that it starts, for good; it gets no more rights by executing.

    Raises ``KeyError`` for an architecture that is not known here, and ``OSError`` where the kernel has no filters.
    """
    _install(program(os.uname().machine, read_only=read_only))


def install_offline() -> None:
    """Deny this process and all that it starts any socket that leads to a network. Raises what :func:`install` does."""
    _install(offline(os.uname().machine))


def install_limits() -> None:
    """Deny this process and all that it starts other processes' limits and new user namespaces.

    Raises what :func:`install` does.
    """
    _install(limits(os.uname().machine))


def install_apart(*, network: bool) -> None:
    """Deny this process and all that it starts whatever leads to processes elsewhere but a *network*.

    Raises what :func:`install` does.
    """
    _install(apart(os.uname().machine, network=network))


def _install(code: bytes) -> None:
    tree.prctl(tree.PR_SET_NO_NEW_PRIVS, 1)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    tree.prctl(tree.PR_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(header, len(header)))


def program(machine: str, *, read_only: bool) -> bytes:
    """The filter for *machine*; it ends with the returns that all else jumps to. ``KeyError`` if that is not known."""
    architecture, numbers = _ARCHITECTURES[machine]
    denied = (*numbers.values(), *_KEYS[machine].values()) if read_only else ()
    body = _beginning(architecture) + _others(machine, denied)
    if read_only:
        body += _reading(machine)
    return _assembled(body)


def offline(machine: str) -> bytes:
    """The filter without sockets that lead to a network, for *machine*. ``KeyError`` if that is not known."""
    architecture, _ = _ARCHITECTURES[machine]
    return _assembled(_beginning(architecture) + _sockets(machine, (_AF_UNIX, _AF_NETLINK), _DENY))


def apart(machine: str, *, network: bool) -> bytes:
    """The filter without ways to processes elsewhere but a *network*, for *machine*. ``KeyError`` if not known."""
    architecture, _ = _ARCHITECTURES[machine]
    body = _beginning(architecture) + _others(machine, _KEYS[machine].values())
    body += [(_EQUAL, _OPENAT2, "unknown", 0), (_EQUAL, _CLONE3, "unknown", 0)]
    for number in (_CLONE[machine], _UNSHARE[machine]):
        body += [(_EQUAL, number, 0, 2), *_no_user_namespace()]
    body += _pairs(machine, (_SOCK_STREAM, _SOCK_SEQPACKET))
    body += _sockets(machine, (_AF_UNIX,), _ALLOW) if network else _sockets(machine, (_AF_NETLINK,), _DENY)
    return _assembled(body)


def limits(machine: str) -> bytes:
    """The filter without prlimit(2) for others and without new user namespaces, for *machine*. ``KeyError`` if unknown.

    Programs of a 32-bit architecture run by it, too.
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
    """What of the flags of clone(2) or unshare(2) is refused."""
    return [(_LOAD, _argument(0), 0, 0), (_ANY_BIT, _NEW_USER, "deny", "allow")]


def _others(machine: str, denied: Iterable[int]) -> list[_Step]:
    """What is there for other processes, or outlives one, and *denied* besides."""
    numbers = {*_FOREIGN[machine].values(), *_LASTING[machine].values(), *denied}
    body: list[_Step] = [(_EQUAL, number, "deny", 0) for number in sorted(numbers)]
    for number in _OWN[machine].values():
        body += [(_EQUAL, number, 0, 2), (_LOAD, _argument(0), 0, 0), (_EQUAL, 0, "allow", "deny")]
    for number, which in _OWN_PRIORITY[machine]:
        body += [(_EQUAL, number, 0, 4), (_LOAD, _argument(0), 0, 0), (_EQUAL, which, 0, "deny")]
        body += [(_LOAD, _argument(1), 0, 0), (_EQUAL, 0, "allow", "deny")]
    return body


def _sockets(machine: str, families: tuple[int, ...], otherwise: int) -> list[_Step]:
    """What socket(2) makes: with *otherwise* :data:`_DENY` only *families*, with :data:`_ALLOW` all but those.

    Nothing can come after it.
    """
    listed = "allow" if otherwise == _DENY else "deny"
    return [
        # It makes sockets, too, out of a filter's sight; who uses it can do without.
        (_EQUAL, _IO_URING_SETUP, "unknown", 0),
        (_EQUAL, _SOCKET[machine], 0, "allow"),
        (_LOAD, _argument(0), 0, 0),
        *((_EQUAL, family, listed, 0) for family in families),
        (_RETURN, otherwise, 0, 0),
    ]


def _pairs(machine: str, kinds: tuple[int, ...]) -> list[_Step]:
    """What socketpair(2) makes: a connected pair is harmless; one of datagrams could send to any socket by its name."""
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
    """No call of another architecture is allowed: its numbers are others. What comes next looks at the number."""
    return [
        (_LOAD, _ARCHITECTURE_AT, 0, 0),
        (_EQUAL, architecture, 0, "deny"),
        (_LOAD, _NUMBER_AT, 0, 0),
        (_AT_LEAST, _X32, "deny", 0),
    ]


def _assembled(body: list[_Step]) -> bytes:
    """*body*, after which all is allowed, with the returns that it jumps to."""
    ends = {"allow": len(body), "deny": len(body) + 1, "unknown": len(body) + 2}
    returns: list[_Step] = [(_RETURN, _ALLOW, 0, 0), (_RETURN, _DENY, 0, 0), (_RETURN, _UNKNOWN, 0, 0)]

    def jump(to: str | int, here: int) -> int:
        return to if isinstance(to, int) else ends[to] - here - 1

    return b"".join(
        struct.pack("HBBI", code, jump(true, here), jump(false, here), value)
        for here, (code, value, true, false) in enumerate([*body, *returns])
    )


def _reading(machine: str) -> list[_Step]:
    """What of a call's arguments a worker that must not write may say."""
    body: list[_Step] = [
        (_EQUAL, _CLONE3, "unknown", 0),
        (_EQUAL, _CLONE[machine], 0, 2),
        (_LOAD, _argument(0), 0, 0),
        (_ANY_BIT, _NAMESPACES, "deny", "allow"),
    ]
    # asyncio needs one.
    body += _pairs(machine, (_SOCK_STREAM,))
    body += [(_EQUAL, _IOCTL[machine], 0, 1 + len(_HARMLESS) + 1), (_LOAD, _argument(1), 0, 0)]
    body += [(_EQUAL, request, "allow", 0) for request in _HARMLESS]
    body.append((_RETURN, _DENY, 0, 0))
    for number, flags in _OPEN[machine]:
        body += [(_EQUAL, number, 0, 2), (_LOAD, _argument(flags), 0, 0), (_ANY_BIT, _WRITING, "deny", "allow")]
    return body


def _argument(index: int) -> int:
    """Where the low half of an argument is; both architectures are little-endian."""
    return _ARGUMENTS_AT + 8 * index
