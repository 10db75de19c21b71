# SPDX-License-Identifier: LGPL-2.1-or-later
"""The frames between server, keeper and worker: one byte for the kind, four bytes for the length, the payload."""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">cI")

JOB: Final = b"J"
"""Server to keeper: JSON with ``seconds``, ``memory``, ``processes``, ``output``; the clock starts."""
TASK: Final = b"T"
"""Server to keeper, passed on unchanged to the worker: the JSON of the task to run."""
LOG: Final = b"L"
"""Keeper to server: one line for the log."""
PROGRESS: Final = b"P"
"""Keeper to server: JSON ``[current, total or null, message]``."""
RESULT: Final = b"R"
"""Keeper to server: what the worker wrote as its result, unchecked."""
OUTPUT: Final = b"O"
"""Keeper to server: the stdout of a shell script."""
END: Final = b"E"
"""Keeper to server, the last one: JSON ``{"stopped", "code", "tail"}``, see :mod:`.keeper`."""

START: Final = b"s"
"""Server to zygote, one byte with one descriptor: the channel of a new keeper."""
STEM: Final = b"w"
"""Server to zygote with two descriptors: the channel, and the control socket of a zygote that imports the script."""
READY: Final = b"r"
"""From that zygote to the server: the script has been imported."""


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return one frame."""
    return HEADER.pack(kind, len(payload)) + payload


class Frames:
    """Splits a stream into frames."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the frames completed by *data*; raises ``ValueError`` for one that is too long."""
        self._data += data
        found = []
        while len(self._data) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._data)
            if length > self._most:
                raise ValueError(f"a frame of {length} bytes")
            end = HEADER.size + length
            if len(self._data) < end:
                break
            found.append((kind, bytes(self._data[HEADER.size : end])))
            del self._data[:end]
        return found
