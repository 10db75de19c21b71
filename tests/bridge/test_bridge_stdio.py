# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers over the bridge's ``stdio.sock``, and ``mcpctl run`` through it (design §8 "stdio through the bridge")."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import mcp_types as types
import pytest
from bridge_harness import PATIENCE, ROOT, call, eventually, initialize, is_alive, text_of
from bridge_machine import Machine
from mcp import Client as SdkClient
from mcp import StdioServerParameters

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="needs dbus-daemon")

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
MAPPED = {
    "narrow": {"tools": {"echo": {"name": "say", "arguments": {"text": {"default": "fixed", "hide": True}}}}},
    "off": {"enabled": False},
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(tmp_path_factory.mktemp("machine"))
    try:
        for name in ("narrow", "off"):
            found.install(name, {})
        found.install("shared", {"runtime": {"sharing": "caller"}})
        found.install("sleepy", {"runtime": {"idleTimeout": 1}})
        path = found.home / ".config/mcp/mcps.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(MAPPED))
        found.environ["MCPD_BRIDGE_AUDIT"] = str(found.home / "audit")
        found.boot()
        yield found
    finally:
        found.close()


def stdio_socket(machine: Machine) -> Path:
    return machine.runtime / "mcp/stdio.sock"


class Talk:
    """A conversation over ``stdio.sock``."""

    def __init__(self, machine: Machine, server: object) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(stdio_socket(machine)))
        self.file = self.socket.makefile("rb")
        first = server if isinstance(server, bytes) else json.dumps({"server": server}).encode()
        self.write(first)
        self.hello = self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def write(self, *messages: object) -> None:
        lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    def read(self) -> Any:
        line = self.file.readline()
        return json.loads(line) if line else None

    def ask(self, message: object) -> Any:
        self.write(message)
        return self.read()

    def open(self, version: str = "2025-11-25", capabilities: object = None) -> Self:
        assert self.hello == {"ok": True}
        answer = self.ask(initialize("i", version, capabilities))
        assert (answer["id"], answer["result"]["protocolVersion"]) == ("i", version)
        self.write(INITIALIZED)
        return self


