# SPDX-License-Identifier: LGPL-2.1-or-later
"""What could be done about a run, where its numbers say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_TIME: Final = 0.5
"""The share of a run's time from which on an agent is the one to look at."""
MOST_COST: Final = 0.5
"""The same of its cost."""
MUCH_WAITING: Final = 0.2
"""The share of its time that agents waited though what they depend on was there."""
STRAGGLER: Final = 3.0
"""How many times the median an instance takes that holds up the others."""
_WORTH: Final = 1.0
"""Seconds below which nobody cares."""


def suggested(analysis: dict[str, Any]) -> list[dict[str, Any]]:
    """What follows from *analysis*, see :func:`.analysis.analyze`: ``about``, ``agent`` and ``text`` each."""
    return [
        {"about": about, "agent": agent, "text": text}
        for found in (_failing(analysis), _slow(analysis), _waiting(analysis), _straggling(analysis), _dear(analysis))
        for about, agent, text in found
    ]


def _failing(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for failure in analysis["failures"]:
        agent, skipped = failure["agent"], failure["skipped"]
        if failure["error"] == "Timeout":
            yield "timeout", agent, f"{agent} was not done in time: raise its timeout_seconds, or give it less to do."
        if skipped:
            text = f"{agent} failed, so {len(skipped)} more were not run; retries, or a fallback, would let them run."
            yield "skipped", agent, text
    for fallback in analysis["fallbacks"]:
        agent, profile = fallback["agent"], fallback["profile"]
        yield "fallback", agent, f"{agent} was answered by its fallback {profile or 'profile'}: its own did not work."


def _slow(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if (analysis["duration_seconds"] or 0.0) < _WORTH:
        return
    for step in analysis["critical_path"]:
        if (step["share"] or 0.0) >= MOST_TIME and len(analysis["critical_path"]) > 1:
            agent, share = step["agent"], f"{step['share']:.0%}"
            yield "time", agent, f"{agent} took {share} of the run's time; what makes it faster makes the run faster."


def _waiting(analysis: dict[str, Any]) -> Iterator[tuple[str, None, str]]:
    waited = sum(step["waited"] for step in analysis["critical_path"])
    wall = analysis["duration_seconds"] or 0.0
    if waited >= _WORTH and waited >= MUCH_WAITING * wall:
        text = f"Agents waited {waited:.1f} s of {wall:.1f} s for others to end; a higher max_concurrent shortens that."
        yield "waiting", None, text


def _straggling(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    path = {step["agent"] for step in analysis["critical_path"]}
    for fan_out in analysis["fan_out"]:
        median, longest = fan_out["median"] or 0.0, fan_out["max"] or 0.0
        if fan_out["agent"] in path and longest >= _WORTH and median and longest >= STRAGGLER * median:
            slowest = fan_out["slowest"][0]["agent"]
            text = f"{slowest} took {longest:.1f} s, and half of its siblings no more than {median:.1f} s."
            yield "straggler", slowest, text


def _dear(analysis: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    agents = [each for each in analysis["cost"]["agents"] if each["cost_usd"]]
    for each in agents if len(agents) > 1 else ():
        if (each["share"] or 0.0) >= MOST_COST:
            agent, share = each["agent"], f"{each['share']:.0%}"
            yield "cost", agent, f"{agent} is {share} of the cost; a cheaper model there saves most."
