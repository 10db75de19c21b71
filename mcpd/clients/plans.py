# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plans of deployments: the changes to a client's file, shown and confirmed before they are made."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mcpd.clients import editing
from mcpd.clients.dialects import from_client
from mcpd.clients.editing import at_path, same, walk
from mcpd.clients.files import snapshot
from mcpd.clients.secret_values import secret_in
from mcpd.errors import InvalidArgument
from mcpd.model import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mcpd.clients.families import Family
    from mcpd.clients.files import Snapshot
    from mcpd.model import JsonValue


def holds(found: JsonValue, written: JsonValue) -> bool:
    """Return True if *found* equals *written*, except for members that were added to objects."""
    if isinstance(written, dict) and isinstance(found, dict):
        return all(name in found and holds(found[name], value) for name, value in written.items())
    return same(found, written)


def renewed(family: Family, written: JsonValue, found: JsonValue, wanted: JsonValue) -> JsonValue:
    """Return the entry *wanted*, with the members that were added to *found* since it was *written*.

    An entry that starts a program and one with a URL have nothing in common that could be kept.
    """
    if _is_remote(family, written) is not _is_remote(family, wanted):
        return wanted
    return merged(written, found, wanted)


def merged(written: JsonValue, found: JsonValue, wanted: JsonValue) -> JsonValue:
    """Return *wanted*, with the members of *found* that are not in *written*, in the order of *found*."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return wanted
    before = written if isinstance(written, dict) else {}
    result: dict[str, JsonValue] = {}
    for name, value in found.items():
        if name in wanted:
            result[name] = merged(before.get(name), value, wanted[name])
        elif name not in before:
            result[name] = value
        elif isinstance(value, dict) and isinstance(before[name], dict):
            if added := merged(before[name], value, {}):
                result[name] = added
        elif not same(value, before[name]):
            result[name] = value
    return {**result, **{name: value for name, value in wanted.items() if name not in result}}


def _is_remote(family: Family, entry: JsonValue) -> bool | None:
    """Return True for an entry with a URL; None for one that cannot be read."""
    canonical = from_client(family, {"entry": entry}).get("entry")
    return "url" in canonical if isinstance(canonical, dict) else None


MASK: Final = "***"
MOST_LINES: Final = 4_000
"""Maximum number of lines between the first and the last change; comparing more takes too long."""
LONGEST: Final = 400
"""Number of characters of a line that are shown, unless the line was or will be deployed."""
_SEEN: Final = 4_000
"""Number of characters of a line that are examined."""
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
    """Return the unified diff of *old* and *new*, the file of *family* at *path*; empty if there is none.

    *servers* are those in *old* and in *new*, *ours* those that were and those that will be deployed. If lines are too
    long or too many, the servers are compared with one line per value.
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
    """Return True if comparing the lines would take too long, or would be unreadable."""
    first = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    most = min(len(one), len(other)) - first
    pairs = zip(reversed(one), reversed(other), strict=False)
    last = next((n for n, (a, b) in enumerate(pairs) if a != b or n >= most), most)
    changed = [*one[first : len(one) - last], *other[first : len(other) - last]]
    return len(changed) > MOST_LINES or any(len(line) > LONGEST for line in changed)


class _Known:
    """The values in a file that may be shown unmasked."""

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
                # In both forms and at any length: nobody consents to what they are not shown.
                lines = [*text.splitlines(), *_rendered(entries)]
                self._lines.update(line.strip().rstrip(",") for line in lines)
        for found in self._servers:
            self._words.update(name for name in _names(found) if not secret_in(name))
            self._words.update(_placeholders(family, found))
            self._words.update(_programs(family, found))
        self._names = {name for name in editing.names(old, *where, str(path)) if not secret_in(name)}
        self._names |= self._words

    def rendered(self, number: int) -> list[str]:
        """Return the servers before or after, one line per value."""
        return _rendered(at_path(self._servers[number], self._key))

    def masked(self, line: str) -> str:
        """Return a *line* of the diff, including its mark, with unknown values masked."""
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
        """Return True if all parts of a dotted *key* are names."""
        return all(part.strip("\"'") in self._names for part in _TOML_PART.findall(key))

    def _value(self, text: str) -> str:
        """Return a value that needs no quotes, masked if unknown."""
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
        """Return where the comment ends that begins at *place*; 0 if none does."""
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


def _scalars(value: JsonValue) -> Iterator[str]:
    """Yield strings and numbers, as they are written."""
    for found in walk(value):
        if isinstance(found, str):
            yield found
        elif isinstance(found, int | float):
            yield json.dumps(found)


def _names(value: JsonValue) -> Iterator[str]:
    for found in walk(value):
        if isinstance(found, dict):
            yield from (name for name in found if len(name) <= 128)


def _placeholders(family: Family, value: JsonValue) -> Iterator[str]:
    """Yield strings that consist of a variable that the client substitutes."""
    for found in walk(value):
        if isinstance(found, str):
            for field in ("env", "headers", "args", "url"):
                names = family.variables_in(found, field)
                if names and found.removeprefix("Bearer ") == family.placeholder(names[0], field):
                    yield found


