# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers elsewhere in the file of a stand-alone bridge."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.bridge.bridge_harness import PATIENCE, descendants
from tests.mcp_results import first_text
from tests.servers.remote_harness import far_server, initialize

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "open-sesame"


@contextmanager
def bridge(directory: Path, servers: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """A bridge of *servers*: its URL and process id."""
    file = directory / "servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    process = subprocess.Popen(
        [sys.executable, "-m", "mcpd.bridge.main", "--listen", "127.0.0.1:0", "--auth", "none", "--config", file],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield found[0], process.pid
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_url_with_headers_is_served_and_its_secret_shows_nowhere(tmp_path: Path, kind: str) -> None:
    with far_server("streamable-http" if kind == "http" else "sse", TOKEN) as far:
        entry = {"type": kind, "url": far.url, "headers": {"Authorization": f"Bearer {TOKEN}"}}
        with bridge(tmp_path, {"far": entry}) as (url, pid):
            async with httpx2.AsyncClient(timeout=PATIENCE) as http:
                transport = streamable_http_client(f"{url}/mcp/far", http_client=http)
                async with Client(transport, mode="legacy") as client:
                    assert first_text(await client.call_tool("echo", {"text": "hello"})) == "hello"
                    running = [Path(f"/proc/{child}") for child in descendants(pid)]
                    assert any(b"mcpd.servers.remote" in (place / "cmdline").read_bytes() for place in running)
                    for place in running:
                        assert TOKEN.encode() not in (place / "cmdline").read_bytes()
                        assert TOKEN.encode() not in (place / "environ").read_bytes()


async def test_without_the_header_the_error_says_what_is_missing(tmp_path: Path) -> None:
    with far_server("streamable-http", TOKEN) as far, bridge(tmp_path, {"far": {"url": far.url}}) as (url, _):
        async with httpx2.AsyncClient(timeout=30) as http:
            accept = {"Accept": "application/json, text/event-stream"}
            reply = await http.post(f"{url}/mcp/far", json=initialize(), headers=accept)
        assert "wants credentials (HTTP 401)" in reply.text


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"type": "carrier-pigeon", "url": "https://example.org"}, '"type"'),
        ({"url": "https://example.org", "headers": ["x"]}, "headers"),
        ({"url": 5}, "http://"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"far": entry}}))
    command = [
        sys.executable,
        "-m",
        "mcpd.bridge.main",
        "--listen",
        "127.0.0.1:0",
        "--auth",
        "none",
        "--config",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0
    assert "mcpServers.far" in done.stderr
    assert says in done.stderr
