# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel would do with system calls by a filter, for machines that are not at hand."""

from __future__ import annotations

import struct


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do with a system call by *program*: 0 for letting it pass, else the error that it gives."""
    data = struct.pack("IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = word = 0
    while True:
        code, true, false, value = struct.unpack_from("HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            [word] = struct.unpack_from("I", data, value)
        elif code == 0x54:
            word &= value
        elif code == 0x06:
            return 0 if value == 0x7FFF0000 else int(value & 0xFFFF)
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
            at += true if holds else false
