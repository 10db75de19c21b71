# SPDX-License-Identifier: LGPL-2.1-or-later
"""The seccomp filter of every sandbox, which bubblewrap installs just before the program is executed.

It prevents the creation of set-user-ID and set-group-ID files: one in a directory that others can access would let them
act as the server's user. ``RestrictSUIDSGID=`` of systemd does the same, but bubblewrap could not call openat2(2) under
it. It also denies whatever affects more than the sandbox or evades the filter: the kernel's keyrings, which belong to
the user and not to a namespace, io_uring, userfaultfd, kcmp, and system calls of other architectures.

openat2(2) has its mode in memory, which a filter cannot read. It fails with ENOSYS as on an old kernel, except for the
bundled servers that resolve paths with it; these deny it to the commands that they run.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

EPERM, ENOSYS = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY, UNKNOWN = 0x7FFF0000, 0x00050000 | EPERM, 0x00050000 | ENOSYS
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""
X32 = 0x40000000
SET_ID = 0o6000
CREATES = os.O_CREAT | 0o20000000
"""O_CREAT, and the bit that is specific to O_TMPFILE: if one of them is set, open(2) takes a mode."""

Calls = dict[str, int]
_COMMON: Final[Calls] = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "openat2": 437, "fchmodat2": 452,
}  # fmt: skip
_GENERIC: Final[Calls] = _COMMON | {
    "fchmod": 52, "fchmodat": 53, "mknodat": 33, "openat": 56, "add_key": 217, "request_key": 218, "keyctl": 219,
    "userfaultfd": 282, "kcmp": 272,
}  # fmt: skip
MACHINES: Final[dict[str, tuple[int, Calls]]] = {
    "x86_64": (0xC000003E, _COMMON | {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "mknod": 133, "mknodat": 259, "creat": 85, "open": 2,
        "openat": 257, "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "kcmp": 312,
    }),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
}  # fmt: skip
"""Audit architecture and system call numbers, by the machine name of uname(2)."""
MODES: Final = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknod": 1, "mknodat": 2, "creat": 1}
"""Index of the argument that is a mode, by system call."""
OPENS: Final = {"open": 1, "openat": 2}
"""Index of the argument with the flags, which the mode follows, by system call."""
DENIED: Final = ("add_key", "request_key", "keyctl", "userfaultfd", "kcmp")
MISSING: Final = ("io_uring_setup", "io_uring_enter", "io_uring_register")
"""System calls that fail with ENOSYS, since programs work without them on kernels that lack them."""


def program(machine: str, *, openat2: bool) -> bytes:
    """Return the filter for *machine* as an array of ``struct sock_filter``; empty for an unknown machine."""
    if machine not in MACHINES:
        return b""
    architecture, calls = MACHINES[machine]
    steps = [_step(LOAD, ARCHITECTURE), _step(EQUAL, architecture, 1, 0), _step(RETURN, DENY), _step(LOAD, NUMBER)]
    if machine == "x86_64":
        steps += [_step(AT_LEAST, X32, 0, 1), _step(RETURN, DENY)]
    for name in (*MISSING, *(() if openat2 else ("openat2",))):
        steps += [_step(EQUAL, calls[name], 0, 1), _step(RETURN, UNKNOWN)]
    for name in DENIED:
        steps += [_step(EQUAL, calls[name], 0, 1), _step(RETURN, DENY)]
    for name, mode in MODES.items():
        if name in calls:
            steps += [_step(EQUAL, calls[name], 0, 4), *_no_set_id(mode)]
    for name, flags in OPENS.items():
        if name in calls:
            steps += [_step(EQUAL, calls[name], 0, 7), _argument(flags), _step(ANY_BIT, CREATES, 1, 0),
                      _step(RETURN, ALLOW), *_no_set_id(flags + 1)]  # fmt: skip
    return b"".join([*steps, _step(RETURN, ALLOW)])


def _no_set_id(mode: int) -> list[bytes]:
    return [_argument(mode), _step(ANY_BIT, SET_ID, 0, 1), _step(RETURN, DENY), _step(RETURN, ALLOW)]


def _argument(index: int) -> bytes:
    """Return the instruction that loads the low half of an argument; all known machines are little-endian."""
    return _step(LOAD, ARGUMENTS + 8 * index)


def _step(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    order = sys.byteorder
    return code.to_bytes(2, order) + bytes((true, false)) + value.to_bytes(4, order)
