# SPDX-License-Identifier: LGPL-2.1-or-later
"""Diagrams of ensembles: for Mermaid, and as text for a terminal.

Libraries that draw graphs as text connect boxes by lines, which is unreadable in 80 columns with twenty agents that
have a few dependencies each; so the terminal gets one frame for each level, and the dependencies by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wcwidth import wcswidth

from mcpd.model import printable
from mcpd.servers.ensembles.format.graph import levels
from mcpd.servers.ensembles.format.models import (
    DispatchAgent,
    EnsembleAgent,
    LoopAgent,
    McpAgent,
    ModelAgent,
    ScriptAgent,
    kind_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcpd.servers.ensembles.format.models import Agent, Ensemble

MIN_WIDTH: Final = 40
"""Minimum width in columns; a narrower terminal wraps the lines."""
_LABEL: Final = 60
"""Maximum length of a text in a Mermaid diagram, in characters."""
_SIGNS: Final = 4
"""Maximum number of characters for each column."""
_SAFE: Final = re.compile(r"[^\w .,()/-]")
_SHAPES: Final = {
    "model": ("(", ")"),
    "script": ("[", "]"),
    "ensemble": ("[[", "]]"),
    "loop": ("{{", "}}"),
    "dispatch": ("{", "}"),
    "mcp": ("[/", "/]"),
}
_CLASSES: Final = {
    "success": "fill:#d7f0dc,stroke:#2a7a3b,color:#10351a",
    "failed": "fill:#f9d9d6,stroke:#b3261e,color:#4a0f0b",
    "skipped": "fill:#ececec,stroke:#8a8a8a,color:#4a4a4a,stroke-dasharray:4",
    "cancelled": "fill:#fbe9c6,stroke:#9a6b00,color:#453000",
    "running": "fill:#d9e7fb,stroke:#1f5fb4,color:#0d2a50",
    "missing": "fill:#fff,stroke:#b3261e,color:#b3261e,stroke-dasharray:4",
}
_MARKS: Final = {"success": "✔", "failed": "✘", "skipped": "–", "cancelled": "■", "running": "▶"}
_ASCII_MARKS: Final = {"success": "+", "failed": "x", "skipped": "-", "cancelled": "#", "running": ">"}


def mermaid(ensemble: Ensemble, statuses: Mapping[str, str] | None = None) -> str:
    """Return *ensemble* as a flowchart of `Mermaid <https://mermaid.js.org/syntax/flowchart.html>`_.

    *statuses* are by agent: ``success``, ``failed``, ``skipped``, ``cancelled`` or ``running``. Names and conditions
    are escaped, so that they cannot end their quotes or act as markup.
    """
    ids = {agent.name: f"a{number}" for number, agent in enumerate(ensemble.agents)}
    missing = [name for agent in ensemble.agents for name in agent.depends_on if name not in ids]
    lines = ["flowchart TD"]
    for agent in ensemble.agents:
        begin, end = _SHAPES[kind_of(agent)]
        parts = [agent.name, f"{kind_of(agent)} {_detail(agent)}", *(["for each element"] if agent.fan_out else [])]
        if agent.when is not None and not agent.depends_on:
            parts.append(f"when {agent.when}")
        lines.append(f'    {ids[agent.name]}{begin}"{"<br/>".join(map(_escaped, parts))}"{end}')
    for name in dict.fromkeys(missing):
        ids[name] = f"m{len(ids)}"
        lines.append(f'    {ids[name]}["{_escaped(name)}<br/>not there"]:::missing')
    for agent in ensemble.agents:
        label = f'|"{_escaped(agent.when)}"|' if agent.when is not None else ""
        lines += [f"    {ids[name]} -->{label} {ids[agent.name]}" for name in dict.fromkeys(agent.depends_on)]
    known = {name: status for name, status in (statuses or {}).items() if name in ids and status in _CLASSES}
    lines += [f"    class {ids[name]} {status}" for name, status in known.items()]
    used = {*known.values(), *(["missing"] if missing else [])}
    lines += [f"    classDef {name} {style}" for name, style in _CLASSES.items() if name in used]
    return "\n".join(lines) + "\n"


def terminal(
    ensemble: Ensemble, *, width: int, statuses: Mapping[str, str] | None = None, ascii_only: bool = False
) -> str:
    """Return *ensemble* as text for a terminal of *width* columns: a frame for each level.

    Each agent has a line with its name, its kind, and after an arrow its dependencies; text that does not fit ends with
    ``…``. *statuses* are as for :func:`mermaid`. With *ascii_only* the text is pure ASCII. Raises
    :class:`~mcpd.errors.InvalidConfig` if dependencies form a circle.
    """
    strokes = _ASCII if ascii_only else _STROKES
    width = max(width, MIN_WIDTH)
    agents = {agent.name: agent for agent in ensemble.agents}
    columns = _columns(ensemble, width, strokes)
    lines: list[str] = []
    for number, level in enumerate(levels(ensemble.agents)):
        if number:
            lines.append(f"  {strokes.arrow}")
        lines.append(strokes.top + strokes.line * (width - 2) + strokes.top_right)
        for name in level:
            mark = _mark((statuses or {}).get(name), ascii_only=ascii_only) if statuses is not None else ""
            row = _row(agents[name], columns, width - 4 - len(mark), strokes)
            lines.append(f"{strokes.side} {mark}{row} {strokes.side}")
        lines.append(strokes.bottom + strokes.line * (width - 2) + strokes.bottom_right)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Strokes:
    top: str
    top_right: str
    bottom: str
    bottom_right: str
    line: str
    side: str
    arrow: str
    from_: str
    many: str
    rest: str


_STROKES: Final = _Strokes("╭", "╮", "╰", "╯", "─", "│", "▼", "←", "×n", "…")
_ASCII: Final = _Strokes("+", "+", "+", "+", "-", "|", "v", "<-", "*n", "~")


def _columns(ensemble: Ensemble, width: int, strokes: _Strokes) -> tuple[int, int]:
    """Return the widths of names and kinds: that of the widest, at most a third of *width*."""
    most = width // 3
    names = max(len(agent.name) + (3 if agent.fan_out else 0) for agent in ensemble.agents)
    kinds = max(wcswidth(_kind(agent, strokes)) for agent in ensemble.agents)
    return min(names, most), min(kinds, most)


def _row(agent: Agent, columns: tuple[int, int], width: int, strokes: _Strokes) -> str:
    many = f" {strokes.many}" if agent.fan_out else ""
    name = _fitted(agent.name, columns[0] - len(many), strokes).rstrip() + many
    row = f"{name:<{columns[0]}}  {_fitted(_kind(agent, strokes), columns[1], strokes)}"
    if agent.depends_on:
        row += f"  {strokes.from_} {', '.join(agent.depends_on)}"
    if agent.when is not None:
        row += f"  when {_plain(printable(agent.when), strokes)}"
    return _fitted(row, width, strokes)


def _kind(agent: Agent, strokes: _Strokes) -> str:
    return _plain(f"{kind_of(agent)} {_detail(agent)}", strokes)


def _plain(text: str, strokes: _Strokes) -> str:
    return text.encode("ascii", "backslashreplace").decode() if strokes is _ASCII else text


def _fitted(text: str, width: int, strokes: _Strokes) -> str:
    """Return *text*, cut or padded to exactly *width* columns."""
    # Keep a bounded number of characters without a width of their own, as measuring takes time.
    kept = text[: _SIGNS * width]
    if kept != text or wcswidth(kept) > width:
        while (beyond := wcswidth(kept) - (width - 1)) > 0:
            # No character is wider than two columns.
            kept = kept[: -max(beyond // 2, 1)]
        kept += strokes.rest
    return kept + " " * (width - wcswidth(kept))


def _mark(status: str | None, *, ascii_only: bool) -> str:
    return (_ASCII_MARKS if ascii_only else _MARKS).get(status or "", " ") + " "


def _detail(agent: Agent) -> str:
    """Return the profile, script, ensemble or tool that the agent uses."""
    match agent:
        case ModelAgent():
            found = agent.model_profile or f"{agent.model} ({agent.provider})"
        case ScriptAgent():
            found = agent.script.removeprefix("scripts/")
        case EnsembleAgent():
            found = agent.ensemble
        case LoopAgent():
            found = f"{agent.loop.body} until {agent.loop.until}"
        case DispatchAgent():
            found = agent.dispatch
        case McpAgent():
            found = f"{agent.mcp.server} {agent.mcp.tool}"
    return printable(found)


def _escaped(text: str) -> str:
    """Return *text* escaped for quotes in Mermaid: special characters become their numbers."""
    shown = printable(text)
    shown = shown if len(shown) <= _LABEL else shown[: _LABEL - 1] + "…"
    return _SAFE.sub(lambda found: f"#{ord(found[0])};", shown)
