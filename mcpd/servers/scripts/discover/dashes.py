# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detection whether a shell script treats ``--`` as the end of its options.

A script that does not would treat ``--`` as an argument, and what follows as an option. So its code must show that it
does: comments and texts that it prints do not count. A little more than those is ignored, as the less harmful error is
to refuse a word that begins like an option.
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
    """Return when ``--`` may precede positional words: never (""), if one looks like an option, or always (argc)."""
    code = "\n".join(_code(source.split("\n")))
    if _ARGC.search(code):
        return "always"
    return "needed" if _GETOPT.search(code) or _BRANCH.search(code) else ""


def _code(lines: list[str]) -> Iterator[str]:
    """Yield *lines* without comments, here-documents and quoted texts, except for command substitutions: ``$(…)``."""
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
