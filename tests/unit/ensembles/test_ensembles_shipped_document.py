# SPDX-License-Identifier: LGPL-2.1-or-later
"""What docs/ensembles.md shows can be used, and it has all keys, profiles, providers, tools and resources."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.servers.ensembles import tools
from mcpd.servers.ensembles.artifacts.places import MAX_BYTES
from mcpd.servers.ensembles.editing.planning import Changes
from mcpd.servers.ensembles.engine import types
from mcpd.servers.ensembles.engine.inputs import MAX_GATHERED, MAX_INSTANCES
from mcpd.servers.ensembles.format import models
from mcpd.servers.ensembles.format.graph import INPUT, ITEM, problems
from mcpd.servers.ensembles.format.loading import load, load_profiles
from mcpd.servers.ensembles.format.reading import MAX_DEPTH, MAX_NODES, MAX_SIZE, read
from mcpd.servers.ensembles.library import tiers
from mcpd.servers.ensembles.library.tiers import MOST_FILES
from mcpd.servers.ensembles.providers import mock
from mcpd.servers.ensembles.resources import ALWAYS, TEMPLATES
from mcpd.servers.ensembles.schemas import Update
from mcpd.servers.ensembles.service import MOST_RUNS

if TYPE_CHECKING:
    from pydantic import BaseModel

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/ensembles.md").read_text()
PARTS: tuple[type[BaseModel], ...] = (
    models.Ensemble,
    models.ModelAgent,
    models.ScriptAgent,
    models.EnsembleAgent,
    models.LoopAgent,
    models.DispatchAgent,
    models.McpAgent,
    models.ToolCall,
    models.Loop,
    models.Budget,
    models.Profile,
    models.Plexus,
    mock.Options,
    Changes,
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_ensembles_that_are_shown_are_ensembles() -> None:
    shown = [text for text in blocks("yaml") if "agents:" in text]
    assert len(shown) >= 4
    for text in shown:
        assert not problems(load(text, "docs/ensembles.md").ensemble)


def test_the_settings_that_are_shown_are_settings() -> None:
    shown = [load_profiles(text, "docs/ensembles.md") for text in blocks("yaml") if "agents:" not in text]
    assert [set(each.model_profiles) for each in shown] == [{"quick"}, set()]
    assert shown[1].plexus.enabled


def test_the_change_that_is_shown_fits_the_tool() -> None:
    (text,) = [text for text in blocks("json") if '"changes"' in text]
    assert Update.model_validate(json.loads(text)).changes.remove_agents == ("estimate",)


def test_the_script_that_is_shown_is_python() -> None:
    (text,) = blocks("python")
    assert ast.parse(text)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_key_is_documented(part: type[BaseModel]) -> None:
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    named = {word for span in re.findall(r"`([^`]+)`", prose) for word in re.findall(r"\w+", span)}
    written = {word for text in blocks("json") for word in re.findall(r'"(\w+)":', text)}
    missing = part.model_fields.keys() - named - written
    assert not missing


def test_the_documented_defaults_are_the_defaults() -> None:
    def default(key: str) -> Any:
        found = re.search(rf"^\| `{key}` \| `?([^`|]*?)`? \|", TEXT, re.MULTILINE)
        assert found
        return read(found[1], "docs/ensembles.md")[0]

    fields = models.Ensemble.model_fields | models.AgentBase.model_fields
    for key in ("on_failure", "max_concurrent"):
        assert default(key) == models.Ensemble.model_fields[key].default
    for key in ("fan_out", "input_scope"):
        assert default(key) == fields[key].default


def test_everything_that_there_is_has_a_row() -> None:
    rows = {word for row in re.findall(r"^\| ([^|]*) \|", TEXT, re.MULTILINE) for word in re.findall(r"`([^`]+)`", row)}
    assert rows >= models.PROVIDERS.keys()
    assert rows >= tools.TOOLS.keys()
    assert {re.sub(r"/.*", "", uri.removeprefix("llm-orc://")) for uri in rows if uri.startswith("llm-orc://")} == {
        re.sub(r"/.*", "", uri.removeprefix("llm-orc://")) for uri in (*ALWAYS, *TEMPLATES)
    }
    manifest = json.loads((ROOT / "data/share/servers/llm-orc/manifest.json").read_text())
    assert rows >= {each["key"] for each in manifest["configurableProperties"]}
    shipped = {path.stem for path in (ROOT / "data/share/ensembles").glob("*.yaml")} - {"config", "answer-round"}
    assert rows >= shipped


def test_the_names_that_no_agent_has_are_documented() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| `name` | required |") and "neither" in line]
    assert set(re.findall(r"`([a-z]+)`", row.partition("neither")[2])) == {INPUT, ITEM}
    assert all(f"`${{{name}}}`" in TEXT for name in (INPUT, ITEM))


def test_the_documented_limits_are_the_limits() -> None:
    limits = TEXT.partition("\n## Limits\n")[2].partition("\n## ")[0]
    in_result = tools.MOST_CHARACTERS >> 20
    shown = [
        f"{MAX_SIZE // 1024} KiB, {MAX_NODES:,}, {MAX_DEPTH} levels",
        f"{models.MAX_AGENTS}",
        f"{MAX_INSTANCES:,}",
        f"{types.MAX_DEPTH}",
        f"{types.MAX_RESPONSE >> 20} MiB; of all instances together {MAX_GATHERED >> 20} MiB",
        f"{types.MAX_KEPT >> 20} MiB; in the result of a call {in_result} MiB, and the artifact has the rest",
        f"{types.MAX_BEGUN:,}",
        f"{MAX_BYTES >> 20} MiB",
        f"{models.MAX_SECONDS:g} s",
        f"{MOST_RUNS}",
        f"{MOST_FILES} files, {tiers.MAX_DEPTH} directories deep",
    ]
    assert re.findall(r"^\| [^|]+ \| ([^|]+) \|$", limits, re.MULTILINE) == shown
