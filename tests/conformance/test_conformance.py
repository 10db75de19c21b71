# SPDX-License-Identifier: LGPL-2.1-or-later
"""The conformance suite of MCP, run against the bridge in front of a server that does all its scenarios ask for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge
    from tests.conformance.conftest import Tools

CURRENT = "conformance/dist/index.js"
RELEASED = "conformance-released/dist/index.js"
TASKS = "tasks-"
"""Scenarios of an extension that is the server's to have; the SDK has it not."""

ONLY_MODERN = {
    # What the server asks for in the handshake era has no key of its own, so the bridge chooses one.
    "input-required-result-basic-elicitation",
    # There it asks for one thing after the other.
    "input-required-result-multiple-input-requests",
}
"""Scenarios that ask of the server what one of the handshake era cannot do."""


def failures(results: Path) -> dict[str, list[str]]:
    """What failed, by scenario. The suite names each one's directory server-SCENARIO-TIME."""
    found: dict[str, list[str]] = {}
    for file in results.glob("**/checks.json"):
        scenario = re.sub(r"-20\d\d-\d\d-\d\dT.*", "", file.parent.name.removeprefix("server-"))
        checks: list[dict[str, Any]] = json.loads(file.read_text())
        failed = [f"{each['id']}: {each.get('errorMessage')}" for each in checks if each["status"] == "FAILURE"]
        found.setdefault(scenario, []).extend(failed)
    assert len(found) > 25, f"the suite ran {sorted(found)} only"
    return {scenario: failed for scenario, failed in found.items() if failed}


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_all_that_a_revision_requires_passes(tools: Tools, bridge: Bridge, revision: str, tmp_path: Path) -> None:
    url = f"{bridge.url}/mcp/both"
    done = tools.run(CURRENT, "server", "--url", url, "--requirements", revision, "-o", "out", cwd=tmp_path)
    failed = failures(tmp_path / "out")
    assert {scenario: each for scenario, each in failed.items() if not scenario.startswith(TASKS)} == {}
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_the_released_suite_passes(tools: Tools, bridge: Bridge, tmp_path: Path) -> None:
    done = tools.run(RELEASED, "server", "--url", f"{bridge.url}/mcp/both", "--suite", "all", "-o", "out", cwd=tmp_path)
    assert failures(tmp_path / "out") == {}
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


def test_modern_clients_are_served_by_a_server_of_the_handshake_era(
    tools: Tools, bridge: Bridge, tmp_path: Path
) -> None:
    url = f"{bridge.url}/mcp/old"
    tools.run(CURRENT, "server", "--url", url, "--requirements", "2026-07-28", "-o", "out", cwd=tmp_path)
    failed = {each: why for each, why in failures(tmp_path / "out").items() if not each.startswith(TASKS)}
    assert {scenario: why for scenario, why in failed.items() if scenario not in ONLY_MODERN} == {}
    assert set(failed) == ONLY_MODERN
