# SPDX-License-Identifier: LGPL-2.1-or-later
"""How ``mcpctl ensemble`` shows what runs took."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mcpd.cli.output import clean, counted

if TYPE_CHECKING:
    from collections.abc import Mapping


def summary(execution: Mapping[str, Any]) -> str:
    """One line on a run, whose members come from outside: how it ended, what it took, and its id."""
    about = _members(execution, "metadata")
    totals = _members(_members(about, "usage"), "totals")
    agents = execution.get("results")
    said = [
        str(execution.get("status")).replace("_", " ") + (f" in {about['duration']}" if about.get("duration") else ""),
        counted(len(agents) if isinstance(agents, dict) else 0, "agent"),
        _tokens(totals.get("total_tokens")),
        cost(totals.get("total_cost_usd")),
        str(execution.get("artifact_id") or ""),
    ]
    return clean(f"{execution.get('ensemble')}: {', '.join(each for each in said if each)}")


def cost(dollars: object) -> str:
    """*dollars* to read, with as many places as it takes to see them; nothing if they are not known or none."""
    if not isinstance(dollars, int | float) or dollars <= 0:
        return ""
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.6f}".rstrip("0")


def duration(seconds: object) -> str:
    """*seconds* to read; nothing if they are not known."""
    if not isinstance(seconds, int | float):
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def when(seconds: float | None) -> str:
    """The moment *seconds* since the epoch to read, in the caller's time zone; nothing if it is not known."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _tokens(number: object) -> str:
    return counted(number, "token") if isinstance(number, int) and number else ""


def _members(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}
