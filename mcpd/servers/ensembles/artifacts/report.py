# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run as Markdown to read: ``execution.md``.

What agents say is anybody's text: it stands in fences that it cannot close, and names cannot be links or HTML.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mcpd.model import printable
from mcpd.servers.ensembles.artifacts.entries import moment
from mcpd.servers.ensembles.artifacts.stored import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcpd.servers.ensembles.artifacts.stored import StoredAgent, StoredRun

MAX_TEXT: Final = 64 * 1024
"""Characters of a response; all of it is in ``execution.json``."""
_TICKS: Final = re.compile(r"`+")
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|&#!~])")
_TITLES: Final = {"completed": "completed", "completed_with_errors": "completed with errors"}


def markdown(artifact: dict[str, Any]) -> str:
    """The document *artifact*, see :mod:`.execution`, as Markdown (CommonMark, with tables)."""
    run = parse(artifact)
    blocks = [
        f"# {_plain(run.ensemble or 'unknown')}: {_plain(_TITLES.get(run.status, run.status))}",
        _table(("Began", "Took", "Tokens", "Cost"), [_facts(run)]),
    ]
    if run.fault is not None and run.fault.message:
        blocks += ["The run ended early:", _fenced(run.fault.message)]
    if run.input:
        blocks += ["## Input", _fenced(run.input)]
    agents = run.results.items()
    if agents:
        heads = ("Agent", "Kind", "Status", "Seconds", "Tokens", "Cost (USD)", "Model")
        blocks += ["## Agents", _table(heads, (_row(run, name, each) for name, each in agents))]
        for name, each in agents:
            blocks += _agent(name, each)
    if run.deliverable:
        blocks += ["## Deliverable", _fenced(run.deliverable)]
    return "\n\n".join(blocks) + "\n"


def _facts(run: StoredRun) -> Sequence[str]:
    return (
        moment(run.metadata.started_at) or "unknown",
        "unknown" if run.seconds is None else f"{run.seconds:.2f} s",
        str(run.tokens),
        "unknown" if run.cost_usd is None else f"{run.cost_usd:.6f} USD",
    )


def _row(run: StoredRun, name: str, agent: StoredAgent) -> Sequence[str]:
    seconds, used = run.seconds_of(name), run.usage_of(name)
    status = f"{agent.status} (reused)" if agent.reused else agent.status
    return (
        _plain(name),
        _plain(agent.kind or ""),
        _plain(status),
        "" if seconds is None else f"{seconds:.2f}",
        str(used.tokens or ""),
        "" if not used.cost_usd else f"{used.cost_usd:.6f}",
        _plain(agent.model or ""),
    )


def _agent(name: str, agent: StoredAgent) -> list[str]:
    blocks = [f"### {_plain(name)}"]
    if agent.retries:
        blocks.append(f"It was tried again, {agent.retries} times in all.")
    if agent.fallback:
        blocks.append("Its fallback profile responded.")
    if agent.why:
        blocks += ["It has no response:" if agent.response is None else "With this fault:", _fenced(agent.why)]
    if agent.response is not None:
        blocks.append(_fenced(agent.response))
    elif not agent.why:
        blocks.append(f"It has no response: {_plain(agent.status)}.")
    return blocks


def _fenced(text: str) -> str:
    """*text* as it is, in a fence that is longer than any in it."""
    shown = text[:MAX_TEXT]
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(shown)), default=0))
    cut = f"\n\n{len(text) - MAX_TEXT} characters more are in `execution.json`." if len(text) > MAX_TEXT else ""
    return f"{fence}text\n{shown}\n{fence}{cut}"


def _plain(text: str) -> str:
    """*text* as words of a line, or of a cell, that mark nothing up."""
    return _MARKUP.sub(r"\\\1", printable(text))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from prettytable import PrettyTable, TableStyle  # few processes write reports

    grid = PrettyTable(list(headings))
    grid.set_style(TableStyle.MARKDOWN)
    grid.align = "l"
    grid.add_rows([list(row) for row in rows])
    return grid.get_string()
