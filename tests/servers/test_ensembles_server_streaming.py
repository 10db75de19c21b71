# SPDX-License-Identifier: LGPL-2.1-or-later
"""What clients of ``llm-orc`` hear on the way: progress, messages, changes; and how they end a run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from mcpd.paths import from_environment
from mcpd.servers.changes import Changes
from mcpd.servers.ensembles import directories
from mcpd.servers.ensembles.announcing import announce
from mcpd.servers.ensembles.service import Service
from tests.servers.constants import impatient
from tests.servers.ensembles_harness import ERAS, PAIR, PATIENCE, Room, happens, invoked, read

if TYPE_CHECKING:
    from pathlib import Path

    from mcp import Client
    from mcp.types import RequestParamsMeta

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
WIDE = """\
name: wide
agents:
  - {name: root, model_profile: fast}
""" + "".join(f"  - {{name: leaf{number}, model_profile: fast, depends_on: [root]}}\n" for number in range(60))
SLOW = "name: slow\nagents:\n  - {name: quick, model_profile: fast}\n  - {name: sleepy, model_profile: slow}\n"
LONG = "name: long\nagents:\n  - {name: talker, model_profile: fast}\n"
ASKS = "name: asks\nagents:\n  - {name: asker, model_profile: client, system_prompt: Be brief}\n"


def level(name: str) -> RequestParamsMeta:
    """Return the metadata of a request for messages of level *name*."""
    return cast("RequestParamsMeta", {"io.modelcontextprotocol/logLevel": name})


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A project with ensembles."""
    made = Room(tmp_path)
    for each in (PAIR, WIDE, SLOW, LONG, ASKS):
        made.put(each)
    return made


class Heard:
    """What a client hears."""

    def __init__(self) -> None:
        self.progress: list[tuple[float, float | None, str | None]] = []
        self.messages: list[Any] = []
        self.others: list[str] = []

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, total, message))

    async def on_message(self, params: types.LoggingMessageNotificationParams) -> None:
        self.messages.append(params)

    async def on_any(self, message: Any) -> None:
        method = getattr(message, "method", "")
        if method.startswith("notifications/resources/"):
            self.others.append(f"{method} {getattr(message.params, 'uri', '')}".rstrip())

    def event(self, name: str) -> list[dict[str, Any]]:
        """The data of the messages of one kind."""
        return [each.data for each in self.messages if each.data["event"] == name]


@pytest.mark.parametrize("mode", ERAS)
async def test_there_is_progress_for_each_agent(room: Room, mode: str) -> None:
    heard = Heard()
    async with room.started(mode=mode) as client:
        result = await client.call_tool(
            "invoke", {"ensemble_name": "wide", "input": "x"}, progress_callback=heard.on_progress
        )
    assert not result.is_error
    assert [done for done, _, _ in heard.progress] == [float(number) for number in range(1, 62)]
    assert {total for _, total, _ in heard.progress} == {61.0}
    assert str(heard.progress[0][2]).startswith("root: success (")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_run_that_waits_for_one_model_is_said_to_be_running(room: Room, mode: str) -> None:
    room.program = impatient("mcpd.servers.ensembles")
    heard = Heard()
    async with room.started(mode=mode) as client:
        call = asyncio.create_task(
            client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}, progress_callback=heard.on_progress)
        )
        await happens(lambda: len([each for each in heard.progress if each[1] == 2.0]) > 3)
        call.cancel()
        await asyncio.wait([call])
    numbers = [done for done, _, _ in heard.progress]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2
    (quick,) = (number for number, (_, _, message) in enumerate(heard.progress) if str(message).startswith("quick: "))
    assert all(str(message).startswith("still running after ") for _, _, message in heard.progress[quick + 1 :])


async def test_without_streaming_a_slow_run_says_nothing(room: Room) -> None:
    room.program = impatient("mcpd.servers.ensembles")
    heard = Heard()
    async with room.started() as client:
        call = asyncio.create_task(
            client.call_tool(
                "invoke",
                {"ensemble_name": "slow", "input": "x", "streaming": False},
                progress_callback=heard.on_progress,
            )
        )
        # What is said of a run that streams comes while this one, which began before it, goes on.
        other = Heard()
        streamed = asyncio.create_task(
            client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}, progress_callback=other.on_progress)
        )
        await happens(lambda: len(other.progress) > 3)
        for each in (call, streamed):
            each.cancel()
        await asyncio.wait([call, streamed])
    assert heard.progress == []


