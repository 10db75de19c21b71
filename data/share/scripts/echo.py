# SPDX-License-Identifier: LGPL-2.1-or-later
"""Says what it was told: for trying out clients, connections and long calls."""

from __future__ import annotations

import time

MOST_TIMES = 1000
MOST_SECONDS = 3600.0


def echo(message: str) -> str:
    """Say a message back.

    Args:
        message: What to say.
    """
    return message


def repeat(message: str, times: int = 2, seconds: float = 0.0) -> str:
    """Say a message several times, one to a line, and report the progress of it.

    Args:
        message: What to say.
        times: How often, at most 1000 times.
        seconds: How long to wait after each time, in all at most an hour.
    """
    if not 1 <= times <= MOST_TIMES:
        raise ValueError(f"times: {times} is not between 1 and {MOST_TIMES}")
    if not 0 <= times * seconds <= MOST_SECONDS:
        raise ValueError(f"seconds: {times} times {seconds} s is not between 0 and {MOST_SECONDS:g} s")
    from mcpd.script import progress

    said = []
    for number in range(1, times + 1):
        said.append(message)
        progress(number, times, f"{number} of {times}")
        time.sleep(seconds)
    return "\n".join(said)
