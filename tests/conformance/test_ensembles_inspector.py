# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official Inspector's command line with the ensembles: by stdio, alone and confined, and over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.inspector_parts import WAYS, inspector
from tests.e2e.ensembles_parts import SERVER, EnsemblesRig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.conftest import Tools


@pytest.fixture(scope="module")
def machine(tools: Tools) -> Iterator[EnsemblesRig]:
    """A machine with an ensemble."""
    _ = tools  # first, so that no machine is made for tests that will be skipped
    with EnsemblesRig() as rig:
        rig.boot()
        yield rig


@pytest.fixture(params=WAYS, ids="-".join)
def inspect(
    request: pytest.FixtureRequest, tools: Tools, machine: EnsemblesRig, tmp_path: Path
) -> Callable[..., tuple[int, Any, str]]:
    """Runs one method; returns the exit status, what the Inspector printed, as JSON, and its messages."""
    alone = ["-I", "-m", "mcpd.servers.ensembles", "mcp", "serve", "--project", str(machine.project)]
    alone += ["--state", str(tmp_path / "state")]
    return inspector(tools, machine, SERVER, alone, request.param, tmp_path)


def test_it_lists_tools_whose_schemas_any_client_takes(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    code, found, said = inspect("tools/list", "--strict")
    assert code == 0, said
    assert {"invoke", "update_ensemble", "analyze_execution"} <= {tool["name"] for tool in found["tools"]}


def test_the_inspector_runs_an_ensemble(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    given = ("--tool-arg", "ensemble_name=pair", "--tool-arg", "input=moon")
    code, found, said = inspect("tools/call", "--tool-name", "invoke", *given)
    assert code == 0, said
    assert found["structuredContent"]["status"] == "completed"


def test_the_inspector_reads_resources(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    code, found, said = inspect("resources/list")
    assert code == 0, said
    assert {"llm-orc://ensembles", "llm-orc://ensemble/pair"} <= {each["uri"] for each in found["resources"]}
    code, found, said = inspect("resources/read", "--uri", "llm-orc://ensemble/pair")
    assert code == 0, said
    assert json.loads(found["contents"][0]["text"])["name"] == "pair"
