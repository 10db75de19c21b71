# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways into ``llm-orc``: HTTP on this machine, the health check, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.preloaded import PATIENCE, python
from tests.servers.ensembles_harness import ERAS, PAIR, PROGRAM, Room, happens, invoked, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
CALL = {"name": "invoke", "arguments": {"ensemble_name": "pair", "input": "moon"}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
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
            [python(), *room.argv("serve", "--http", "--port", "0", *arguments)],
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
async def test_an_ensemble_runs_over_http(room: Room, mode: str) -> None:
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
async def test_http_two_clients_have_their_own_subscriptions(room: Room) -> None:
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
async def test_http_is_for_this_machine_only(room: Room, headers: dict[str, str]) -> None:
    async with served(room) as (url, _), httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        fine = await http.post(url, json=HELLO, headers=ACCEPTED)
        refused = await http.post(url, json=HELLO, headers=ACCEPTED | headers)
    assert fine.status_code == 200
    assert refused.status_code in {403, 421}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_http_is_for_the_same_user_only(room: Room) -> None:
    said = "import sys, urllib.request as r\ntry: r.urlopen(sys.argv[1])\nexcept OSError as e: print(e.code)"
    async with served(room) as (url, _):
        for user, status in ((65534, "403"), (0, "406")):
            done = await asyncio.to_thread(
                subprocess.run,
                ["/usr/bin/python3", "-I", "-c", said, url],
                user=user, env={}, capture_output=True, text=True, check=True, timeout=60, cwd="/",
            )  # fmt: skip
            assert done.stdout.strip() == status


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_nobody_gets_in_by_going_at_once(room: Room) -> None:
    # Once both ends know of it, a socket that was closed is root's to the kernel.
    said = (
        "import socket, sys\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as there:\n"
        "    there.sendall(sys.argv[2].encode())\n"
    )
    async with served(room) as (url, process):
        port = url.rpartition(":")[2].partition("/")[0]
        for user, runs in ((65534, 0), (0, 1)):
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL | {"_meta": META}})
            head = {
                "Host": f"127.0.0.1:{port}", "Content-Length": str(len(body)), "MCP-Protocol-Version": "2026-07-28",
                "Mcp-Method": "tools/call", "Mcp-Name": "invoke", **ACCEPTED,
            }  # fmt: skip
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            request = f"POST /mcp HTTP/1.1\r\n{lines}\r\n{body}"
            if user:
                process.send_signal(signal.SIGSTOP)
                await asyncio.to_thread(
                    subprocess.run, ["/usr/bin/python3", "-I", "-c", said, port, request],
                    user=user, env={}, check=True, timeout=60, cwd="/",
                )  # fmt: skip
                process.send_signal(signal.SIGCONT)
                await happens(lambda: "a request was refused" in room.log or "ClientDisconnect" in room.log)
                assert "a request was refused" in room.log
            else:
                async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
                    answer = await http.post(url, content=body, headers=head)
                assert answer.status_code == 200, answer.text
            assert len([*room.base.glob("artifacts/pair/2*")]) == runs


async def test_sigterm_in_a_run_over_http_keeps_it_as_cancelled(room: Room) -> None:
    room.put("name: slow\nagents:\n  - {name: sleepy, model_profile: slow}\n")
    async with served(room) as (url, process):
        async with (
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http), mode="2026-07-28") as client,
        ):
            call = asyncio.create_task(client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}))
            await happens(lambda: [*room.base.glob("artifacts/slow/2*/execution.json")])
            process.send_signal(signal.SIGTERM)
            await asyncio.wait([call])
            assert call.exception() is not None
        assert await asyncio.to_thread(process.wait, 30) == 0
    (kept,) = room.base.glob("artifacts/slow/2*/execution.json")
    assert json.loads(kept.read_text())["status"] == "cancelled"


async def test_a_port_that_is_taken_is_a_fault_with_its_name(room: Room) -> None:
    async with served(room) as (url, _):
        port = url.rpartition(":")[2].partition("/")[0]
        done = subprocess.run(
            [python(), *room.argv("serve", "--http", "--port", port)],
            env=room.environ, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"listening on 127.0.0.1:{port}: " in done.stderr


def test_status_says_what_there_is(room: Room) -> None:
    room.environ |= {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": "http://localhost:1234/v1"}
    done = room.status("--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"], found["problems"]) == (0, "ok", [])
    assert found["directories"]["project project"] == {"path": str(room.project), "exists": True, "writable": True}
    assert found["ensembles"]["total"] > 1
    assert found["providers"]["openai-compatible"] == {"base_url": "http://localhost:1234/v1", "has_key": True}
    assert found["providers"]["anthropic"]["has_key"] is False
    assert found["providers"]["ollama"] == {"base_url": "http://localhost:11434/v1", "has_key": False}
    assert found["tools_of_other_servers"].startswith("no: ")
    text = room.status().stdout
    assert "note: run by hand" in text
    assert text.startswith(f"llm-orc {version('mcpd-system')}: ok\n")
    assert "sk-secret" not in done.stdout + text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--project", "/nonexistent/project"], "projects: /nonexistent/project"),
        (["--project", "relative"], "projects: relative"),
    ],
)
def test_status_fails_for_what_is_wrong(room: Room, arguments: list[str], says: str) -> None:
    done = room.status("--json", *arguments)
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"]) == (1, "degraded")
    assert any(says in problem for problem in found["problems"])


