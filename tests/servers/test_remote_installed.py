# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers that run elsewhere as installed ones: from the registry to a call, over stdio and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.children import marked
from tests.mcp_results import first_text
from tests.rig import BIN, PATIENCE, Rig
from tests.servers.remote_harness import far_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.remote_harness import FarServer

TOKEN = "open-sesame"
KEY = {"key": "API_KEY", "label": "API key", "sensitive": True, "required": True, "target": "header"}


@pytest.fixture(scope="module")
def far() -> Iterator[FarServer]:
    with far_server("streamable-http", TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def old() -> Iterator[FarServer]:
    with far_server("sse") as server:
        yield server


def entry(server_id: str, transport: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": server_id,
        "name": server_id,
        "summary": "Elsewhere",
        "version": "1",
        "transports": [transport],
    } | fields


@pytest.fixture(scope="module")
def rig(far: FarServer, old: FarServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    guarded = {"type": "streamable-http", "url": far.url, "headers": {"Authorization": "Bearer {config.API_KEY}"}}
    servers = [
        entry("far", guarded, configurableProperties=[KEY]),
        entry("old", {"type": "sse", "url": old.url}),
        entry("nowhere", {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"}),
    ]
    file = tmp_path_factory.mktemp("registry") / "registry.json"
    file.write_text(json.dumps({"version": "1.0", "updated": "2026-01-01T00:00:00Z", "servers": servers}))
    with Rig() as machine:
        machine.start_daemon()
        machine.start_bridge()
        assert machine.mcpctl("source", "add", file.as_uri()).returncode == 0
        assert machine.mcpctl("refresh").returncode == 0
        yield machine


@pytest.fixture(scope="module")
def installed(rig: Rig) -> Rig:
    given = rig.home / "key"
    given.write_text(TOKEN)
    done = rig.mcpctl("install", "--yes", "--secret-file", f"API_KEY={given}", "far")
    assert done.returncode == 0, done.stderr
    return rig


def test_a_remote_server_is_installed_only_with_consent_to_the_network(rig: Rig) -> None:
    done = rig.mcpctl("install", "old")
    assert done.returncode != 0
    assert "network" in done.stderr + done.stdout
    done = rig.mcpctl("install", "--yes", "old")
    assert done.returncode == 0, done.stderr
    shown = json.loads(rig.mcpctl("show", "old", "--json").stdout)
    assert shown["permissions"] == ["network"]
    assert [each["type"] for each in shown["transports"]] == ["sse"]
    found = {path.name for path in (rig.installed / "old").iterdir()}
    assert found <= {"manifest.json", ".mcpd-files", ".mcpd-lock.json"}
    lock = json.loads((rig.installed / "old" / ".mcpd-lock.json").read_text())
    assert lock["protocol"]["handshake"]
    assert "echo" in rig.mcpctl("tools", "old").stdout
    assert rig.mcpctl("call", "old", "echo", "text=over SSE").stdout.strip() == "over SSE"


def test_a_manifest_of_ones_own_is_installed(installed: Rig, old: FarServer, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    question = {"key": "q", "default": "a"}
    mine = entry("mine", {"type": "sse", "url": old.url + "?{config.q}"}, configurableProperties=[question])
    file.write_text(json.dumps(mine))
    done = installed.mcpctl("install", "--yes", str(file))
    assert done.returncode == 0, done.stderr
    assert installed.mcpctl("call", "mine", "echo", "text=hi").stdout.strip() == "hi"


def test_one_that_cannot_be_reached_is_not_installed(rig: Rig) -> None:
    done = rig.mcpctl("install", "--yes", "nowhere")
    assert done.returncode != 0
    assert "http://127.0.0.1:9/mcp" in done.stderr
    assert not (rig.installed / "nowhere").exists()


def test_its_tools_are_listed_and_called(installed: Rig) -> None:
    assert "count" in installed.mcpctl("tools", "far").stdout
    assert installed.mcpctl("call", "far", "echo", "text=hello").stdout.strip() == "hello"
    lock = json.loads((installed.installed / "far" / ".mcpd-lock.json").read_text())
    assert lock["protocol"] == {"handshake": "2025-11-25", "modern": True}


def test_a_wrong_secret_names_what_to_set_and_the_right_one_works(installed: Rig) -> None:
    assert installed.mcpctl("secret", "set", "far", "API_KEY", stdin="wrong\n").returncode == 0
    refused = installed.mcpctl("call", "far", "echo", "text=x")
    assert refused.returncode != 0
    assert "mcpctl secret set far API_KEY" in refused.stderr
    assert "401" in refused.stderr
    assert "wrong" not in refused.stderr
    assert installed.mcpctl("secret", "set", "far", "API_KEY", stdin=TOKEN).returncode == 0
    assert installed.mcpctl("call", "far", "echo", "text=x").stdout.strip() == "x"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdk_over_mcpctl_run(installed: Rig, mode: Any) -> None:
    command = StdioServerParameters(
        command=str(BIN / "mcpctl"), args=["--user", "run", "far"], env=installed.environ
    )  # fmt: skip
    async with Client(command, mode=mode) as client:
        result = await client.call_tool("echo", {"text": "grüß Gott"})
        assert first_text(result) == "grüß Gott"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("server", ["far", "old"])
async def test_the_sdk_over_the_bridge(installed: Rig, server: str, mode: Any) -> None:
    if server == "old" and installed.mcpctl("show", "old").returncode != 0:
        assert installed.mcpctl("install", "--yes", "old").returncode == 0
    transport = httpx2.AsyncHTTPTransport(uds=os.fspath(installed.socket))
    async with httpx2.AsyncClient(transport=transport, timeout=PATIENCE) as http:
        url = f"http://localhost/mcp/{server}"
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            result = await client.call_tool("echo", {"text": "through the bridge"})
            assert first_text(result) == "through the bridge"


def test_the_secret_is_in_no_command_line_and_no_environment(installed: Rig) -> None:
    command = [str(BIN / "mcpctl"), "--user", "run", "far"]
    with subprocess.Popen(command, env=installed.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        process.stdout.readline()
        ours = set(marked(str(installed.home)))
        assert ours & set(marked("mcpd.servers.remote"))
        assert not ours & set(marked(TOKEN))
        process.stdin.close()
