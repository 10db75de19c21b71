# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directory of a project: its files, the tasks that they define, and the commands that an ecosystem has for it.

The names of tasks are read from the text of the files. Nothing is evaluated, as most of these files are programs: names
that a program computes, included files and tasks defined in loops are not found.
"""

from __future__ import annotations

import configparser
import itertools
import json
import os
import re
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from mcpd.errors import McpdError
from mcpd.model import printable
from mcpd.servers.workstation.filesystem.names import is_addressable
from mcpd.servers.workstation.jail import translated
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mcpd.servers.workstation.call import Call
    from mcpd.servers.workstation.jail import Place

MAX_TASKS: Final = 500
"""Maximum number of tasks in one file."""
_MAX_NAME: Final = 120
_MAX_PIECES: Final = 32
"""Maximum number of parts of one entry of an ``envlist``, in and between braces."""

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
"""The name and description of a task."""


def plain_json(text: str) -> str:
    """Return *text*, JSON with comments and trailing commas, as plain JSON."""
    return _LAST_COMMA.sub(_string_only, _COMMENT.sub(_string_only, text))


def _string_only(match: re.Match[str]) -> str:
    return match[1] or ""


def usable(tasks: Iterable[Named]) -> list[Named]:
    """Return the *tasks* that can be named in an argument, without duplicates."""
    found: dict[str, str] = {}
    for name, description in tasks:
        if 0 < len(name) <= _MAX_NAME and name.isprintable() and not name.startswith("-") and name.strip() == name:
            found[name] = found.get(name) or printable(description.strip())
            if len(found) >= MAX_TASKS:
                break
    return list(found.items())


def makefile_targets(text: str) -> tuple[list[Named], str | None]:
    """Return the explicit targets of a makefile, and its default target.

    A target is a plain name before the first colon of a line that neither begins with a tab nor assigns a variable;
    pattern rules, special targets (``.PHONY``) and names with ``$`` are ignored. Conditionals are not evaluated, and
    ``define`` blocks are skipped. Text after ``##`` describes the target.
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
    """Return the recipes of a justfile that can be called, each with the comment above it; not private ones."""
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
    """Return the tasks of a Taskfile that can be called: the keys one level below ``tasks:``; not internal ones."""
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
    """Return the tasks of a Rakefile with their namespaces, determined by indentation, and their ``desc``."""
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
    """Return the sessions of a noxfile: functions under ``@nox.session``, named by ``name=`` or themselves."""
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
    """Return the tasks that a Gradle script registers by name; not those of its plugins."""
    matches = (
        _GRADLE.match(line.strip()) or _GRADLE.match(line.partition("=")[2].strip()) for line in text.splitlines()
    )
    return usable((match[1], "") for match in matches if match)


def zig_steps(text: str) -> list[Named]:
    """Return the steps that a ``build.zig`` defines with string literals."""
    return usable((match[1], match[2]) for match in _ZIG.finditer(text))


def ini_sections(text: str) -> dict[str, dict[str, str]]:
    """Return the sections of *text*, in the INI format of Python's tools.

    Raises ValueError if it is invalid.
    """
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    return {name: dict(parser[name]) for name in parser.sections()}


def tox_environments(sections: Mapping[str, Mapping[str, str]]) -> list[Named]:
    """Return the environments of a ``tox.ini``: those in its ``envlist`` and those with a section."""
    own = {**sections.get("tox", {}), **sections.get("tox:tox", {})}
    names = dict.fromkeys(expanded(own.get("envlist") or own.get("env_list") or ""), "")
    for section, settings in sections.items():
        if section.startswith("testenv:") and "{" not in section:
            names[section.removeprefix("testenv:")] = settings.get("description", "")
    return usable(names.items())


def expanded(listed: str) -> list[str]:
    """Return the names in a tox ``envlist``: ``py{311,312}-x, lint`` has three."""
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
    """Yield the pieces of *part*, and whether each was in braces."""
    while part:
        before, opened, rest = part.partition("{")
        yield before, False
        inside, closed, part = rest.partition("}")
        if opened and closed:
            yield inside, True


MAX_FILE: Final = 1024 * 1024
"""Maximum size in bytes of a file to read; the files of projects are far smaller."""
MAX_SETTINGS: Final = 256 * 1024
"""Maximum length of JSON, TOML or INI to parse, in characters: parsing takes longer than reading."""
_MAX_SAME: Final = 64
"""Maximum number of files with the same suffix to examine."""


