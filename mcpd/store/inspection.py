# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a listing says of a script, found by reading it: none is ever run or imported to be listed (C-17)."""

from __future__ import annotations

import ast
import re
import subprocess
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["python", "shell", ""]

MAX_SCRIPT: Final = 256 * 1024
"""Bytes of a script. To parse one takes up to a thousand times its size for a moment, in mcpd itself."""
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
"""Those that can be asked whether a script is well-formed, by ``-n``."""
_ASKED: Final = 5.0
"""Seconds that one may think about that."""
_SUMMARY: Final = 200
"""Characters of a summary."""
_LINE: Final = re.compile(rb"(?:line )?(\d+): ?(.*)")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found."""

    summary: str = ""
    version: str = ""
    problem: str = ""
    """Why it cannot be run, with the line: ``3: invalid syntax``; empty if it can, as far as anybody can tell."""


def kind_of(data: bytes) -> Kind:
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


def inspect(data: bytes, kind: Kind) -> Inspection:
    """What is to be said of the script *data*. Blocks: for milliseconds, or what a shell takes to read it."""
    if len(data) > MAX_SCRIPT:
        return Inspection(problem=f"1: the script has more than {MAX_SCRIPT} bytes")
    return _python(data) if kind == "python" else _shell(data)


def _python(data: bytes) -> Inspection:
    try:
        with warnings.catch_warnings():
            # "\d" in a script is its author's business.
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
            docstring = ast.get_docstring(tree) or ""
    except SyntaxError as error:
        return Inspection(problem=f"{error.lineno or 1}: {error.msg}")
    except ValueError as error:
        return Inspection(problem=f"1: {error}")
    except (RecursionError, MemoryError):
        return Inspection(problem="1: the script is nested too deeply")
    return Inspection(_first_line(docstring), _version(tree))


def _version(tree: ast.Module) -> str:
    """``__version__ = "1.2"``, if the module has such a line."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            if "__version__" in names:
                return _printable(node.value.value)[:64]
    return ""


def _shell(data: bytes) -> Inspection:
    if b"\0" in data:
        return Inspection(problem="1: the script holds a NUL character")
    return Inspection(_first_line("\n".join(_comments(data))), problem=_shell_problem(data))


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
        done = subprocess.run(
            [f"/bin/{name}", "-n"], input=data, capture_output=True, check=False, timeout=_ASKED, env={"LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode == 0:
        return ""
    found = _LINE.search(done.stderr)
    line, text = (found[1].decode(), found[2]) if found else ("1", done.stderr[:200])
    return f"{line}: {_printable(text.decode('utf-8', 'replace')) or 'syntax error'}"


def _is_shell(words: list[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] in _SHELLS


def _first_line(text: str) -> str:
    return next((_printable(line.strip())[:_SUMMARY] for line in text.splitlines() if line.strip()), "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()
