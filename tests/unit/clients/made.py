# SPDX-License-Identifier: LGPL-2.1-or-later
"""Client files for tests: made of pieces, so that a test knows what belongs to whom."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

NAMES = ["alpha", "b.c", "d e", "é", "g_1", "h-2"]
TEXTS = st.one_of(
    st.sampled_from('|run|yes|null|12|-y|a b|#x|// no|/* no */|{x}|${X}|q"q|a: b|]|,|\\'.split("|")),  # noqa: SIM905 -- a list has a line for each
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
)
ENTRIES = st.fixed_dictionaries(
    {"command": TEXTS},
    optional={
        "args": st.lists(TEXTS, max_size=3),
        "env": st.dictionaries(TEXTS.filter(lambda text: text != "<<"), TEXTS, max_size=2),
        "enabled": st.booleans(),
        "timeout": st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False)),
        "deep": st.just({"a": [["x", []], {"b": {}}]}),
    },
)
CHANGES = st.dictionaries(st.sampled_from([*NAMES, "new", "zz top"]), st.one_of(st.none(), ENTRIES), max_size=4)

SERVER, SERVERS, INNER = object(), object(), object()


@dataclass
class Made:
    """A file: *pieces* are its parts in order, each with the server that it belongs to, or None."""

    pieces: list[tuple[str | None, str]] = field(default_factory=list)
    servers: dict[str, Any] = field(default_factory=dict)
    bom: bool = False

    def add(self, text: str, owner: str | None = None) -> None:
        self.pieces.append((owner, text))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def data(self) -> bytes:
        return (b"\xef\xbb\xbf" if self.bom else b"") + self.text.encode()

    def after(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The servers as *changes* want them."""
        return {name: entry for name, entry in {**self.servers, **changes}.items() if entry is not None}

    def around(self, name: str) -> tuple[bytes, bytes]:
        """What is before and behind the last piece of the server *name*, which is its entry where that has a key."""
        number = max(number for number, (owner, _) in enumerate(self.pieces) if owner == name)
        before = "".join(text for _, text in self.pieces[:number]).encode()
        behind = "".join(text for _, text in self.pieces[number + 1 :]).encode()
        return (b"\xef\xbb\xbf" if self.bom else b"") + before, behind

    def assert_kept(self, result: bytes, changes: dict[str, Any]) -> None:
        """What *changes* do not speak of is in *result* as it was, in its order, but for white space and commas."""
        text, at = result.decode("utf-8-sig"), 0
        for owner, piece in self.pieces:
            if owner in changes:
                continue
            part = piece.strip(" \t\r\n,")
            found = text.find(part, at)
            assert found >= 0, (part, text)
            at = found + len(part)
        assert result.startswith(b"\xef\xbb\xbf") == self.bom


@st.composite
def json_files(draw: st.DrawFn, *, comments: bool = True) -> Made:
    """JSON with comments, trailing commas and white space wherever they may be; servers at ``a.servers``."""
    made = Made(bom=draw(st.booleans()))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    blank = st.sampled_from(["", " ", "\t", newline, newline + "  ", newline + newline + "\t", "   "])
    numbers = iter(range(10_000))

    def gap(owner: str | None = None) -> None:
        made.add(draw(blank), owner)
        if comments and draw(st.integers(0, 4)) == 0:
            note = draw(st.sampled_from(['{"', "x", '",', "é", "}", "*"])) + str(next(numbers))
            made.add(f"/* {note} */" if draw(st.booleans()) else f"// {note}{newline}", owner)
            made.add(draw(blank), owner)

    def dump(value: Any) -> str:
        indent = draw(st.sampled_from([None, 2, "\t"]))
        text = json.dumps(value, indent=indent, ensure_ascii=draw(st.booleans()))
        return text.replace("\n", newline)

    def members(parts: list[tuple[str, Any]]) -> None:
        made.add("{")
        for number, (name, value) in enumerate(parts):
            gap()
            owner = name if value is SERVER else None
            made.add(dump(name), owner)
            gap(owner)
            made.add(":", owner)
            gap(owner)
            if value is SERVER:
                made.add(dump(made.servers[name]), name)
            elif value is INNER:
                members([("x", 1), ("servers", SERVERS)] if draw(st.booleans()) else [("servers", SERVERS)])
            elif value is SERVERS:
                members([(each, SERVER) for each in made.servers])
            else:
                made.add(dump(value))
            gap()
            if number + 1 < len(parts) or (comments and draw(st.booleans())):
                made.add(",")
        gap()
        made.add("}")

    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    made.servers = {name: draw(ENTRIES) for name in names}
    others = [("theme", "dark"), ("list", [1, [2.5, None]]), ("é", {"servers": {"alpha": 1}})]
    parts = draw(st.permutations([*others, ("a", INNER)]))
    gap()
    members(parts)
    gap()
    return made