class Project:
    """The directory of a project. A file that cannot be read is treated as missing and noted in :attr:`problems`."""

    def __init__(self, call: Call, place: Place, fd: int) -> None:
        self.place = place
        self.network = call.settings.allow_network
        """True if commands may use the network."""
        self.home = str(call.settings.state / "home")
        """HOME of commands, for those that use the password database instead."""
        self.problems: list[str] = []
        self._call = call
        self._fd = fd
        self._texts: dict[str, str | None] = {}
        self._read_as: dict[str, Mapping[str, Any]] = {}
        self._installed: dict[str, bool] = {}
        self._by_suffix: dict[str, list[str]] | None = None

    def installed(self, program: str) -> bool:
        """Return True if *program* exists: in the project if it contains a slash, else where commands are found."""
        if program not in self._installed:
            own = self._exists(program.removeprefix("./")) if "/" in program else None
            self._installed[program] = self._call.which(program) is not None if own is None else own
        return self._installed[program]

    def has(self, *paths: str) -> bool:
        """Return True if any of *paths*, relative to the project, exists, even as a symlink to the outside."""
        return any(self._exists(path) for path in paths)

    def first(self, *paths: str) -> str | None:
        """Return the first of *paths* that exists, or None."""
        return next((path for path in paths if self._exists(path)), None)

    def matching(self, *patterns: str) -> list[str]:
        """Return the files in the directory whose name is one of *patterns*, or ends like a pattern ``*.suffix``."""
        found = []
        for pattern in patterns:
            if pattern.startswith("*."):
                found += self._suffixes().get(pattern[1:], [])
            elif self._exists(pattern, or_directory=False):
                found.append(pattern)
        return found

    def ini(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Return the sections of the file *name*; empty if it cannot be read."""
        return self._parsed(name, ini_sections)

    def directories(self, most: int) -> list[str]:
        """Return the names of at most *most* subdirectories, sorted, without hidden ones and symlinks."""
        found = []
        with translated(self.place, "listing"), os.scandir(self._fd) as entries:
            for entry in entries:
                self._call.check()
                shown = is_addressable(entry.name) and not entry.name.startswith(".")
                if shown and entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                    if len(found) >= most:
                        break
        return sorted(found)

    def text(self, name: str) -> str | None:
        """Return the text of the file *name*, with U+FFFD for invalid UTF-8; None if it cannot be read."""
        if name not in self._texts:
            self._texts[name] = self._read(name) if self._exists(name) else None
        return self._texts[name]

    def toml(self, name: str) -> Mapping[str, Any]:
        """Return the tables of the file *name*; empty if it cannot be read."""
        return self._parsed(name, parse_toml)

    def json(self, name: str) -> Mapping[str, Any]:
        """Return the JSON object in the file *name*, which may have comments; empty if it cannot be read."""
        return self._parsed(name, lambda text: json.loads(plain_json(text)))

    def _exists(self, path: str, *, or_directory: bool = True) -> bool:
        above, _, name = path.rpartition("/")
        if not above:
            return _is_in(self._fd, name, or_directory=or_directory)
        place = self.place
        for part in above.split("/"):
            place = place.child(part)
        try:
            with self._call.jail.opened(place, os.O_PATH | os.O_DIRECTORY) as fd:
                return _is_in(fd, name, or_directory=or_directory)
        except McpdError:
            return False

    def _suffixes(self) -> dict[str, list[str]]:
        if self._by_suffix is None:
            found: dict[str, list[str]] = {}
            with translated(self.place, "listing"), os.scandir(self._fd) as entries:
                for entry in entries:
                    self._call.check()
                    suffix = os.path.splitext(entry.name)[1]  # noqa: PTH122 - a name, not a path
                    same = found.setdefault(suffix, []) if suffix in SUFFIXES else []
                    if len(same) < _MAX_SAME and is_addressable(entry.name) and not entry.is_dir(follow_symlinks=False):
                        same.append(entry.name)
            self._by_suffix = {suffix: sorted(names) for suffix, names in found.items()}
        return self._by_suffix

    def _read(self, name: str) -> str | None:
        place = self.place.child(name)
        try:
            with self._call.jail.file(place) as fd, translated(place, "reading"):
                data = bytearray()
                while len(data) <= MAX_FILE and (chunk := os.read(fd, MAX_FILE + 1 - len(data))):
                    data += chunk
        except McpdError as error:
            self.problems.append(f"{name} was not read: {error.message}")
            return None
        if len(data) > MAX_FILE:
            self.problems.append(f"{name} was not read: it has more than {MAX_FILE} bytes")
            return None
        return data.decode("utf-8-sig", "replace")

    def _parsed(self, name: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
        """Return the parsed content of *name*, cached, as several ecosystems read the same file in the same way."""
        if name not in self._read_as:
            self._call.check()
            self._read_as[name] = self._parsed_now(name, parse)
        return self._read_as[name]

    def _parsed_now(self, name: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
        text = self.text(name)
        if text is None:
            return {}
        if len(text) > MAX_SETTINGS:
            self.problems.append(f"{name} was not read: it has more than {MAX_SETTINGS} characters")
            return {}
        try:
            found = parse(text)
        except (ValueError, RecursionError) as error:
            self.problems.append(f"{name} cannot be parsed: {printable(str(error))}")
            return {}
        if not isinstance(found, dict):
            self.problems.append(f"{name} cannot be parsed: it is not an object")
            return {}
        return found


SUFFIXES: Final = frozenset({".sln", ".slnx", ".csproj", ".fsproj", ".vbproj", ".cabal"})
"""The only suffixes that :meth:`Project.matching` supports, as a directory may contain very many files."""


@contextmanager
def opened_project(call: Call, place: Place) -> Iterator[Project]:
    """Yield the project in the directory *place*; raises McpdError if it is not a directory."""
    with call.jail.directory(place) as fd:
        yield Project(call, place, fd)


def _is_in(directory: int, name: str, *, or_directory: bool) -> bool:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return or_directory or not stat.S_ISDIR(status.st_mode)


def table(found: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the table at the path *keys*; empty if there is none."""
    for key in keys:
        inner = found.get(key)
        if not isinstance(inner, dict):
            return {}
        found = inner
    return found


Kind: TypeAlias = Literal["check", "build", "test", "lint", "restore"]
"""The purpose of a command. "check" examines the code without running it, as far as the ecosystem supports that."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

USUAL: Final[Mapping[Kind, tuple[str, ...]]] = {
    "check": ("typecheck", "type-check", "check-types", "check:types", "types", "tsc", "check"),
    "build": ("build", "compile"),
    "test": ("test", "tests"),
    "lint": ("lint", "lint:check"),
    "restore": ("restore", "deps"),
}
"""Usual names of tasks for each kind of command, the best first."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A command for one kind, or for a task."""

    argv: tuple[str, ...]
    """The program and its arguments. A program with a slash is a file of the project."""
    separator: tuple[str, ...] = ()
    """Arguments to insert before the caller's, if there are any, so that they reach the intended program."""
    machine: tuple[str, ...] = ()
    """Arguments after :attr:`argv` that select machine-readable output."""
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that have to succeed first."""
    needs: tuple[str, ...] = ()
    """Further programs that are required."""
    env: Mapping[str, str] = field(default_factory=dict)

    def full(self, arguments: Iterable[str], *, machine: bool = False) -> tuple[str, ...]:
        """Return the whole command, with the caller's *arguments*."""
        extra = tuple(arguments)
        argv = self.argv + self.machine if machine else self.argv
        return argv + self.separator + extra if extra else argv

    def after(self, *commands: tuple[str, ...]) -> Recipe:
        """Return the same recipe with *commands* before it."""
        return replace(self, before=commands + self.before)

    @property
    def programs(self) -> tuple[str, ...]:
        """All required programs, without files of the project that the commands before create."""
        called = [command[0] for command in (*self.before, self.argv)]
        made = {each for each in called[1:] if "/" in each}
        return tuple(dict.fromkeys((*(each for each in called if each not in made), *self.needs)))


@dataclass(frozen=True, slots=True)
class Task:
    """A named task that a project defines."""

    name: str
    recipe: Recipe
    description: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """The commands and tasks that an ecosystem has for one project."""

    commands: Mapping[Kind, tuple[Recipe, ...]] = field(default_factory=dict)
    """Alternatives for each kind, the best first; the first whose programs are installed is used."""
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True, slots=True)
class Ecosystem:
    """A row of the table of ecosystems."""

    name: str
    title: str
    markers: tuple[str, ...]
    """Names of files, or ``*.suffix``: a directory with any of them may be such a project."""
    inspect: Callable[[Project], Offer | None]
    """Returns the offer for a project that has a marker, or None if it is not of this ecosystem."""


def usual(tasks: Iterable[Task], names: Mapping[Kind, tuple[str, ...]] = USUAL) -> dict[Kind, tuple[Recipe, ...]]:
    """Return commands from the *tasks* that have a usual name."""
    known = {task.name: task.recipe for task in tasks}
    return {
        kind: tuple(known[name] for name in called if name in known)
        for kind, called in names.items()
        if any(name in known for name in called)
    }


def fixed(
    commands: Mapping[Kind, Recipe | tuple[str, ...] | tuple[Recipe, ...]],
) -> Callable[[Project], Offer]:
    """Return an :attr:`Ecosystem.inspect` for tools that are called in the same way in every project."""
    offer = Offer({kind: _recipes(each) for kind, each in commands.items()})
    return lambda _: offer


def _recipes(given: Recipe | tuple[str, ...] | tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    if isinstance(given, Recipe):
        return (given,)
    recipes = tuple(each for each in given if isinstance(each, Recipe))
    return recipes or (Recipe(tuple(each for each in given if isinstance(each, str))),)
