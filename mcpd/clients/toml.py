# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files in TOML: the lines of single servers are replaced, added and removed; tomlkit writes the new ones.

tomlkit does not edit the file as a whole: it takes the comments before a header for the end of the table above, so that
they would be removed with a server, and a few hundred tables with one parent take it half a minute.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpd.clients.editing import BLANK, Splice, apply, at_path, ended, inserted, show
from mcpd.errors import InvalidConfig
from mcpd.model import printable
from mcpd.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcpd.clients.editing import Text
    from mcpd.clients.families import Shape
    from mcpd.model import JsonValue

_LINE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_TOKEN: Final = re.compile(
    r'''
    \#[^\n]*+
    | """(?:[^\\]|\\[\s\S])*?"{3,5}
    | \'\'\'[\s\S]*?'{3,5}
    | "(?:[^"\\\n]|\\.)*+"
    | '[^'\n]*+'
    | [\[\]{}=\n]
    ''',
    re.VERBOSE,
)
"""Comments and strings, so that their content is not taken for brackets, or the ends of keys and lines."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header, or a key with its value, on the lines from *start* to *end*.

    *path* is what it defines, from the top; *section* is the header above it, or the header itself.
    """

    path: tuple[str, ...]
    section: int
    start: int
    end: int
    is_header: bool


@dataclass(frozen=True)
class TomlDocument:
    """A parsed file; dates and times are strings in it."""

    text: Text
    key: tuple[str, ...]
    model: dict[str, Any]
    servers: dict[str, JsonValue]

    @classmethod
    def parse(cls, text: Text, key: Sequence[str], shape: Shape) -> TomlDocument:
        """Return the document *text*, whose servers are at *key*; raises :class:`~mcpd.errors.InvalidConfig`."""
        if shape != "map":
            raise InvalidConfig(f"{text.where}: servers in a list are not supported in TOML")
        model = held = _load(text)
        for depth, name in enumerate(key):
            held = held.get(name, {})
            if not isinstance(held, dict):
                raise InvalidConfig(f"{text.where}: {show(key[: depth + 1])} is not a table")
        return cls(text, tuple(key), model, held)

    def edited(self, changes: Mapping[str, JsonValue | None]) -> str:
        """Return the text with *changes* applied: a table keeps its place, other forms become a table at the end."""
        body, depth = self.text.body, len(self.key)
        lines = {name: self._written(name, entry) for name, entry in changes.items() if entry is not None}
        statements = list(self._statements())
        splices: list[Splice] = []
        run: list[_Statement] = []
        for each in [*statements, None]:
            if run and (each is None or each.path[: depth + 1] != run[0].path[: depth + 1]):
                start, end, new = run[0].start, run[-1].end, ""
                if run[0].is_header and (replacement := lines.pop(run[0].path[depth], None)):
                    new = "".join(line + self.text.newline for line in replacement)
                elif run[0].is_header:
                    start, end = self._with_blank(start, end)
                splices.append(Splice(start, end, new))
                run = []
            if (
                each is not None
                and len(each.path) > depth
                and each.path[:depth] == self.key
                and each.path[depth] in changes
            ):
                run.append(each)
        if lines:
            splices.append(self._added(statements, list(lines.values())))
        return ended(body, apply(body, splices))

    def foreign(self) -> dict[str, Any]:
        """Return the model without servers, and without tables around them that contain nothing else."""
        holders = [self.model]
        for name in self.key[:-1]:
            holders.append(holders[-1].get(name, {}))
        rest: dict[str, Any] = {}
        for name, holder in zip(reversed(self.key), reversed(holders), strict=True):
            others = {each: value for each, value in holder.items() if each != name}
            rest = {**others, name: rest} if rest else others
        return rest

    def _written(self, name: str, entry: JsonValue) -> list[str]:
        """Return the lines of the table *entry* and of the tables in it."""
        import tomlkit  # not for reading

        where = f"{self.text.where}: {printable(name)}"
        if not isinstance(entry, dict):
            raise InvalidConfig(f"{where}: not a table")
        whole: Any = at_path({name: entry}, self.key)
        try:
            return tomlkit.dumps(whole).strip("\n").split("\n")
        except ValueError:  # for null only; the rest was checked before
            raise InvalidConfig(f"{where}: contains a null, which TOML cannot express; omit the field") from None

    def _statements(self) -> Iterator[_Statement]:
        """Yield the statements of the file, which was parsed before, in their order."""
        header: tuple[str, ...] = ()
        section = 0
        for start, end, equals in self._lines():
            line = self.text.body[start:end].lstrip(BLANK)
            if line.startswith("["):
                header, section = _path(line), start
                yield _Statement(header, section, start, end, is_header=True)
            elif equals and header == self.key[: len(header)]:
                path = (*header, *_path(f"{self.text.body[start:equals]}=0"))
                if path == self.key[: len(path)]:
                    raise self.text.fault(
                        start,
                        f"the servers are in an inline table; give each its own table, [{show(self.key)}.NAME]",
                    )
                yield _Statement(path, section, start, end, is_header=False)
            elif equals:
                yield _Statement(header, section, start, end, is_header=False)

    def _lines(self) -> Iterator[tuple[int, int, int]]:
        """Yield the start, the end and the equals sign of each line; all lines of one value are one."""
        start = level = equals = 0
        for token in _TOKEN.finditer(self.text.body):
            match token.group():
                case "[" | "{":
                    level += 1
                case "]" | "}":
                    level -= 1
                case "=" if not equals and not level:
                    equals = token.start()
                case "\n" if not level:
                    yield start, token.end(), equals
                    start, equals = token.end(), 0
        yield start, len(self.text.body), equals

    def _with_blank(self, start: int, end: int) -> tuple[int, int]:
        """Return *start* and *end* of a table with the blank lines before it, or after it at the top of the file."""
        body = self.text.body
        before = len(body[:start].rstrip(BLANK))
        if before:
            return body.find("\n", before) + 1, end
        return start, len(body) - len(body[end:].lstrip(BLANK))

    def _added(self, statements: list[_Statement], tables: list[list[str]]) -> Splice:
        """Return the splices that put new *tables* after the section of the last server, or at the end of the file."""
        body, depth = self.text.body, len(self.key)
        sections = [each.section for each in statements if each.path[:depth] == self.key]
        at = max((each.end for each in statements if each.section in sections[-1:]), default=len(body))
        lines: list[str] = []
        for table in tables:
            if lines or (body[:at].strip(BLANK) and not body[:at].endswith(("\n\n", "\n\r\n"))):
                lines.append("")
            lines += table
        return inserted(self.text, at, lines)


def _path(statement: str) -> tuple[str, ...]:
    """Return the path that *statement*, a header or a key with 0 for its value, defines."""
    path: list[str] = []
    nested: Any = tomllib.loads(statement)
    while nested:
        if isinstance(nested, dict):
            path.append(next(iter(nested)))
            nested = nested[path[-1]]
        else:
            nested = nested[0]
    return tuple(path)


def _load(text: Text) -> dict[str, Any]:
    try:
        model: dict[str, Any] = _jsonable(parse_toml(text.body))
    except RecursionError:
        raise text.fault(0, "nested too deeply") from None
    except ValueError as error:
        place = _LINE.search(str(error))
        line = f":{place[1]}" if place else ""
        what = printable(_LINE.sub("", str(error)).strip())
        column = f" (column {place[2]})" if place else ""
        raise InvalidConfig(f"{text.where}{line}: not TOML: {what}{column}") from None
    return model


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return value
