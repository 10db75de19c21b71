# SPDX-License-Identifier: LGPL-2.1-or-later
"""The messages of ``mcp-scripts``, the ends of its calls, its log, and what it makes of hostile scripts."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents

from mcpd.servers.others import Others
from mcpd.servers.scripts import definition
from mcpd.servers.scripts.calls import Calls
from mcpd.servers.scripts.facility import Facility
from mcpd.servers.scripts.server import make_server
from tests.servers.remote_harness import INITIALIZED, MODERN, call, initialize, request, text_of
from tests.servers.remote_harness import Client as Wire
from tests.servers.scripts_harness import ERAS, SCRIPT, command, manifest, served, text, wire


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def test_T3_1_the_greeting_of_the_handshake(tmp_path: Path, log: Path) -> None:
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        found = (await client.greet())["result"]
        assert found["protocolVersion"] == "2025-11-25"
        assert found["serverInfo"] == {"name": "thing", "title": "Thing", "version": "1.2"}
        assert found["instructions"] == "Does things."
        capabilities = found["capabilities"]
        assert capabilities["tools"] == {"listChanged": True}
        assert capabilities["prompts"] == {"listChanged": True}
        assert capabilities["resources"] == {"subscribe": False, "listChanged": True}
        assert await client.end() == 0


async def test_T3_1_the_greeting_of_2026_07_28(tmp_path: Path, log: Path) -> None:
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        found = (await client.ask(request("server/discover", _meta=MODERN)))["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        capabilities = found["capabilities"]
        assert capabilities["tools"] == {"listChanged": True}
        assert capabilities["resources"] == {"subscribe": False, "listChanged": True}
        listening = request("subscriptions/listen", 7, notifications={"toolsListChanged": True}, _meta=MODERN)
        assert (await client.ask(listening))["method"] == "notifications/subscriptions/acknowledged"
        assert (await client.ask(call("echo", 8, meta=MODERN, message="x")))["id"] == 8
        await client.end()


async def test_T12_faults_of_the_protocol_are_errors_of_it(tmp_path: Path, log: Path) -> None:
    prompts = {"about": {"template": "{{ topic }}", "arguments": [{"name": "topic", "required": True}]}}
    async with wire("--manifest", manifest(tmp_path, SCRIPT, prompts=prompts), log=log) as client:
        await client.greet()
        for message, code, says in (
            (request("tools/unheard-of"), -32601, ""),
            (request("resources/subscribe", uri="a://b"), -32601, ""),
            (request("tools/call", arguments={}), -32602, "name"),
            (request("tools/call", name="echo", arguments=[]), -32602, "arguments"),
            (request("tools/list", cursor="nowhere"), -32602, "nowhere"),
            (request("tools/list", cursor=5), -32602, "cursor"),
            (request("resources/list", cursor="nowhere"), -32602, "nowhere"),
            (request("prompts/list", cursor="nowhere"), -32602, "nowhere"),
            (request("prompts/get", name="about", arguments={"topic": 7}), -32602, "topic has to be a string"),
            (request("prompts/get", name="about", arguments=[]), -32602, "arguments"),
            (request("prompts/get", name="about"), -32602, "topic is required"),
        ):
            error = (await client.ask(message))["error"]
            assert error["code"] == code, message
            assert says in error["message"]
        assert "Traceback" not in log.read_text()


async def test_completion(tmp_path: Path, log: Path) -> None:
    arguments = [{"name": "tone", "schema": {"enum": ["formal", "casual"]}}]
    prompts = {"about": {"template": "x", "arguments": arguments}}
    async with wire("--manifest", manifest(tmp_path, SCRIPT, prompts=prompts), log=log) as client:
        await client.greet()
        argument = {"name": "tone", "value": "c"}
        of_prompt = request("completion/complete", ref={"type": "ref/prompt", "name": "about"}, argument=argument)
        assert (await client.ask(of_prompt))["result"]["completion"]["values"] == ["casual"]
        of_resource = request("completion/complete", ref={"type": "ref/resource", "uri": "a://b"}, argument=argument)
        assert (await client.ask(of_resource))["result"]["completion"]["values"] == []


async def process_of(file: Path) -> int:
    """The id that a call has written to *file*."""
    async with asyncio.timeout(120):
        while not file.exists() or not file.read_text():
            await asyncio.sleep(0.01)
    return int(file.read_text())


async def gone(pid: int) -> None:
    async with asyncio.timeout(120):
        while alive(pid):
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("how", ["cancelled", "end", "terminated"])
async def test_a_call_that_nobody_waits_for_is_ended(tmp_path: Path, log: Path, how: str) -> None:
    begun = tmp_path / "begun"
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        await client.greet()
        await client.send(call("wait", 5, file=str(begun)))
        pid = await process_of(begun)
        if how == "cancelled":
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
            await client.send(cancel)
            await gone(pid)
            assert (await client.ask(call("echo", 6, message="still there")))["id"] == 6
            assert re.search(r"tools/call wait: [0-9.]+ ms, cancelled\n", log.read_text())
        elif how == "end":
            assert await client.end() == 0
        else:
            client.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                assert await client.process.wait() == 0
        await gone(pid)


async def test_a_client_that_reads_no_more_is_the_end(tmp_path: Path, log: Path) -> None:
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        await client.greet()
        # Its end of the server's stdout is closed.
        client.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await client.send(call("echo", message="x"))
        async with asyncio.timeout(120):
            while "tools/call echo: " not in log.read_text():
                await asyncio.sleep(0.01)
        assert await client.end() == 0
    assert "the client has gone" in log.read_text()
    assert "Traceback" not in log.read_text()


async def test_T12_5_a_call_that_takes_too_long_is_stopped(tmp_path: Path, log: Path) -> None:
    begun = tmp_path / "begun"
    file = manifest(tmp_path, SCRIPT, runtime={"callTimeout": 0.5})
    async with wire("--manifest", file, log=log) as client:
        await client.greet()
        found = (await client.ask(call("wait", file=str(begun))))["result"]
        assert found["isError"] is True
        assert "ran for more than 0.5 s and was stopped" in found["content"][0]["text"]
        await gone(await process_of(begun))


async def test_T13_2_a_result_over_the_limit_is_an_error(tmp_path: Path, log: Path) -> None:
    script = "def large(size: int) -> str:\n    return 'x' * size\n"
    async with wire("--manifest", manifest(tmp_path, script, runtime={"output": 4096}), log=log) as client:
        await client.greet()
        assert len((await client.ask(call("large", size=1000)))["result"]["content"][0]["text"]) == 1000
        found = (await client.ask(call("large", size=100_000)))["result"]
        assert found["isError"] is True
        assert "4096" in found["content"][0]["text"]


HOSTILE = r"""#!/bin/sh
case "$1" in
half) printf '{"a": "\\ud800"}' ;;
deep) i=0; while [ $i -lt 900 ]; do printf '{"a":'; i=$((i+1)); done; printf 1
      i=0; while [ $i -lt 900 ]; do printf '}'; i=$((i+1)); done ;;
