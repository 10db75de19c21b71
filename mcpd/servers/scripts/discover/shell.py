# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools of a shell script: one that takes a command line, or those in the script's comment header.

**Conversion of arguments to words.** No value of an argument may become an option that was not given, so:

- an option is ``--name VALUE``, two words, which every kind of parser supports; if the value begins like an option,
  it is ``--name=VALUE``, one word. An option with only a short name cannot have such a value;
- positional arguments come last. If one of them begins like an option, ``--`` precedes them, provided that the script
  demonstrably supports that (argc, ``getopts``, ``getopt`` or a branch ``--)``); else it is refused, unless a number;
- the script's name and its command come first, and are the script's own text.

``args`` of a script without a header is different: it is a command line, and may contain options.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from mcpd.errors import InvalidArgument
from mcpd.servers.scripts.discover.budget import Budget
from mcpd.servers.scripts.discover.dashes import knows
from mcpd.servers.scripts.discover.docstrings import one_line
from mcpd.servers.scripts.discover.literals import text
from mcpd.servers.scripts.discover.tags import Command, Header, Parameter, read
from mcpd.servers.scripts.tool import MAX_TOOLS, Option, Tool, tool_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_DESCRIPTION: Final = 4000
"""Maximum length of the description of a tool, in characters."""

MAX_WORD: Final = 131_071
"""Maximum length of a word on a command line, in bytes: the limit of Linux."""

MAX_OFTEN: Final = 16
"""Maximum number of times that a counted flag may be given."""

_ARGUMENTS: Final = ("args", "command_args")  # the first is listed, both are accepted
_FOR_PROGRAMS: Final = re.compile(r"!|shellcheck |vim?:|-\*-|SPDX-|Copyright|\W*$", re.IGNORECASE)
_FOR_LAWYERS: Final = re.compile(r"free software|\blicen[sc]ed?\b|warranty|all rights reserved", re.IGNORECASE)
_TYPES: Final = {"INT": "integer", "NUM": "number"}


def tools(source: str, name: str) -> list[Tool]:
    """Return the tools of the shell script *source*, whose file is *name* without its suffix; at most MAX_TOOLS.

    Parameters that would make a tool, or all tools together, too large are omitted.

    Raises :class:`InvalidManifest` as ``NAME:LINE: FAULT``.
    """
    header = read(source, name)
    whole = tool_name(name)
    if not header.documented or not (header.commands or header.script.parameters):
        description = header.script.description if header.documented else _first_comment(source)
        return [
            Tool(
                whole,
                text(description, MAX_DESCRIPTION) or f"Execute {name} command",
                {
                    "type": "object",
                    "properties": {"args": {"type": "string", "description": "Command arguments"}},
                },
                function="",
            )
        ]
    maker = _Maker(header, knows(source))
    if not header.commands:
        return [maker.tool(whole, header.script)]
    found: dict[str, Tool] = {}
    for command in header.commands:
        called = tool_name(command.function).rstrip("_")
        private = any(part.startswith(("_", "-")) for part in command.function.split("::"))
        if called and not private and called not in found:
            found[called] = maker.tool(called, command)
            if len(found) == MAX_TOOLS:
                break
    return list(found.values())


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


