# SPDX-License-Identifier: LGPL-2.1-or-later
"""Docstrings: the first line as a description, and the descriptions of parameters.

The sections are parsed by docstring-parser, in the three common styles: Google, NumPy and Sphinx. Its regular
expressions can take cubic time in the length of a line, so the effort is estimated beforehand and limited.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from mcpd.servers.scripts.discover.literals import text

MAX_LINE: Final = 1000
"""Maximum length of the description of a tool or a parameter, in characters."""

_MAX_DOCSTRING: Final = 32 * 1024
_MAX_EFFORT: Final = 60_000_000  # for one file: parentheses × length of their line, squared; less than a second

_STYLES: Final = {
    "GOOGLE": re.compile(r"^[ \t]*(?:Arguments|Args|Parameters|Params|Attributes):[ \t]*$", re.MULTILINE),
    "NUMPYDOC": re.compile(
        r"^[ \t]*(?:Parameters|Params|Arguments|Args|Other [A-Z][a-z]+|Attributes)[ \t]*\n"
        r"[ \t]*-{3,}[ \t]*$",
        re.MULTILINE,
    ),
    "REST": re.compile(
        r"^[ \t]*:(?:param|parameter|arg|argument|key|keyword|attribute|ivar|var|cvar)\b[^:\n]*:", re.MULTILINE
    ),
}
_SPACES: Final = re.compile(r"(?<=\S)[^\S\n]+")


def summary(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first line of the docstring of *node*, empty if it has none."""
    docstring = ast.get_docstring(node)
    return text(docstring.split("\n", 1)[0].strip(), MAX_LINE) if docstring else ""


def one_line(said: str) -> str:
    """Return *said* on one line of at most :data:`MAX_LINE` characters."""
    return text(" ".join(said.split()), MAX_LINE)


class Docstrings:
    """Reads the docstrings of one file; stops reading parameters when that has taken too much effort."""

    def __init__(self) -> None:
        self._effort = 0

    def parameters(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
        """Return the descriptions of parameters or attributes in the docstring of *node*, by name without stars."""
        docstring = ast.get_docstring(node)
        if not docstring or len(docstring) > _MAX_DOCSTRING:
            return {}
        style = next((name for name, pattern in _STYLES.items() if pattern.search(docstring)), None)
        if style is None:
            return {}
        docstring = _SPACES.sub(" ", docstring)
        effort = sum((line.count("(") * len(line) + 10) * len(line) for line in docstring.split("\n"))
        if self._effort + effort > _MAX_EFFORT:
            return {}
        self._effort += effort
        return _parameters(docstring, style)


def _parameters(docstring: str, style: str) -> dict[str, str]:
    import docstring_parser  # most scripts have no such sections

    try:
        parsed = docstring_parser.parse(docstring, docstring_parser.DocstringStyle[style])
    except (docstring_parser.ParseError, LookupError, ValueError, TypeError, AttributeError):
        return {}  # the last four are bugs of its own with unusual text
    return {
        name.strip().lstrip("*"): one_line(param.description)
        for param in parsed.params
        if param.description
        for name in param.arg_name.split(",")
    }