@st.composite
def yaml_files(draw: st.DrawFn, *, listed: bool = False) -> Made:  # noqa: C901
    """YAML in block style with comments, servers at ``servers``."""
    made = Made(bom=draw(st.booleans()))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    step, dash = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    numbers = iter(range(10_000))

    def note() -> None:
        if draw(st.integers(0, 2)) == 0:
            made.add(
                f"{' ' * draw(st.integers(0, 6))}# {draw(st.sampled_from(['x:', '- y', 'é']))}{next(numbers)}{newline}"
            )
        elif draw(st.integers(0, 3)) == 0:
            made.add(newline)

    def tail() -> str:
        return draw(st.sampled_from(["", "  ", f"  # t{next(numbers)}"])) + newline

    def server(name: str, entry: dict[str, Any], indent: int, *, item: bool) -> str:
        pad = " " * indent
        inner = " " * (indent + 2) if item else pad + " " * step
        lines = [] if item else [f"{pad}{json.dumps(name, ensure_ascii=False)}:{tail()}"]
        members = {"name": name, **entry} if item else entry
        for key, value in members.items():
            text = json.dumps(value, ensure_ascii=True)
            if isinstance(value, list) and value and draw(st.booleans()):
                parts = [f"{inner}{' ' * dash}- {json.dumps(each, ensure_ascii=True)}{tail()}" for each in value]
                lines.append(f"{inner}{key}:{tail()}{''.join(parts)}")
            else:
                lines.append(f"{inner}{key}: {text}{tail()}")
        text = "".join(lines)
        return pad + "- " + text[indent + 2 :] if item else text

    def foreign(key: str) -> None:
        note()
        made.add(
            draw(
                st.sampled_from(
                    [
                        f"{key}: 1{newline}",
                        f"{key}: |{newline}  text # no{newline}  servers:{newline}",
                        f"{key}:{newline}  - &x{key} a{newline}  - *x{key}{newline}",
                        f"{key}: {{a: [1, 'x'], b: }}{newline}",
                    ]
                )
            )
        )

    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    entries = {name: draw(ENTRIES_YAML) for name in names}
    made.servers = {name: {"name": name, **entry} for name, entry in entries.items()} if listed else entries
    if draw(st.booleans()):
        foreign("first")
    note()
    if names:
        made.add("servers:")
        made.add(tail())
        indent = draw(st.integers(0, 4)) if listed else step
        for name, entry in entries.items():
            note()
            if listed and draw(st.integers(0, 3)) == 0:
                made.add(f"{' ' * indent}- uses: other/block{newline}")
            made.add(server(name, entry, indent, item=listed), name)
    else:
        made.add(f"servers:{newline}")
    note()
    if draw(st.booleans()):
        foreign("last")
        note()
    return made


def _is_plain(entry: dict[str, Any]) -> bool:
    timeout = entry.get("timeout", 0)
    return abs(timeout) < 1e6 and "e" not in str(timeout)


ENTRIES_YAML = ENTRIES.filter(_is_plain)


@st.composite
def toml_files(draw: st.DrawFn) -> Made:  # noqa: C901
    """TOML with comments, servers in tables at ``mcp_servers``."""
    made = Made(bom=draw(st.booleans()))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    numbers = iter(range(10_000))

    def note() -> None:
        if draw(st.integers(0, 2)) == 0:
            made.add(f"# {draw(st.sampled_from(['[x]', 'y = 1', 'é']))}{next(numbers)}{newline}")
        elif draw(st.booleans()):
            made.add(newline)

    def inline(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{inline(k)} = {inline(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(inline(each) for each in value) + "]"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    def table(name: str, entry: dict[str, Any]) -> str:
        head = f"mcp_servers.{json.dumps(name, ensure_ascii=False)}"
        lines = [f"[{head}]"]
        rest = []
        for key, value in entry.items():
            if isinstance(value, dict) and draw(st.booleans()):
                rest += [f"[{head}.{key}]", *(f"{inline(k)} = {inline(v)}" for k, v in value.items())]
            else:
                lines.append(f"{key} = {inline(value)} # c{next(numbers)}")
        return newline.join([*lines, *rest]) + newline

    made.servers = {name: draw(ENTRIES) for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))}
    note()
    made.add(f"first = '''{newline}[mcp_servers.no]{newline}'''{newline}")
    note()
    made.add(f"[other]{newline}mcp_servers.x = 1{newline}")
    for number, (name, entry) in enumerate(made.servers.items()):
        note()
        made.add(table(name, entry), name)
        if draw(st.integers(0, 3)) == 0:
            made.add(f"[[between{number}]]{newline}x = [{newline}1, # [{newline}]{newline}")
    note()
    made.add(f"[last.a]{newline}date = 1979-05-27")
    if draw(st.booleans()):
        made.add(newline)
    return made