def test_status_fails_for_a_broken_ensemble_and_a_key_in_the_clear(room: Room) -> None:
    room.put("name: torn\nagents: 5\n")
    done = room.status()
    assert done.returncode == 1
    assert f"{room.base}/ensembles/torn.yaml:2" in done.stdout
    room.environ |= {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": "http://example.com/v1"}
    done = room.status()
    assert "over the network in the clear" in done.stdout
    assert done.returncode == 1
    assert "sk-secret" not in done.stdout + done.stderr


def test_the_version_is_the_packages(room: Room) -> None:
    done = subprocess.run(
        [python(), *PROGRAM, "--version"], env=room.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"llm-orc {version('mcpd-system')}\n"


@pytest.mark.parametrize("argv", [[], ["mcp"], ["serve"], ["mcp", "serve", "--prot"], ["mcp", "status", "--http"]])
def test_wrong_usage_is_status_2(room: Room, argv: list[str]) -> None:
    done = subprocess.run(
        [python(), *PROGRAM, *argv], env=room.environ, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "usage: llm-orc" in done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["serve"], "'llm-orc mcp serve' is meant"),
        (["mcp", "serve", "--port", "8080"], "--port is that of --http"),
        (["mcp", "serve", "--http", "--port", "65536"], "'65536' is no port"),
        (["mcp", "serve", "--http", "--port=-1"], "'-1' is no port"),
        (["mcp", "serve", "--http", "--port", "http"], "'http' is no port"),
    ],
)
def test_wrong_usage_is_named(room: Room, argv: list[str], says: str) -> None:
    done = subprocess.run(
        [python(), *PROGRAM, *argv], env=room.environ, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr


async def test_a_wrong_key_stops_nothing_that_needs_none(room: Room) -> None:
    room.environ["LLM_ORC_KEYS"] = "no-url"
    async with room.started() as client:
        answer = await invoked(client, "pair", "moon")
    assert answer["status"] == "completed"
    assert "LLM_ORC_KEYS, entry 1" in room.log
    assert "LLM_ORC_KEYS, entry 1" in room.status().stdout


def test_requests_from_a_file_are_all_answered(room: Room) -> None:
    requests = [
        HELLO,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL},
    ]
    done = subprocess.run(
        [python(), *room.argv("serve")], input="".join(json.dumps(each) + "\n" for each in requests),
        env=room.environ, cwd=room.directory, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    answers = {each["id"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert answers[1]["result"]["serverInfo"]["version"] == version("mcpd-system")
    assert answers[2]["result"]["structuredContent"]["status"] == "completed"


SLEEPS = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids.new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["SIGTERM", "end of stdin"])
async def test_the_end_in_a_run_keeps_it_as_cancelled_and_ends_its_children(room: Room, way: str) -> None:
    room.put_script("sleeps.py", SLEEPS)
    room.put("name: slow\nagents:\n  - {name: sleepy, model_profile: slow}\n  - {name: s, script: scripts/sleeps.py}\n")
    process = subprocess.Popen(
        [python(), *room.argv("serve")], env=room.environ, cwd=room.directory,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        call = {"name": "invoke", "arguments": {"ensemble_name": "slow", "input": "x"}}
        for each in (
            HELLO,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        ):
            process.stdin.write(json.dumps(each).encode() + b"\n")
        process.stdin.flush()
        await happens(lambda: [*room.project.rglob("pids")])
        (file,) = room.project.rglob("pids")
        children = [Path("/proc") / each for each in file.read_text().split()]
        assert all(each.exists() for each in children)
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    (kept,) = room.base.glob("artifacts/slow/2*/execution.json")
    assert json.loads(kept.read_text())["status"] == "cancelled"
    assert sorted(each.name for each in kept.parent.iterdir()) == ["execution.json", "execution.md"]
    await happens(lambda: not any(each.exists() for each in children))
