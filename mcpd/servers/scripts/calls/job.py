# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs for calls, their limits and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

AT_ONCE: Final = 64
"""Maximum number of concurrent calls of a script; further ones wait."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call.

    ``seconds`` of elapsed time; ``memory`` in bytes, for the data of each of its processes; the number of concurrent
    ``processes``; and ``output`` in bytes, for the result and for printed text.
    """

    seconds: float
    memory: int
    processes: int
    output: int


@dataclass(frozen=True, slots=True)
class PythonJob:
    """A call of *function* with the JSON values *arguments* by name, after *positional* (as many as it takes).

    ``source`` is other code than the server's script, with the name ``path`` in messages. A ``read_only`` call must not
    write anything or use the network; if the kernel cannot enforce that, it is refused. ``context`` is passed to a
    parameter of that name.
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
    """A run of the shell script with *words* as its command line, *environment* added, and *stdin* as its input."""

    words: tuple[str, ...]
    environment: dict[str, str]
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call.

    ``content`` are MCP's content blocks. ``structured`` is the value if it is an object. ``value`` is the returned
    plain JSON value, or None. ``mime_type`` is that of the result, empty if unknown. ``error`` is the message of a
    failure, empty on success. ``raw`` is the whole result in MCP's form, if the script returned one (an object with
    ``content``, ``isError`` …); then ``content``, ``structured`` and ``error`` are its parts, and clients should be
    given ``raw``, with the images of a failure.
    """

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    value: Any
    mime_type: str
    error: str
    raw: dict[str, Any] | None = None
    timed_out: bool = False
    """True if it has exceeded its time limit."""


def size(count: int) -> str:
    """Return a number of bytes with a unit, for people."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"
