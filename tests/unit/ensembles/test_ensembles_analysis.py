# SPDX-License-Identifier: LGPL-2.1-or-later
"""What determined how a run went."""

from __future__ import annotations

from typing import Any

from mcpd.servers.ensembles.artifacts.analysis import MAX_CHILDREN, analyze
from mcpd.servers.ensembles.artifacts.execution import ended
from mcpd.servers.ensembles.engine.types import MAX_DEPTH, AgentResult, Fault, RunResult, Usage
from tests.unit.ensembles.artifact_parts import agent, failed, run


def analyzed(*agents: AgentResult, **more: Any) -> dict[str, Any]:
    return analyze(ended(run(*agents, **more)))


def skipped(name: str, at: float, *depends_on: str) -> AgentResult:
    return agent(name, at, at, status="skipped", depends_on=depends_on)


def about(told: dict[str, Any], word: str) -> list[str | None]:
    return [each["agent"] for each in told["suggestions"] if each["about"] == word]


def test_the_critical_path_is_what_determined_the_end() -> None:
    told = analyzed(
        agent("quick", 0, 1),
        agent("slow", 0, 8),
        agent("join", 8.5, 9.5, depends_on=("quick", "slow")),
        agent("aside", 1, 3, depends_on=("quick",)),
        agent("last", 9.5, 10, depends_on=("join",)),
    )
    assert told["critical_path"] == [
        {"agent": "slow", "seconds": 8.0, "waited": 0.0, "share": 0.8},
        {"agent": "join", "seconds": 1.0, "waited": 0.5, "share": 0.1},
        {"agent": "last", "seconds": 0.5, "waited": 0.0, "share": 0.05},
    ]
    assert told["duration_seconds"] == 10.0
    assert told["parallelism"] == {"busy_seconds": 12.5, "wall_seconds": 10.0, "factor": 1.25}
    assert [each["agent"] for each in told["slowest"]] == ["slow", "aside", "quick", "join", "last"]
    assert about(told, "time") == ["slow"]


def test_nothing_is_suggested_where_the_numbers_say_nothing() -> None:
    assert analyzed(agent("only", 0, 100))["suggestions"] == []
    assert analyzed(agent("a", 0, 0.1), agent("b", 0.1, 0.9, depends_on=("a",)))["suggestions"] == []
    even = [agent(str(at), at, at + 1, depends_on=(str(at - 1),) if at else ()) for at in range(4)]
    assert analyzed(*even)["suggestions"] == []


def test_failures_say_what_they_took_with_them() -> None:
    told = analyzed(
        failed("reader", error="Timeout"),
        failed("checker", error="NotFound", attempts=3),
        skipped("writer", 1, "reader"),
        skipped("printer", 1, "writer", "checker"),
        agent("good", 0, 1),
        skipped("conditional", 1, "good", "reader"),
        skipped("after it", 1, "conditional"),
        status="completed_with_errors",
    )
    assert told["failures"] == [
        {
            "agent": "reader", "error": "Timeout", "message": "reader did not", "attempts": 1,
            "skipped": ["writer", "printer"],
        },
        {"agent": "checker", "error": "NotFound", "message": "checker did not", "attempts": 3, "skipped": ["printer"]},
    ]  # fmt: skip
    assert told["retries"] == [{"agent": "checker", "retries": 2}]
    assert about(told, "timeout") == ["reader"]
    assert about(told, "skipped") == ["reader", "checker"]


def test_costs_are_sorted_and_shared() -> None:
    told = analyzed(
        agent("cheap", usage=Usage(10, 10, 0.1), model="small"),
        agent("dear", usage=Usage(100, 100, 0.9), model="large"),
        agent("free"),
    )["cost"]
    assert told == {
        "total_usd": 1.0,
        "total_tokens": 220,
        "agents": [
            {"agent": "dear", "cost_usd": 0.9, "tokens": 200, "model": "large", "share": 0.9},
            {"agent": "cheap", "cost_usd": 0.1, "tokens": 20, "model": "small", "share": 0.1},
        ],
    }
    assert about(analyzed(agent("a", usage=Usage(1, 1, 0.1)), agent("b", usage=Usage(1, 1, 0.9))), "cost") == ["b"]


