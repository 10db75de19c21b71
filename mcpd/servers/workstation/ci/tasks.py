# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the tasks that a project defines, read from the text of its files.

Nothing is evaluated, as most of these files are programs. So what a program puts together is not seen: included files,
names from variables, tasks made in loops.
"""

from __future__ import annotations

import configparser
import itertools
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_TASKS: Final = 500
"""Tasks of one file."""
_MAX_NAME: Final = 120
_MAX_PIECES: Final = 32
"""Parts of one entry of an ``envlist``, in braces or between them."""

_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"?'
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)

_TARGET: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*", re.ASCII)
_DIRECTIVES: Final = tuple(
    [word]
    for word in (
        "else", "export", "ifdef", "ifeq", "ifndef", "ifneq", "-include", "include", "override", "private", "sinclude",
        "undefine", "unexport", "vpath",
    )
)  # fmt: skip
_RECIPE: Final = re.compile(r"@?([A-Za-z_][A-Za-z0-9_-]*)(?=[\s:])", re.ASCII)
_TASK: Final = re.compile(r"""["']?([A-Za-z0-9_][\w.:/-]*)["']?:(?=\s|$)""", re.ASCII)
_RAKE: Final = re.compile(r"""(namespace|task)\b[\s(]*(?::([\w-]+)|["']([\w:-]+)["']|([\w-]+):(?!:))""", re.ASCII)
_SESSION: Final = re.compile(r"@(?:nox\.)?session\b")
_NAMED: Final = re.compile(r"""\bname\s*=\s*["']([^"'\\]*)["']""")
_FUNCTION: Final = re.compile(r"def\s+(\w+)\s*\(", re.ASCII)
_GRADLE: Final = re.compile(
    r"""(?:tasks\.(?:register|create)|task)\b(?:<[\w.]+>)?[\s(]*["']?([A-Za-z_][\w-]*)""", re.ASCII
)
_ZIG: Final = re.compile(r"""\.step\(\s*"([^"\\\n]+)"\s*,\s*"([^"\\\n]*)""")

Named: TypeAlias = tuple[str, str]
"""A task's name and what it is for."""


def plain_json(text: str) -> str:
    """*text*, JSON with comments and commas after the last member, as plain JSON."""
    return _LAST_COMMA.sub(_string_only, _COMMENT.sub(_string_only, text))


def _string_only(match: re.Match[str]) -> str:
    return match[1] or ""


def usable(tasks: Iterable[Named]) -> list[Named]:
    """Those of *tasks* that an argument can name, each once."""
    found: dict[str, str] = {}
    for name, description in tasks:
        if 0 < len(name) <= _MAX_NAME and name.isprintable() and not name.startswith("-") and name.strip() == name:
            found[name] = found.get(name) or printable(description.strip())
            if len(found) >= MAX_TASKS:
                break
    return list(found.items())


def makefile_targets(text: str) -> tuple[list[Named], str | None]:
    """The explicit targets of a makefile, and which of them ``make`` alone makes.

    A target is a plain name before the first colon of a line that neither begins with a tab nor assigns a variable;
    pattern rules, special targets (``.PHONY``) and names with ``$`` are left out. Conditionals are not looked at, and
    ``define`` blocks are skipped. What follows ``##`` describes the target.
    """
    targets: list[Named] = []
    default: str | None = None
    defining = False
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        words = line.split(None, 1)
        if defining or (words and words[0] == "define"):
            defining = not (words and words[0] == "endef")
            continue
        if line.startswith(".DEFAULT_GOAL"):
            goal = line.partition("=")[2].strip()
            default = goal if _TARGET.fullmatch(goal) else None
            continue
        targets += _targets_of(line)
    found = usable(targets)
    if default is None and found:
        default = found[0][0]
    return found, default


def _targets_of(line: str) -> list[Named]:
    code, _, comment = line.partition("#")
    names, colon, rest = code.partition(":")
    is_other = line.startswith("\t") or "=" in names or "$" in names or names.split(None, 1)[:1] in _DIRECTIVES
    if not colon or is_other or "=" in rest.split(";")[0]:
        return []
    description = comment.removeprefix("#") if comment.startswith("#") else ""
    return [(name, description) for name in names.split() if _TARGET.fullmatch(name)]


def just_recipes(text: str) -> list[Named]:
    """The recipes of a justfile that can be called, with the comment above each; private ones are left out."""
    found: list[Named] = []
    comment = ""
    private = False
    for line in text.splitlines():
        if line.startswith("#"):
            comment = line.lstrip("#!")
        elif line.startswith("["):
            private |= "private" in line
        else:
            match = _RECIPE.match(line)
            head, colon, rest = line.partition(":")
            if match and colon and not rest.startswith("=") and not head.startswith(("import ", "mod ")):
                if not private and not match[1].startswith("_"):
                    found.append((match[1], comment))
                private = False
            comment = ""
    return usable(found)


def taskfile_tasks(text: str) -> list[Named]:
    """The tasks of a Taskfile that can be called: the keys one step below ``tasks:``; internal ones are left out."""
    found: dict[str, str] = {}
    name = step = None
    for line in f"\n{text}".partition("\ntasks:")[2].splitlines()[1:]:
        code = line.lstrip(" ")
        if not code or code.startswith("#"):
            continue
        indent = len(line) - len(code)
        if indent == 0 or len(found) > MAX_TASKS:
            break
        step = step or indent
        if indent == step:
            match = _TASK.match(code)
            name = match[1] if match else None
            if name:
                found[name] = ""
        elif name and code.startswith("internal: true"):
            del found[name]
            name = None
        elif name and code.startswith("desc:"):
            found[name] = code.removeprefix("desc:").strip(" \"'")
    return usable(found.items())


def rake_tasks(text: str) -> list[Named]:
    """The tasks of a Rakefile with their namespaces, which are told by indentation, and their ``desc``."""
    found: list[Named] = []
    spaces: list[tuple[int, str]] = []
    description = ""
    for line in text.splitlines():
        code = line.lstrip()
        if not code:
            continue
        indent = len(line) - len(code)
        while spaces and indent <= spaces[-1][0]:
            spaces.pop()
        match = _RAKE.match(code)
        if match and match[1] == "namespace":
            spaces.append((indent, match[2] or match[3] or match[4]))
        elif match:
            name = match[2] or match[3] or match[4]
            found.append((":".join([*(each for _, each in spaces), name]), description))
        description = code[4:].strip(" ('\")") if code.startswith("desc") else ""
        if len(spaces) > MAX_TASKS or len(found) > MAX_TASKS:
            break
    return usable(found)


def nox_sessions(text: str) -> list[Named]:
    """The sessions of a noxfile: functions under ``@nox.session``, called as its ``name=`` says or as they are."""
    found: list[Named] = []
    decorated: str | None = None
    for line in text.splitlines():
        if _SESSION.match(line):
            decorated = line
        elif decorated is not None:
            if (function := _FUNCTION.match(line)) is None:
                decorated += line if len(decorated) < MAX_TASKS else ""
                continue
            named = _NAMED.search(decorated)
            found.append((named[1] if named else function[1], ""))
            decorated = None
    return usable(found)


def gradle_tasks(text: str) -> list[Named]:
    """The tasks that a Gradle script registers by name; not those of its plugins."""
    matches = (
        _GRADLE.match(line.strip()) or _GRADLE.match(line.partition("=")[2].strip()) for line in text.splitlines()
    )
    return usable((match[1], "") for match in matches if match)


def zig_steps(text: str) -> list[Named]:
    """The steps that a ``build.zig`` defines with strings."""
    return usable((match[1], match[2]) for match in _ZIG.finditer(text))


def ini_sections(text: str) -> dict[str, dict[str, str]]:
    """The sections of *text* as Python's tools write their settings.

    Raises ValueError for what is no such file.
    """
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    return {name: dict(parser[name]) for name in parser.sections()}


def tox_environments(sections: Mapping[str, Mapping[str, str]]) -> list[Named]:
    """The environments of a ``tox.ini``: those of its ``envlist`` and those that have a section."""
    own = {**sections.get("tox", {}), **sections.get("tox:tox", {})}
    names = dict.fromkeys(expanded(own.get("envlist") or own.get("env_list") or ""), "")
    for section, settings in sections.items():
        if section.startswith("testenv:") and "{" not in section:
            names[section.removeprefix("testenv:")] = settings.get("description", "")
    return usable(names.items())


def expanded(listed: str) -> list[str]:
    """The names of a tox ``envlist``: ``py{311,312}-x, lint`` is three."""
    found: list[str] = []
    for part in _outside_braces(listed):
        pieces = itertools.islice(_braces(part), _MAX_PIECES)
        choices = [each.split(",") if is_choice else [each] for each, is_choice in pieces]
        names = ("".join(word.strip() for word in words) for words in itertools.product(*choices))
        found += itertools.islice(names, MAX_TASKS - len(found))
    return [name for name in found if name]


def _outside_braces(listed: str) -> Iterator[str]:
    part: list[str] = []
    depth = 0
    for c in listed:
        depth += (c == "{") - (c == "}")
        if depth <= 0 and c in ",\n":
            yield "".join(part).strip()
            part = []
        else:
            part.append(c)
    yield "".join(part).strip()


def _braces(part: str) -> Iterator[tuple[str, bool]]:
    """The pieces of *part*, and whether each stood in braces."""
    while part:
        before, opened, rest = part.partition("{")
        yield before, False
        inside, closed, part = rest.partition("}")
        if opened and closed:
            yield inside, True