@pytest.mark.parametrize("mode", ERAS)
async def test_without_streaming_there_is_none(room: Room, mode: str) -> None:
    heard = Heard()
    async with room.started(mode=mode, logging_callback=heard.on_message) as client:
        await client.call_tool(
            "invoke",
            {"ensemble_name": "pair", "input": "x", "streaming": False},
            progress_callback=heard.on_progress,
            meta=level("debug"),
        )
    assert heard.progress == []
    assert heard.messages == []


@pytest.mark.parametrize("mode", ERAS)
async def test_partial_outputs_are_messages_for_a_client_that_asks_for_them(room: Room, mode: str) -> None:
    heard = Heard()
    async with room.started(mode=mode, logging_callback=heard.on_message) as client:
        await invoked(client, "pair", "x")
        assert heard.messages == []
        if mode == "legacy":
            await client.set_logging_level("info")
        await client.call_tool(
            "invoke", {"ensemble_name": "pair", "input": "x"}, meta=level("info") if mode != "legacy" else None
        )
    assert {each.logger for each in heard.messages} == {"pair"}
    assert {each.level for each in heard.messages} == {"info"}
    assert [(each["agent"], each["status"]) for each in heard.event("agent_completed")][-1] == ("sum", "success")
    assert heard.event("agent_completed")[0]["response"] == "<x>"
    assert heard.event("agent_started") == []


async def test_long_outputs_are_cut_in_messages(room: Room) -> None:
    heard = Heard()
    async with room.started(logging_callback=heard.on_message) as client:
        await client.set_logging_level("debug")
        answer = await invoked(client, "long", "y" * 100_000)
    (told,) = heard.event("agent_completed")
    assert len(told["response"]) == 16 * 1024
    assert told["characters"] == 100_002
    assert len(answer["deliverable"]) == 100_002
    assert [each["agent"] for each in heard.event("agent_started")] == ["talker"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_run_that_is_cancelled_is_kept_as_such(room: Room, mode: str) -> None:
    heard = Heard()
    async with room.started(mode=mode) as client:
        call = asyncio.create_task(
            client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}, progress_callback=heard.on_progress)
        )
        await happens(lambda: heard.progress)
        running = (await read(client, "llm-orc://artifacts/slow"))["artifacts"]
        call.cancel()
        await asyncio.wait([call])
        (directory,) = [each for each in (room.base / "artifacts/slow").iterdir() if not each.is_symlink()]
        await happens(lambda: json.loads((directory / "execution.json").read_text())["status"] != "running")
        (artifact,) = (await read(client, "llm-orc://artifacts/slow"))["artifacts"]
        found = await read(client, artifact["uri"])
        assert await invoked(client, "pair", "the server still works")
    assert [each["status"] for each in running] == ["running"]
    assert artifact["status"] == "cancelled"
    assert found["results"]["quick"]["response"] == "<x>"
    assert found["results"]["sleepy"]["status"] == "cancelled"


async def test_a_run_is_kept_when_the_client_goes(room: Room) -> None:
    heard = Heard()
    async with room.started() as client:
        call = asyncio.create_task(
            client.call_tool("invoke", {"ensemble_name": "slow", "input": "x"}, progress_callback=heard.on_progress)
        )
        await happens(lambda: heard.progress)
        call.cancel()
    (directory,) = [each for each in (room.base / "artifacts/slow").iterdir() if not each.is_symlink()]
    assert json.loads((directory / "execution.json").read_text())["status"] == "cancelled"


# ------------------------------------------------------------------------------------------------------- subscriptions


