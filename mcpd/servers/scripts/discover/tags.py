# SPDX-License-Identifier: LGPL-2.1-or-later
"""The comment header of a shell script that declares its commands and options.

The tags are those of argc (https://github.com/sigoden/argc)::

    # @describe What the script is for
    # @cmd What the command is for                the function below is a command
    # @arg NAME, @option -n --name, @flag --name  of the command, or of the script before the first command

A name is followed by ``!`` (required), ``*`` (several) or ``+`` (one or more), by ``=default``, ``[a|b]`` (choices) or
``[=a|b]`` (the first is the default), by ``<INT>``, ``<NUM>`` or any ``<NOTE>``, and by a description, which goes on in
the comment lines below. Scripts without such a header are valid, too; they have no declared commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from mcpd.errors import InvalidManifest
from mcpd.servers.scripts.discover.syntax import check

_MAX_LINE: Final = 4096  # a longer line is not a comment for people

_TAG: Final = re.compile(r"[ \t]*#+[ \t]*@([a-z]+)(?:[ \t]+(.*))?$")
_COMMENT: Final = re.compile(r"[ \t]*#+[ \t]?(.*)$")
_FUNCTION: Final = re.compile(
    r"""[ \t]*(?:function[ \t]+([^\s"'`()\[\]{}<>$&\\;|]+)|([^\s"'`()\[\]{}<>$&\\;|#=]+)[ \t]*\([ \t]*\))"""
)
_FLAGS: Final = re.compile(r"(?:([-+][A-Za-z0-9])[ \t]+(?=[-+]))?(--|-|\+)(?=[A-Za-z0-9_.:])")
_NAME: Final = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.:-]*)([!~%]|[*+][,:;@|/]?)?")
_QUOTED: Final = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_DEFAULT: Final = re.compile(r"[^\s]*")
_CHOICE: Final = re.compile(r"[^|\]]*")
_BOUND: Final = re.compile(r"\$(?:\$|[A-Za-z_][A-Za-z0-9_]*)(?=\s|$)")
_NOTATION: Final = re.compile(r"<([^<>]*)>")
_OTHER_STYLES: Final = frozenset({"description", "stdout", "exitcode", "noargs", "brief", "file"})  # shdoc


@dataclass(slots=True)
class Parameter:
    """The content of one ``@arg``, ``@option`` or ``@flag``."""

    kind: str
    name: str
    flag: str = ""
    modifier: str = ""
    default: str | None = None
    choices: list[str] = field(default_factory=list)
    notations: list[str] = field(default_factory=list)
    description: str = ""


@dataclass(slots=True)
class Command:
    """A command of the script, or the script as a whole, for which *function* is empty."""

    function: str = ""
    description: str = ""
    parameters: list[Parameter] = field(default_factory=list)


@dataclass(slots=True)
class Header:
    """The content of a script's comments. *documented* is false if they do not have this style."""

    script: Command = field(default_factory=Command)
    commands: list[Command] = field(default_factory=list)
    version: str = ""
    documented: bool = False
    inherits: bool = False  # commands accept the options of the script, too
    signs: str = "-"  # characters with which options begin


class _Malformed(Exception):
    """A malformed tag."""


def read(source: str, name: str) -> Header:
    """Return the header of the script *source*.

    Raises :class:`InvalidManifest` as ``NAME:LINE: FAULT`` if *source* is not text, or if a tag is malformed and others
    show that this style is used.
    """
    check(source, name)
    return _Reader(source, name).header()


