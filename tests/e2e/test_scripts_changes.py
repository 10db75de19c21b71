# SPDX-License-Identifier: LGPL-2.1-or-later
"""A script or its entry changes while clients are there: they are told, and get what is new (docs/scripts.md)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.script_parts import (
    HELLO,
    MODERN,
    PREFIX,
    ScriptRig,
    eventually,
    messages,
    modern,
    text_of,
)
from tests.rig import BIN, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOOLS_CHANGED = "notifications/tools/list_changed"
FAREWELL = HELLO + '\n\ndef farewell(name: str) -> str:\n    return f"Goodbye {name}!"\n'


@pytest.fixture
def rig(machine: ScriptRig) -> Iterator[ScriptRig]:
    """The machine, whose scripts and entries end with the test."""
    yield machine
    machine.forget()


def edit(path: Path, text: str) -> None:
    """Write it in place, and tell nobody."""
    path.write_text(text)


def until(stream: Iterator[Any], method: str) -> dict[str, Any]:
    """The next message of *method*."""
    found: dict[str, Any] = next(each for each in stream if each.get("method") == method)
    return found


def test_T3_3_an_edit_is_told_to_those_who_listen_and_the_next_list_is_new(rig: ScriptRig) -> None:
    path = rig.put("edited.py", HELLO)
    client = rig.client("edited")
    assert client.greeting["capabilities"]["tools"] == {"listChanged": True}
    assert set(client.tools()) == {"greet"}
    headers = {**client.headers, "Accept": "text/event-stream"}
    with client.http.stream("GET", client.path, headers=headers) as reply:
        assert reply.status_code == 200
        stream = messages(reply)
        edit(path, FAREWELL)
        assert until(stream, TOOLS_CHANGED) == {"jsonrpc": "2.0", "method": TOOLS_CHANGED}
        assert set(client.tools()) == {"greet", "farewell"}
        assert text_of(client.call("farewell", name="you")) == "Goodbye you!"
        edit(path, HELLO.replace("Hello", "Servus"))
        until(stream, TOOLS_CHANGED)
        assert set(client.tools()) == {"greet"}
        assert text_of(client.call("greet", name="you")) == "Servus you!"


def test_T3_3_the_same_in_revision_2026_07_28(rig: ScriptRig) -> None:
    path = rig.put("subscribed.py", HELLO)
    http = rig.http()
    message, headers = modern("subscriptions/listen", "mine", notifications={"toolsListChanged": True})

    def names() -> set[str]:
        asked, said = modern("tools/list", 2)
        return {
            tool["name"] for tool in http.post("/mcp/subscribed", json=asked, headers=said).json()["result"]["tools"]
        }

    assert names() == {"greet"}
    with rig.http().stream("POST", "/mcp/subscribed", json=message, headers=headers) as reply:
        stream = messages(reply)
        acknowledged = next(stream)
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        edit(path, FAREWELL)
        assert until(stream, TOOLS_CHANGED)["params"] == {"_meta": {PREFIX + "subscriptionId": "mine"}}
        assert names() == {"greet", "farewell"}


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_T3_3_the_official_client_hears_of_an_edit(rig: ScriptRig, mode: Any) -> None:
    path = rig.put("heard.py", HELLO)
    heard = asyncio.Event()

    async def listen(message: Any) -> None:
        if getattr(message, "method", "") == TOOLS_CHANGED:
            heard.set()

    transport = httpx2.AsyncHTTPTransport(uds=os.fspath(rig.socket))
    async with (
        httpx2.AsyncClient(transport=transport, timeout=60) as http,
        Client(
            streamable_http_client("http://localhost/mcp/heard", http_client=http), mode=mode, message_handler=listen
        ) as client,
    ):
        assert {tool.name for tool in (await client.list_tools()).tools} == {"greet"}
        if mode == MODERN:
            async with client.listen(tools_list_changed=True) as events:
                edit(path, FAREWELL)
                async with asyncio.timeout(PATIENCE):
                    await anext(aiter(events))
        else:
            edit(path, FAREWELL)
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
        tools = (await client.list_tools(cache_mode="refresh")).tools
        assert {tool.name for tool in tools} == {"greet", "farewell"}


def test_another_entry_is_told_as_an_edit_is(rig: ScriptRig) -> None:
    rig.put("entered.py", FAREWELL)
    client = rig.client("entered")
    assert set(client.tools()) == {"greet", "farewell"}
    headers = {**client.headers, "Accept": "text/event-stream"}
    with client.http.stream("GET", client.path, headers=headers) as reply:
        stream = messages(reply)
        rig.enter(entered={"resources": {"n": {"uri": "variable://n"}}, "variables": {"n": "new"}})
        told = {until(stream, f"notifications/{kind}/list_changed")["method"] for kind in ("tools", "resources")}
        assert len(told) == 2
        assert client.result("resources/read", uri="variable://n")["contents"][0]["text"] == "new"
        rig.enter(entered={"disallowed_tools": ["fare*"]})
        until(stream, TOOLS_CHANGED)
        assert set(client.tools()) == {"greet"}


def test_a_call_that_runs_when_the_script_changes_is_answered_by_what_it_was(rig: ScriptRig) -> None:
    code = "import pathlib, time\n\nhome = pathlib.Path.home()\n\n\ndef wait() -> str:\n    {}"
    slow = (
        "(home / 'waits').touch()\n    while not (home / 'go').exists():\n        time.sleep(0.02)\n    return 'old'\n"
    )
    path = rig.put("running.py", code.format(slow))
    client, home = rig.client("running"), rig.state_of("running")
    with rig.in_call("running", "wait", client=client) as call:
        eventually((home / "waits").exists, "the call runs")
        edit(path, code.format("return 'new'\n") + "\n\ndef fresh(): ...\n")
        eventually(lambda: "fresh" in rig.client("running").tools(), "the edit is there")
        assert text_of(rig.client("running").call("wait")) == "new"
        (home / "go").touch()
        assert text_of(call.result(60)) == "old"
    assert text_of(client.call("wait")) == "new"


def test_an_edit_with_a_fault_breaks_that_server_until_it_is_mended(rig: ScriptRig) -> None:
    path = rig.put("mended.py", HELLO)
    client = rig.client("mended")
    assert set(client.tools()) == {"greet"}
    edit(path, "def greet(:\n")
    eventually(lambda: rig.listed()["mended"]["state"] == "broken", "the fault is seen")
    assert rig.listed()["mended"]["problem"] == f"{path}:1: invalid syntax"
    edit(path, FAREWELL)
    eventually(lambda: rig.listed()["mended"]["state"] == "installed", "it is mended")

    def names() -> set[str]:
        answer = rig.client("mended").post("tools/list").json()
        return {tool["name"] for tool in answer.get("result", {}).get("tools", ())}

    eventually(lambda: names() == {"greet", "farewell"}, "it is served again")


def test_a_script_that_is_watched_shows_its_edits(rig: ScriptRig) -> None:
    file = rig.home / "watched.py"
    file.write_text(HELLO)
    command = [str(BIN / "mcpctl"), "--user", "script", "add", str(file), "--watch"]
    with subprocess.Popen(command, env=rig.environ, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None
            eventually(lambda: "watched" in rig.listed(), "it is added")
            client = rig.client("watched")
            assert set(client.tools()) == {"greet"}
            headers = {**client.headers, "Accept": "text/event-stream"}
            with client.http.stream("GET", client.path, headers=headers) as reply:
                stream = messages(reply)
                while not watching.stdout.readline().startswith("Watching"):
                    assert watching.poll() is None
                edit(file, FAREWELL)
                until(stream, TOOLS_CHANGED)
                assert set(client.tools()) == {"greet", "farewell"}
                edit(file, "def greet(:\n")
                while "the server is unchanged" not in (line := watching.stdout.readline()):
                    assert line
                assert f"{file}:1: invalid syntax" in line
                assert text_of(client.call("farewell", name="you")) == "Goodbye you!"
        finally:
            watching.send_signal(signal.SIGINT)
            watching.wait(PATIENCE)
    assert rig.listed()["watched"]["state"] == "installed"


def test_T6_the_content_of_a_transform_changes_with_its_entry(rig: ScriptRig) -> None:
    source = rig.home / "transformed"
    source.mkdir()
    rig.put("transformed.py", HELLO)
    entry = {"transformed": {"auto_discover": True, "tools_transform_cid": "t.py"}}
    (source / "mcps.source.json").write_text(json.dumps(entry))
    target = rig.map.parent / "mcps.d/transformed.json"
    target.parent.mkdir(exist_ok=True)

    def build(name: str) -> None:
        (source / "t.py").write_text(
            f"def generate_tools(server_name, context):\n    return [{{'name': {name!r}, 'function': 'greet'}}]\n"
        )
        rig.done("mcps", "build", str(source / "mcps.source.json"), "-o", str(target))
        rig.listed()

    build("first")
    assert set(rig.tools("transformed")) == {"greet", "first"}
    client = rig.client("transformed")
    assert set(client.tools()) == {"greet", "first"}
    headers = {**client.headers, "Accept": "text/event-stream"}
    with client.http.stream("GET", client.path, headers=headers) as reply:
        stream = messages(reply)
        build("second")
        until(stream, TOOLS_CHANGED)
        assert set(client.tools()) == {"greet", "second"}
