# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official Inspector's command line with the workstation: by stdio, alone and confined, and over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.inspector_parts import WAYS, inspector
from tests.e2e.workstation_parts import SERVER, WorkstationRig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conformance.conftest import Tools


@pytest.fixture(scope="module")
def machine(tools: Tools) -> Iterator[WorkstationRig]:
    """A machine with a file in a root."""
    _ = tools  # first, so that no machine is made for tests that will be skipped
    with WorkstationRig() as rig:
        rig.boot()
        rig.clear()
        (rig.src / "hello.txt").write_text("Grüß Gott\n")
        yield rig


@pytest.fixture(params=WAYS, ids="-".join)
def inspect(
    request: pytest.FixtureRequest, tools: Tools, machine: WorkstationRig, tmp_path: Path
) -> Callable[..., tuple[int, Any, str]]:
    """Runs one method; returns the exit status, what the Inspector printed, as JSON, and its messages."""
    alone = ["-I", "-m", "mcpd.servers.workstation", "--root", str(machine.src), "--state", str(tmp_path / "state")]
    return inspector(tools, machine, SERVER, alone, request.param, tmp_path)


def test_it_lists_tools_whose_schemas_any_client_takes(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    code, found, said = inspect("tools/list", "--strict")
    assert code == 0, said
    names = {tool["name"] for tool in found["tools"]}
    assert {"filesystem_read", "git_status", "ci_test"} <= names


def test_the_inspector_calls_a_tool(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    code, found, said = inspect("tools/call", "--tool-name", "filesystem_read", "--tool-arg", "path=hello.txt")
    assert code == 0, said
    assert [block["text"] for block in found["content"]] == ["Grüß Gott\n"]
    assert found["structuredContent"]["end_line"] == 1


def test_the_inspector_shows_why_a_tool_failed(inspect: Callable[..., tuple[int, Any, str]]) -> None:
    code, found, said = inspect("tools/call", "--tool-name", "filesystem_read", "--tool-arg", "path=nothing")
    assert code != 0
    assert "nothing does not exist" in json.dumps(found) + said
