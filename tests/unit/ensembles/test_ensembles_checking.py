# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is wrong with ensembles among the real profiles, scripts and providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.servers.ensembles.checking import check
from tests.unit.ensembles.library_parts import library, put

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.servers.ensembles.format.validation import Finding

PROFILES = """
model_profiles:
  good: {provider: mock, model: m, options: {echo: true, fail: unavailable, times: 2}}
  bad: {provider: mock, model: m, options: {fial: unavailable}}
  other: {provider: ollama, model: m, options: {seed: 1, fial: 2}}
"""


def _findings(tmp_path: Path, agents: str) -> list[Finding]:
    put(tmp_path / "user/config.yaml", PROFILES)
    put(tmp_path / "user/ensembles/e.yaml", f"name: e\nagents:\n{agents}")
    made = library(tmp_path)
    found, loaded, _ = made.loaded("e")
    return check(made, found, loaded, None)


def test_options_that_the_mock_refuses_are_errors(tmp_path: Path) -> None:
    findings = _findings(
        tmp_path,
        "- {name: a, model_profile: bad}\n"
        "- {name: b, model_profile: good, fallback_model_profile: bad}\n"
        "- name: c\n  model_profile: good\n  options: {latency: -1}\n"
        "- name: d\n  provider: mock\n  model: m\n  options: {times: 0}\n",
    )
    assert [(each.severity, each.agent, each.line) for each in findings] == [
        ("error", "a", 3),
        ("error", "b", 4),
        ("error", "c", 7),
        ("error", "d", 11),
    ]
    words = [each.message for each in findings]
    assert all("options of a model of provider mock: " in each for each in words)
    assert words[0].startswith('with the profile "bad", ')
    assert "fial" in words[0]
    assert "latency" in words[2]
    assert "times" in words[3]


def test_options_that_are_sound_or_of_other_providers_are_no_findings(tmp_path: Path) -> None:
    agents = (
        "- {name: a, model_profile: good, fallback_model_profile: other}\n"
        "- {name: b, model_profile: other, options: {whatever: 1}}\n"
        "- {name: c, provider: mock, model: m, options: {response: x}}\n"
        "- {name: d, provider: mock, model: m}\n"
    )
    findings = _findings(tmp_path, agents)
    assert findings == []
