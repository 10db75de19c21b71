# SPDX-License-Identifier: LGPL-2.1-or-later
"""New TOML text for keys, values and tables, as tomlkit writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tomlkit
from tomlkit.container import Container
from tomlkit.items import Array, InlineTable, Item, SingleKey, Table, Trivia, Whitespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.model import JsonValue


def line(path: Sequence[str], value: JsonValue) -> str:
    """The line, without a break, that gives the key *path* its *value*."""
    return f"{'.'.join(SingleKey(name).as_string() for name in path)} = {inline(value)}"


def inline(value: JsonValue) -> str:
    """*value* on one line."""
    return _inline(value).as_string()


def table(path: Sequence[str], entry: JsonValue) -> list[str]:
    """The lines of the table *entry* with the header *path*, and of the tables in it."""
    *outer, name = path
    whole = holder = Container(parsed=True)
    for each in outer:
        # Containers are filled as the parser does it: they take what they are given, and as fast.
        inner = Container(parsed=True)
        holder.append(SingleKey(each), Table(inner, Trivia(), is_aot_element=False, is_super_table=True))
        holder = inner
    holder.append(SingleKey(name), _table(entry))
    return whole.as_string().removesuffix("\n").split("\n")


def _table(entry: JsonValue) -> Table:
    body = Container(parsed=True)
    members = entry.items() if isinstance(entry, dict) else ()
    for name, value in members:
        if not _is_table(value):
            body.append(SingleKey(name), _inline(value))
    for name, value in members:
        if _is_table(value):
            body.append(None, Whitespace("\n"))
            body.append(SingleKey(name), _table(value))
    return Table(body, Trivia(), is_aot_element=False, is_super_table=False)


def _is_table(value: JsonValue) -> bool:
    return isinstance(value, dict) and bool(value)


def _inline(value: JsonValue) -> Item:
    if isinstance(value, dict):
        body = Container(parsed=True)
        for name, each in value.items():
            body.append(SingleKey(name), _inline(each))
        return InlineTable(body, Trivia(), new=True)
    if isinstance(value, list):
        parts: list[Item] = []
        for each in value:
            parts += (*([Whitespace(", ")] if parts else []), _inline(each))
        return Array(parts, Trivia())
    return tomlkit.item(value)
