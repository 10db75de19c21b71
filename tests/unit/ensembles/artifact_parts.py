# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs, and artifacts of them, as tests of artifacts need them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcpd.servers.ensembles.artifacts import execution
from mcpd.servers.ensembles.artifacts.store import Artifacts
from mcpd.servers.ensembles.engine.types import AgentResult, Fault, RunResult, Usage

if TYPE_CHECKING:
    from pathlib import Path

BEGAN = 1_780_000_000.25
"""2026-05-28T20:26:40.250Z."""
STAMP = "20260528-202640-250"

# As the original program leaves it.
ORIGINAL: dict[str, Any] = {
    "ensemble": "mixed",
    "status": "completed_with_errors",
    "input": {"data": "test data"},
    "results": {
        "fetcher": {"response": '{"success": true}', "status": "success"},
        "analyzer": {"response": None, "status": "failed", "error": "Agent execution timed out after 2 seconds"},
    },
    "synthesis": None,
    "metadata": {
        "agents_used": 2,
        "started_at": 1757138572.9864268,
        "duration": "2.32s",
        "usage": {
            "agents": {
                "fetcher": {
                    "input_tokens": 7,
                    "output_tokens": 3,
                    "total_tokens": 10,
                    "cost_usd": 0.5,
                    "duration_ms": 250,
                }
            },
            "totals": {"total_tokens": 10, "total_cost_usd": 0.5, "total_duration_ms": 250, "agents_count": 1},
        },
    },
}


def agent(name: str, start: float = 0.0, end: float = 1.0, **more: Any) -> AgentResult:
    """What a successful agent came to that ran from *start* to *end*, seconds after :data:`BEGAN`."""
    values: dict[str, Any] = {
        "kind": "model",
        "status": "success",
        "response": f"{name} says so",
        "definition": f"hash of {name}",
        **more,
    }
    if values["status"] != "success":
        values["response"] = None
    return AgentResult(name, started_at=BEGAN + start, completed_at=BEGAN + end, **values)


def failed(name: str, start: float = 0.0, end: float = 1.0, error: str = "Timeout", **more: Any) -> AgentResult:
    """What a failed one came to."""
    return agent(name, start, end, status="failed", fault=Fault(error, f"{name} did not", name), **more)


def run(*agents: AgentResult, status: str = "completed", **more: Any) -> RunResult:
    """A run of *agents* that ended with the last of them."""
    used = Usage()
    for each in agents:
        used += each.usage
    values: dict[str, Any] = {
        "ensemble": "review",
        "status": status,
        "input": "read this",
        "results": {each.name: each for each in agents},
        "deliverable": agents[-1].response if agents else None,
        "started_at": BEGAN,
        "completed_at": max((each.completed_at for each in agents), default=BEGAN),
        "usage": used,
        **more,
    }
    return RunResult(**values)


def put(root: Path, name: str, document: Any, stamp: str = STAMP) -> Path:
    """An artifact of the ensemble *name* that has *document*, or these bytes; its directory."""
    directory = root / name / stamp
    directory.mkdir(parents=True)
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / "execution.json").write_bytes(data)
    return directory


def keep(root: Path, result: RunResult, stamp: str = STAMP) -> Path:
    """An artifact of *result*."""
    return put(root, result.ensemble, execution.encoded(execution.ended(result, {"name": result.ensemble})), stamp)


def artifacts(*roots: Path) -> Artifacts:
    """The artifacts below *roots*; runs begin at :data:`BEGAN`."""
    return Artifacts(lambda: roots, lambda: BEGAN)
