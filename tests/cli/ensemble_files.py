# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ensembles and runs of theirs, as files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

REVIEW = """\
name: review
description: Two readers, then a summary
agents:
  - name: reader
    model: mock
    provider: mock
  - name: checker
    script: scripts/check.sh
    depends_on: [reader]
  - name: summary
    model: mock
    provider: mock
    depends_on: [reader, checker]
"""
CHECK = '#!/bin/sh\nprintf \'{"success": true, "data": "checked"}\'\n'
SCRIPTS = """\
name: {name}
description: A script alone
agents:
  - name: only
    script: scripts/check.sh
"""
INSTANCE = "--user " if os.geteuid() == 0 else ""
"""What root has to say of mcpctl to mean its own instance."""


def ensemble(base: Path, text: str, name: str = "review") -> Path:
    """Write an ensemble below *base*, ``.llm-orc`` or the user's directory; returns its file."""
    for directory in (base / "ensembles", base / "scripts"):
        directory.mkdir(parents=True, exist_ok=True)
    script = base / "scripts/check.sh"
    script.write_text(CHECK)
    script.chmod(0o755)
    file = base / f"ensembles/{name}.yaml"
    file.write_text(text)
    return file


def artifact(root: Path, stamp: str, status: str = "completed", name: str = "review", **more: Any) -> str:
    """Write a run below *root*, ``artifacts`` of whatever; returns its id."""
    directory = root / name / stamp
    directory.mkdir(parents=True)
    failed = status != "completed"
    document = {
        "ensemble": name,
        "status": status,
        "input": "look at this",
        "results": {
            "reader": agent("r", 100.0, 101.5, usage=used(1000, 0.002), model="big"),
            "checker": agent(None if failed else "c", 101.5, 102.0, depends_on=["reader"], kind="script")
            | ({"status": "failed", "error": "it \x1b[31mbroke", "attempts": 2} if failed else {}),
            "summary": agent("s", 102.0, 102.5, depends_on=["reader", "checker"], usage=used(10, 0.0001), model="s"),
        },
        "synthesis": None,
        "metadata": {
            "agents_used": 3, "started_at": 100.0, "completed_at": 102.5, "duration": "2.50s",
            "usage": {"agents": {}, "totals": {"total_tokens": 1010, "total_cost_usd": 0.0021}},
        },
        "deliverable": "s",
        **more,
    }  # fmt: skip
    (directory / "execution.json").write_text(json.dumps(document))
    return f"{name}/{stamp}"


def agent(response: str | None, began: float, ended: float, **more: Any) -> dict[str, Any]:
    """What became of an agent."""
    return {"response": response, "status": "success", "started_at": began, "completed_at": ended, "attempts": 1} | more


def used(tokens: int, dollars: float) -> dict[str, Any]:
    """What a model took."""
    return {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens, "cost_usd": dollars}