def _programs(family: Family, servers: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the commands of the entries, without arguments."""
    for entry in from_client(family, servers).values():
        command = entry.get("command") if isinstance(entry, dict) else None
        if isinstance(command, str) and re.fullmatch(r"[\w@./+-]{1,128}", command, re.ASCII):
            yield command


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)


@dataclass(frozen=True, slots=True)
class Plan:
    """The change of one file. Names are in the order of the payload."""

    family: Family
    snapshot: Snapshot
    """The file as it is."""
    new: bytes | None = field(repr=False)
    """Its new content; None if there is no file and none is needed."""
    diff: str
    """Unified diff to show, with other parts of the file masked."""
    added: list[str]
    changed: list[str]
    removed: list[str]
    """Names of servers that were deployed earlier and are removed because they are no longer wanted."""
    kept: list[str]
    """Names of wanted servers that the user added: left unchanged unless they are taken over."""
    restored: list[str]
    """Those of :attr:`changed` that were changed by hand since their deployment."""
    left: list[str]
    """Names of servers that are no longer wanted but were changed by hand: left in the file, not managed any more."""
    entries: Mapping[str, JsonValue] = field(repr=False)
    """The wanted entries, in the client's dialect."""
    take_over: tuple[str, ...]
    changes: Mapping[str, JsonValue | None] = field(repr=False)
    """Changes to the file: entries to put, None for those to remove."""
    replaced: Mapping[str, JsonValue] = field(repr=False)
    """Entries that the file has under the names in :attr:`changes`."""
    owned: Mapping[str, JsonValue] = field(repr=False)
    """Entries in the file that mcpctl will manage."""
    before: Mapping[str, JsonValue] = field(repr=False)
    """Entries in the file that mcpctl manages now."""
    base: int
    """Number of the active deployment of the file, 0 for none."""

    @property
    def file(self) -> Path:
        """The client's file."""
        return self.snapshot.path

    @property
    def is_empty(self) -> bool:
        """True if nothing has to be done."""
        return self.new == self.snapshot.data and same(dict(self.owned), dict(self.before))

    def is_like(self, other: Plan) -> bool:
        """Return True if both plans make the same changes to the same servers, regardless of the rest of the file."""
        return (
            same(dict(self.changes), dict(other.changes))
            and same(dict(self.replaced), dict(other.replaced))
            and same(dict(self.owned), dict(other.owned))
            and (self.kept, self.left, self.restored) == (other.kept, other.left, other.restored)
            and self.snapshot.path == other.snapshot.path
        )


def make(
    family: Family,
    file: Path,
    entries: Mapping[str, JsonValue],
    take_over: Collection[str],
    before: Mapping[str, JsonValue],
    base: int,
) -> Plan:
    """Return the plan for *entries* in *file*, where mcpctl manages the entries *before* since the deployment *base*.

    Raises :class:`~mcpd.errors.InvalidArgument` for names in *take_over* that are not in *entries*, and the errors of
    :func:`~mcpd.clients.files.snapshot` and of :mod:`mcpd.clients.editing`.
    """
    wanted = _named(family, entries)
    if unknown := sorted(set(take_over) - wanted.keys()):
        raise InvalidArgument(
            f"{printable(unknown[0])} cannot be taken over: the configuration has no server with that name"
        )
    old = snapshot(file)
    where = (family.format, family.key, family.shape)
    found = editing.read(old.data or b"", *where, str(old.path))
    kept = [name for name in wanted if name in found and name not in before and name not in take_over]
    owned = {name: entry for name, entry in wanted.items() if name not in kept}
    put = {
        name: renewed(family, before[name], found[name], entry) if name in before and name in found else entry
        for name, entry in owned.items()
    }
    changes: dict[str, JsonValue | None] = {
        name: entry for name, entry in put.items() if name not in found or not same(entry, found[name])
    }
    added = [name for name in changes if name not in found]
    changed = [name for name in changes if name in found]
    unwanted = [name for name in before if name in found and name not in wanted]
    removed = [name for name in unwanted if holds(found[name], before[name])]
    changes.update(dict.fromkeys(removed))
    new = editing.edit(old.data or b"", *where, changes, str(old.path)) if changes else old.data
    after = {name: entry for name, entry in {**found, **changes}.items() if entry is not None}
    return Plan(
        family=family,
        snapshot=old,
        new=new,
        diff=difference(family, old.path, old.data, new, (found, after), (wanted, before)),
        added=added,
        changed=changed,
        removed=removed,
        kept=kept,
        restored=[name for name in changed if name in before and not holds(found[name], before[name])],
        left=[name for name in unwanted if name not in removed],
        entries=wanted,
        take_over=tuple(take_over),
        changes=changes,
        replaced={name: found[name] for name in changes if name in found},
        owned=owned,
        before=before,
        base=base,
    )


def _named(family: Family, entries: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return *entries* as the file contains them: in a list, each has its name."""
    if family.shape == "list":
        return {name: {"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in entries.items()}
    return dict(entries)
