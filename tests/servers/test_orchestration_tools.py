# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tools over stdio, in both eras: schemas, answers and errors exactly."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jsonschema import Draft202012Validator

from tests.servers.orchestration_harness import ERAS, SEED_TOOLS, Machine, answer, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcp import Client

OWN = {"command": "own", "args": ["x"]}
PAYLOAD = {"mcpServers": {"own": OWN}}
CLIENT_ITEM = {"client_id", "display_name", "platform", "available_profiles"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.install("notes")
    return made


@pytest.fixture(params=ERAS)
async def client(machine: Machine, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async for made in machine.held(request.param):
        yield made


async def test_the_tools_take_little_of_a_conversation(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools) <= 12 * 1024


async def test_the_tools_of_the_source_document_come_first_with_its_schemas(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools][:4] == SEED_TOOLS
    found = {tool.name: tool for tool in tools}
    assert found["list_clients"].input_schema == {"type": "object", "properties": {}, "required": []}
    assert found["list_profiles"].input_schema["required"] == ["client_id"]
    assert list(found["get_config"].input_schema["properties"]) == ["client_id", "profile_id", "artifact_id"]
    # Clients refuse schemas with alternatives at the top, so the service itself asks for exactly one of the two.
    assert found["diff_config"].input_schema["required"] == ["client_id"]
    config = found["get_config"].output_schema or {}
    assert config["required"] == [name for name in config["properties"] if name != "metadata"]
    assert config["properties"]["artifact_id"]["pattern"] == "^[a-f0-9]{64}$"
    assert found["diff_config"].output_schema["properties"]["status"]["enum"] == [  # type: ignore[index]
        "up-to-date", "outdated", "diverged", "unknown",
    ]  # fmt: skip
    for tool in tools:
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema or {})
        assert tool.description, tool.name
        assert tool.annotations is not None, tool.name


async def test_the_list_of_tools_is_small(client: Client) -> None:
    tools = [
        tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in (await client.list_tools()).tools
    ]
    assert len(json.dumps(tools, separators=(",", ":"))) < 12 * 1024


async def test_clients_are_listed_with_their_files_and_profiles(client: Client) -> None:
    found = answer(await client.call_tool("list_clients", {}))
    assert found["count"] == len(found["clients"]) >= 20
    assert all(set(each) >= CLIENT_ITEM and each["available_profiles"] for each in found["clients"])
    desktop, cursor = found["clients"][:2]
    seed = {"client_id", "display_name", "platform", "config_location", "available_profiles"}
    assert {key: desktop[key] for key in seed} == {
        "client_id": "claude-desktop",
        "display_name": "Claude Desktop",
        "platform": "macos",
        "config_location": "~/Library/Application Support/Claude/claude_desktop_config.json",
        "available_profiles": ["default", "dev", "prod"],
    }
    assert {key: cursor[key] for key in seed} == {
        "client_id": "cursor",
        "display_name": "Cursor IDE",
        "platform": "cross-platform",
        "config_location": "~/.cursor/mcp_config.json",
        "available_profiles": ["default", "dev"],
    }


async def test_every_profile_has_a_configuration(client: Client) -> None:
    found = answer(await client.call_tool("list_profiles", {"client_id": "claude-desktop"}))
    assert (found["client_id"], found["count"]) == ("claude-desktop", 3)
    names = {each["profile_id"]: each["display_name"] for each in found["profiles"]}
    assert names == {"default": "Default", "dev": "Development", "prod": "Production"}
    for each in found["profiles"]:
        assert re.fullmatch(r"[a-f0-9]{64}", each["latest_artifact_id"])
        assert each["updated_at"].endswith("Z")


async def test_an_unknown_client_is_refused_with_the_known_ones(client: Client) -> None:
    for tool in ("list_profiles", "get_config"):
        found = refusal(await client.call_tool(tool, {"client_id": "unknown-client"}))
        assert found["error"] == "client_not_found"
        assert found["message"] == "Client 'unknown-client' not found"
        assert found["available_clients"][:2] == ["claude-desktop", "cursor"]
    found = refusal(await client.call_tool("diff_config", {"client_id": "unknown-client", "local_payload": PAYLOAD}))
    assert found["error"] == "client_not_found"


async def test_a_configuration_is_named_by_the_hash_of_its_payload(client: Client, machine: Machine) -> None:
    found = answer(await client.call_tool("get_config", {"client_id": "claude-desktop"}))
    assert found["profile_id"] == "default"
    assert found["payload"] == {"mcpServers": {"notes": {"command": "mcpctl", "args": ["run", "notes"]}}}
    canonical = json.dumps(found["payload"], sort_keys=True, separators=(",", ":")).encode()
    assert found["artifact_id"] == hashlib.sha256(canonical).hexdigest()
    assert found["metadata"]["generator"] == "mcpd"
    again = await client.call_tool(
        "get_config", {"client_id": "claude-desktop", "profile_id": "default", "artifact_id": found["artifact_id"]}
    )
    assert answer(again) == found


async def test_openssl_and_jq_verify_a_configuration(client: Client, machine: Machine, tmp_path: Path) -> None:
    found = answer(await client.call_tool("get_config", {"client_id": "cursor"}))
    (tmp_path / "artifact.json").write_text(json.dumps(found))
    script = f"""
        set -e
        jq -cSa .payload artifact.json | tr -d '\\n' > payload
        sha256sum payload | cut -d' ' -f1
        jq -r .signature artifact.json | base64 -d > signature
        openssl pkeyutl -verify -pubin -inkey {machine.tree}/verification_key.pem -rawin -in payload -sigfile signature
        printf x >> payload
        ! openssl pkeyutl -verify -pubin -inkey {machine.tree}/verification_key.pem -rawin -in payload \
            -sigfile signature 2>/dev/null
    """
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == found["artifact_id"]


async def test_unknown_profiles_and_artifacts_are_refused(client: Client) -> None:
    found = refusal(await client.call_tool("get_config", {"client_id": "claude-desktop", "profile_id": "nope"}))
    assert found == {
        "error": "profile_not_found",
        "message": "Profile 'nope' not found for client 'claude-desktop'",
        "available_profiles": ["default", "dev", "prod"],
    }
    for artifact in ("ab" * 32, "abc123", "../../etc/passwd", ""):
        found = refusal(await client.call_tool("get_config", {"client_id": "cursor", "artifact_id": artifact}))
        assert (found["error"], found["message"]) == ("artifact_not_found", f"Artifact '{artifact}' not found")
        assert list(found["details"]) == ["artifact_id"]


async def test_a_configuration_is_compared_with_the_latest(client: Client, machine: Machine) -> None:
    old = answer(await client.call_tool("get_config", {"client_id": "cursor"}))
    ask: dict[str, Any] = {"client_id": "cursor", "local_artifact_id": old["artifact_id"]}
    found = answer(await client.call_tool("diff_config", ask))
    assert found["status"] == "up-to-date"
    assert found["recommendation"] == "Your configuration is current. No updates needed."
    assert found["diff"]["servers_unchanged"] == ["notes"]
    machine.install("github")
    answer(await client.call_tool("publish_config", {"client_id": "cursor"}))
    found = answer(await client.call_tool("diff_config", ask))
    assert (found["status"], found["diff"]["servers_added"]) == ("outdated", ["github"])
    assert found["recommendation"] == "Update available: 1 new server. Run 'get_config' to fetch latest."
    found = answer(await client.call_tool("diff_config", {"client_id": "cursor", "local_payload": PAYLOAD}))
    assert (found["status"], found["diff"]["servers_removed"]) == ("diverged", ["own"])
    found = answer(await client.call_tool("diff_config", {"client_id": "cursor", "local_artifact_id": "ab" * 32}))
    assert (found["status"], found["local_artifact_id"]) == ("unknown", "ab" * 32)
    assert found["summary"] == {"total_changes": 0, "added_count": 0, "removed_count": 0, "modified_count": 0}
    assert set(found["diff"]) == {"servers_added", "servers_removed", "servers_modified", "servers_unchanged"}
    assert "get_config" in found["recommendation"]
    no_id = refusal(await client.call_tool("diff_config", {"client_id": "cursor", "local_artifact_id": "abc"}))
    assert no_id["error"] == "artifact_not_found"
    for wrong in ({}, {"local_artifact_id": old["artifact_id"], "local_payload": PAYLOAD}):
        refused = refusal(await client.call_tool("diff_config", {"client_id": "cursor", **wrong}))
        assert (refused["error"], "exactly one of" in refused["message"]) == ("invalid_input", True)


async def test_asking_keeps_nothing_and_follows_what_is_installed(client: Client, machine: Machine) -> None:
    who = {"client_id": "cursor"}
    local = {"local_payload": {"mcpServers": {"notes": {"command": "mcpctl", "args": ["run", "notes"]}}}, **who}
    for tool, given in (
        ("list_profiles", who), ("diff_config", local), ("view_draft_config", who), ("validate_config", who),
        ("deploy_config", who), ("drift_config", who), ("undo_config", who),
    ):  # fmt: skip
        answer(await client.call_tool(tool, given))
    assert not machine.tree.exists()
    first = answer(await client.call_tool("get_config", who))
    assert answer(await client.call_tool("get_config", who)) == first
    machine.install("github")
    second = answer(await client.call_tool("get_config", who))
    assert [[*each["payload"]["mcpServers"]] for each in (first, second)] == [["notes"], ["github", "notes"]]
    profiles = answer(await client.call_tool("list_profiles", who))["profiles"]
    assert profiles[0]["latest_artifact_id"] == second["artifact_id"]
    assert answer(await client.call_tool("diff_config", local))["status"] == "outdated"
    key = load_pem_public_key((machine.tree / "verification_key.pem").read_bytes())
    for each in (first, second):
        content = json.dumps(each["payload"], sort_keys=True, separators=(",", ":")).encode()
        key.verify(base64.b64decode(each["signature"]), content)  # type: ignore[union-attr, call-arg]
    # A key is all that it leaves behind: no release, and no line that something was published.
    kept = {path.relative_to(machine.tree).parts[0] for path in machine.tree.rglob("*") if path.is_file()}
    assert kept <= {".lock", "keys", "verification_key.pem", "verification_key.raw"}

    published = answer(await client.call_tool("publish_config", who))
    machine.install("later")
    asked = answer(await client.call_tool("get_config", who))
    assert asked == {name: published[name] for name in asked}


async def test_an_earlier_release_is_outdated_and_not_diverged(client: Client, machine: Machine) -> None:
    old = answer(await client.call_tool("publish_config", {"client_id": "cursor"}))
    answer(await client.call_tool("add_server_to_config", {"client_id": "cursor", "server_id": "own", "entry": OWN}))
    answer(await client.call_tool("remove_server_from_config", {"client_id": "cursor", "server_name": "notes"}))
    answer(await client.call_tool("publish_config", {"client_id": "cursor"}))
    for local in ({"local_artifact_id": old["artifact_id"]}, {"local_payload": old["payload"]}):
        found = answer(await client.call_tool("diff_config", {"client_id": "cursor", **local}))
        assert (found["status"], found["diff"]["servers_removed"]) == ("outdated", ["notes"])
        assert found["recommendation"] == (
            "Update available: 1 new server, 1 server removed. Run 'get_config' to fetch latest."
        )
    theirs = {"mcpServers": {**old["payload"]["mcpServers"], "theirs": OWN}}
    found = answer(await client.call_tool("diff_config", {"client_id": "cursor", "local_payload": theirs}))
    assert (found["status"], found["diff"]["servers_removed"]) == ("diverged", ["notes", "theirs"])


async def test_objects_may_come_as_json_text(client: Client) -> None:
    ask = {"client_id": "cursor", "local_payload": json.dumps(PAYLOAD)}
    assert answer(await client.call_tool("diff_config", ask))["status"] == "diverged"
    ask["local_payload"] = "{"
    assert refusal(await client.call_tool("diff_config", ask))["error"] == "invalid_input"


WRONG = {"string": (5, True, ["cursor"], {"a": 1}, "x" * 5000), "object": (5, "{", [1]), "array": (5, "x", {}),
         "boolean": (1, "true", [])}  # fmt: skip


async def test_wrong_types_are_invalid_input_for_every_tool(machine: Machine) -> None:
    async with machine.served() as client:
        for tool in (await client.list_tools()).tools:
            required = dict.fromkeys(tool.input_schema["required"], "x")
            for name, schema in tool.input_schema["properties"].items():
                for value in WRONG[schema["type"]]:
                    if name != "changelog" or not isinstance(value, str):
                        found = refusal(await client.call_tool(tool.name, {**required, name: value}))
                        assert found["error"] == "invalid_input", (tool.name, name, value)


async def test_null_is_as_good_as_left_out_for_every_tool(machine: Machine) -> None:
    wanted: dict[str, Any] = {"client_id": "cursor", "server_id": "notes", "local_payload": PAYLOAD}
    async with machine.served() as client:
        for tool in (await client.list_tools()).tools:
            names = tool.input_schema["properties"].keys()
            given = {name: wanted.get(name) for name in names}
            result = await client.call_tool(tool.name, given)
            assert not result.is_error or refusal(result)["error"] != "invalid_input", (tool.name, result)


async def test_an_argument_that_a_tool_has_not_is_named(client: Client) -> None:
    found = refusal(await client.call_tool("publish_config", {"client_id": "cursor", "message": "hi"}))
    assert found["details"] == {"field": "message"}
    assert "changelog" in found["message"]
    assert answer(await client.call_tool("get_config", {"client_id": "cursor", "more": 1}))


async def test_a_missing_argument_and_an_unknown_tool(client: Client) -> None:
    found = refusal(await client.call_tool("get_config", {}))
    assert (found["error"], found["details"]) == ("invalid_input", {"field": "client_id"})
    with pytest.raises(Exception, match="Unknown tool: nothing"):
        await client.call_tool("nothing", {})


@pytest.mark.parametrize("mode", ERAS)
async def test_the_program_answers_over_stdio(machine: Machine, mode: str) -> None:
    async with machine.started(mode=mode) as client:
        found = answer(await client.call_tool("publish_config", {"client_id": "cursor"}))
        assert refusal(await client.call_tool("get_config", {"client_id": "nobody"}))["error"] == "client_not_found"
    async with machine.started("--system", mode=mode) as client:
        assert "publish_config" not in [tool.name for tool in (await client.list_tools()).tools]
    assert (machine.tree / "artifacts" / f"{found['artifact_id']}.json").exists()


async def test_every_request_is_timed(machine: Machine) -> None:
    async with machine.started() as client:
        await client.call_tool("list_clients", {})
        await client.read_resource("capabilities://server")
    assert re.search(r"mcp-orchestration: tools/call list_clients: [\d.]+ ms", machine.log)
    assert re.search(r"mcp-orchestration: resources/read capabilities://server: [\d.]+ ms", machine.log)
