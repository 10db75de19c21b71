# SPDX-License-Identifier: LGPL-2.1-or-later
"""``filesystem_search``: lines that match, and names.

No pattern is evaluated in this process: one that takes forever is ended with the program that evaluates it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, StringConstraints

from mcpd.errors import Busy, InvalidArgument, TooLarge
from mcpd.model import printable
from mcpd.servers.workstation.filesystem import engines
from mcpd.servers.workstation.filesystem.entries import EntryType  # noqa: TC001 - pydantic reads it
from mcpd.servers.workstation.filesystem.matches import Found, Matches
from mcpd.servers.workstation.filesystem.names import is_addressable, one_line, shown_name
from mcpd.servers.workstation.filesystem.ripgrep import Sources
from mcpd.servers.workstation.filesystem.scanning import MAX_SIZE, MAX_WHOLE
from mcpd.servers.workstation.filesystem.walking import Globs, Query, with_contents
from mcpd.servers.workstation.jail import HERE, Place, kind, path_of
from mcpd.servers.workstation.tool import Answer, Arguments, Result, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcpd.servers.workstation.call import Call

_ESCAPED: Final = re.compile(r"\\(?:[pP]\{[^}]*\}|.)", re.DOTALL)
_NEWLINE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\n")
_Glob = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class SearchArguments(Arguments):
    """Arguments of filesystem_search."""

    pattern: str = Field(
        description="A regular expression. With target name, it is matched against each name, or the path from the"
        " directory if it contains a slash, and may be empty",
        max_length=4096,
    )
    path: str = Field(".", description="A directory or a file; absolute, or relative to the first root")
    target: Literal["content", "name"] = Field(
        "content", description="Lines of files, or names of files and directories"
    )
    literal: bool = Field(False, description="The pattern is plain text")
    include: list[_Glob] = Field(
        default_factory=list,
        description="Only files that match one of these globs, which are as in .gitignore: '*.py', 'src/**/*.{c,h}',"
        " 'docs/'",
        max_length=64,
    )
    exclude: list[_Glob] = Field(
        default_factory=list, description="No files or directories that match one of these globs", max_length=64
    )
    case_sensitive: bool | None = Field(None, description="Default: true only if the pattern contains upper case")
    multiline: bool = Field(False, description="A match may span lines; '.' matches no newline, '(?s:.)' does")
    context: int = Field(0, description="Lines to show before and after each match", ge=0, le=20)
    hidden: bool = Field(False, description="Include names that begin with a dot, except .git")
    ignored: bool = Field(False, description="Include files that .gitignore excludes")
    max_results: int = Field(200, description="Maximum number of matches", ge=1, le=5000)
    max_per_file: int | None = Field(None, description="Maximum number of matches in one file", ge=1, le=5000)


class Match(Result):
    """One match."""

    path: str = Field(description="Absolute, with U+FFFD in place of bytes that are not UTF-8")
    type: EntryType | None = Field(None, description="With target name: what it is")
    addressable: Literal[False] | None = Field(
        None, description="false: its name is not UTF-8, so it cannot be passed as a path"
    )
    line: int | None = Field(None, description="From 1")
    column: int | None = Field(None, description="Character in the line, from 1, if known")
    text: str | None = Field(None, description="The line; of a long one 500 characters around the match")
    before: list[str] | None = Field(None, description="Lines before it")
    after: list[str] | None = Field(None, description="Lines after it")


class SearchResult(Result):
    """Result of filesystem_search."""

    matches: list[Match] = Field(description="In the order of the paths")
    files: int = Field(description="Number of matching files or names")
    truncated: bool = Field(description="True if there are more matches")
    engine: Literal["ripgrep", "python"] = Field(description="The engine of the regular expressions")


@dataclass(frozen=True, slots=True)
class _Target:
    asked: Place
    directory: Place
    """The directory in which to search, without symlinks."""
    only: str
    """The name of the only file to search; empty for all."""

    def path(self, relative: str) -> str:
        return self.asked.path if self.only else self.asked.child(relative).path


def _target(call: Call, arguments: SearchArguments) -> _Target:
    place = call.jail.place(arguments.path)
    with call.jail.opened(place) as fd:
        status = os.fstat(fd)
        real = path_of(fd)
    top = place.root.path
    if not f"{real}/".startswith(f"{top}/"):
        raise Busy(f"{place.shown}: it, or its root, was moved in this moment; try again")
    relative = real[len(top) + 1 :]
    if stat.S_ISDIR(status.st_mode):
        return _Target(place, Place(place.root, relative or HERE), "")
    if arguments.target == "name":
        raise InvalidArgument(f"{place.shown} is {kind(status.st_mode)}, not a directory whose names can be searched")
    call.jail.check_file(place, status)
    most = _max_size(arguments)
    if status.st_size > most:
        raise TooLarge(f"{place.shown} has {status.st_size} bytes; of files over {most} nothing is searched")
    above, _, name = relative.rpartition("/")
    return _Target(place, Place(place.root, above or HERE), name)


def _max_size(arguments: SearchArguments) -> int:
    return MAX_WHOLE if arguments.multiline else MAX_SIZE


def _query(call: Call, arguments: SearchArguments, target: _Target) -> Query:
    """Return the query for the engines. Raises :class:`~mcpd.errors.InvalidArgument`."""
    names = arguments.target == "name"
    pattern = arguments.pattern
    shown = printable(pattern)
    if not pattern and not names:
        raise InvalidArgument("pattern: it is empty; lines are searched for something")
    if "\0" in pattern:
        raise InvalidArgument(f"pattern '{shown}': it holds a NUL, which no text has")
    crosses = "\n" in pattern or (not arguments.literal and _NEWLINE.search(pattern) is not None)
    if crosses and not arguments.multiline and not names:
        raise InvalidArgument(f"pattern '{shown}': it has a newline, which takes multiline")
    return Query(
        pattern=pattern,
        literal=arguments.literal,
        ignore_case=_ignores_case(arguments),
        multiline=arguments.multiline,
        names=names,
        include=arguments.include,
        exclude=arguments.exclude,
        hidden=arguments.hidden,
        ignored=arguments.ignored,
        context=arguments.context,
        max_per_file=arguments.max_per_file,
        max_size=_max_size(arguments),
        hard_links=call.settings.allow_hard_links,
        only=target.only,
        root=target.directory.root.path,
    )


def _ignores_case(arguments: SearchArguments) -> bool:
    if arguments.case_sensitive is not None:
        return not arguments.case_sensitive
    pattern = arguments.pattern if arguments.literal else _ESCAPED.sub("", arguments.pattern)
    return not any(char.isupper() for char in pattern)


def _accepts(query: Query) -> Callable[[str], bool]:
    """Return the filter for paths that ripgrep prints.

    Raises :class:`~mcpd.errors.InvalidArgument` for an invalid glob.
    """
    try:
        include, exclude = Globs(with_contents(query.include)), Globs(query.exclude)
    except ValueError as error:
        raise InvalidArgument(printable(str(error))) from None

    def accepts(path: str) -> bool:
        if query.only:
            return path == query.only
        parts = path.split("/")
        if ".git" in parts or (not query.hidden and any(part.startswith(".") for part in parts)):
            return False
        return not exclude.covers(path) and (not include or include.matches(path, directory=False))

    return accepts


def _prepared(call: Call, arguments: SearchArguments) -> tuple[_Target, Query, Callable[[str], bool]]:
    target = _target(call, arguments)
    query = _query(call, arguments, target)
    return target, query, _accepts(query)


async def _search(call: Call, arguments: SearchArguments) -> Answer:
    target, query, accepts = await call.in_thread(lambda: _prepared(call, arguments))
    with_ripgrep = not query.names and call.which("rg") is not None
    with Sources(call, target.directory) as sources:
        # Files with other names must not even be counted as omitted: that would reveal whether the pattern matches.
        matches = Matches(
            (lambda path: accepts(path) and sources.begin(path)) if with_ripgrep else lambda _: True,
            above=target.asked.path,
            most=arguments.max_results,
            most_per_file=arguments.max_per_file,
            context=arguments.context,
        )
        if with_ripgrep:
            await engines.with_ripgrep(call, query, target.directory, matches, sources)
        else:
            await engines.without_ripgrep(call, query, target.directory, matches)
    matches.finish()
    result = SearchResult(
        matches=[_match(each, target, arguments) for each in matches.found],
        files=matches.files,
        truncated=matches.full,
        engine="ripgrep" if with_ripgrep else "python",
    )
    return Answer(result, ({"type": "text", "text": "\n".join(_text(result, arguments))},))


def _match(found: Found, target: _Target, arguments: SearchArguments) -> Match:
    path = target.path(found.path)
    addressable: Literal[False] | None = None if is_addressable(path) else False
    if arguments.target == "name":
        return Match(path=shown_name(path), type=found.type, addressable=addressable)
    return Match(
        path=shown_name(path),
        addressable=addressable,
        line=found.line,
        column=found.column,
        text=found.text,
        before=found.before if arguments.context else None,
        after=found.after if arguments.context else None,
    )


def _text(result: SearchResult, arguments: SearchArguments) -> Iterator[str]:
    """Yield lines in the format of grep(1), and a last line with the number of matches."""
    if arguments.target == "name":
        yield from (one_line(each.path) + "/" * (each.type == "directory") for each in result.matches)
    else:
        for each in result.matches:
            path = one_line(each.path)
            before, after = each.before or [], each.after or []
            first = (each.line or 0) - len(before)
            last = (each.line or 0) + (each.text or "").count("\n")
            yield from (f"{path}-{number}- {line}" for number, line in enumerate(before, first))
            column = "" if each.column is None else f"{each.column}:"
            yield f"{path}:{each.line}:{column} {each.text}"
            yield from (f"{path}-{number}- {line}" for number, line in enumerate(after, last + 1))
            if arguments.context:
                yield "--"
    count = len(result.matches)
    words = f"{count} match{'' if count == 1 else 'es'}"
    if arguments.target == "content":
        words += f" in {result.files} file{'' if result.files == 1 else 's'}"
    yield words + (
        "; there are more: narrow the pattern, the path or the globs, or raise max_results" * result.truncated
    )


SEARCH: Final = Tool(
    name="filesystem_search",
    title="Search files",
    description=(
        "Find lines that match a regular expression in the files below a directory, or files and directories by name."
        " Omits binary files, files of more than 128 MiB (with multiline 64 MiB), and by default hidden and"
        " ignored (.gitignore) ones."
    ),
    arguments=SearchArguments,
    result=SearchResult,
    run=_search,
    read_only=True,
    idempotent=True,
)