async def test_changes_are_told_to_whoever_subscribed_in_the_handshake_era(room: Room) -> None:
    heard = Heard()
    async with room.started(message_handler=heard.on_any) as client:
        assert client.server_capabilities.resources == types.ResourcesCapability(subscribe=True, list_changed=True)
        await client.subscribe_resource("llm-orc://ensemble/pair")
        await client.subscribe_resource("llm-orc://artifacts/pair")
        room.put(PAIR.replace("Two readers", "Two writers"))
        await happens(lambda: "notifications/resources/updated llm-orc://ensemble/pair" in heard.others)
        await invoked(client, "pair", "x")
        await happens(lambda: "notifications/resources/updated llm-orc://artifacts/pair" in heard.others)
        room.put(PAIR.replace("name: pair", "name: other"))
        await happens(lambda: "notifications/resources/list_changed" in heard.others)
        await client.unsubscribe_resource("llm-orc://ensemble/pair")
        heard.others.clear()
        room.put(PAIR)
        room.put(PAIR.replace("name: pair", "name: third"))
        await happens(lambda: "notifications/resources/list_changed" in heard.others)
    assert not any("ensemble/" in each for each in heard.others)


@pytest.mark.parametrize("uri", ["llm-orc://ensemble/user%2Fpair", "llm-orc://ensemble/user/pair"])
async def test_changes_of_an_ensemble_are_told_by_its_qualified_name(room: Room, uri: str) -> None:
    heard = Heard()
    own = room.home / ".config/llm-orc/ensembles"
    own.mkdir(parents=True)
    (own / "pair.yaml").write_text(PAIR)
    async with room.started(message_handler=heard.on_any) as client:
        await client.subscribe_resource(uri)
        (own / "pair.yaml").write_text(PAIR.replace("Two readers", "Two writers"))
        await happens(lambda: f"notifications/resources/updated {uri}" in heard.others)


async def test_changes_are_told_to_whoever_listens_later(room: Room) -> None:
    async def hear(client: Client, into: list[Any], listening: asyncio.Event) -> None:
        async with client.listen(
            resources_list_changed=True, resource_subscriptions=["llm-orc://ensemble/pair"]
        ) as events:
            listening.set()
            async for event in events:
                into.append(event)  # noqa: PERF401 -- it is looked at meanwhile

    found: list[Any] = []
    async with room.started(mode="2026-07-28") as client:
        listening = asyncio.Event()
        task = asyncio.create_task(hear(client, found, listening))
        async with asyncio.timeout(PATIENCE):
            await listening.wait()
        room.put(PAIR.replace("Two readers", "Two writers"))
        await happens(lambda: ResourceUpdated("llm-orc://ensemble/pair") in found)
        room.put(PAIR.replace("name: pair", "name: other"))
        await happens(lambda: ResourcesListChanged() in found)
        task.cancel()
        await asyncio.wait([task])
    assert {type(event) for event in found} == {ResourceUpdated, ResourcesListChanged}
    assert {event.uri for event in found if isinstance(event, ResourceUpdated)} == {"llm-orc://ensemble/pair"}


async def test_capabilities_of_the_later_era(room: Room) -> None:
    async with room.started(mode="auto") as client:
        capabilities = client.server_capabilities
    assert capabilities.resources == types.ResourcesCapability(subscribe=True, list_changed=True)
    assert capabilities.tools == types.ToolsCapability(list_changed=False)
    assert capabilities.logging is not None
    assert capabilities.prompts is None


async def test_files_are_watched_after_the_first_answer(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = asyncio.Event()

    async def watch(*_: object) -> None:
        watched.set()

    monkeypatch.setattr("mcpd.servers.ensembles.announcing.watch", watch)
    monkeypatch.setattr("mcpd.servers.ensembles.announcing.LATEST", 600.0)
    monkeypatch.setenv("HOME", str(room.home))
    service, changes = Service(directories.settings(from_environment(), [room.project])), Changes()
    announcing = asyncio.create_task(announce(service, changes))
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not watched.is_set()
        changes.wanted.set()
        async with asyncio.timeout(PATIENCE):
            await watched.wait()
    finally:
        announcing.cancel()
        await asyncio.wait([announcing])
        await service.close()


async def test_a_client_that_asks_nothing_hears_of_changes(room: Room) -> None:
    heard = Heard()
    async with room.started(message_handler=heard.on_any):

        def hears() -> bool:
            room.put(PAIR.replace("Two readers", f"Readers {os.urandom(4).hex()}"))
            return bool(heard.others)

        await happens(hears)
    assert set(heard.others) == {"notifications/resources/list_changed"}


# ------------------------------------------------------------------------------------------------------------ sampling


async def test_mcp_sampling_asks_the_model_of_the_client(room: Room) -> None:
    asked: list[types.CreateMessageRequestParams] = []

    async def sample(_context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        asked.append(params)
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="forty-two"), model="mine"
        )

    async with room.started(sampling_callback=sample) as client:
        answer = await invoked(client, "asks", "What is it?")
    assert answer["deliverable"] == "forty-two"
    assert answer["results"]["asker"]["model"] == "mine"
    (params,) = asked
    assert params.system_prompt == "Be brief"
    assert params.messages[0].content.text == "What is it?"  # type: ignore[union-attr]