def test_a_fan_out_tells_of_its_instances() -> None:
    instances = [agent(f"each[{at}]", 0, 1) for at in range(4)]
    instances += [failed("each[4]", 0, 2), agent("each[5]", 0, 9)]
    told = analyzed(agent("each", 0, 9, instances=instances, attempts=7))
    assert told["fan_out"] == [
        {
            "agent": "each", "instances": 6, "failed": 1, "min": 1.0, "median": 1.0, "max": 9.0,
            "slowest": [
                {"agent": "each[5]", "seconds": 9.0},
                {"agent": "each[4]", "seconds": 2.0},
                {"agent": "each[0]", "seconds": 1.0},
            ],
        }
    ]  # fmt: skip
    assert told["parallelism"]["busy_seconds"] == 15.0
    assert told["slowest"][0] == {"agent": "each[5]", "seconds": 9.0}
    assert told["retries"] == [{"agent": "each", "retries": 1}]
    assert about(told, "straggler") == ["each[5]"]


def test_fallbacks_and_what_was_reused_are_told() -> None:
    told = analyzed(
        agent("old", -50, -40, reused=True, usage=Usage(5, 5, 5.0)),
        agent("new", 0, 2, fallback=True, profile="spare", model="small", depends_on=("old",)),
        usage=Usage(),
    )
    assert told["reused"] == ["old"]
    assert told["fallbacks"] == [{"agent": "new", "profile": "spare", "model": "small"}]
    assert [each["agent"] for each in told["critical_path"]] == ["new"]
    assert told["cost"]["agents"] == []
    assert about(told, "fallback") == ["new"]


def test_agents_that_waited_for_others_to_end_are_told() -> None:
    told = analyzed(agent("first", 0, 2), agent("second", 6, 8, depends_on=("first",)))
    assert told["critical_path"][1]["waited"] == 4.0
    assert about(told, "waiting") == [None]


def test_a_run_that_ended_early_says_why() -> None:
    told = analyzed(agent("reader"), status="failed", fault=Fault("Timeout", "was not done in time", ""))
    assert told["fault"] == {"error": "Timeout", "message": "was not done in time"}


def test_runs_within_a_run_are_taken_apart_as_deep_as_they_can_be() -> None:
    child: RunResult | None = None
    for level in range(MAX_DEPTH + 3):
        child = run(agent("sub", child=child), ensemble=f"level{level}")
    assert child is not None
    told, depth = analyze(ended(child)), 0
    while told["children"]:
        told, depth = told["children"]["sub"], depth + 1
    assert depth == MAX_DEPTH


def test_runs_within_a_run_are_taken_apart_up_to_a_number() -> None:
    agents = [agent(f"sub{at}", child=run(agent("inner"))) for at in range(MAX_CHILDREN + 5)]
    assert len(analyzed(*agents)["children"]) == MAX_CHILDREN


def test_of_ensembles_that_fan_out_the_slowest_instance_is_taken_apart() -> None:
    instances = [agent(f"each[{at}]", 0, at, child=run(agent("inner"), ensemble=f"e{at}")) for at in (1, 3, 2)]
    children = analyzed(agent("each", 0, 3, instances=instances))["children"]
    assert {name: child["ensemble"] for name, child in children.items()} == {"each[3]": "e3"}


def test_dependencies_in_a_circle_come_to_an_end() -> None:
    told = analyzed(
        agent("a", 0, 1, depends_on=("b",)),
        failed("b", 0, 2, depends_on=("a",)),
        skipped("c", 2, "b"),
        skipped("d", 2, "d"),
    )
    assert [each["agent"] for each in told["critical_path"]] == ["a", "b"]
    assert [each["agent"] for each in told["failures"]] == ["b"]