class _Maker:
    """Creates the tools of one script; *dashes* is how it supports the end of options."""

    def __init__(self, header: Header, dashes: Literal["", "needed", "always"]) -> None:
        self._header = header
        self._dashes = dashes
        self._budget = Budget()
        inherited = _by_name(parameter for parameter in header.script.parameters if parameter.kind != "arg")
        self._inherited = [self._made(each) for each in inherited.values() if header.inherits and not _swallows(each)]

    def _made(self, parameter: Parameter) -> _Made:
        schema = _property(parameter)
        required = parameter.modifier[:1] in {"!", "+"} and parameter.default is None
        cost = len(parameter.name) * 2 + len(json.dumps(schema))
        return _Made(parameter, schema, _option(parameter, self._header.signs), required, cost)

    def tool(self, name: str, command: Command) -> Tool:
        self._budget.next_tool()
        offered: dict[str, _Made] = {}
        for made in self._parameters(command):
            if not self._budget.spend(made.cost):
                break  # with all that follow, as positional arguments depend on their position
            offered[made.parameter.name] = made
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: dict(made.schema) for name, made in offered.items()},
        }
        required = [name for name, made in offered.items() if made.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        return Tool(
            name,
            text(command.description, MAX_DESCRIPTION),
            schema,
            function=command.function,
            options=tuple(made.option for made in offered.values()),
            end_of_options=self._dashes,
        )

    def _parameters(self, command: Command) -> Iterator[_Made]:
        """Yield the parameters of *command*, and those that it inherits from the script."""
        own = _by_name(command.parameters)
        yield from (self._made(parameter) for parameter in own.values() if not _swallows(parameter))
        if command is not self._header.script:
            yield from (made for made in self._inherited if made.parameter.name not in own)


@dataclass(frozen=True, slots=True)
class _Made:
    """The result for a parameter; *cost* is its approximate length as JSON in characters."""

    parameter: Parameter
    schema: dict[str, Any]
    option: Option
    required: bool
    cost: int


def _by_name(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    """Return *parameters* by name; of equal names, the first counts."""
    found: dict[str, Parameter] = {}
    for parameter in parameters:
        found.setdefault(parameter.name, parameter)
    return found


def _swallows(parameter: Parameter) -> bool:
    """Return True if *parameter* takes all remaining words."""
    return parameter.modifier == "%" or (parameter.modifier == "~" and parameter.kind != "arg")


def _property(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if said := one_line(parameter.description):
        described["description"] = said
    if parameter.kind == "flag":
        often = {"type": "integer", "minimum": 0, "maximum": MAX_OFTEN}
        return {**(often if parameter.modifier else {"type": "boolean"}), **described}
    notations = parameter.notations
    last = notations[-1] if notations else ""
    kind = _TYPES.get(last.rstrip("*+?"), "string") if not _together(parameter) else "string"
    one: dict[str, Any] = {"type": kind}
    if parameter.choices:
        choices = {choice: _typed(choice, kind) for choice in parameter.choices}
        if any(isinstance(value, str) or _written(value) != choice for choice, value in choices.items()):
            one = {"type": "string", "enum": list(choices)}  # a number would not be written as the choice 007
        else:
            one["enum"] = list(choices.values())
    several = _several(parameter)
    if parameter.default is not None:
        default = _typed(parameter.default, one["type"])
        described["default"] = default if several is None else [default]
    return {**one, **described} if several is None else {"type": "array", "items": one, **several, **described}


def _several(parameter: Parameter) -> dict[str, int] | None:
    """Return the limits for the number of values of *parameter*; None if it is a single value."""
    if _together(parameter):
        number, last = len(parameter.notations), parameter.notations[-1][-1:]
        least = {"minItems": number - (last in {"*", "?"})}
        return least if last in {"*", "+"} else {**least, "maxItems": number}
    if parameter.modifier[:1] in {"*", "+", "~"}:
        return {"minItems": 1} if parameter.modifier.startswith("+") else {}
    return None


def _together(parameter: Parameter) -> bool:
    several = len(parameter.notations) > 1 or any(note[-1:] in {"*", "+", "?"} for note in parameter.notations)
    return parameter.kind == "option" and several


def _typed(value: str, kind: str) -> str | int | float:
    try:
        if kind == "integer":
            return int(value)
        number = float(value) if kind == "number" else math.nan
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def _option(parameter: Parameter, signs: str) -> Option:
    together = _together(parameter)
    return Option(
        parameter.name,
        parameter.flag,
        takes_value=parameter.kind != "flag",
        repeats=not together and _several(parameter) is not None,
        together=together,
        signs=signs,
    )


def words(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """Return the words of the command line after the script's path, for valid *arguments* of *tool*.

    Raises :class:`InvalidArgument` for a value that a command line cannot contain, or that looks like an option.
    """
    command = [part.rstrip("_") for part in tool.function.split("::") if part]  # argc: test_() is the command test
    if not tool.options:
        return [*command, *_split(tool, arguments)]
    found: list[str] = []
    positional: list[tuple[Option, Any, str]] = []
    skipped = ""
    for option in tool.options:
        value = arguments.get(option.name)
        if option.flag:
            found += _flagged(option, value)
        elif value is None or value == []:
            skipped = skipped or option.name
        elif skipped:
            raise InvalidArgument(f"{option.name}: give {skipped}, too, which comes before it on the command line")
        else:
            values = value if option.repeats and isinstance(value, list) else [value]
            positional += [(option, item, _word(option.name, item)) for item in values]
    return [*command, *found, *_positional(tool, positional)]


def _split(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """Return the words in ``args``, split as by a shell, but without expansions."""
    given = [(name, arguments[name]) for name in _ARGUMENTS if name in arguments]
    if not given:
        return []
    if len(given) > 1:
        raise InvalidArgument("args and command_args are the same; give one of them")
    name, value = given[0]
    if tool.input_schema.get("additionalProperties") is False and name not in tool.input_schema.get("properties", {}):
        raise InvalidArgument(f"{name}: {tool.name} takes no arguments")
    try:
        parts = shlex.split(_checked(name, value if isinstance(value, str) else _word(name, value), MAX_WORD * 8))
    except ValueError as error:
        raise InvalidArgument(f"{name}: {error}. Quote it as for a shell.") from None
    return [_checked(name, part) for part in parts]


def _flagged(option: Option, value: Any) -> list[str]:
    if value is None or value is False or value == []:
        return []
    if not option.takes_value:
        often = 1 if value is True else value
        if not isinstance(often, int | float) or not 0 <= often <= MAX_OFTEN:
            raise InvalidArgument(f"{option.name}: has to be true, false, or how often, at most {MAX_OFTEN} times")
        return [option.flag] * int(often)
    if option.together:
        items = [_word(option.name, item) for item in (value if isinstance(value, list) else [value])]
        for item in items:
            if item[:1] and item[0] in option.signs:
                raise _looks_like_option(option, item)
        return [option.flag, *items]
    found: list[str] = []
    for item in value if option.repeats and isinstance(value, list) else [value]:
        word = _word(option.name, item)
        if not word or word[0] not in option.signs:
            found += [option.flag, word]
        elif option.flag.startswith("--"):
            found.append(_checked(option.name, f"{option.flag}={word}"))
        else:
            raise _looks_like_option(option, word)
    return found


def _positional(tool: Tool, given: list[tuple[Option, Any, str]]) -> list[str]:
    values = [word for _, _, word in given]
    odd = [(option, value, word) for option, value, word in given if word[:1] and word[0] in option.signs]
    open_ended = any(option.together for option in tool.options)
    needed = bool(odd) or open_ended
    if given and (tool.end_of_options == "always" or (tool.end_of_options == "needed" and needed)):
        return ["--", *values]
    for option, value, word in odd:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or any(other.flag[:1] == "-" and other.flag[1:2].isdigit() for other in tool.options):
            raise _looks_like_option(option, word)
    return values


def _looks_like_option(option: Option, word: str) -> InvalidArgument:
    return InvalidArgument(
        f"{option.name}: {word[:40]!r} begins with {word[0]!r}, and the script would take it for an option"
    )


def _word(name: str, value: Any) -> str:
    """Return *value* as one word."""
    match value:
        case str():
            return _checked(name, value)
        case bool():
            return "true" if value else "false"
        case int():
            return _written(value) if abs(value) < 10**4000 else _refuse_number(name)
        case float() if math.isfinite(value):
            return _written(value)
        case dict() | list():
            return _checked(name, json.dumps(value))
        case _:
            return _refuse_number(name)


def _written(value: float) -> str:
    """Return the word for *value*."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value) if whole else value)


def _refuse_number(name: str) -> str:
    raise InvalidArgument(f"{name}: has to be text, a number, or true or false")


def _checked(name: str, word: str, limit: int = MAX_WORD) -> str:
    if "\0" in word:
        raise InvalidArgument(f"{name}: there is a NUL character in it, which no command line can hold")
    try:
        size = len(word.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: is not text: there is half a character in it") from None
    if size > limit:
        raise InvalidArgument(f"{name}: longer than {limit} bytes, which is more than a command line can hold")
    return word
