# SPDX-License-Identifier: LGPL-2.1-or-later
"""The difference that a deployment makes to a file, as it may be shown: what others keep in the file stays hidden.

The file may hold keys and passwords, in entries, in other settings, in comments. So a word is shown only if it is known
to be harmless: it was deployed or is to be, or it is the name of a setting, a placeholder or punctuation. All others
become ``***``. A line may be a part of a longer text or comment, so what looks like a name has to be one of the file's.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Final

from mcpd.cli.clients import editing
from mcpd.servers.orchestration.dialects import from_client
from mcpd.servers.orchestration.secret_values import secret_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.model import JsonValue
    from mcpd.servers.orchestration.family import Family

MASK: Final = "***"
MOST_LINES: Final = 4_000
"""Between the first and the last change; comparing more takes too long."""
LONGEST: Final = 400
"""Characters of a line that are shown, but for what is deployed."""
_SEEN: Final = 4_000
"""Characters of a line that are looked at."""
_CONTEXT: Final = 3

_WORD: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s{}\[\],:="']+|.""", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_$@][A-Za-z0-9_.$@/-]{0,63}", re.ASCII)
_YAML_KEY: Final = re.compile(r"(\s*(?:- +)*)([A-Za-z_][\w.-]{0,63}|\"[\w.-]{1,64}\"|'[\w.-]{1,64}'):(\s.*|)", re.ASCII)
_YAML_ITEM: Final = re.compile(r"(\s*(?:- +)+)(.*)")
_TOML_KEY: Final = re.compile(r"(\s*)([A-Za-z_][\w.-]{0,63})(\s*=.*)", re.ASCII)
_TOML_TABLE: Final = re.compile(r"\s*\[\[?([A-Za-z_][\w.\"'@/ -]{0,199})\]\]?\s*", re.ASCII)
_TOML_PART: Final = re.compile(r"\"[^\"]*\"|'[^']*'|[^.\s\"']+")
_RUN: Final = re.compile(r"\*\*\*(?:[\s.]*\*\*\*)+")
_SIGNS: Final = frozenset("{}[],:=\"'")
_HARMLESS: Final = frozenset({"true", "false", "null", "~", "-"})


def difference(
    family: Family,
    path: Path,
    old: bytes | None,
    new: bytes | None,
    servers: Sequence[Mapping[str, JsonValue]],
    ours: Iterable[Mapping[str, JsonValue]],
) -> str:
    """The unified difference between *old* and *new*, the file of *family* at *path*; empty if there is none.

    *servers* are those in *old* and in *new*, *ours* those that were deployed there and those that are to be. Where
    lines are too long or too many, the servers are compared as if each value had a line of its own.
    """
    if old == new:
        return ""
    known = _Known(family, path, old or b"", [*ours], servers)
    one, other = _lines(old), _lines(new)
    if _is_unwieldy(one, other):
        one, other = known.rendered(0), known.rendered(1)
    names = (str(path) if old is not None else "/dev/null", str(path) if new is not None else "/dev/null")
    difference = difflib.unified_diff(one, other, *names, n=_CONTEXT, lineterm="")
    return "".join(
        _printable(line if number < 2 else known.masked(line)) + "\n" for number, line in enumerate(difference)
    )


def _lines(data: bytes | None) -> list[str]:
    return re.split(r"\r\n|\r|\n", (data or b"").decode("utf-8-sig", "replace").rstrip("\r\n")) if data else []


