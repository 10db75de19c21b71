# SPDX-License-Identifier: LGPL-2.1-or-later
"""The official Inspector's command line lists and calls through the bridge, in either era and over SSE."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.inspector_parts import INSPECTOR

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge
    from tests.conformance.conftest import Tools

WAYS = {
    "handshake": ("/mcp/both", "--transport", "http", "--protocol-era", "legacy"),
    "modern": ("/mcp/both", "--transport", "http", "--protocol-era", "modern"),
    "modern to handshake": ("/mcp/old", "--transport", "http", "--protocol-era", "modern"),
    "chosen by itself": ("/mcp/old", "--transport", "http", "--protocol-era", "auto"),
    "sse": ("/mcp/both/sse", "--transport", "sse"),
}


@pytest.fixture(params=WAYS)
def inspect(request: pytest.FixtureRequest, tools: Tools, bridge: Bridge, tmp_path: Path) -> Any:
    """Runs one method; returns what the Inspector printed, as JSON."""
    path, *options = WAYS[request.param]

    def run(method: str, *arguments: str) -> Any:
        argv = ["--cli", bridge.url + path, *options, "--connect-timeout", "200000", "--method", method, *arguments]
        done = tools.run(INSPECTOR, *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


def test_it_lists(inspect: Any) -> None:
    assert "test_simple_text" in {each["name"] for each in inspect("tools/list")["tools"]}
    assert "test://static-text" in {each["uri"] for each in inspect("resources/list")["resources"]}
    assert "test_prompt_with_arguments" in {each["name"] for each in inspect("prompts/list")["prompts"]}


def test_it_calls(inspect: Any) -> None:
    called = inspect("tools/call", "--tool-name", "test_header_parameter", "--tool-arg", "region=žlutý west")
    assert [each["text"] for each in called["content"]] == ["Region žlutý west"]
    read = inspect("resources/read", "--uri", "test://template/7/data")
    assert json.loads(read["contents"][0]["text"])["id"] == "7"
    prompt = inspect("prompts/get", "--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b")
    assert "arg1='a', arg2='b'" in prompt["messages"][0]["content"]["text"]
