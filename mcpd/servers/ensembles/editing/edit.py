# SPDX-License-Identifier: LGPL-2.1-or-later
"""Change the text of an ensemble.

The text is not rewritten: changes are cut out and inserted at the positions that the YAML parser reports, so that
comments, quotes, indentation and long lines of the rest are kept byte for byte. The result is parsed and compared with
the intended one. The time is bounded for every file.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml.nodes import MappingNode

from mcpd.errors import InvalidArgument, InvalidConfig
from mcpd.servers.diffs import Change, unified
from mcpd.servers.ensembles.editing.layout import (
    Layout,
    Splice,
    Style,
    UnclearLayoutError,
    is_flow,
    list_changed,
    reads_as,
    spliced,
)
from mcpd.servers.ensembles.editing.planning import planned, refuse
from mcpd.servers.ensembles.format.graph import problems
from mcpd.servers.ensembles.format.loading import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ruamel.yaml.nodes import Node

    from mcpd.servers.ensembles.editing.planning import Changes, Plan
    from mcpd.servers.ensembles.format.loading import Loaded

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST: Final = 8 * 1024 * 1024
"""Maximum length of a diff in characters; two files of ensembles yield less."""


def difference(old: str, new: str, file: str) -> str:
    """Return the difference between two texts of *file* in the format of ``diff -u``; empty if they are equal."""
    return unified(old, new, _changes(old, new), file.lstrip("/"), most=_MOST).text


def _changes(old: str, new: str) -> Iterator[Change]:
    """Yield the changes between the lines that occur exactly once in both texts, as far as they are in the same order.

    This is patience diff; :mod:`difflib` alone takes minutes for texts that repeat many lines.
    """
    lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    at, new_at = _offsets(lines), _offsets(new_lines)
    start = new_start = 0
    for line, new_line in [*_anchors(lines, new_lines), (len(lines), len(new_lines))]:
        if at[line] > start or new_at[new_line] > new_start:
            yield Change(start, at[line], new_start, new_at[new_line])
        if line < len(lines):
            start, new_start = at[line + 1], new_at[new_line + 1]


def _anchors(lines: Sequence[str], new_lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the numbers of such lines in both: a longest sequence that increases in both."""
    often, new_often = Counter(lines), Counter(new_lines)
    place = {line: number for number, line in enumerate(new_lines)}
    lasts: list[int] = []
    """The smallest number with which an increasing sequence of each length can end."""
    ends: list[tuple[int, int]] = []
    before: dict[tuple[int, int], tuple[int, int] | None] = {}
    for number, line in enumerate(lines):
        if often[line] != 1 or new_often[line] != 1:
            continue
        pair = (number, place[line])
        length = bisect_left(lasts, pair[1])
        if length == len(lasts):
            lasts.append(pair[1])
            ends.append(pair)
        else:
            lasts[length], ends[length] = pair[1], pair
        before[pair] = ends[length - 1] if length else None
    found: list[tuple[int, int]] = []
    step = ends[-1] if ends else None
    while step is not None:
        found.append(step)
        step = before[step]
    return found[::-1]


def _offsets(lines: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, lines), initial=0))


__all__ = ["difference", "edited"]

_UNCLEAR = (
    "the file is written in a way that these changes cannot be made without touching what they do not name (an alias,"
    " say); change it by hand"
)


def edited(text: str, changes: Changes, file: str) -> str:
    """Return *text*, the ensemble in *file*, with *changes*; without any it is unchanged byte for byte.

    Raises :class:`~mcpd.errors.NotFound` for unknown agents, :class:`~mcpd.errors.InvalidArgument` if the changes
    contradict each other or would make the ensemble invalid (``data["problems"]`` lists all faults, with ``agent`` and
    ``message``), :class:`~mcpd.errors.InvalidConfig` if *text* is not a valid ensemble.
    """
    loaded = load(text, file)
    if changes.is_empty:
        return text
    plan = planned(loaded, changes)
    ended = text.endswith("\n")
    try:
        layout = Layout(text if ended else text + "\n")
        new = spliced(layout.text, list(_splices(layout, plan, loaded.document)))
    except UnclearLayoutError:
        raise InvalidArgument(f"{file}: {_UNCLEAR}") from None
    meant = plan.applied(loaded.document)
    # Keep the newline at the end if it belongs to a text that was added.
    if not ended and reads_as(bare := new.removesuffix("\n").removesuffix("\r"), meant):
        new = bare
    changed = _loaded(new, file)
    if changed.document != meant:
        raise InvalidArgument(f"{file}: {_UNCLEAR}")
    refuse([(each.agent, each.message) for each in problems(changed.ensemble)])
    return new


