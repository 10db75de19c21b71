# SPDX-License-Identifier: LGPL-2.1-or-later
"""Summary, version and syntax check of a Python script; also a program, for scripts that may take long to parse.

The program is started by path and imports nothing from mcpd, because imports take most of its run time. It reads the
script from standard input and writes the result of :func:`read` as JSON.
"""

from __future__ import annotations

import ast
import sys
import warnings

SUMMARY = 200
"""Maximum length of a summary, in characters."""
TOO_DEEP = "1: the script is nested too deeply"


def read(data: bytes) -> tuple[str, str, str]:
    """Return summary, version and problem of the script *data*; if there is a problem, the first two are empty."""
    try:
        with warnings.catch_warnings():
            # Ignore warnings about the script, such as those about "\d".
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except SyntaxError as error:
        return "", "", f"{error.lineno or 1}: {printable(error.msg)}"
    except ValueError as error:
        return "", "", f"1: {printable(str(error))}"
    except (RecursionError, MemoryError):
        return "", "", TOO_DEEP
    return first_line(_docstring(tree)), _version(tree), ""


def first_line(text: str) -> str:
    """Return the first line of *text* that is not blank."""
    return next((printable(line.strip())[:SUMMARY] for line in text.splitlines() if line.strip()), "")


def printable(text: str) -> str:
    """Return *text* with all unprintable characters, such as terminal escapes, replaced with spaces, and stripped."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _docstring(tree: ast.Module) -> str:
    first = tree.body[0] if tree.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value.value
    return ""


def _version(tree: ast.Module) -> str:
    """Return the version in a line ``__version__ = "1.2"``, if the module has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            if "__version__" in names:
                return printable(node.value.value)[:64]
    return ""


def _was_short(of: int) -> bool:
    """Return whether this process came close to the memory limit *of*, in bytes.

    The parser raises the same error for lack of memory and for code that is nested too deeply.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 -- nothing else is loaded
        peak = next((line.split()[1] for line in file if line.startswith("VmPeak:")), "0")
    return int(peak) * 1024 > of * 3 // 4


if __name__ == "__main__":
    import json
    import resource

    answer = read(sys.stdin.buffer.read())
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if answer[2] == TOO_DEEP and most != resource.RLIM_INFINITY and _was_short(most):
        sys.exit(1)
    json.dump(answer, sys.stdout)
