# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of the memory management of the C library and the interpreter.

By default the C library maps each block of 128 KiB or more for itself and unmaps it when it is freed, and the faults of
its fresh pages then cost several times what is done with it. Kept instead, they take a few MiB.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

KEPT_UP_TO: Final = 8 << 20
"""Bytes of the largest block that is not mapped for itself."""
TRIMMED_FROM: Final = 16 << 20
"""Free bytes at the end of the heap that are given back."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_large_blocks() -> None:
    """Keep the memory of large messages for the next ones, where the C library can (``mallopt(3)``)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, KEPT_UP_TO)
        mallopt(_TRIM_THRESHOLD, TRIMMED_FROM)


def settle() -> None:
    """Have the collector leave alone what is there now, and stays: a whole round then takes a fraction of its time."""
    gc.freeze()


def give_back() -> None:
    """Give memory back to the system after much was freed. Takes milliseconds.

    The interpreter keeps some freed tuples and the like for the next ones, until the collector goes round, and each of
    them keeps the arena that it is in.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
