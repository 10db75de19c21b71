# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpctl run``, ``call`` and ``tools`` of servers that something stands before."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import mcp_types as types
import pytest
from mcp import Client as SdkClient
from mcp import StdioServerParameters

from tests.bridge.bridge_harness import PATIENCE, ROOT, call, eventually, initialize, is_alive, text_of
from tests.bridge.stdio_machine import mapped_machine
from tests.mcp_results import first_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bridge.bridge_machine import Machine

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with mapped_machine(tmp_path_factory.mktemp("machine")) as found:
        yield found


class Run:
    """``mcpctl run``."""

    def __init__(self, machine: Machine, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mcpd.cli.main", "--user", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**machine.environ, **environment},
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, message: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def bridged(self) -> bool:
        """Whether it speaks with the bridge."""
        return all(Path(f"/proc/{self.process.pid}/fd/{number}").readlink() != Path(os.devnull) for number in (0, 1))


def test_run_hands_its_streams_over_when_nothing_stands_between(machine: Machine) -> None:
    with Run(machine, "run", "fix") as run:
        run.ask(initialize())
        eventually(lambda: not run.bridged(), "mcpctl let go of the streams that it handed over")


@pytest.mark.parametrize("server", ["narrow", "shared"])
def test_run_goes_through_the_bridge_when_something_does(machine: Machine, server: str) -> None:
    with Run(machine, "run", server) as run:
        assert run.ask(initialize("i"))["id"] == "i"
        assert run.bridged()
        tool = "say" if server == "narrow" else "echo"
        assert text_of(run.ask(call(tool, 1, text="x"))) == ("fixed" if server == "narrow" else "x")
        out, err = run.process.communicate(timeout=PATIENCE)
        assert (run.process.returncode, out, err) == (0, b"", b"")


def test_run_ends_quietly_when_nobody_reads_it(machine: Machine) -> None:
    with Run(machine, "run", "narrow") as run:
        run.ask(initialize())
        assert run.process.stdin is not None
        assert run.process.stdout is not None
        run.process.stdout.close()
        run.process.stdin.write(json.dumps(call("say")).encode() + b"\n")
        run.process.stdin.flush()
        assert run.process.wait(PATIENCE) == 128 + signal.SIGPIPE
        assert run.process.stderr is not None
        assert run.process.stderr.read() == b""
        run.process.stdout = None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_run_through_the_bridge_and_its_server(machine: Machine, number: signal.Signals) -> None:
    with Run(machine, "run", "narrow") as run:
        run.ask(initialize())
        pid = int(text_of(run.ask(call("pid"))))
        run.process.send_signal(number)
        run.process.communicate(timeout=PATIENCE)
        assert run.process.returncode == -number
        eventually(lambda: not is_alive(pid), "the server ended with its client")


def test_run_of_a_disabled_server_says_so(machine: Machine) -> None:
    with Run(machine, "run", "off") as run:
        _, err = run.process.communicate(timeout=PATIENCE)
        assert run.process.returncode == 1
        assert b"off is disabled" in err
        assert b"mcps.json" in err


def test_run_says_that_the_bridge_cannot_be_reached(machine: Machine) -> None:
    elsewhere = machine.home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with Run(machine, "run", "narrow", XDG_RUNTIME_DIR=str(elsewhere)) as run:
        _, err = run.process.communicate(timeout=PATIENCE)
        assert run.process.returncode == 1
        assert f"cannot be reached at {elsewhere}/mcp/stdio.sock".encode() in err
        assert b"systemctl --user start mcpd-bridge.socket" in err


def test_variables_of_the_client_reach_a_server_of_its_own(machine: Machine) -> None:
    with Run(machine, "run", "narrow", API_KEY="from the client", LD_AUDIT="x") as run:
        run.ask(initialize())
        pid = int(text_of(run.ask(call("pid"))))
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 -- of another process
            environment = file.read().split(b"\0")
        assert b"API_KEY=from the client" in environment
        assert not any(each.startswith(b"LD_AUDIT") for each in environment)


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_the_official_client_over_run(machine: Machine, mode: Any, version: str) -> None:
    asked: list[str] = []

    async def on_elicitation(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": 42})

    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcpd.cli.main", "--user", "run", "narrow"],
        env=machine.environ,
        cwd=str(ROOT),
    )
    async with SdkClient(command, mode=mode, elicitation_callback=on_elicitation) as client:
        assert client.protocol_version == version
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert "say" in listed
        assert "echo" not in listed
        texts = await asyncio.gather(*(client.call_tool("say", {"text": "mine"}) for _ in range(20)))
        assert {first_text(result) for result in texts} == {"fixed"}
        params = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
        result = await client.call_tool("ask", {"method": "elicitation/create", "params": params})
        assert '"answer": 42' in first_text(result)
        assert asked == ["sure?"]


def test_tools_and_call_follow_the_map(machine: Machine) -> None:
    with Run(machine, "tools", "--json", "narrow") as run:
        out, _ = run.process.communicate(timeout=PATIENCE)
        assert "say" in {tool["name"] for tool in json.loads(out)["tools"]}
    with Run(machine, "call", "narrow", "say") as run:
        out, _ = run.process.communicate(timeout=PATIENCE)
        assert (run.process.returncode, out) == (0, b"fixed\n")
    with Run(machine, "call", "narrow", "echo", "text=x") as run:
        run.process.communicate(timeout=PATIENCE)
        assert run.process.returncode == 4