def _is_unwieldy(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether comparing the lines would take too long, or show nobody anything."""
    first = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    most = min(len(one), len(other)) - first
    pairs = zip(reversed(one), reversed(other), strict=False)
    last = next((n for n, (a, b) in enumerate(pairs) if a != b or n >= most), most)
    changed = [*one[first : len(one) - last], *other[first : len(other) - last]]
    return len(changed) > MOST_LINES or any(len(line) > LONGEST for line in changed)


class _Known:
    """What may be shown of a file."""

    def __init__(
        self,
        family: Family,
        path: Path,
        old: bytes,
        ours: Sequence[Mapping[str, JsonValue]],
        servers: Sequence[Mapping[str, JsonValue]],
    ) -> None:
        self._form = family.format
        where = (family.format, family.key, family.shape)
        self._servers = [dict(each) for each in servers]
        self._key = family.key
        self._words = {*_HARMLESS, *family.key}
        self._lines: set[str] = set()
        for entries in ours:
            self._words.update(_scalars(dict(entries)))
            self._words.update(_names(dict(entries)))
            if entries:
                text = editing.edit(b"", *where, dict(entries), str(path)).decode("utf-8", "replace")
                # In both forms, and whatever their length: nobody agrees to what they are not shown.
                lines = [*text.splitlines(), *_rendered(entries)]
                self._lines.update(line.strip().rstrip(",") for line in lines)
        for found in self._servers:
            self._words.update(name for name in _names(found) if not secret_in(name))
            self._words.update(_placeholders(family, found))
            self._words.update(_programs(family, found))
        self._names = {name for name in editing.names(old, *where, str(path)) if not secret_in(name)}
        self._names |= self._words

    def rendered(self, number: int) -> list[str]:
        """The servers before or after, a value a line."""
        value: JsonValue = self._servers[number]
        for part in reversed(self._key):
            value = {part: value}
        return _rendered(value)

    def masked(self, line: str) -> str:
        """A *line* of the difference, its mark first."""
        mark, text = line[:1], line[1:]
        if mark == "@" or text.strip().rstrip(",") in self._lines:
            return line
        shown = self._shaped(text[:_SEEN])
        if len(shown) > LONGEST:
            shown = shown[: LONGEST - 1] + "…"
        return mark + shown

    def _shaped(self, text: str) -> str:
        if self._form == "yaml":
            if (match := _YAML_KEY.fullmatch(text)) and match[2].strip("\"'") in self._names:
                return f"{match[1]}{match[2]}:{self._value(match[3])}"
            if match := _YAML_ITEM.fullmatch(text):
                return match[1] + self._value(match[2])
        if self._form == "toml":
            if (match := _TOML_TABLE.fullmatch(text)) and self._are_names(match[1]):
                return text
            if (match := _TOML_KEY.fullmatch(text)) and self._are_names(match[2]):
                return match[1] + match[2] + self._in_words(match[3])
        return self._in_words(text)

    def _are_names(self, key: str) -> bool:
        """Whether all parts of a dotted *key* are names."""
        return all(part.strip("\"'") in self._names for part in _TOML_PART.findall(key))

    def _value(self, text: str) -> str:
        """A value that needs no quotes."""
        return text if text.strip() in self._words else self._in_words(text)

    def _in_words(self, text: str) -> str:
        words = [match[0] for match in _WORD.finditer(text)]
        shown: list[str] = []
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if end := self._end_of_comment(words, place - 1):
                shown.append(MASK)
                place = end
            elif word.isspace() or word in _SIGNS or self._is_known(word):
                shown.append(word)
            elif word[0] in "\"'":
                following = "".join(words[place : place + 2]).lstrip()
                is_name = following.startswith(":") and word[1:-1] in self._names and _NAME.fullmatch(word[1:-1])
                shown.append(word if is_name else f"{word[0]}{MASK}{word[0]}")
            else:
                shown.append(MASK)
        return _RUN.sub(MASK, "".join(shown))

    def _end_of_comment(self, words: Sequence[str], place: int) -> int:
        """Where the comment ends that begins at *place*; 0 if none does."""
        if self._form in ("toml", "yaml"):
            return len(words) if words[place].startswith("#") else 0
        if words[place].startswith("/*") or (words[place].startswith("*") and not "".join(words[:place]).strip()):
            return next((n + 1 for n in range(place, len(words)) if words[n].endswith("*/")), len(words))
        return len(words) if words[place].startswith("//") else 0

    def _is_known(self, word: str) -> bool:
        if word in self._words or word.strip("\"'") in self._words:
            return True
        if word[0] != '"':
            return False
        try:
            return json.loads(word) in self._words
        except ValueError:
            return False


def _rendered(value: object) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).split("\n")


def _walk(value: JsonValue) -> Iterator[JsonValue]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        yield found
        if isinstance(found, dict):
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def _scalars(value: JsonValue) -> Iterator[str]:
    """Texts and numbers, as they are written."""
    for found in _walk(value):
        if isinstance(found, str):
            yield found
        elif isinstance(found, int | float):
            yield json.dumps(found)


def _names(value: JsonValue) -> Iterator[str]:
    for found in _walk(value):
        if isinstance(found, dict):
            yield from (name for name in found if len(name) <= 128)


def _placeholders(family: Family, value: JsonValue) -> Iterator[str]:
    """Texts that are nothing but the name of a variable that the client fills in."""
    for found in _walk(value):
        if isinstance(found, str):
            for field in ("env", "headers", "args", "url"):
                names = family.variables_in(found, field)
                if names and found.removeprefix("Bearer ") == family.placeholder(names[0], field):
                    yield found


def _programs(family: Family, servers: Mapping[str, JsonValue]) -> Iterator[str]:
    """What the entries start, without arguments."""
    for entry in from_client(family, servers).values():
        command = entry.get("command") if isinstance(entry, dict) else None
        if isinstance(command, str) and re.fullmatch(r"[\w@./+-]{1,128}", command, re.ASCII):
            yield command


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
