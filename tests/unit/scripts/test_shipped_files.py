# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that come with the scripts: the map they are described in, and the profiles."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from mcpd.model.mcps import McpsEntry, parse_entry, unknown_fields
from mcpd.settings import Settings, load

DATA = Path(__file__).parents[3] / "data"
PROFILES = {"default": False, "read-only": True}
"""Whether they forbid every change."""


def entries() -> dict[str, McpsEntry]:
    source = DATA / "mcps.source.json"
    data = json.loads(source.read_text())
    assert {server_id: found for server_id, raw in data.items() if (found := unknown_fields(raw))} == {}
    return {server_id: parse_entry(server_id, raw, str(source)) for server_id, raw in data.items()}


def test_every_script_is_described_and_looked_at() -> None:
    found = entries()
    assert set(found) == {path.stem for path in (DATA / "scripts").glob("*.py")} == {"date", "echo", "jq", "markdown"}
    assert all(entry.auto_discover and entry.description for entry in found.values())


def test_no_script_asks_for_a_permission() -> None:
    assert [entry.permissions for entry in entries().values() if entry.permissions] == []


@pytest.mark.parametrize("script", sorted((DATA / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_scripts_are_short_enough_to_learn_from(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert lines[0] == "# SPDX-License-Identifier: LGPL-2.1-or-later"
    assert len(lines) <= 150


@pytest.mark.parametrize("name", PROFILES)
def test_T10_3_T10_4_profiles_are_settings(name: str) -> None:
    """They differ in one thing, and a line that is commented out is what holds without it."""
    file = DATA / f"profiles/{name}.toml"
    forbids = PROFILES[name]
    settings = load([file], {})
    assert settings.daemon.read_only is forbids
    assert settings == Settings(daemon=Settings().daemon.model_copy(update={"read_only": forbids}))

    everything = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", file.read_text(), flags=re.MULTILINE))
    assert Settings.model_validate(everything) == settings
    assert {section: set(keys) for section, keys in everything.items()} == {
        section: set(keys) for section, keys in Settings().model_dump().items()
    }


def test_there_are_two_profiles() -> None:
    assert {file.stem for file in (DATA / "profiles").iterdir()} == set(PROFILES)
