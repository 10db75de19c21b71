# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics of an ensemble's runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.servers.ensembles.artifacts.analysis import metrics, p95
from mcpd.servers.ensembles.artifacts.stored import ArtifactEntry, Measure


def entry(
    status: str,
    seconds: float | None = None,
    cost: float | None = None,
    agents: tuple[Measure, ...] = (),
    at: float = 0,
) -> ArtifactEntry:
    return ArtifactEntry(
        id="review/x", ensemble="review", timestamp="x", path=Path("/x"), status=status, started_at=at, seconds=seconds,
        cost_usd=cost, tokens=100, agents=agents,
    )  # fmt: skip


def test_metrics_have_success_rate_cost_and_duration() -> None:
    told = metrics(
        [
            entry("completed", 1.0, 0.1, at=0),
            entry("completed", 3.0, 0.3, at=60),
            entry("completed_with_errors", 5.0, 0.5, at=120),
            entry("failed", 11.0, None, at=180),
            entry("cancelled", 1000.0, 1.0, at=240),
            entry("interrupted", 1000.0, 2.0, at=300),
            entry("running", 1000.0, None, at=360),
        ]
    )
    assert told["runs"] == 7
    assert told["by_status"] == {
        "cancelled": 1, "completed": 2, "completed_with_errors": 1, "failed": 1, "interrupted": 1, "running": 1,
    }  # fmt: skip
    assert told["window"] == {"since": "1970-01-01T00:00:00.000Z", "until": "1970-01-01T00:06:00.000Z"}
    assert told["success_rate"] == 0.5
    assert told["duration_seconds"] == {"count": 4, "mean": 5.0, "median": 4.0, "p95": 10.1}
    assert told["cost_usd"] == {"count": 3, "mean": 0.3, "median": 0.3, "p95": 0.48}
    assert told["total_cost_usd"] == pytest.approx(3.9)
    assert (told["total_tokens"], told["mean_tokens"]) == (700, 100.0)


def test_metrics_of_each_agent_leave_out_what_it_did_not_do() -> None:
    told = metrics(
        [
            entry(
                "completed",
                agents=(Measure("reader", "success", 2.0, 0.2, 10), Measure("writer", "success", None, None, 0)),
            ),
            entry(
                "failed", agents=(Measure("reader", "failed", 4.0, 0.4, 30), Measure("writer", "skipped", 0.0, None, 0))
            ),
            entry("completed", agents=(Measure("reader", "success", 0.0, None, 0, reused=True),)),
        ]
    )["agents"]
    assert told == {
        "reader": {
            "runs": 2, "failures": 1, "skipped": 0, "mean_duration_seconds": 3.0,
            "mean_cost_usd": pytest.approx(0.3), "total_tokens": 40,
        },
        "writer": {
            "runs": 1, "failures": 0, "skipped": 1, "mean_duration_seconds": None, "mean_cost_usd": None,
            "total_tokens": 0,
        },
    }  # fmt: skip


def test_metrics_of_no_runs_say_nothing() -> None:
    told = metrics([])
    assert told["success_rate"] is None
    assert told["duration_seconds"] is None
    assert told["window"] == {"since": None, "until": None}
    assert told["runs"] == 0


@given(values=st.lists(st.floats(min_value=0, max_value=1e9, allow_subnormal=False), min_size=1))
def test_a_twentieth_at_most_is_above_the_95th_percentile(values: list[float]) -> None:
    bound = p95(values)
    # It lies between two of them, as exactly as floating point has it.
    assert min(values) * (1 - 1e-9) <= bound <= max(values) * (1 + 1e-9)
    assert sum(value > bound * (1 + 1e-9) for value in values) < len(values) / 20 + 1


SIZES = st.none() | st.floats(min_value=0, max_value=1e9)
STATUSES = st.sampled_from(["completed", "completed_with_errors", "failed", "running", "unreadable"])


@given(runs=st.lists(st.tuples(STATUSES, SIZES, SIZES)))
def test_metrics_are_json_and_rates_are_shares(runs: list[tuple[str, float | None, float | None]]) -> None:
    told = metrics([entry(*each) for each in runs])
    json.dumps(told, allow_nan=False)
    assert told["success_rate"] is None or 0 <= told["success_rate"] <= 1
    assert sum(told["by_status"].values()) == told["runs"] == len(runs)
