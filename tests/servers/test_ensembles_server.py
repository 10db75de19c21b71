# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program ``llm-orc`` with the SDK's client: its tools, what they answer, and its codes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

from tests.servers.ensembles_harness import CONFIG, ERAS, PAIR, UPPER, Room, happens, invoked
from tests.servers.failures import refused

if TYPE_CHECKING:
    from pathlib import Path


NAMES = ["invoke", "update_ensemble", "analyze_execution", "validate_ensemble", "resume_execution"]
SEED = {
    "invoke": "Execute an ensemble",
    "update_ensemble": "Modify ensemble configuration",
    "analyze_execution": "Analyze execution results",
    "validate_ensemble": "Validate ensemble configuration",
}
HALF = """\
name: half
agents:
  - {name: good, model_profile: fast}
  - {name: bad, model_profile: broken}
  - {name: after, model_profile: fast, depends_on: [bad]}
  - {name: last, model_profile: fast, depends_on: [good, bad]}
"""
ALL_BROKEN = "name: nothing\nagents:\n  - {name: bad, model_profile: broken}\n"
CYCLE = """\
name: cycle
agents:
  - {name: hen, model_profile: fast, depends_on: [egg]}
  - {name: egg, model_profile: fast, depends_on: [hen]}
"""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with two ensembles."""
    made = Room(tmp_path)
    made.put(PAIR)
    made.put(HALF)
    return made


@pytest.mark.parametrize("mode", ERAS)
async def test_tools_have_the_arguments_and_defaults_of_the_seed(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == NAMES
    schemas = {name: tool.input_schema for name, tool in tools.items()}
    said = {name: tool.description or "" for name, tool in tools.items()}
    for name, words in SEED.items():
        assert said[name].startswith(words)
    for tool in tools.values():
        assert tool.description
        for schema in filter(None, (tool.input_schema, tool.output_schema)):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert "$ref" not in json.dumps(schema)
    invoke, update = schemas["invoke"], schemas["update_ensemble"]
    assert list(invoke["properties"]) == ["ensemble_name", "input", "output_format", "streaming", "plexus_context"]
    assert invoke["required"] == ["ensemble_name", "input"]
    assert invoke["properties"]["output_format"]["enum"] == ["text", "json"]
    assert [invoke["properties"][key]["default"] for key in ("output_format", "streaming")] == ["json", True]
    assert update["required"] == ["ensemble_name", "changes"]
    assert [update["properties"][key]["default"] for key in ("dry_run", "backup")] == [True, True]
    kinds = {key: part["type"] for key, part in update["properties"]["changes"]["properties"].items()}
    assert kinds == {
        "add_agents": "array",
        "remove_agents": "array",
        "modify_dependencies": "array",
        "update_model_profiles": "object",
    }
    assert schemas["analyze_execution"]["required"] == ["artifact_id"]
    assert schemas["analyze_execution"]["properties"]["plexus_feedback"]["default"] is True
    assert schemas["validate_ensemble"]["required"] == ["ensemble_name"]


async def test_the_tools_take_little_of_a_conversation(room: Room) -> None:
    async with room.started() as client:
        tools = (await client.list_tools()).tools
    assert sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools) <= 12 * 1024


@pytest.mark.parametrize("mode", ERAS)
async def test_invoke_runs_an_ensemble_and_returns_what_each_agent_said(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        schema = next(tool for tool in (await client.list_tools()).tools if tool.name == "invoke").output_schema
        result = await client.call_tool("invoke", {"ensemble_name": "pair", "input": "moon"})
    answer = result.structured_content or {}
    assert not result.is_error
    assert json.loads(result.content[0].text) == answer  # type: ignore[union-attr]
    Draft202012Validator(schema or {}).validate(answer)
    assert answer["status"] == "completed"
    assert {name: each["status"] for name, each in answer["results"].items()} == dict.fromkeys(
        ("first", "second", "sum"), "success"
    )
    assert answer["results"]["first"]["response"] == "<moon>"
    assert answer["deliverable"] == answer["results"]["sum"]["response"]
    assert "<moon>" in answer["deliverable"]
    assert (answer["tokens"], answer["cost_usd"]) == (12, 6.0)
    kept = room.base / "artifacts" / answer["artifact_id"] / "execution.json"
    assert json.loads(kept.read_text())["deliverable"] == answer["deliverable"]


async def test_the_text_format_is_the_deliverable(room: Room) -> None:
    async with room.started() as client:
        result = await client.call_tool(
            "invoke", {"ensemble_name": "pair", "input": "moon", "output_format": "text", "streaming": False}
        )
        half = await client.call_tool("invoke", {"ensemble_name": "half", "input": "moon", "output_format": "text"})
    assert result.content[0].text == (result.structured_content or {})["deliverable"]  # type: ignore[union-attr]
    text = half.content[0].text  # type: ignore[union-attr]
    assert "bad: failed: the mock model is told to refuse" in text


async def test_input_data_is_another_name_of_input(room: Room) -> None:
    async with room.started() as client:
        result = await client.call_tool("invoke", {"ensemble_name": "pair", "input_data": "moon"})
        both = await refused(client, "invoke", ensemble_name="pair", input_data="moon", input="sun")
    assert (result.structured_content or {})["results"]["first"]["response"] == "<moon>"
    assert both.code == -32602
    assert "input_data" in both.message


async def test_an_empty_input_is_the_default_task(room: Room) -> None:
    async with room.started() as client:
        answer = await invoked(client, "pair")
    assert answer["results"]["first"]["response"] == "<What is there?>"


@pytest.mark.parametrize("mode", ERAS)
async def test_what_fails_in_a_run_is_in_its_result(room: Room, mode: str) -> None:
    room.put(ALL_BROKEN)
    async with room.started(mode=mode) as client:
        answer = await invoked(client, "half", "x")
        failed = await client.call_tool("invoke", {"ensemble_name": "nothing", "input": "x"})
    statuses = {name: each["status"] for name, each in answer["results"].items()}
    assert statuses == {"good": "success", "bad": "failed", "after": "skipped", "last": "success"}
    assert answer["status"] == "completed_with_errors"
    assert answer["results"]["bad"]["error"] == "the mock model is told to refuse"
    assert set(answer["results"]["after"]) == {"status", "error", "fault", "seconds"}
    assert failed.is_error
    assert (failed.structured_content or {})["status"] == "failed"
    assert (failed.structured_content or {})["results"]["bad"]["fault"]["data"]["provider"] == "mock"


@pytest.mark.parametrize("mode", ERAS)
async def test_codes_of_faults(room: Room, mode: str) -> None:
    room.put("name: wrong\nagents:\n  - {name: a, model_profile: fast, sriptt: 1}\n", "wrong")
    async with room.started(mode=mode) as client:
        unknown_tool = await refused(client, "format")
        missing = await refused(client, "invoke", ensemble_name="pair")
        odd = await refused(client, "invoke", ensemble_name="pair", input="x", output_format="yaml")
        unknown = await refused(client, "invoke", ensemble_name="piar", input="x")
        wrong = await refused(client, "invoke", ensemble_name="wrong", input="x")
        artifact = await refused(client, "analyze_execution", artifact_id="pair/20200101-000000-000")
    assert [each.code for each in (unknown_tool, missing, odd, unknown, wrong, artifact)] == [-32602] * 6
    assert [each.form for each in (unknown_tool, missing, odd, unknown, wrong, artifact)] == ["json-rpc"] + [
        "result"
    ] * 5
    assert "Unknown tool: format" in unknown_tool.message
    assert "the argument 'input' is missing" in missing.message
    assert "output_format" in odd.message
    assert "pair" in unknown.message
    assert (unknown.data["tool"], unknown.data["error"]) == ("invoke", "NotFound")
    assert f"{room.base}/ensembles/wrong.yaml:3" in wrong.message
    assert wrong.data["line"] == 3
    assert artifact.data["error"] == "NotFound"


async def test_null_is_as_good_as_left_out(room: Room) -> None:
    async with room.started() as client:
        schemas = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
        wanted = {"ensemble_name": "pair", "input": "x", "artifact_id": (await invoked(client, "pair"))["artifact_id"]}
        for name in ("invoke", "validate_ensemble", "analyze_execution"):
            result = await client.call_tool(name, {argument: wanted.get(argument) for argument in schemas[name]})
            assert not result.is_error, (name, result)


async def test_validate_ensemble_says_what_is_wrong_and_where(room: Room) -> None:
    file = room.put(CYCLE)
    room.put("name: [\n", "torn")
    room.put("name: lost\nagents:\n  - {name: a, model_profile: none}\n  - {name: b, script: scripts/no.py}\n")
    async with room.started() as client:
        found = {
            name: (await client.call_tool("validate_ensemble", {"ensemble_name": name})).structured_content or {}
            for name in ("pair", "cycle", "torn", "lost")
        }
    assert {name: each["valid"] for name, each in found.items()} == {
        "pair": True, "cycle": False, "torn": False, "lost": False
    }  # fmt: skip
    assert found["pair"]["findings"] == []
    cycle = found["cycle"]["findings"][0]
    assert cycle["file"] == str(file)
    assert "hen" in cycle["message"]
    assert "egg" in cycle["message"]
    assert [each["line"] for each in found["lost"]["findings"]] == [3, 4]
    assert [each["agent"] for each in found["lost"]["findings"]] == ["a", "b"]


async def test_validate_ensemble_warns_of_models_that_would_not_be_asked(room: Room) -> None:
    paid = (
        "  paid: {provider: openai, model: m}\n  far: {provider: openai, model: m, base_url: https://far.example/v1}\n"
    )
    (room.base / "config.yaml").write_text(CONFIG + paid)
    room.put("name: asks\nagents:\n  - {name: a, model_profile: paid}\n  - {name: b, model_profile: far}\n")
    async with room.started() as client:
        found = (await client.call_tool("validate_ensemble", {"ensemble_name": "asks"})).structured_content or {}
    assert found["valid"]
    assert [(each["agent"], each["severity"]) for each in found["findings"]] == [("a", "warning"), ("b", "warning")]
    key, address = (each["message"] for each in found["findings"])
    assert "there is no key for https://api.openai.com/v1" in key
    assert "https://far.example/v1, which you have not allowed" in address


async def test_analyze_execution_names_what_failed(room: Room) -> None:
    async with room.started() as client:
        answer = await invoked(client, "half", "x")
        result = await client.call_tool("analyze_execution", {"artifact_id": answer["artifact_id"]})
    found = result.structured_content or {}
    assert (found["ensemble"], found["status"]) == ("half", "completed_with_errors")
    assert "bad" in json.dumps(found["analysis"]["failures"])
    assert "plexus" not in found


async def test_resume_execution_runs_only_what_has_no_response(room: Room) -> None:
    file = room.put(HALF)
    async with room.started() as client:
        before = await invoked(client, "half", "x")
        file.write_text(HALF.replace("model_profile: broken", "model_profile: fast"))
        result = await client.call_tool("resume_execution", {"artifact_id": before["artifact_id"]})
    after = result.structured_content or {}
    assert after["status"] == "completed"
    assert after["artifact_id"] != before["artifact_id"]
    assert {name for name, each in after["results"].items() if each.get("reused")} == {"good"}
    assert after["results"]["after"]["response"]


async def test_a_script_gets_the_input_and_runs_below_its_project(room: Room) -> None:
    room.put_script("upper.py", UPPER)
    room.put("name: loud\nagents:\n  - {name: shout, script: scripts/upper.py}\n")
    async with room.started() as client:
        answer = await invoked(client, "loud", "moon")
    assert answer["deliverable"] == "MOON"


async def test_the_projects_are_those_that_are_named(room: Room) -> None:
    missing = room.directory / "missing"
    async with room.started("--project", "~/other", "--project", str(missing)) as client:
        answer = await client.call_tool("validate_ensemble", {"ensemble_name": "text-statistics"})
        error = await refused(client, "invoke", ensemble_name="pair", input="x")
    assert (answer.structured_content or {})["valid"] is True
    assert "pair" in error.message
    assert f"of the configured projects {room.home}/other, {missing} is not there" in error.message


async def test_without_a_project_the_nearest_one_counts(room: Room) -> None:
    inner = room.project / "src" / "deep"
    inner.mkdir(parents=True)
    command = [*room.argv("status", "--json")]
    at = command.index("--project")
    del command[at : at + 2]
    done = subprocess.run(
        [sys.executable, *command], env=room.environ, cwd=inner, capture_output=True, text=True, check=False, timeout=60
    )
    found = json.loads(done.stdout)
    assert found["directories"]["project project"]["path"] == str(room.project)
    assert os.listdir(inner) == []  # noqa: PTH208


@pytest.mark.parametrize("mode", ERAS)
async def test_wrong_settings_are_the_answer_to_every_call(room: Room, mode: str) -> None:
    async with room.started("--script-network=perhaps", mode=mode) as client:
        error = await refused(client, "invoke", ensemble_name="pair", input="x")
        assert (await client.list_tools()).tools
    assert error.code == -32602
    assert "script_network is 'perhaps'; it can be true, false" in error.message


async def test_resume_execution_takes_the_ensemble_whose_run_it_was(room: Room) -> None:
    own = room.home / ".config/llm-orc/ensembles"
    own.mkdir(parents=True)
    (own / "pair.yaml").write_text("name: pair\nagents:\n  - {name: mine, script: scripts/upper.py}\n")
    scripts = own.parent / "scripts"
    scripts.mkdir()
    (scripts / "upper.py").write_text(UPPER)
    async with room.started() as client:
        before = await invoked(client, "user/pair", "moon")
        result = await client.call_tool("resume_execution", {"artifact_id": before["artifact_id"]})
    assert list((result.structured_content or {})["results"]) == ["mine"]
    assert before["deliverable"] == "MOON"


async def test_a_result_that_is_too_long_is_cut_and_its_artifact_is_not(room: Room) -> None:
    room.put("name: wide\nagents:\n  - {name: root, model_profile: fast}\n" + "".join(
        f"  - {{name: leaf{number}, model_profile: fast, depends_on: [root], input_scope: dependencies}}\n"
        for number in range(9)
    ))  # fmt: skip
    async with room.started() as client:
        answer = await invoked(client, "wide", "x" * 500_000)
        kept = json.loads((room.base / "artifacts" / answer["artifact_id"] / "execution.json").read_text())
        text = await client.call_tool(
            "invoke", {"ensemble_name": "wide", "input": "x" * 500_000, "output_format": "text"}
        )
    assert answer["cut"] is True
    assert sum(len(each["response"]) for each in answer["results"].values()) <= 1024 * 1024
    assert all(each["cut"] for each in answer["results"].values())
    assert len(answer["deliverable"]) == 1024 * 1024 < len(kept["deliverable"])
    told = text.content[0].text  # type: ignore[union-attr]
    assert len(told) < 1024 * 1024 + 200
    assert told.endswith(f"are in {(text.structured_content or {})['artifact']}.")
    assert len(kept["results"]["leaf0"]["response"]) > 500_000


async def test_no_more_runs_than_there_may_be(room: Room) -> None:
    room.put("name: slow\nagents:\n  - {name: sleepy, model_profile: slow}\n")
    async with room.started() as client:
        runs = [
            asyncio.create_task(client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"})) for _ in range(32)
        ]
        await happens(lambda: len([*(room.base / "artifacts/slow").glob("2*")]) == 32)
        error = await refused(client, "invoke", ensemble_name="pair", input="x")
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
    assert error.code == -32005
    assert "32 runs" in error.message


@pytest.mark.parametrize("mode", ERAS)
async def test_a_result_has_what_a_client_needs_and_its_artifact_the_rest(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        answer = await invoked(client, "pair", "moon")
    kept = json.loads((room.base / "artifacts" / answer["artifact_id"] / "execution.json").read_text())
    assert set(answer) == {
        "ensemble", "status", "artifact_id", "artifact", "results", "deliverable", "seconds", "tokens", "cost_usd"
    }  # fmt: skip
    assert set(answer["results"]["first"]) == {"status", "response", "seconds", "model", "tokens", "cost_usd"}
    assert {"definition", "started_at", "completed_at", "kind"} <= set(kept["results"]["first"])


async def test_a_run_that_goes_on_is_not_continued(room: Room) -> None:
    room.put("name: slow\nagents:\n  - {name: sleepy, model_profile: slow}\n")
    async with room.started() as client:
        run = asyncio.create_task(client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}))
        await happens(lambda: [*room.base.glob("artifacts/slow/2*/execution.json")])
        error = await refused(client, "resume_execution", artifact_id="slow/latest")
        run.cancel()
        await asyncio.wait([run])
    assert error.data["error"] == "Busy"
    assert "still goes on" in error.message
