# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the documents say of the formats is what the code reads."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from mcpd.formats.registry import parse_registry
from mcpd.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


def block(document: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)
    assert found
    return found[1]


def test_the_documented_settings_are_all_settings_at_their_defaults() -> None:
    documented = tomllib.loads(block("settings.md", "toml"))
    assert Settings.model_validate(documented) == Settings()
    assert {name: set(section) for name, section in documented.items()} == {
        name: set(section) for name, section in Settings().model_dump().items()
    }


def test_the_documented_registry_is_a_registry() -> None:
    registry = parse_registry(json.loads(block("manifest.md", "json")), "docs/manifest.md")
    assert [entry.id for entry in registry.servers] == ["com.example.weather"]
    assert not registry.problems


def test_the_shipped_registry_is_a_registry() -> None:
    file = DOCS.parent / "data/registry.json"
    registry = parse_registry(json.loads(file.read_text()), str(file))
    assert registry.servers
    assert not registry.problems
