# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is asked of a call, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

AT_ONCE: Final = 64
"""Calls of a script that run at the same time; more wait."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use.

    ``seconds`` of time on the clock; ``memory`` bytes, of data for each of its processes and of all that they hold
    together; ``processes`` at once; and ``output`` bytes, of the result and of what it prints.
    """

    seconds: float
    memory: int
    processes: int
    output: int


@dataclass(frozen=True, slots=True)
class PythonJob:
    """A call of *function* with the JSON values *arguments* by name, after *positional* (as many as it takes).

    ``source`` is other code than the server's script, called ``path`` in messages. A ``read_only`` call may not write
    anything anywhere, nor use the network; where the kernel cannot see to that, it is refused. ``context`` is given to
    a parameter of that name.
    """

    function: str
    arguments: dict[str, Any]
    source: str | None = None
    path: str = ""
    positional: tuple[Any, ...] = ()
    read_only: bool = False
    context: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShellJob:
    """A run of the shell script with *words* as its command line, *environment* added, and *stdin* to read."""

    words: tuple[str, ...]
    environment: dict[str, str]
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call.

    ``content`` are MCP's content blocks. ``structured`` is the value if it is an object. ``value`` is the plain JSON
    value that was returned, None if there is none. ``mime_type`` is what the result says it is, empty if nothing.
    ``error`` is the message of a failure, empty without one. ``raw`` is the whole result, as MCP has it, if the script
    returned one (an object with ``content``, ``isError`` …); then ``content``, ``structured`` and ``error`` are its
    parts, and it is what a client should be given, images of a failure included.
    """

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    value: Any
    mime_type: str
    error: str
    raw: dict[str, Any] | None = None
    timed_out: bool = False
    """True if it failed because its time was over."""


def size(count: int) -> str:
    """A number of bytes for people."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"
