# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a shell script knows that ``--`` ends its options.

A script that does not know it would take ``--`` for an argument, and what comes after it for an option. So a script has
to show that it knows, in what it does: what only its comments or the texts that it prints say is nothing. A little more
than those is taken away, as of two errors here the harmless one is to refuse a word that begins like an option.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMENT: Final = re.compile(r"(?:^|(?<=[\s;&|()`]))#.*")  # within quotes, too
_HERE: Final = re.compile(r"(?<![<\w)])<<-?[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\1")
_TEXT: Final = re.compile(r"""'[^']*'?|"(?:[^"\\$`]|\\.|\$(?!\())*"?""")
_BEFORE: Final = (
    r"(?:^[ \t]*|[;&|({`!][ \t]*|(?<![\w-])(?:if|elif|while|until|then|do|else|command)[ \t]+)"
    r"(?:[A-Za-z_]\w{0,40}=[^\s;&|]{0,40}[ \t]+)?"
)
_ARGC: Final = re.compile(_BEFORE + r"argc[ \t]+--argc-eval\b", re.MULTILINE)
_GETOPT: Final = re.compile(_BEFORE + r"(?:/[\w/.-]{0,40}/)?getopts?[ \t]", re.MULTILINE)
_BRANCH: Final = re.compile(r"^[ \t]*\(?--[ \t]*\)", re.MULTILINE)


def knows(source: str) -> Literal["", "needed", "always"]:
    """When ``--`` may go before the positional words: never, if one looks like an option, or always (argc)."""
    code = "\n".join(_code(source.split("\n")))
    if _ARGC.search(code):
        return "always"
    return "needed" if _GETOPT.search(code) or _BRANCH.search(code) else ""


def _code(lines: list[str]) -> Iterator[str]:
    """*lines* without comments, here-documents and texts in quotes, but for what these have others say: ``$(…)``."""
    last = {line.strip(): number for number, line in enumerate(lines)}
    end = ""
    for number, line in enumerate(lines):
        if end:
            if line.strip() == end:
                end = ""
            continue
        code = _COMMENT.sub("", line)
        here = _HERE.search(code)
        if here is not None and last.get(here[2], -1) > number:
            end = here[2]
        yield _TEXT.sub("''", code)
