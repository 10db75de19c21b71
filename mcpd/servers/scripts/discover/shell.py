# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tool of a shell script, and the words of its command line."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from mcpd.errors import InvalidArgument
from mcpd.servers.scripts.discover.literals import text
from mcpd.servers.scripts.discover.syntax import check
from mcpd.servers.scripts.tool import Tool, tool_name

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DESCRIPTION: Final = 4000
"""Maximum length of the description of a tool, in characters."""

MAX_WORD: Final = 131_071
"""Maximum length of a word on a command line, in bytes: the limit of Linux."""

_ARGUMENTS: Final = ("args", "command_args")  # the first is listed, both are accepted
_FOR_PROGRAMS: Final = re.compile(r"!|shellcheck |vim?:|-\*-|SPDX-|Copyright|\W*$", re.IGNORECASE)
_FOR_LAWYERS: Final = re.compile(r"free software|\blicen[sc]ed?\b|warranty|all rights reserved", re.IGNORECASE)


def tool(source: str, name: str) -> Tool:
    """Return the tool of the shell script *source*, whose file is *name* without its suffix.

    Raises :class:`~mcpd.errors.InvalidManifest` as ``NAME:LINE: FAULT`` if *source* is not text.
    """
    check(source, name)
    return Tool(
        tool_name(name),
        text(_first_comment(source), MAX_DESCRIPTION) or f"Execute {name} command",
        {"type": "object", "properties": {"args": {"type": "string", "description": "Command arguments"}}},
        function="",
    )


def _first_comment(source: str) -> str:
    """Return the first block of comments, without shebangs, directives and license texts."""
    lines: list[str] = []
    for line in source[: 64 * 1024].split("\n"):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment = stripped.lstrip("#").strip()
            lines.append("" if _FOR_PROGRAMS.match(comment) else comment)
        elif any(lines) or stripped:
            break
    paragraphs = [part.strip() for part in re.split(r"\n{2,}", "\n".join(lines))]
    return "\n\n".join(part for part in paragraphs if part and not _FOR_LAWYERS.search(part))


def words(function: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words after the script's path: *function*, if any, and ``args``, split as by a shell.

    Nothing is expanded. Raises :class:`~mcpd.errors.InvalidArgument` for text that a command line cannot contain.
    """
    given = [(name, arguments[name]) for name in _ARGUMENTS if name in arguments]
    if len(given) > 1:
        raise InvalidArgument("args and command_args are the same; give one of them")
    found = [function] if function else []
    for name, value in given:
        if not isinstance(value, str):
            raise InvalidArgument(f"{name}: must be text")
        try:
            parts = shlex.split(_checked(name, value, MAX_WORD * 8))
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}. Quote it as for a shell.") from None
        found += [_checked(name, part) for part in parts]
    return found


def _checked(name: str, word: str, limit: int = MAX_WORD) -> str:
    if "\0" in word:
        raise InvalidArgument(f"{name}: contains a NUL character, which no command line can hold")
    try:
        size = len(word.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: is not text: it contains half a character") from None
    if size > limit:
        raise InvalidArgument(f"{name}: longer than {limit} bytes, which is more than a command line can hold")
    return word
