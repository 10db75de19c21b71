# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checking large JSON that is mostly one text, such as an image or a file in base64.

To look at every byte of it takes several times as long as all else that is done with the message. Where the middle of
the JSON lies between two quotes with neither quote nor backslash between them, it need not be looked at: if what is
left without it is JSON, the two quotes enclose a string there (two strings side by side are none), and then the whole
is JSON with that string. Only a control character in it that is no line break, and should be escaped, is not noticed;
it means the same to everybody who takes it at all.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, Raw

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE: Final = 1 << 16
"""Bytes of JSON from which on it is worth while."""
_MARK: Final = secrets.token_hex(16).encode()
"""Stands for the text in what is left; nobody else knows it."""
_NEVER: Final = (b"\\", b"\n", b"\r")


def decode(data: bytes, decoder: Callable[[bytes], dict[str, Raw]]) -> dict[str, Raw]:
    """The members of the object *data*, as *decoder* finds them, which raises what it raises for *data*.

    What is not UTF-8 has to be found out before.
    """
    if len(data) < LARGE:
        return decoder(data)
    middle = len(data) // 2
    start = data.rfind(b'"', 0, middle) + 1
    end = data.find(b'"', middle)
    if end - start < middle or any(data.find(byte, start, end) >= 0 for byte in _NEVER):
        return decoder(data)
    try:
        members = decoder(b"".join((memoryview(data)[:start], _MARK, memoryview(data)[end:])))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        # What is wrong with it, is told of the whole.
        return decoder(data)
    for name, raw in members.items():
        text = bytes(raw)
        at = text.find(_MARK)
        if at >= 0:
            after = memoryview(text)[at + len(_MARK) :]
            members[name] = Raw(b"".join((memoryview(text)[:at], memoryview(data)[start:end], after)))
            return members
    return decoder(data)