class _Reader:
    def __init__(self, source: str, name: str) -> None:
        self.name = name
        self.lines = source.split("\n")
        self.found = Header()
        self.pending: Command | None = None
        self.in_header = True  # before the first function
        self.meant = False  # there was a @cmd or @describe
        self.problem = ""
        self.foreign = False  # there are tags of another style

    def header(self) -> Header:
        at = 0
        while at < len(self.lines):
            line = self.lines[at].rstrip()
            at += 1
            if len(line) > _MAX_LINE:
                continue
            if (tag := _TAG.match(line)) is not None:
                more = self._continuation(at)
                at += len(more)
                self._tag(tag[1], (tag[2] or "").strip(), more, at - len(more))
            elif (function := _FUNCTION.match(line)) is not None:
                self._function(function[1] or function[2])
        found = self.found
        if self.problem and self.meant:
            raise InvalidManifest(f"{self.name}:{self.problem}")
        found.documented = self.meant or (bool(found.script.parameters) and not self.problem and not self.foreign)
        return found

    def _continuation(self, at: int) -> list[str]:
        """Return the comment lines from *at* that are not tags."""
        more: list[str] = []
        for line in self.lines[at : at + 100]:
            comment = _COMMENT.match(line.rstrip()) if len(line) <= _MAX_LINE else None
            if comment is None or _TAG.match(line) or comment[1].startswith("shellcheck "):
                break
            more.append(comment[1].strip())
        return more

    def _tag(self, tag: str, text: str, more: list[str], line: int) -> None:
        described = "\n".join([text, *more]).strip()
        match tag:
            case "describe":
                self.meant = True
                self.found.script.description = described
            case "cmd":
                self.meant = True
                self.pending = Command(description=described)
            case "arg" | "option" | "flag":
                self._parameter(tag, text, more, line)
            case "version":
                self.found.version = text
            case "meta":
                self._meta(text)
            case _ if tag in _OTHER_STYLES:
                self.foreign = True

    def _meta(self, text: str) -> None:
        match text.split():
            case ["version", version]:
                self.found.version = version
            case ["inherit-flag-options", *_]:
                self.found.inherits = True
            case ["symbol", symbol, *_]:
                self._sign(symbol[0])

    def _sign(self, sign: str) -> None:
        if sign not in self.found.signs:
            self.found.signs += sign

    def _parameter(self, tag: str, text: str, more: list[str], line: int) -> None:
        command = self.pending or (self.found.script if self.in_header else None)
        try:
            parameter = _parameter(tag, text)
        except _Malformed as error:
            self.problem = self.problem or f"{line}: @{tag} {text[:80]!r}: {error}"
            return
        self._sign(parameter.flag[:1] or "-")
        parameter.description = "\n".join([parameter.description, *more]).strip()
        if command is not None:
            command.parameters.append(parameter)

    def _function(self, name: str) -> None:
        self.in_header = False
        if self.pending is not None:
            self.pending.function = name
            self.found.commands.append(self.pending)
            self.pending = None


def _parameter(tag: str, text: str) -> Parameter:
    flag, at = "", 0
    if tag != "arg":
        flags = _FLAGS.match(text)
        if flags is None:
            raise _Malformed("there has to be a name like --name")
        flag, at = flags[2], flags.end()
    named = _NAME.match(text, at)
    if named is None:
        raise _Malformed("there has to be a name")
    found = Parameter(tag, re.sub(r"[^A-Za-z0-9_]", "_", named[1]), modifier=named[2] or "")
    found.flag = flag + named[1] if flag else ""
    at = _value(found, text, named.end())
    if text[at : at + 1].strip() not in {"", "<"}:
        raise _Malformed(f"{text[at : at + 20]!r} is not understood")
    at = _skip(text, at)
    if (bound := _BOUND.match(text, at)) is not None:
        at = _skip(text, bound.end())
    while (notation := _NOTATION.match(text, at)) is not None:
        found.notations.append(notation[1].strip())
        at = _skip(text, notation.end())
    found.description = text[at:].strip()
    if found.description.startswith("|"):
        raise _Malformed("'|' is not understood")
    return found


def _skip(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _value(found: Parameter, text: str, at: int) -> int:
    """Parse ``=default`` or ``[choices]`` at *at*; return the position after it."""
    if text.startswith("=", at):
        found.default, at = _word(text, at + 1, _DEFAULT)
        if found.default.startswith("`"):
            found.default = None  # the result of a function of the script
    elif text.startswith("[", at):
        if text.startswith(("[`", "[?`"), at):
            end = text.find("]", at)
            if end < 0:
                raise _Malformed("the bracket is not closed")
            return end + 1
        with_default = text.startswith("[=", at)
        at += 2 if with_default else 1
        while True:
            choice, at = _word(text, at, _CHOICE)
            found.choices.append(choice)
            at += 1
            if text[at - 1 : at] == "]":
                break
            if text[at - 1 : at] != "|":
                raise _Malformed("the bracket is not closed")
        if with_default:
            found.default = found.choices[0]
    return at


def _word(text: str, at: int, bare: re.Pattern[str]) -> tuple[str, int]:
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        return quoted[1] if quoted[1] is not None else quoted[2], quoted.end()
    found = bare.match(text, at)
    return (found[0], found.end()) if found is not None else ("", at)
