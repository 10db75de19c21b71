# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp-orchestration`` as mcpd runs it: confined, over stdio and through the bridge, with what is really installed."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from mcp import Client

from tests.e2e.script_parts import ScriptRig
from tests.rig import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
SERVER = "mcp-orchestration"


@pytest.fixture(scope="module")
def machine() -> Iterator[ScriptRig]:
    with ScriptRig() as rig:
        shutil.copytree(REPOSITORY / "data/share/servers" / SERVER, rig.vendor / "servers" / SERVER)
        rig.boot()
        rig.put("notes.py", 'def note(text: str) -> str:\n    """Keep it."""\n    return text\n')
        yield rig


def ask(rig: ScriptRig, tool: str, **arguments: Any) -> dict[str, Any]:
    done = rig.mcpctl("call", SERVER, tool, json.dumps(arguments), "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answer(rig: ScriptRig, tool: str, **arguments: Any) -> dict[str, Any]:
    result = ask(rig, tool, **arguments)
    assert not result.get("isError"), result
    found: dict[str, Any] = result["structuredContent"]
    return found


def test_it_is_listed_and_confined(machine: ScriptRig) -> None:
    found = machine.listed()[SERVER]
    assert found["sandboxed"] is True
    assert found["permissions"] == ["installed", "filesystem:create:~/.mcp-orchestration"]
    assert not found.get("problem")


def test_the_payload_is_what_is_installed(machine: ScriptRig) -> None:
    config = answer(machine, "get_config", client_id="cursor")
    assert config["payload"] == {"mcpServers": {"notes": {"command": "mcpctl", "args": ["run", "notes"]}}}
    development = answer(machine, "get_config", client_id="cursor", profile_id="dev")
    assert list(development["payload"]["mcpServers"]) == [SERVER, "notes"]


def test_the_tree_is_in_the_users_home(machine: ScriptRig) -> None:
    config = answer(machine, "get_config", client_id="claude-desktop")
    tree = machine.home / ".mcp-orchestration"
    answer(machine, "publish_config", client_id="claude-desktop")
    blob = (tree / "artifacts" / f"{config['artifact_id']}.json").read_bytes()
    assert hashlib.sha256(blob).hexdigest() == config["artifact_id"]
    assert json.loads(blob) == config["payload"]
    assert stat.S_IMODE((tree / "keys/signing_key.pem").stat().st_mode) == 0o600
    assert len((tree / "verification_key.raw").read_bytes()) == 32


def test_the_bridge_hands_out_the_key_that_verifies(machine: ScriptRig) -> None:
    config = answer(machine, "get_config", client_id="cursor")
    pem = httpx2.get(f"{machine.url}/keys/verification_key.pem", timeout=PATIENCE).raise_for_status().content
    assert pem == (machine.home / ".mcp-orchestration/verification_key.pem").read_bytes()
    canonical = json.dumps(config["payload"], sort_keys=True, separators=(",", ":")).encode()
    load_pem_public_key(pem).verify(base64.b64decode(config["signature"]), canonical)  # type: ignore[union-attr, call-arg]
    raw = httpx2.get(f"{machine.url}/keys/verification_key.raw", timeout=PATIENCE).raise_for_status().content
    assert raw == (machine.home / ".mcp-orchestration/verification_key.raw").read_bytes()


def endpoints(rig: ScriptRig) -> dict[str, str]:
    """Where the server says that the keys are, over ``mcpctl run``."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages: tuple[dict[str, Any], ...] = (
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "resources/read", "params": {"uri": "capabilities://server"}},
    )
    done = rig.mcpctl("run", SERVER, stdin="".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages))
    assert done.returncode == 0, done.stderr
    answers = {each["id"]: each for each in map(json.loads, done.stdout.splitlines()) if "id" in each}
    found: dict[str, str] = json.loads(answers[2]["result"]["contents"][0]["text"])["endpoints"]
    return found


def test_with_a_bridge_the_endpoints_are_its_urls(machine: ScriptRig) -> None:
    base = f"{machine.url}/keys/verification_key"
    assert endpoints(machine) == {"verification_key_url": f"{base}.pem", "verification_key_raw_url": f"{base}.raw"}


def test_it_works_without_a_bridge_and_names_files() -> None:
    with ScriptRig() as rig:
        shutil.copytree(REPOSITORY / "data/share/servers" / SERVER, rig.vendor / "servers" / SERVER)
        rig.start_daemon()
        found = endpoints(rig)
        config = answer(rig, "get_config", client_id="cursor")
        key = Path(found["verification_key_url"].removeprefix("file://"))
        assert key == rig.home / ".mcp-orchestration/verification_key.pem"
        canonical = json.dumps(config["payload"], sort_keys=True, separators=(",", ":")).encode()
        public = load_pem_public_key(key.read_bytes())
        public.verify(base64.b64decode(config["signature"]), canonical)  # type: ignore[union-attr, call-arg]
        # What stands between the server and its clients is not left out for want of a bridge.
        rig.enter(**{SERVER: {"disallowed_tools": ["publish*"]}})
        refused = rig.mcpctl("run", SERVER, stdin="")
        assert refused.returncode == 1
        assert f"server {SERVER} is used through the bridge" in refused.stderr


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_same_over_http_in_both_eras(machine: ScriptRig, mode: str) -> None:
    from mcp.client.streamable_http import streamable_http_client

    answer(machine, "publish_config", client_id="cursor")
    expected = answer(machine, "get_config", client_id="cursor")
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {machine.token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{machine.url}/mcp/{SERVER}", http_client=http), mode=mode) as client,
    ):
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools][:4] == ["list_clients", "list_profiles", "get_config", "diff_config"]
        result = await client.call_tool("get_config", {"client_id": "cursor"})
        assert result.structured_content == expected
        refused = await client.call_tool("get_config", {"client_id": "nobody"})
        assert refused.is_error
        assert refused.structured_content is None
        server = await client.read_resource("capabilities://server")
        assert json.loads(server.contents[0].text)["wave"] == "Wave 1: Foundation"  # type: ignore[union-attr]


def test_a_new_server_is_in_the_next_release_and_the_old_one_is_outdated(machine: ScriptRig) -> None:
    before = answer(machine, "publish_config", client_id="zed")
    machine.put("more.py", 'def more() -> str:\n    """More."""\n    return "more"\n')
    assert answer(machine, "get_config", client_id="zed")["artifact_id"] == before["artifact_id"]
    after = answer(machine, "publish_config", client_id="zed", changelog="More")
    assert sorted(after["payload"]["mcpServers"]) == ["more", "notes"]
    report = answer(machine, "diff_config", client_id="zed", local_artifact_id=before["artifact_id"])
    assert (report["status"], report["diff"]["servers_added"]) == ("outdated", ["more"])


def test_a_secret_never_comes_near_a_configuration(machine: ScriptRig) -> None:
    secret = "s3cr3t-that-nobody-may-see"
    manifest = {
        "id": "keeper",
        "name": "Keeper",
        "transports": [{"type": "stdio", "command": "python3", "args": ["server.py"]}],
        "configurableProperties": [{"key": "api_key", "label": "Key", "sensitive": True, "target": "env"}],
    }
    directory = machine.home / ".local/share/mcp/installed/keeper"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "server.py").write_text("")
    assert machine.mcpctl("secret", "set", "keeper", "api_key", stdin=secret).returncode == 0
    config = answer(machine, "publish_config", client_id="vscode")
    assert config["payload"]["mcpServers"]["keeper"] == {"command": "mcpctl", "args": ["run", "keeper"]}
    assert secret not in json.dumps(answer(machine, "describe_server", server_id="keeper"))
    for path in (machine.home / ".mcp-orchestration").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
