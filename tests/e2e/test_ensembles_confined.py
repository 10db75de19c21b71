# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server ``llm-orc`` as mcpd runs it: the ensembles of one project, on every way in, and no more than that."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.ensembles_parts import SERVER, EnsemblesRig
from tests.servers.ensembles_harness import ERAS, PAIR, REPOSITORY, invoked, read

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS = [(way, mode) for way in ("stdio", "http") for mode in ERAS]
CALLS = """\
name: calls
agents:
  - {name: greeting, mcp: {server: hello, tool: greet, arguments: {name: "${input}"}}}
  - {name: circle, mcp: {server: llm-orc, tool: validate_ensemble, arguments: {ensemble_name: pair}}}
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[EnsemblesRig]:
    """The machine."""
    with EnsemblesRig() as made:
        made.boot()
        yield made


def test_it_is_listed_and_confined(rig: EnsemblesRig) -> None:
    found = rig.listed()[SERVER]
    manifest = json.loads((REPOSITORY / "data/share/servers/llm-orc/manifest.json").read_text())
    assert found["sandboxed"] is True
    assert found["permissions"] == manifest["permissions"]
    assert not found.get("problem")


@pytest.mark.parametrize(("way", "mode"), WAYS)
async def test_ensembles_are_listed_and_run(rig: EnsemblesRig, way: str, mode: str) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with rig.connect(way, mode) as client:
        found = (await read(client, "llm-orc://ensembles"))["ensembles"]
        result = await client.call_tool(
            "invoke", {"ensemble_name": "pair", "input": "moon"}, progress_callback=on_progress
        )
        answer = result.structured_content or {}
        artifact = await read(client, answer["artifact"])
        profiles = (await read(client, "llm-orc://profiles"))["profiles"]
    assert {"project", "shipped"} <= {each["tier"] for each in found}
    assert not [each for each in found if each.get("problem")]
    assert answer["status"] == "completed"
    assert seen == [1.0, 2.0, 3.0]
    assert artifact["deliverable"] == answer["deliverable"]
    assert (rig.base / "artifacts" / answer["artifact_id"] / "execution.md").exists()
    assert "sk-secret" not in json.dumps(profiles)


def test_mcpctl_calls_it(rig: EnsemblesRig) -> None:
    result = rig.call(SERVER, "invoke", ensemble_name="pair", input="moon", output_format="text")
    assert "<moon>" in result["content"][0]["text"]


async def test_an_ensemble_of_the_project_is_changed(rig: EnsemblesRig) -> None:
    rig.put_ensemble(PAIR.replace("name: pair", "name: edited"))
    changes = {"remove_agents": ["sum"]}
    async with rig.connect("stdio", "legacy") as client:
        result = await client.call_tool(
            "update_ensemble", {"ensemble_name": "edited", "changes": changes, "dry_run": False}
        )
        found = await read(client, "llm-orc://ensemble/edited")
    assert not result.is_error, result
    assert [each["name"] for each in found["agents"]] == ["first", "second"]


async def test_what_comes_along_runs_here(rig: EnsemblesRig) -> None:
    async with rig.connect("stdio", "legacy") as client:
        answer = await invoked(client, "text-statistics", "one two two\n")
    assert json.loads(answer["deliverable"])["words"] == 3
    assert (rig.home / ".local/share/llm-orc/artifacts" / answer["artifact_id"] / "execution.json").exists()


@pytest.mark.parametrize("network", [False, True])
async def test_a_script_reaches_its_project_and_nothing_else(rig: EnsemblesRig, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        rig.probe(listening.getsockname()[1])
        rig.done("config", "set", SERVER, f"allow_script_network={json.dumps(network)}")
        async with rig.connect("stdio", "legacy") as client:
            answer = await invoked(client, "probe", "x")
        rig.done("config", "unset", SERVER, "allow_script_network")
    found: dict[str, Any] = json.loads(answer["deliverable"])
    assert "model_profiles" in found["own"]
    assert found["other"] in {"FileNotFoundError", "PermissionError"}
    assert found["project"] == "written"
    assert found["elsewhere"] in {"FileNotFoundError", "PermissionError"}
    assert found["user"] in {"FileNotFoundError", "PermissionError"}
    assert (found["network"] == "reached") is network
    assert found["secrets"] == []
    assert not {"OPENAI_API_KEY", "MCPD_SOCKET", "MCPD_SOCKET_TOKEN"} & set(found["environment"])


@pytest.mark.skipif(os.getuid() == 0, reason="root's sandbox allows no user namespaces")
@pytest.mark.parametrize("may", [False, True])
async def test_a_script_plants_no_hook_unless_it_may(rig: EnsemblesRig, may: bool) -> None:
    rig.probe(1)
    subprocess.run(["git", "init", "-q", rig.project], check=True)
    rig.done("config", "set", SERVER, f"commands_write_git={json.dumps(may)}")
    try:
        async with rig.connect("stdio", "legacy") as client:
            found = json.loads((await invoked(client, "probe", "x"))["deliverable"])
    finally:
        shutil.rmtree(rig.project / ".git")
        rig.done("config", "unset", SERVER, "commands_write_git")
    assert (found["project"], found["hook"]) == ("written", "written" if may else "OSError")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_agents_call_tools_of_other_servers_but_not_of_their_own(rig: EnsemblesRig, way: str) -> None:
    rig.put_ensemble(CALLS)
    async with rig.connect(way, "legacy") as client:
        answer = await invoked(client, "calls", "World")
    assert answer["status"] == "completed_with_errors"
    assert "Hello World!" in answer["results"]["greeting"]["response"]
    assert answer["results"]["circle"]["status"] == "failed"


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_servers_are_asked_for_their_tools_if_that_is_wanted(rig: EnsemblesRig, way: str) -> None:
    rig.put_ensemble(CALLS.replace("tool: greet,", "tool: gret,"))
    async with rig.connect(way, "legacy") as client:
        asked = await client.call_tool("validate_ensemble", {"ensemble_name": "calls", "check_tools": True})
        unasked = await client.call_tool("validate_ensemble", {"ensemble_name": "calls"})
    messages = [each["message"] for each in (asked.structured_content or {})["findings"]]
    assert any('the server "hello" lists no tool "gret"; did you mean "greet"?' in each for each in messages), messages
    assert not any("lists no tool" in str(each) for each in (unasked.structured_content or {})["findings"])


def test_a_project_that_is_not_there_is_named_where_an_ensemble_is_not_found(rig: EnsemblesRig) -> None:
    rig.done("config", "set", SERVER, 'projects=["~/nowhere"]')
    done = rig.mcpctl("call", SERVER, "validate_ensemble", "ensemble_name=pair")
    rig.done("config", "set", SERVER, 'projects=["~/src"]')
    assert done.returncode != 0
    assert f"of the configured projects {rig.home}/nowhere is not there" in done.stdout
