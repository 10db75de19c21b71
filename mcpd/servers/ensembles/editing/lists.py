# SPDX-License-Identifier: LGPL-2.1-or-later
"""Taking elements out of a YAML list and adding some at its end; all others keep their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.servers.ensembles.editing.layout import Splice, is_flow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ruamel.yaml.nodes import Node

    from mcpd.servers.ensembles.editing.layout import Item, Layout
    from mcpd.servers.ensembles.editing.rendering import Style


def list_changed(
    layout: Layout, style: Style, sequence: Node, removed: Collection[int], added: Sequence[Any]
) -> Iterator[Splice]:
    """*sequence* without the elements numbered *removed*, and with the values *added* behind the others."""
    if not removed and not added:
        return
    items = layout.items(sequence)
    if not is_flow(sequence):
        yield from _block(layout, style, items, removed, added)
    elif all(layout.begins_line(each.start) and _ends_line(layout, each, sequence) for each in items):
        yield from _lines(layout, style, sequence, items, removed, added)
    else:
        parts = [layout.text[each.start : each.end] for index, each in enumerate(items) if index not in removed]
        parts += [style.flow(value) for value in added]
        yield Splice(items[0].start, items[-1].end, ", ".join(parts))


def _block(
    layout: Layout, style: Style, items: Sequence[Item], removed: Collection[int], added: Sequence[Any]
) -> Iterator[Splice]:
    staying = [index for index in range(len(items)) if index not in removed]
    last = max(staying, default=-1)
    for index in removed:
        # The empty lines go that part it from the next; of what is at the end, those that part it from the one before.
        start, end = items[index].start, items[index].end
        if index < last:
            end = items[index + 1].start
        elif index:
            start = items[index - 1].end
        yield Splice(start, end)
    if added:
        end = items[-1].end
        dash = layout.dash(items[-1].node)
        start = int(items[-1].node.start_mark.index)
        same_line = layout.line_start(start) == layout.line_start(dash)
        column = layout.column(dash)
        inner = layout.column(start) if same_line else column + 2
        between = layout.newline if len(items) > 1 and items[-1].start > items[-2].end else ""
        for number, value in enumerate(added):
            text = style.block(value, inner).replace("\n", layout.newline)
            apart = between if number or staying else ""
            yield Splice(end, end, f"{apart}{' ' * column}-{' ' * (inner - column - 1)}{text}{layout.newline}")


def _lines(
    layout: Layout,
    style: Style,
    sequence: Node,
    items: Sequence[Item],
    removed: Collection[int],
    added: Sequence[Any],
) -> Iterator[Splice]:
    """In brackets, and with a line, or several, for each."""
    for index in removed:
        yield Splice(layout.line_start(items[index].start), layout.line_end(items[index].end))
    if added:
        final = items[-1]
        end = layout.line_end(final.end)
        if len(items) - 1 not in removed and layout.comma(final.end, sequence.end_mark.index) is None:
            yield Splice(final.end, final.end, ",")
        indent = " " * layout.column(final.start)
        text = f",{layout.newline}".join(indent + style.flow(value) for value in added)
        yield Splice(end, end, text + layout.newline)


def _ends_line(layout: Layout, item: Item, sequence: Node) -> bool:
    """Whether nothing but a comma and a comment is behind *item* on its line."""
    comma = layout.comma(item.end, sequence.end_mark.index)
    if comma is not None and not layout.text[item.end : comma].strip(" \t"):
        return layout.ends_line(comma + 1)
    return layout.ends_line(item.end)
