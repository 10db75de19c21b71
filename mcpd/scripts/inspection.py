# SPDX-License-Identifier: LGPL-2.1-or-later
"""Static inspection of scripts for listings: summary, version and syntax errors. No script is run or imported."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd import bounded
from mcpd.errors import LimitExceeded, from_oserror
from mcpd.scripts import syntax

if TYPE_CHECKING:
    from collections.abc import Iterator

ScriptKind: TypeAlias = Literal["python", "shell", ""]
SUFFIXES: Final[dict[str, ScriptKind]] = {".py": "python", ".sh": "shell"}
"""File name suffixes of scripts by falling precedence: of two files with the same stem, the first one is used."""

MAX_SCRIPT: Final = 256 * 1024
"""Maximum size of a script, in bytes."""
_SMALL: Final = 16 * 1024
"""Size of the largest Python script that is parsed in this process, in bytes.

Parsing can take time that grows with the square of the size, and the parser holds the interpreter lock: 40 ms for
this size, 7 s for :data:`MAX_SCRIPT`.
"""
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
"""Shells whose option ``-n`` checks the syntax of a script without running it."""
_NO_MEMORY: Final = re.compile(rb"[^:\n]*: (?:\d+: Out of space|\w+: .*cannot allocate|fatal error: out of .*memory)")
"""Messages of shells that ran out of memory; their exit status is the same as for a syntax error."""
_LINE: Final = re.compile(rb"(?:line )?(\d+): ?(.*)")


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of inspecting a script."""

    summary: str = ""
    version: str = ""
    problem: str = ""
    """Line number and error that keeps the script from running, such as ``3: invalid syntax``; else empty."""


def kind_of(data: bytes) -> ScriptKind:
    """Return the kind of the script *data* by its ``#!`` line: ``shell`` if that names a shell, else ``python``."""
    return "shell" if _is_shell(interpreter(data)) else "python"


def interpreter(data: bytes) -> list[str]:
    """Return the interpreter and its arguments from the ``#!`` line of *data*, without a leading ``env``."""
    first = data[:512].partition(b"\n")[0]
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and words[0].rpartition("/")[2] == "env":
        while len(words) > 1 and (words[1].startswith("-") or "=" in words[1]):
            del words[1]
        del words[:1]
    return words


def inspect(data: bytes, kind: ScriptKind) -> Inspection:
    """Return the summary, version and first error of the script *data*.

    Blocks for milliseconds, or up to the time limit of :mod:`mcpd.bounded` if a separate program reads the script.
    Raises :class:`~mcpd.errors.McpdError` if that program cannot be started.
    """
    if len(data) > MAX_SCRIPT:
        return Inspection(problem=f"1: the script is larger than {MAX_SCRIPT} bytes")
    try:
        return _python(data) if kind == "python" else _shell(data)
    except LimitExceeded as error:
        return Inspection(problem=f"1: {error.message}")
    except OSError as error:
        raise from_oserror(error, f"starting {error.filename or 'a program'}, which reads scripts") from error


def _python(data: bytes) -> Inspection:
    if len(data) <= _SMALL:
        return Inspection(*syntax.read(data))
    ended, answer = bounded.run([sys.executable or "/usr/bin/python3", "-I", "-S", syntax.__file__], data)
    if ended != 0:
        raise bounded.limit_exceeded()
    return Inspection(*json.loads(answer))


def _shell(data: bytes) -> Inspection:
    if b"\0" in data:
        return Inspection(problem="1: the script contains a NUL character")
    return Inspection(syntax.first_line("\n".join(_comments(data))), problem=_shell_problem(data))


def _comments(data: bytes) -> Iterator[str]:
    """Yield the lines of the first comment, without the ``#!`` line."""
    for line in data[: 16 * 1024].decode("utf-8", "replace").splitlines():
        if line.startswith("#!"):
            continue
        if not line.startswith("#"):
            return
        text = line.lstrip("#").strip()
        if text.startswith("SPDX-"):
            continue
        yield text


def _shell_problem(data: bytes) -> str:
    words = interpreter(data) or ["/bin/sh"]
    name = words[0].rpartition("/")[2]
    if name not in _SHELLS:
        return ""
    try:
        # -n: check the syntax of standard input, and run nothing.
        ended, said = bounded.run([f"/bin/{name}", "-n"], data)
    except FileNotFoundError:
        return ""
    if ended == 0:
        return ""
    if ended < 0:
        return syntax.TOO_DEEP
    if _NO_MEMORY.match(said):
        raise bounded.limit_exceeded()
    found = _LINE.search(said)
    line, text = (found[1].decode(), found[2]) if found else ("1", said[:200])
    return f"{line}: {syntax.printable(text.decode('utf-8', 'replace')) or 'syntax error'}"


def _is_shell(words: list[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] in _SHELLS