bytes) printf '\\377\\000' ;;
large) head -c 1000000000 /dev/zero ;;
lines) printf '\\n\\n{"jsonrpc": "2.0", "id": 1, "result": {}}\\n' ;;
*) printf fine ;;
esac
"""


@pytest.mark.parametrize("mode", ERAS)
async def test_whatever_a_script_writes_the_next_call_is_answered(tmp_path: Path, log: Path, mode: str) -> None:
    file = manifest(tmp_path, HOSTILE, suffix=".sh", resources={"half": {"uri": "server://thing?args=half"}})
    async with served("--manifest", file, mode=mode, log=log) as client:
        for what, is_error in (
            ("half", False), ("deep", False), ("bytes", False), ("large", True), ("lines", False), ("fine", False)
        ):  # fmt: skip
            result = await client.call_tool("thing", {"args": what})
            assert result.is_error == is_error, (what, result)
        (content,) = (await client.read_resource("server://thing?args=half")).contents
        assert isinstance(content, TextResourceContents)
        assert "ud800" in content.text
        assert text(await client.call_tool("thing", {"args": "fine"})) == "fine"


class Odd(Facility):
    """What it answers cannot be sent."""

    async def call_tool(self, name: str, *_: object) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": name}], "isError": False, "structuredContent": {"half": "\ud800"}}

    async def list_prompts(self, _cursor: object) -> dict[str, Any]:
        raise RuntimeError("a secret")


@pytest.mark.parametrize("mode", ERAS)
async def test_what_cannot_be_sent_and_what_goes_wrong_here_are_errors(tmp_path: Path, mode: str) -> None:
    script = tmp_path / "odd.py"
    script.write_text(SCRIPT)
    defined = definition.alone(script)
    calls = Calls(defined.path, defined.kind, defined.source, limits=defined.limits(), log=lambda _: None)
    odd = Odd(defined, calls, Others("odd", 5, {}))
    async with Client(make_server(odd), mode=mode) as client:
        result = await client.call_tool("echo", {"message": "x"})
        assert result.is_error
        assert "surrogate" in text(result)
        with pytest.raises(MCPError, match="Internal error") as caught:
            await client.list_prompts()
        assert caught.value.error.code == -32603
    await odd.close()


@pytest.mark.parametrize("mode", ERAS)
async def test_half_a_character_from_another_server_is_an_error_that_says_so(tmp_path: Path, mode: str) -> None:
    async def other(*_: object) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "\ud800"}]}

    defined = definition.read(manifest(tmp_path, resources={"far": {"uri": "server://far/look"}}))
    calls = Calls(defined.path, defined.kind, defined.source, limits=defined.limits(), log=lambda _: None)
    served_ = Facility(defined, calls, other)
    async with Client(make_server(served_), mode=mode) as client:
        with pytest.raises(MCPError, match="half a surrogate pair"):
            await client.read_resource("server://far/look")
    await served_.close()


async def test_every_message_is_timed_in_one_line_of_the_log(tmp_path: Path, log: Path) -> None:
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        await client.greet()
        await client.ask(call("echo", message="x"))
        await client.ask(call("a\nb\x1b[31m", message="x"))
        await client.ask(request("resources/read", uri="a://b"))
        await client.end()
    lines = [line.removeprefix("mcp-scripts: ") for line in log.read_text().splitlines()]
    named = {line.rpartition(": ")[0]: line.rpartition(": ")[2] for line in lines if " ms" in line}
    calls = ["tools/call echo", "tools/call a\\nb\\x1b[31m", "resources/read a://b"]
    assert list(named) == ["initialize", "notifications/initialized", *calls]
    assert [said.endswith(" ms, failed") for said in named.values()] == [False, False, False, True, True]


async def test_the_first_request_decides_the_era_and_the_other_is_refused(tmp_path: Path, log: Path) -> None:
    async with wire("--manifest", manifest(tmp_path, SCRIPT), log=log) as client:
        await client.ask(initialize())
        await client.send(INITIALIZED)
        assert "error" in await client.ask(call("echo", 3, meta=MODERN, message="x"))
        assert (await client.ask(call("echo", 4, message="x")))["result"]["isError"] is False


RUNAWAY = {
    "type": "object",
    "properties": {
        "pattern": {"pattern": "^(a+)+$"},
        "unique": {"uniqueItems": True},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "$defs": {
        "tree": {
            "anyOf": [
                {"type": "integer"},
                {"properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["x"]},
                {"properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["y"]},
            ]
        }
    },
}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pattern", "a" * 60 + "b"),
        ("unique", [[{"a": [number]}, number] for number in range(30_000)]),
        ("tree", nested(40)),
    ],
)
async def test_a_check_that_takes_for_ever_holds_up_nothing_else(
    tmp_path: Path, log: Path, name: str, value: object
) -> None:
    tools = {"echo": {"inputSchema": RUNAWAY, "function": "echo"}}
    file = manifest(tmp_path, SCRIPT, tools=tools, runtime={"callTimeout": 1})
    async with wire("--manifest", file, log=log) as client:
        await client.greet()
        assert (await client.ask(request("tools/list", 2)))["id"] == 2
        await client.send(call("echo", 3, **{name: value}), request("ping", 4))
        first, second = await client.receive(), await client.receive()
        assert (first["id"], second["id"]) == (4, 3)
        assert text_of(second).endswith("$: checking the arguments took more than 1 s")
        assert second["result"]["isError"] is True


async def test_the_check_of_an_argument_of_a_prompt_and_of_a_result_hold_up_nothing_either(
    tmp_path: Path, log: Path
) -> None:
    evil = {"type": "string", "pattern": "^(a+)+$"}
    tools = {"give": {"outputSchema": {"properties": {"text": evil}}}}
    prompts = {"p": {"template": "{{ a }}", "arguments": [{"name": "a", "schema": evil}]}}
    script = "def give() -> dict:\n    return {'text': 'a' * 60 + 'b'}\n"
    file = manifest(tmp_path, script, tools=tools, prompts=prompts, runtime={"callTimeout": 1})
    async with wire("--manifest", file, log=log) as client:
        await client.greet()
        await client.send(request("prompts/get", 3, name="p", arguments={"a": "a" * 60 + "b"}), request("ping", 4))
        assert [(await client.receive())["id"] for _ in range(2)] == [4, 3]
        await client.send(call("give", 5))
        answer = await client.receive()
        assert "checking the result took more than 1 s" in text_of(answer)


async def test_nobody_has_to_read_stderr(tmp_path: Path, log: Path) -> None:
    file = manifest(tmp_path, "def talk() -> str:\n    print('x' * 2_000_000)\n    return 'said'\n")
    process = await asyncio.create_subprocess_exec(
        *command("--manifest", file), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, limit=1024
    )
    client = Wire(process, log)
    try:
        await client.greet()
        for number in range(3):
            await client.send(*[call("unheard" * 100, f"{number}.{each}") for each in range(100)])
            for _ in range(100):
                await client.receive()
            assert text_of(await client.ask(call("talk", number))) == "said"
        process.send_signal(signal.SIGTERM)
        # Not process.wait(), which waits for the end of stderr as well.
        async with asyncio.timeout(120):
            while process.returncode is None:
                await asyncio.sleep(0.01)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_what_was_asked_before_the_end_of_stdin_is_answered(tmp_path: Path) -> None:
    script = tmp_path / "thing.py"
    script.write_text("import time\n\ndef slow(n: int) -> int:\n    time.sleep(0.5)\n    return n\n")
    messages = [initialize(), INITIALIZED, *[call("slow", number, n=number) for number in range(1, 4)]]
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    process = await asyncio.create_subprocess_exec(*command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with asyncio.timeout(120):
        output, _ = await process.communicate(lines.encode())
    answers = {answer["id"]: answer for answer in map(json.loads, output.splitlines())}
    assert [text_of(answers[number]) for number in range(1, 4)] == ["1", "2", "3"]
    assert process.returncode == 0


async def test_a_script_alone_says_nothing_of_changes_that_it_will_not_tell(tmp_path: Path, log: Path) -> None:
    script = tmp_path / "thing.py"
    script.write_text(SCRIPT)
    async with wire(script, log=log) as client:
        capabilities = (await client.greet())["result"]["capabilities"]
        assert {capabilities[kind]["listChanged"] for kind in ("tools", "resources", "prompts")} == {False}
    async with wire(script, log=log) as client:
        capabilities = (await client.ask(request("server/discover", _meta=MODERN)))["result"]["capabilities"]
        assert {capabilities[kind]["listChanged"] for kind in ("tools", "resources", "prompts")} == {False}


async def test_to_C7_errors_of_json_rpc_where_the_entry_says_so(tmp_path: Path, log: Path) -> None:
    runtime = {"errorMapping": "json-rpc", "callTimeout": 1}
    async with wire("--manifest", manifest(tmp_path, SCRIPT, runtime=runtime), log=log) as client:
        await client.greet()
        for message, code, says in (
            (call("unheard"), -32601, "Unknown tool: unheard"),
            (call("echo", message=7), -32602, "$.message: 7 is not of type 'string'"),
            (call("fail", reason="the disk is full"), -32603, "the disk is full"),
            (call("wait", file=str(tmp_path / "begun")), -32000, "ran for more than 1 s"),
        ):
            error = (await client.ask(message))["error"]
            assert error["code"] == code
            assert says in error["message"]
        assert text_of(await client.ask(call("echo", message="x"))) == "x"
