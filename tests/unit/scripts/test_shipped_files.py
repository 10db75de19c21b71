# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that come with the scripts: the map they are described in, and the profiles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mcpd.model import dump_json
from mcpd.model.mcps import McpsEntry, parse_entry, unknown_fields
from mcpd.scripts.generator import build
from mcpd.settings import Settings, load

pytestmark = pytest.mark.process

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
    scripts = {path.stem for path in (DATA / "share/scripts").glob("*.py")}
    assert set(found) == scripts == {"date", "echo", "jq", "markdown"}
    assert all(entry.auto_discover and entry.description for entry in found.values())


def test_the_map_of_a_checkout_is_what_its_source_makes(tmp_path: Path) -> None:
    made = build(DATA / "mcps.source.json", tmp_path).map
    files = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    remedy = "mcpctl mcps build data/mcps.source.json -o data/share/mcps.json --contents data/share/cas"
    assert (DATA / "share/mcps.json").read_bytes() == dump_json(made), remedy
    assert {path.name: path.read_bytes() for path in files} == {
        path.name: path.read_bytes() for path in (DATA / "share/cas").iterdir()
    }, remedy


def test_make_install_brings_all_of_it(tmp_path: Path) -> None:
    subprocess.run(
        [DATA.parent / "packaging/install.sh", "share"], check=True,
        env={"PATH": os.defpath, "DESTDIR": str(tmp_path), "prefix": "/usr"},
    )  # fmt: skip
    share, place = DATA / "share", tmp_path / "usr/share/mcp"
    brought = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    files = (path for path in share.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    assert brought == {path.relative_to(share): path.read_bytes() for path in files}
    assert {path.stem for path in (place / "scripts").iterdir()} == entries().keys()


def test_no_script_asks_for_a_permission() -> None:
    assert [entry.permissions for entry in entries().values() if entry.permissions] == []


@pytest.mark.parametrize("script", sorted((DATA / "share/scripts").glob("*.py")), ids=lambda path: path.name)
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
