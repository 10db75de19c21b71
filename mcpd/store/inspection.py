# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a listing says of a script, found by reading it: none is ever run or imported to be listed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mcpd.errors import LimitExceeded, from_oserror
from mcpd.store import bounded, source

if TYPE_CHECKING:
    from collections.abc import Iterator

ScriptKind: TypeAlias = Literal["python", "shell", ""]
SUFFIXES: Final[dict[str, ScriptKind]] = {".py": "python", ".sh": "shell"}
"""By precedence: of two files with one stem the first is the server."""

MAX_SCRIPT: Final = 256 * 1024
"""Bytes of a script."""
_SMALL: Final = 16 * 1024
"""Bytes of a Python script that is parsed here. The time that the parser takes, with everybody else waiting, grows with
the square of the size where somebody wants it to: 40 ms for these, 7 s for :data:`MAX_SCRIPT`."""
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
"""Those that can be asked whether a script is well-formed, by ``-n``."""
_NO_MEMORY: Final = re.compile(rb"[^:\n]*: (?:\d+: Out of space|\w+: .*cannot allocate|fatal error: out of .*memory)")
"""What shells say then, and end as for an error of the script."""
_LINE: Final = re.compile(rb"(?:line )?(\d+): ?(.*)")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found."""

    summary: str = ""
    version: str = ""
    problem: str = ""
    """Why it cannot be run, with the line: ``3: invalid syntax``; empty if it can, as far as anybody can tell."""


def kind_of(data: bytes) -> ScriptKind:
    """What the script *data*, which has no name to tell it, is: by its ``#!`` line, Python without one."""
    return "shell" if _is_shell(interpreter(data)) else "python"


def interpreter(data: bytes) -> list[str]:
    """The words of the ``#!`` line of *data*; ``/usr/bin/env`` is left out, as every program is looked for."""
    first = data[:512].partition(b"\n")[0]
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and words[0].rpartition("/")[2] == "env":
        while len(words) > 1 and (words[1].startswith("-") or "=" in words[1]):
            del words[1]
        del words[:1]
    return words


def inspect(data: bytes, kind: ScriptKind) -> Inspection:
    """What is to be said of the script *data*.

    Blocks: for milliseconds, or as long as :mod:`mcpd.store.bounded` lets a program read it. Raises
    :class:`~mcpd.errors.McpdError` if none can be started, which says nothing about the script.
    """
    if len(data) > MAX_SCRIPT:
        return Inspection(problem=f"1: the script has more than {MAX_SCRIPT} bytes")
    try:
        return _python(data) if kind == "python" else _shell(data)
    except LimitExceeded as error:
        return Inspection(problem=f"1: {error.message}")
    except OSError as error:
        raise from_oserror(error, f"starting {error.filename or 'a program'}, which reads scripts") from error


def _python(data: bytes) -> Inspection:
    if len(data) <= _SMALL:
        return Inspection(*source.read(data))
    ended, answer = bounded.run([sys.executable or "/usr/bin/python3", "-I", "-S", source.__file__], data)
    if ended != 0:
        raise bounded.exhausted()
    return Inspection(*json.loads(answer))


def _shell(data: bytes) -> Inspection:
    if b"\0" in data:
        return Inspection(problem="1: the script holds a NUL character")
    return Inspection(source.first_line("\n".join(_comments(data))), problem=_shell_problem(data))


def _comments(data: bytes) -> Iterator[str]:
    """The text of the first comment, the ``#!`` line left out."""
    for line in data[: 16 * 1024].decode("utf-8", "replace").splitlines():
        if line.startswith("#!"):
            continue
        if not line.startswith("#"):
            return
        text = line.lstrip("#").strip()
        if text.startswith("SPDX-"):
            continue
        if text.startswith("@describe "):
            text = text.removeprefix("@describe ")
        if not text.startswith("@"):
            yield text


def _shell_problem(data: bytes) -> str:
    words = interpreter(data) or ["/bin/sh"]
    name = words[0].rpartition("/")[2]
    if name not in _SHELLS:
        return ""
    try:
        # It reads and does not run, from its standard input.
        ended, said = bounded.run([f"/bin/{name}", "-n"], data)
    except FileNotFoundError:
        return ""
    if ended == 0:
        return ""
    if ended < 0:
        return source.TOO_DEEP
    if _NO_MEMORY.match(said):
        raise bounded.exhausted()
    found = _LINE.search(said)
    line, text = (found[1].decode(), found[2]) if found else ("1", said[:200])
    return f"{line}: {source.printable(text.decode('utf-8', 'replace')) or 'syntax error'}"


def _is_shell(words: list[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] in _SHELLS
