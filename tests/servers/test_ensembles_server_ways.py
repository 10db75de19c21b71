# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways into ``llm-orc``: HTTP on this machine, the health check, and how it ends (L-20…L-22, L-26)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.servers.ensembles_harness import ERAS, PAIR, PROGRAM, Room, happens, invoked, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPTED = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with an ensemble."""
    made = Room(tmp_path)
    made.put(PAIR)
    return made


@asynccontextmanager
async def served(room: Room, *arguments: str) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """The program over HTTP, and its URL."""
    log = room.directory / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *room.argv("serve", "--http", "--port", "0", *arguments)],
            env=room.environ, cwd=room.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        await happens(lambda: process.poll() is not None or b"/mcp" in log.read_bytes())
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", room.log)
        assert found, room.log
        yield found[0], process
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("mode", ERAS)
async def test_l21_http(room: Room, mode: str) -> None:
    async with served(room) as (url, process):
        async with (
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            answer = await invoked(client, "pair", "moon")
            assert await read(client, answer["artifact"])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert answer["results"]["first"]["response"] == "<moon>"


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_l21_http_two_clients_have_their_own_subscriptions(room: Room) -> None:
    heard: dict[str, list[str]] = {"one": [], "two": []}

    @asynccontextmanager
    async def client(url: str, name: str) -> AsyncIterator[Client]:
        async def on_any(message: object) -> None:
            heard[name].append(str(getattr(message, "method", "")))

        async with (
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy", message_handler=on_any) as made,
        ):
            yield made

    async with served(room) as (url, _), client(url, "one") as one, client(url, "two"):
        await one.subscribe_resource("llm-orc://ensemble/pair")

        def one_hears() -> bool:
            # What is sent before the client's stream is open is lost, so the file changes until it is heard.
            room.put(PAIR.replace("Two readers", f"Readers {os.urandom(4).hex()}"))
            return "notifications/resources/updated" in heard["one"]

        await happens(one_hears)
    assert "notifications/resources/updated" not in heard["two"]


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Host": "127.0.0.1.evil.example:80"}]
)
async def test_l21_http_is_for_this_machine_only(room: Room, headers: dict[str, str]) -> None:
    async with served(room) as (url, _), httpx2.AsyncClient(trust_env=False) as http:
        fine = await http.post(url, json=HELLO, headers=ACCEPTED)
        refused = await http.post(url, json=HELLO, headers=ACCEPTED | headers)
    assert fine.status_code == 200
    assert refused.status_code in {403, 421}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_l21_http_is_for_the_same_user_only(room: Room) -> None:
    said = "import sys, urllib.request as r\ntry: r.urlopen(sys.argv[1])\nexcept OSError as e: print(e.code)"
    async with served(room) as (url, _):
        for user, status in ((65534, "403"), (0, "406")):
            done = await asyncio.to_thread(
                subprocess.run,
                ["/usr/bin/python3", "-I", "-c", said, url],
                user=user, env={}, capture_output=True, text=True, check=True, timeout=60, cwd="/",
            )  # fmt: skip
            assert done.stdout.strip() == status


async def test_l21_a_port_that_is_taken_is_a_fault_with_its_name(room: Room) -> None:
    async with served(room) as (url, _):
        port = url.rpartition(":")[2].partition("/")[0]
        done = subprocess.run(
            [sys.executable, *room.argv("serve", "--http", "--port", port)],
            env=room.environ, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"listening on 127.0.0.1:{port}: " in done.stderr


def test_l22_status_says_what_there_is(room: Room) -> None:
    room.environ |= {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": "http://localhost:1234/v1"}
    done = room.status("--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"], found["problems"]) == (0, "ok", [])
    assert found["directories"]["project project"] == {"path": str(room.project), "exists": True, "writable": True}
    assert found["ensembles"]["total"] > 1
    assert found["providers"]["openai-compatible"] == {"base_url": "http://localhost:1234/v1", "has_key": True}
    assert found["providers"]["anthropic"]["has_key"] is False
    assert found["tools_of_other_servers"].startswith("no: ")
    text = room.status().stdout
    assert text.startswith(f"llm-orc {version('mcpd-system')}: ok\n")
    assert "sk-secret" not in done.stdout + text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--project", "/nonexistent/project"], "/nonexistent/project"),
        (["--project", "relative"], "relative"),
    ],
)
def test_l22_status_fails_for_what_is_wrong(room: Room, arguments: list[str], says: str) -> None:
    done = room.status("--json", *arguments)
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"]) == (1, "degraded")
    assert any(says in problem for problem in found["problems"])


def test_l22_status_fails_for_a_broken_ensemble_and_a_key_in_the_clear(room: Room) -> None:
    room.put("name: torn\nagents: 5\n")
    done = room.status()
    assert done.returncode == 1
    assert f"{room.base}/ensembles/torn.yaml:2" in done.stdout
    room.environ |= {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": "http://example.com/v1"}
    done = room.status()
    assert "over the network in the clear" in done.stdout
    assert "sk-secret" not in done.stdout + done.stderr


def test_l26_the_version_is_the_packages(room: Room) -> None:
    done = subprocess.run(
        [sys.executable, *PROGRAM[:-1], "--version"], env=room.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"llm-orc {version('mcpd-system')}\n"


@pytest.mark.parametrize("argv", [[], ["mcp"], ["serve"], ["mcp", "serve", "--prot"], ["mcp", "status", "--http"]])
def test_wrong_usage_is_status_2(room: Room, argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *PROGRAM[:-1], *argv], env=room.environ, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "usage: llm-orc" in done.stderr


def test_l20_requests_from_a_file_are_all_answered(room: Room) -> None:
    call = {"name": "invoke", "arguments": {"ensemble_name": "pair", "input": "moon"}}
    requests = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    done = subprocess.run(
        [sys.executable, *room.argv("serve")], input="".join(json.dumps(each) + "\n" for each in requests),
        env=room.environ, cwd=room.directory, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    answers = {each["id"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert answers[1]["result"]["serverInfo"]["version"] == version("mcpd-system")
    assert answers[2]["result"]["structuredContent"]["status"] == "completed"


async def test_sigterm_in_a_run_keeps_it_as_cancelled(room: Room) -> None:
    room.put("name: slow\nagents:\n  - {name: sleepy, model_profile: slow}\n")
    call = {"name": "invoke", "arguments": {"ensemble_name": "slow", "input": "x"}}
    process = subprocess.Popen(
        [sys.executable, *room.argv("serve")], env=room.environ, cwd=room.directory,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        for each in (
            HELLO,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        ):
            process.stdin.write(json.dumps(each).encode() + b"\n")
        process.stdin.flush()
        runs = room.base / "artifacts/slow"
        await happens(lambda: [*runs.glob("2*/execution.json")])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    (kept,) = runs.glob("2*/execution.json")
    assert json.loads(kept.read_text())["status"] == "cancelled"
