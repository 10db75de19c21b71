# SPDX-License-Identifier: LGPL-2.1-or-later
"""How ``mcpctl ensemble`` shows what runs took."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mcpd.cli.output import clean, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST: Final = 0.000001
"""Dollars that are shown."""


def summary(execution: Mapping[str, Any]) -> str:
    """One line on a run, as the tools say it: how it ended, what it took, and its id."""
    agents, took = execution.get("results"), duration(execution.get("seconds"))
    again = len(reused(execution))
    said = [
        str(execution.get("status")).replace("_", " ") + (f" in {took}" if took else ""),
        counted(len(agents) if isinstance(agents, dict) else 0, "agent") + (f" ({again} reused)" if again else ""),
        _tokens(execution.get("tokens")),
        cost(execution.get("cost_usd")),
        str(execution.get("artifact_id") or ""),
    ]
    return clean(f"{execution.get('ensemble')}: {', '.join(each for each in said if each)}")


def reused(execution: Mapping[str, Any]) -> list[str]:
    """The agents whose response is an earlier run's."""
    agents = execution.get("results")
    found = agents.items() if isinstance(agents, dict) else ()
    return [str(name) for name, each in found if isinstance(each, dict) and each.get("reused")]


def cost(dollars: object, none: str = "") -> str:
    """*dollars* to read, with as many places as it takes to see them; *none* for 0, nothing if they are not known."""
    if not isinstance(dollars, int | float) or dollars < 0:
        return ""
    if dollars == 0:
        return none
    if dollars < _LEAST:
        return f"< ${_LEAST:.6f}"
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.6f}".rstrip("0").rstrip(".")


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
