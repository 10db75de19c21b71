# SPDX-License-Identifier: LGPL-2.1-or-later
"""Resources, drafts and keys of ``mcp-orchestration``, and files that are not as it left them."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference

from tests.servers.orchestration_harness import ERAS, SEED_TOOLS, Machine, answer, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcp import Client

WHO = {"client_id": "cursor", "profile_id": "default"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.install("notes")
    return made


@pytest.fixture(params=ERAS)
async def client(machine: Machine, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async for made in machine.held(request.param):
        yield made


async def read(client: Client, uri: str) -> Any:
    found = (await client.read_resource(uri)).contents[0]
    assert found.mime_type == "application/json"
    return json.loads(found.text)  # type: ignore[union-attr]


async def test_the_server_describes_itself(client: Client, machine: Machine) -> None:
    found = await read(client, "capabilities://server")
    assert (found["name"], found["version"], found["wave"]) == ("mcp-orchestration", "0.1.0", "Wave 1: Foundation")
    assert found["capabilities"]["tools"] == [tool.name for tool in (await client.list_tools()).tools]
    assert found["capabilities"]["tools"][:4] == SEED_TOOLS
    assert found["capabilities"]["resources"][:2] == ["capabilities://server", "capabilities://clients"]
    listed = [str(each.uri) for each in (await client.list_resources()).resources]
    listed += [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
    assert found["capabilities"]["resources"] == listed
    assert found["capabilities"]["prompts"] == (await client.list_prompts()).prompts == []
    with pytest.raises(MCPError, match="unknown prompt: migrate_config"):
        await client.get_prompt("migrate_config", {})
    assert found["features"] == {
        "content_addressing": True,
        "cryptographic_signing": True,
        "signature_algorithm": "Ed25519",
        "diff_reports": True,
        "profile_support": True,
    }
    assert found["endpoints"]["verification_key_url"] == (machine.tree / "verification_key.pem").as_uri()
    assert found["protocol_versions"][0] == "2024-11-05"


async def test_the_url_of_the_verification_key_can_be_set(machine: Machine) -> None:
    machine.environ["MCP_ORCHESTRATION_URL"] = "https://config.example.com/"
    async with machine.started() as client:
        found = await read(client, "capabilities://server")
    assert found["endpoints"]["verification_key_url"] == "https://config.example.com/keys/verification_key.pem"


async def test_capabilities_of_clients_are_those_of_the_source_document(client: Client) -> None:
    found = {each["client_id"]: each for each in (await read(client, "capabilities://clients"))["clients"]}
    desktop, cursor = found["claude-desktop"], found["cursor"]
    assert (desktop["version_min"], desktop["version_max"], desktop["config_format"]) == ("0.5.0", None, "json")
    assert set(desktop["supports"].values()) == {True}
    assert desktop["limitations"] == {"max_servers": None, "max_env_vars_per_server": None}
    assert (cursor["version_min"], cursor["supports"]["working_directory"]) == ("0.1.0", False)
    assert cursor["limitations"] == {"max_servers": 20, "max_env_vars_per_server": 50}
    assert {each["config_format"] for each in found.values()} == {"json", "yaml", "toml"}


async def test_the_other_resources(client: Client, machine: Machine) -> None:
    config = answer(await client.call_tool("get_config", WHO))
    assert await read(client, "config://cursor/default/latest") == config
    assert (await read(client, "config://cursor/default/draft"))["exists"] is False
    assert (await read(client, "config://cursor/default/deployed"))["deployed"] is None
    assert [each["server_id"] for each in (await read(client, "server://registry"))["servers"]] == ["notes"]
    assert (await read(client, "server://notes"))["command"] == ["mcpctl", "run", "notes"]
    key = (await client.read_resource("keys://verification_key.pem")).contents[0]
    assert key.text == (machine.tree / "verification_key.pem").read_text()  # type: ignore[union-attr]
    raw = (await client.read_resource("keys://verification_key.raw")).contents[0]
    assert base64.b64decode(raw.blob) == (machine.tree / "verification_key.raw").read_bytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("uri", "code"),
    [("config://nobody/default/latest", "client_not_found"), ("config://cursor/nope/draft", "profile_not_found"),
     ("server://nothing", "server_not_found"), ("capabilities://nothing", "invalid_input")],
)  # fmt: skip
@pytest.mark.parametrize(("mode", "number"), [("legacy", -32002), ("2026-07-28", -32602)])
async def test_resources_that_are_not_there(machine: Machine, uri: str, code: str, mode: str, number: int) -> None:
    async with machine.served(mode=mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource(uri)
    assert caught.value.error.code == number
    assert caught.value.error.data["uri"] == uri
    assert caught.value.error.data["error"] == code


async def test_arguments_are_completed(client: Client) -> None:
    template = ResourceTemplateReference(uri="config://{client_id}/{profile_id}/latest")
    found = await client.complete(template, {"name": "client_id", "value": "cur"})
    assert found.completion.values == ["cursor"]
    found = await client.complete(
        template, {"name": "profile_id", "value": ""}, context_arguments={"client_id": "cursor"}
    )
    assert found.completion.values == ["default", "dev"]


async def test_a_draft_is_kept_validated_published_and_gone(machine: Machine) -> None:
    machine.install("github")
    async with machine.served() as client:
        before = answer(await client.call_tool("publish_config", WHO))
        added = answer(await client.call_tool("remove_server_from_config", {"server_id": "notes", **WHO}))
        assert added["changes"]["servers_removed"] == ["notes"]
        answer(await client.call_tool("add_server_to_config", {"server_id": "github", "env_vars": ["LANG"], **WHO}))
    async with machine.served() as client:
        draft = answer(await client.call_tool("view_draft_config", WHO))
        assert draft["exists"]
        entry = {"command": "mcpctl", "args": ["run", "github"], "env": {"LANG": "${env:LANG}"}}
        assert draft["draft"] == {"mcpServers": {"github": entry}}
        assert answer(await client.call_tool("validate_config", WHO))["valid"]
        after = answer(await client.call_tool("publish_config", WHO))
        assert after["published"]
        assert after["artifact_id"] != before["artifact_id"]
        assert not answer(await client.call_tool("view_draft_config", WHO))["exists"]
        assert answer(await client.call_tool("get_config", WHO))["artifact_id"] == after["artifact_id"]


async def test_a_published_draft_is_replaced_by_what_is_installed_only_on_demand(machine: Machine) -> None:
    entry = {"command": "own", "args": []}
    async with machine.served() as client:
        answer(await client.call_tool("add_server_to_config", {"server_id": "own", "entry": entry, **WHO}))
        chosen = answer(await client.call_tool("publish_config", WHO))
        refused = refusal(await client.call_tool("publish_config", WHO))
        assert (refused["error"], refused["details"]["dropped"]) == ("invalid_input", ["own"])
        assert "from_installed" in refused["message"]
        assert answer(await client.call_tool("get_config", WHO))["artifact_id"] == chosen["artifact_id"]
        done = answer(await client.call_tool("publish_config", {"from_installed": True, **WHO}))
        assert (done["dropped"], [*done["payload"]["mcpServers"]]) == (["own"], ["notes"])


async def test_a_server_is_named_alike_where_it_is_added_and_removed(machine: Machine) -> None:
    machine.install("github")
    names = ("add_server_to_config", "remove_server_from_config")
    async with machine.served() as client:
        schemas = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        for name in names:
            assert schemas[name]["required"] == ["server_id"]
            assert "server_name" not in schemas[name]["properties"]
        for argument in ("server_id", "server_name"):
            for name, there in zip(names, (["github", "notes"], ["notes"]), strict=True):
                draft = answer(await client.call_tool(name, {argument: "github", **WHO}))["draft"]
                assert sorted(draft["mcpServers"]) == there
        # Both are the server and its name in the configuration.
        both = {"server_id": "github", "server_name": "second", **WHO}
        for name, there in zip(names, (["notes", "second"], ["notes"]), strict=True):
            assert sorted(answer(await client.call_tool(name, both))["draft"]["mcpServers"]) == there
        for name in names:
            for wrong in ({}, {"server_name": 5}, {"server_id": "github", "server_name": 5}):
                refused = refusal(await client.call_tool(name, {**wrong, **WHO}))
                assert refused["error"] == "invalid_input"
                assert refused["details"]["field"] in {"server_id", "server_name"}


async def test_a_draft_is_shown_as_it_would_begin(machine: Machine) -> None:
    async with machine.served() as client:
        shown = answer(await client.call_tool("view_draft_config", WHO))
        assert (shown["exists"], shown["base_artifact_id"], shown["updated_at"]) == (False, None, None)
        assert (list(shown["draft"]["mcpServers"]), shown["changes"]["servers_added"]) == (["notes"], ["notes"])
        entry = {"command": "own", "args": []}
        added = answer(await client.call_tool("add_server_to_config", {"server_id": "own", "entry": entry, **WHO}))
        assert added["draft"] == {"mcpServers": {**shown["draft"]["mcpServers"], "own": entry}}


async def test_a_faulty_draft_is_not_published(machine: Machine) -> None:
    async with machine.served() as client:
        answer(await client.call_tool("remove_server_from_config", {"server_name": "notes", **WHO}))
        found = answer(await client.call_tool("validate_config", WHO))
        assert [each["code"] for each in found["errors"]] == ["EMPTY_CONFIG"]
        refused = refusal(await client.call_tool("publish_config", WHO))
        assert refused["error"] == "validation_failed"
        secret = {"command": "x", "args": [], "env": {"API_KEY": "sk-1234567890abcdef1234567890abcdef"}}
        refused = refusal(await client.call_tool("add_server_to_config", {"server_id": "own", "entry": secret, **WHO}))
        assert [each["code"] for each in refused["details"]["errors"]] == ["SECRET_VALUE"]
        assert not any("sk-1234567890" in path.read_text() for path in machine.tree.rglob("*.json*"))
        # Whoever edits the file is not held up, and publishes nothing either.
        draft = machine.tree / "drafts/cursor/default.json"
        draft.write_text(json.dumps(json.loads(draft.read_text()) | {"payload": {"mcpServers": {"own": secret}}}))
        refused = refusal(await client.call_tool("publish_config", WHO))
        assert [each["code"] for each in refused["details"]["errors"]] == ["SECRET_VALUE"]
        assert "sk-1234567890abcdef" not in json.dumps(refused)
        assert answer(await client.call_tool("clear_draft_config", WHO))["cleared"]
    lines = [json.loads(line) for line in (machine.tree / "audit.jsonl").read_text().splitlines()]
    assert [line["fields"]["outcome"] for line in lines if line["name"] == "publish_config"][-2:] == ["refused"] * 2


async def test_the_policy_keeps_a_release_from_being_published_and_deployed(machine: Machine) -> None:
    async with machine.served() as client:
        answer(await client.call_tool("publish_config", WHO))
        policy = machine.root / "system/etc/mcp/policy.toml"
        policy.parent.mkdir(parents=True)
        policy.write_text('[servers]\nforbidden = ["notes"]\n')
        found = answer(await client.call_tool("validate_config", WHO))
        assert [each["server_id"] for each in found["violations"]] == ["notes"]
        assert refusal(await client.call_tool("publish_config", WHO))["error"] == "policy_violation"
        assert refusal(await client.call_tool("deploy_config", WHO))["error"] == "policy_violation"
        policy.write_text("[servers\n")
        assert "policy.toml" in refusal(await client.call_tool("publish_config", WHO))["message"]


async def test_the_first_release_leaves_out_what_could_not_be_published(machine: Machine) -> None:
    machine.install("evil")
    machine.install("AKIAABCDEFGHIJKLMNOP")
    policy = machine.root / "system/etc/mcp/policy.toml"
    policy.parent.mkdir(parents=True)
    policy.write_text('[servers]\nforbidden = ["evil"]\n')
    async with machine.served() as client:
        assert list(answer(await client.call_tool("get_config", WHO))["payload"]["mcpServers"]) == ["notes"]
        policy.unlink()
        assert "evil" in answer(await client.call_tool("get_config", WHO))["payload"]["mcpServers"]
        policy.write_text('[servers]\nforbidden = ["evil", "notes"]\n')
        assert answer(await client.call_tool("get_config", WHO))["payload"]["mcpServers"] == {}
        policy.write_text("[servers\n")
        refused = refusal(await client.call_tool("list_profiles", {"client_id": "zed"}))
        assert "policy.toml" in refused["message"]
        assert not (machine.tree / "index/zed").exists()


async def test_taking_back_and_deploying_again_are_ways_out_of_a_release_that_was_tampered_with(
    machine: Machine,
) -> None:
    async with machine.served() as client:
        before = answer(await client.call_tool("publish_config", WHO))
        machine.install("github")
        answer(await client.call_tool("publish_config", WHO))
        note = machine.tree / "deployments/cursor/default.json"
        note.parent.mkdir(parents=True)
        note.write_text(json.dumps({"artifact_id": before["artifact_id"]}))
        blobs = {path.stem: path for path in (machine.tree / "artifacts").iterdir()}
        blobs.pop(before["artifact_id"]).write_text("{}")
        found = answer(await client.call_tool("deploy_config", WHO))
        assert "the id is wrong" in found["deployed"]["problem"]
        assert found["diff"]["servers_added"] == ["github", "notes"]
        for blob in blobs.values():
            blob.write_text("{}")
        assert refusal(await client.call_tool("deploy_config", WHO))["error"] == "signature_error"
        found = answer(await client.call_tool("undo_config", WHO))
        assert (found["artifact_id"], found["command"]) == (
            before["artifact_id"],
            ["mcpctl", "client", "undo", "cursor"],
        )


async def test_validate_answers_what_could_not_even_be_signed(machine: Machine) -> None:
    async with machine.served() as client:
        deep: dict[str, Any] = {}
        for _ in range(300):
            deep = {"a": deep}
        for payload in ({"mcpServers": {"a": {"command": "x\0"}}}, {"mcpServers": {"a": deep}}, {"mcpServers": [1]}):
            found = answer(await client.call_tool("validate_config", {"payload": json.dumps(payload), **WHO}))
            assert (found["valid"], [each["code"] for each in found["errors"]]) == (False, ["VALIDATION_ERROR"])


async def test_the_same_payload_for_two_clients_is_one_blob_and_two_releases(machine: Machine) -> None:
    async with machine.served() as client:
        for client_id in ("claude-desktop", "cursor"):
            answer(await client.call_tool("publish_config", {"client_id": client_id}))
        one = answer(await client.call_tool("get_config", {"client_id": "claude-desktop"}))
        two = answer(await client.call_tool("get_config", {"client_id": "cursor"}))
        assert one["artifact_id"] == two["artifact_id"]
        assert one["metadata"]["release_signature"] != two["metadata"]["release_signature"]
        assert answer(await client.call_tool("get_config", {"client_id": "claude-desktop"})) == one
    assert [path.stem for path in (machine.tree / "artifacts").iterdir()] == [one["artifact_id"]]


async def test_a_tampered_blob_and_a_truncated_key_are_signature_errors(machine: Machine) -> None:
    async with machine.served() as client:
        found = answer(await client.call_tool("publish_config", WHO))
        blob = machine.tree / "artifacts" / f"{found['artifact_id']}.json"
        blob.chmod(0o600)
        blob.write_bytes(blob.read_bytes().replace(b"notes", b"other"))
        refused = refusal(await client.call_tool("get_config", WHO))
        assert refused["error"] == "signature_error"
        assert str(blob) in refused["message"]
        key = machine.tree / "keys/signing_key.pem"
        key.write_bytes(key.read_bytes()[:40])
        machine.install("github")
        refused = refusal(await client.call_tool("publish_config", {"client_id": "zed"}))
        assert (refused["error"], "signing_key.pem" in refused["message"]) == ("signature_error", True)


async def test_a_read_only_home_is_an_error_object_and_what_is_there_stays_readable(machine: Machine) -> None:
    async with machine.served() as client:
        answer(await client.call_tool("publish_config", WHO))
        found = answer(await client.call_tool("get_config", WHO))
    for path in (machine.tree, *machine.tree.rglob("*")):
        if path.is_dir():
            path.chmod(0o500)
    try:
        # For root no mode is in the way: then the tree is a file, in which nothing can be made.
        is_root = os.geteuid() == 0
        async with machine.served() as client:
            assert answer(await client.call_tool("get_config", WHO)) == found
            if not is_root:
                assert refusal(await client.call_tool("get_config", {"client_id": "zed"}))["error"] == "internal_error"
    finally:
        for path in (machine.tree, *machine.tree.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
    machine.tree.rename(machine.home / "moved")
    machine.tree.write_text("")
    async with machine.served() as client:
        refused = refusal(await client.call_tool("get_config", {"client_id": "zed"}))
        assert refused["error"] in {"internal_error", "signature_error"}
        assert str(machine.tree) in refused["message"]


async def test_rotation_signs_what_is_current_again(machine: Machine) -> None:
    async with machine.served() as client:
        before = answer(await client.call_tool("get_config", WHO))
        change = answer(await client.call_tool("initialize_keys", {"regenerate": True}))
        assert change["previous_key_id"] == before["signing_key_id"]
        after = answer(await client.call_tool("get_config", WHO))
        assert (after["artifact_id"], after["signing_key_id"]) == (before["artifact_id"], change["signing_key_id"])
        assert answer(await client.call_tool("initialize_keys", {}))["created"] is False


async def test_a_rotation_says_what_it_did_and_what_it_could_not_sign_again(machine: Machine) -> None:
    async with machine.served() as client:
        answer(await client.call_tool("publish_config", WHO))
        machine.install("github")
        other = answer(await client.call_tool("publish_config", {"client_id": "zed"}))
        (machine.tree / "artifacts" / f"{other['artifact_id']}.json").write_text("{}")
        refused = refusal(await client.call_tool("initialize_keys", {"regenerate": True}))
        after = answer(await client.call_tool("get_config", WHO))
        assert after["signing_key_id"] != other["signing_key_id"]
        assert refused["error"] == "signature_error"
        assert f"The key {after['signing_key_id']} is in use. Not re-signed" in refused["message"]
        assert "'mcpctl client publish zed --profile default' re-signs it" in refused["message"]


async def test_the_systems_server_hands_out_what_root_published_and_changes_nothing(machine: Machine) -> None:
    machine.install("shared", system=True)
    async with machine.served(system=True) as client:
        assert "publish_config" not in [tool.name for tool in (await client.list_tools()).tools]
        assert "publish_config" not in (client.instructions or "publish_config")
        refused = refusal(await client.call_tool("get_config", WHO))
        assert (refused["error"], "mcpctl --system client publish" in refused["message"]) == (
            "artifact_not_found",
            True,
        )
        assert answer(await client.call_tool("list_profiles", {"client_id": "cursor"}))["profiles"] == []
    tree = machine.root / "system/var/lib/mcp/orchestration"
    assert not tree.exists()