def _loaded(new: str, file: str) -> Loaded:
    """Return the ensemble *new*. Raises :class:`~mcpd.errors.InvalidArgument` if it is invalid."""
    try:
        return load(new, file)
    except InvalidConfig as error:
        found = (error.data or {}).get("problems")
        refuse([(each.get("agent"), each["message"]) for each in found] if isinstance(found, list) else [])
        raise InvalidArgument(f"{file}: {_UNCLEAR}") from None


def _splices(layout: Layout, plan: Plan, document: dict[str, Any]) -> Iterator[Splice]:
    _, agents = layout.pairs(layout.root)["agents"]
    style = _style(layout, agents)
    items = layout.items(agents)
    for index in sorted(plan.dependencies.keys() | plan.profiles.keys()):
        agent = _Agent(layout, style, items[index].node)
        if index in plan.profiles:
            yield from agent.profile(plan.profiles[index])
        if index in plan.dependencies:
            yield from agent.dependencies(document["agents"][index].get("depends_on"), plan.dependencies[index])
    yield from list_changed(layout, style, agents, plan.removed, plan.added)


def _style(layout: Layout, agents: Node) -> Style:
    """Return the indentation of the file: of its list of agents, and of the first list or mapping in one of these."""
    style = Style(offset=0) if is_flow(agents) else Style(offset=layout.column(layout.dash(agents.value[0])))
    for agent in agents.value:
        for key, value in agent.value if isinstance(agent, MappingNode) else ():
            if getattr(value, "flow_style", None) is not False or value.start_mark.index < key.start_mark.index:
                continue
            column = layout.column(key.start_mark.index)
            if isinstance(value, MappingNode):
                style = replace(style, mapping=layout.column(value.start_mark.index) - column)
            elif key.value == "depends_on":
                style = replace(style, block_lists=True, offset=layout.column(value.start_mark.index) - column)
    return style


@dataclass(frozen=True, slots=True)
class _Agent:
    """The mapping node of an agent."""

    layout: Layout
    style: Style
    node: Node

    def profile(self, name: str) -> Iterator[Splice]:
        """Yield the splices that make *name* its model profile."""
        pairs = self.layout.pairs(self.node)
        if "model_profile" in pairs:
            _, value = pairs["model_profile"]
            yield Splice(value.start_mark.index, value.end_mark.index, self._quoted(value, name))
            return
        key, value = pairs["model"]
        yield Splice(key.start_mark.index, self.layout.pair_ending(key, value), self._pair("model_profile", name))
        yield self._without("provider")

    def dependencies(self, old: Any, new: Any) -> Iterator[Splice]:
        """Yield the splices that make *new* its dependencies, None for none; *old* is the value in the file."""
        pairs = self.layout.pairs(self.node)
        if "depends_on" not in pairs:
            yield self._behind("name", self._pair("depends_on", new))
            return
        if new is None:
            yield self._without("depends_on")
            return
        key, value = pairs["depends_on"]
        if isinstance(old, list) and isinstance(new, list) and not is_flow(value):
            staying = [each for each in old if each in new]
            added = [each for each in new if each not in old]
            if [*staying, *added] != new:
                staying, added = [], new
            removed = frozenset(index for index, each in enumerate(old) if each not in staying)
            yield from list_changed(self.layout, self.style, value, removed, added)
            return
        end = self.layout.pair_ending(key, value)
        yield Splice(value.start_mark.index, end, self.style.flow(new))

    def _pair(self, key: str, value: Any) -> str:
        return f"{key}: {self.style.flow(value)}"

    def _quoted(self, value: Node, text: str) -> str:
        """Return *text* with the same quotes as *value*, if it has some."""
        quote = getattr(value, "style", None)
        if quote in {"'", '"'} and text.isprintable() and not {"'", '"', "\\"} & set(text):
            return f"{quote}{text}{quote}"
        return self.style.flow(text)

    def _without(self, name: str) -> Splice:
        """Return the splice that removes the key *name*, which must not be the only one."""
        layout = self.layout
        pairs = list(self.node.value)
        index = next(index for index, (key, _) in enumerate(pairs) if key.value == name)
        key, value = pairs[index]
        start = int(key.start_mark.index)
        if not is_flow(self.node) and layout.begins_line(start):
            return Splice(layout.line_start(start), layout.line_end(layout.pair_ending(key, value)))
        if index + 1 < len(pairs):
            return Splice(start, pairs[index + 1][0].start_mark.index)
        return Splice(layout.pair_ending(*pairs[index - 1]), layout.pair_ending(key, value))

    def _behind(self, name: str, pair: str) -> Splice:
        """Return the splice that inserts *pair* after the key *name*."""
        layout = self.layout
        key, value = layout.pairs(self.node)[name]
        end = layout.pair_ending(key, value)
        if is_flow(self.node):
            return Splice(end, end, f", {pair}")
        at = layout.line_end(end)
        return Splice(at, at, " " * layout.column(key.start_mark.index) + pair + layout.newline)