async def test_a_client_that_refuses_to_sample_fails_the_agent(room: Room) -> None:
    async def sample(_context: Any, _params: types.CreateMessageRequestParams) -> types.ErrorData:
        return types.ErrorData(code=-1, message="the user said no")

    async with room.started(sampling_callback=sample) as client:
        result = await client.call_tool("invoke", {"ensemble_name": "asks", "input": "x"})
    assert result.is_error
    assert "the user said no" in (result.structured_content or {})["results"]["asker"]["error"]


async def test_the_name_of_a_clients_model_is_short_and_printable(room: Room) -> None:
    async def sample(_context: Any, _params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="yes")
        return types.CreateMessageResult(role="assistant", content=content, model="\x1b" + "m" * 5000)

    async with room.started(sampling_callback=sample) as client:
        answer = await invoked(client, "asks", "x")
    model = answer["results"]["asker"]["model"]
    assert model.isprintable()
    assert "m" * 127 in model
    assert "m" * 128 not in model


@pytest.mark.parametrize("result", ["[1]", "null", "7"])
async def test_an_answer_that_cannot_be_read_fails_the_agent_at_once(room: Room, result: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *room.argv("serve"), env=room.environ, cwd=room.directory,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=2**24,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {
        "protocolVersion": "2025-11-25", "capabilities": {"sampling": {}}, "clientInfo": {"name": "t", "version": "1"}
    }  # fmt: skip
    call = {"name": "invoke", "arguments": {"ensemble_name": "asks", "input": "x"}}
    try:
        for each in (
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        ):
            process.stdin.write(json.dumps(each).encode() + b"\n")
        answers: dict[Any, Any] = {}
        async with asyncio.timeout(PATIENCE):
            while 2 not in answers:
                message = json.loads(await process.stdout.readline())
                if message.get("method") == "sampling/createMessage":
                    line = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {result}}}\n'
                    process.stdin.write(line.encode())
                elif "method" not in message:
                    answers[message["id"]] = message
    finally:
        process.kill()
        await process.wait()
        process.stdin.close()
    asker = answers[2]["result"]["structuredContent"]["results"]["asker"]
    assert asker["status"] == "failed"
    assert "cannot be read" in asker["error"]


@pytest.mark.parametrize("mode", ERAS)
async def test_without_sampling_the_way_out_is_named(room: Room, mode: str) -> None:
    async with room.started(mode=mode) as client:
        result = await client.call_tool("invoke", {"ensemble_name": "asks", "input": "x"})
    assert result.is_error
    assert "give the profile another provider" in (result.structured_content or {})["results"]["asker"]["error"]


async def test_no_more_subscriptions_than_there_may_be(room: Room) -> None:
    async with room.started() as client:
        for number in range(4096):
            await client.subscribe_resource(f"llm-orc://ensemble/e{number}")
        with pytest.raises(MCPError) as caught:
            await client.subscribe_resource("llm-orc://ensemble/more")
        await client.unsubscribe_resource("llm-orc://ensemble/e0")
        await client.subscribe_resource("llm-orc://ensemble/more")
        await client.unsubscribe_resource("llm-orc://ensemble/e1")
        with pytest.raises(MCPError) as long:
            await client.subscribe_resource(f"llm-orc://ensemble/{'e' * 5000}")
    assert (caught.value.error.code, long.value.error.code) == (-32005, -32005)