def modern(method: str, identity: object, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": {**params, "_meta": MODERN}}


# ---------------------------------------------------------------------------------------- the first line


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("nothing", "NotFound"),
        ("off", "Disabled"),
        ("../fix", "NotFound"),
        ("", "NotFound"),
        (b"{}", "InvalidRequest"),
        (b"GET /mcp/fix HTTP/1.1", "InvalidRequest"),
        (b"[" * 10_000, "InvalidRequest"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_with_its_reason(machine: Machine, server: object, name: str) -> None:
    with Talk(machine, server) as talk:
        assert talk.hello["error"]["name"].endswith(f".{name}")
        assert talk.hello["error"]["message"]
        assert talk.read() is None


# ---------------------------------------------------------------------------------------- the handshake era


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_conversation_of_the_handshake_era(machine: Machine, version: str) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(version)
        assert text_of(talk.ask(call("echo", 1, text="x"))) == "x"
        pid = text_of(talk.ask(call("pid", 2)))
        assert text_of(talk.ask(call("pid", 3))) == pid
        assert talk.ask({"jsonrpc": "2.0", "id": 4, "method": "nonsense"})["error"]["code"] == -32601
    eventually(lambda: not is_alive(int(pid)), "the server ended with its client")


def test_what_comes_before_the_session_is_open_waits_for_it(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(initialize("i"), INITIALIZED, call("pid", 1), call("pid", 2))
        assert talk.read()["id"] == "i"
        answers = [talk.read() for _ in range(2)]
        assert {answer["id"] for answer in answers} == {1, 2}
        assert len({text_of(answer) for answer in answers}) == 1


def test_the_server_asks_its_client(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(capabilities={"roots": {}})
        asked = talk.ask(call("ask", "c", method="roots/list"))
        assert asked["method"] == "roots/list"
        answer = talk.ask({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": "file:///x"}]}})
        assert "file:///x" in text_of(answer)


def test_progress_log_messages_and_changes_come_as_lines(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        talk.write(call("progress", 1, {"progressToken": "mine"}, steps=2))
        progress = [talk.read() for _ in range(2)]
        assert [each["params"]["progressToken"] for each in progress] == ["mine", "mine"]
        assert text_of(talk.read()) == "done"
        talk.write(call("change", 2))
        assert {talk.read().get("method", "answer") for _ in range(2)} == {
            "notifications/tools/list_changed",
            "answer",
        }


def test_a_cancelled_request_gets_no_answer(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        talk.write(call("hang", "h"))
        talk.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}})
        assert talk.ask(call("echo", "e", text="x"))["id"] == "e"


def test_two_clients_have_a_server_each(machine: Machine) -> None:
    with Talk(machine, "fix") as one, Talk(machine, "fix") as other:
        assert text_of(one.open().ask(call("pid"))) != text_of(other.open().ask(call("pid")))


def test_a_server_that_was_stopped_unused_is_there_again_for_the_next_message(machine: Machine) -> None:
    with Talk(machine, "sleepy") as talk:
        talk.open()
        pid = int(text_of(talk.ask(call("pid", 1))))
        eventually(lambda: not is_alive(pid), "the server was stopped")
        assert int(text_of(talk.ask(call("pid", 2)))) != pid


# ---------------------------------------------------------------------------------------- the modern era


def test_a_conversation_of_the_modern_era(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        found = talk.ask(modern("server/discover", 1))
        assert "2026-07-28" in found["result"]["supportedVersions"]
        answer = talk.ask(modern("tools/call", 2, name="echo", arguments={"text": "x"}))
        assert (answer["id"], answer["result"]["resultType"], text_of(answer)) == (2, "complete", "x")
        assert talk.ask(modern("ping", 3))["error"]["code"] == -32601


def test_a_request_of_the_modern_era_is_cancelled_by_a_notification(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(modern("tools/call", "h", name="hang", arguments={}))
        talk.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "h"}})
        answer = talk.ask(modern("tools/call", "e", name="echo", arguments={"text": "x"}))
        assert (answer["id"], text_of(answer)) == ("e", "x")


def test_changes_are_listened_to_as_lines(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(modern("subscriptions/listen", "l", notifications={"toolsListChanged": True}))
        assert talk.read()["method"] == "notifications/subscriptions/acknowledged"
        talk.write(modern("tools/call", "c", name="change", arguments={}))
        messages = [talk.read() for _ in range(2)]
        changed = next(each for each in messages if "method" in each)
        assert changed["method"] == "notifications/tools/list_changed"
        assert changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "l"
        talk.socket.shutdown(socket.SHUT_WR)
        assert talk.read() is None


# ---------------------------------------------------------------------------------------- policy


def test_the_mcps_map_applies(machine: Machine) -> None:
    with Talk(machine, "narrow") as talk:
        talk.open()
        listed = talk.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})["result"]["tools"]
        assert "say" in {tool["name"] for tool in listed}
        assert text_of(talk.ask(call("say", 2, text="mine"))) == "fixed"
        assert talk.ask(call("echo", 3, text="x"))["result"]["isError"] is True
        answer = talk.ask(modern("tools/call", 4, name="echo", arguments={}))
        assert (answer["result"]["isError"], answer["result"]["resultType"]) == (True, "complete")
        assert text_of(talk.ask(modern("tools/call", 5, name="say", arguments={}))) == "fixed"


# ---------------------------------------------------------------------------------------- bad input and ends


def test_broken_lines_cost_themselves_only(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        for line, code in ((b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"1.0","id":1}', -32600), (b"\xff", -32700)):
            assert talk.ask(line)["error"]["code"] == code
        assert talk.ask(b" " * (5 << 20))["error"]["code"] == -32005
        assert text_of(talk.ask(call("echo", 1, text="x"))) == "x"


def test_a_line_that_is_too_long_is_refused_under_its_id(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        # Of what is larger than any line, and of what only is no line of this bridge.
        for size in (5 << 20, (4 << 20) + 1):
            answer = talk.ask({"jsonrpc": "2.0", "id": "long", "method": "ping", "params": {"x": "x" * size}})
            assert (answer["id"], answer["error"]["code"]) == ("long", -32005)


def test_a_client_that_never_names_a_server_is_turned_away(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as file:
        client.settimeout(PATIENCE)
        client.connect(str(stdio_socket(machine)))
        client.shutdown(socket.SHUT_WR)
        assert json.loads(file.readline())["error"]["name"].endswith(".InvalidRequest")
        assert file.readline() == b""


def test_a_byte_at_a_time_is_a_line_in_the_end(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        for byte in json.dumps(call("echo", 1, text="slow")).encode() + b"\n":
            talk.socket.sendall(bytes([byte]))
        assert text_of(talk.read()) == "slow"


def test_thousands_of_lines_at_once_are_answered(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open()
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for start in range(0, 3000, 500):
            talk.write(*({**ping, "id": start + number} for number in range(500)))
            assert {talk.read()["id"] for _ in range(500)} == set(range(start, start + 500))


def test_a_client_that_has_nothing_more_to_say_gets_its_answers_first(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.write(initialize("i"), INITIALIZED, call("echo", 1, text="late", delay=0.5), call("pid", 2))
        talk.socket.shutdown(socket.SHUT_WR)
        answers = {}
        while (message := talk.read()) is not None:
            answers[message["id"]] = message
        assert set(answers) == {"i", 1, 2}
        assert text_of(answers[1]) == "late"
        eventually(lambda: not is_alive(int(text_of(answers[2]))), "the server ended with its client")


def test_a_server_that_asks_who_has_nothing_more_to_say_is_answered_for_it(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        talk.open(capabilities={"roots": {}})
        asked = talk.ask(call("ask", "c", method="roots/list"))
        assert asked["method"] == "roots/list"
        talk.write(call("ask", "d", method="roots/list"))
        assert talk.read()["method"] == "roots/list"
        talk.socket.shutdown(socket.SHUT_WR)
        answers = [talk.read(), talk.read()]
        assert {each["id"] for each in answers} == {"c", "d"}
        assert all("-32600" in text_of(each) for each in answers)
        assert talk.read() is None


def test_a_client_that_goes_while_its_last_call_runs_takes_the_server_along(machine: Machine) -> None:
    with Talk(machine, "fix") as talk:
        pid = int(text_of(talk.open().ask(call("pid", 1))))
        talk.write(call("hang", 2))
        talk.socket.shutdown(socket.SHUT_WR)
    eventually(lambda: not is_alive(pid), "the server ended with its client")


# ---------------------------------------------------------------------------------------- mcpctl


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
        assert not run.bridged()


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

    async def on_elicitation(_context: Any, params: Any) -> types.ElicitResult:
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
        assert {result.content[0].text for result in texts} == {"fixed"}
        params = {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
        result = await client.call_tool("ask", {"method": "elicitation/create", "params": params})
        assert '"answer": 42' in result.content[0].text
        assert asked == ["sure?"]


def test_calls_are_audited(machine: Machine) -> None:
    with Talk(machine, "narrow") as talk:
        assert text_of(talk.open().ask(call("say", 1, text="x"))) == "fixed"
        assert talk.ask(call("echo", 2))["result"]["isError"]

    def records() -> list[tuple[str, str, str]]:
        lines = [json.loads(line) for line in (machine.home / "audit").read_text().splitlines()]
        return [(line["server"], line["tool"], line["outcome"]) for line in lines]

    eventually(lambda: ("narrow", "say", "result") in records(), "the call is on record")
    eventually(lambda: ("narrow", "echo", "tool-error") in records(), "what was refused is, too")


def test_a_client_that_does_not_read_costs_itself_only(machine: Machine) -> None:
    with Talk(machine, "fix") as greedy:
        greedy.open()
        # It asks for more than is kept for a client, in answers of which one alone would do no harm.
        for number in range(20):
            greedy.write(call("big", number, size=32 << 20))
        with Talk(machine, "fix") as other:
            assert text_of(other.open().ask(call("echo", 1, text="x"))) == "x"
        eventually(lambda: cut_off(greedy.socket), "it is cut off")


def cut_off(connection: socket.socket) -> bool:
    watch = select.poll()
    watch.register(connection.fileno(), 0)
    return bool(watch.poll(0))


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
