# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server ``workstation`` behind the bridge: its catalog, its time, clients' roots, and what is left of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp_types import ListRootsResult, Root

from tests.e2e.script_parts import modern
from tests.e2e.workstation_parts import ERAS, SERVER, SLOW, WorkstationRig, answer, happens
from tests.servers.failures import refused

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def machine() -> Iterator[WorkstationRig]:
    with WorkstationRig() as rig:
        rig.boot()
        yield rig


@pytest.fixture
def rig(machine: WorkstationRig) -> WorkstationRig:
    """The machine with two empty roots and nothing else configured."""
    machine.clear()
    return machine


def answering(uris: list[str]) -> Any:
    """A client that has the roots *uris*."""

    async def answer_roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=uri) for uri in uris])

    return answer_roots


@pytest.mark.parametrize("mode", ERAS)
async def test_the_roots_of_a_client_only_narrow(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "project").mkdir()
    (rig.src / "project/file").write_text("of the project")
    (rig.src / "file").write_text("beside it")
    (rig.src / "project/Makefile").write_text("look:\n\t-@cat ../file\n\t-@echo x >../new\n")
    roots = [(rig.src / "project").as_uri(), rig.home.joinpath("elsewhere").as_uri()]
    async with (
        rig.connect("http", mode, list_roots_callback=answering(roots)) as narrow,
        rig.connect("http", mode) as wide,
    ):
        assert (await answer(narrow, "filesystem_read", path="file"))["text"] == "of the project"
        assert (await answer(wide, "filesystem_read", path="file"))["text"] == "beside it"
        for path in (rig.src / "file", rig.work, rig.secret):
            error = await refused(narrow, "filesystem_stat", path=str(path))
            assert error.code == -32603
            assert f"may be touched: {rig.src}/project" in error.message
        looked = await answer(narrow, "ci_task", name="look")
        assert "beside it" not in looked["output"]
        assert not (rig.src / "new").exists()
        assert "beside it" in (await answer(wide, "ci_task", name="look", path="project"))["output"]


@pytest.mark.parametrize("mode", ERAS)
async def test_roots_of_a_client_open_nothing(rig: WorkstationRig, mode: str) -> None:
    async with rig.connect("http", mode, list_roots_callback=answering([rig.secret.parent.as_uri()])) as client:
        await refused(client, "filesystem_read", path=str(rig.secret))
    elsewhere = rig.home / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    async with rig.connect("http", mode, list_roots_callback=answering([elsewhere.as_uri()])) as client:
        error = await refused(client, "filesystem_list")
        assert "client's own roots are not in" in error.message


async def test_tools_are_listed_from_the_catalog(rig: WorkstationRig) -> None:
    seen, others = [], rig.running()
    for _ in range(3):
        before = rig.said(f"{SERVER} started"), rig.said("tools/list: ")
        async with rig.connect("http", "legacy") as client:
            seen.append((await client.list_tools()).tools)
    # Two processes said the same of themselves, so no third one is started to say it again.
    assert (rig.said(f"{SERVER} started"), rig.said("tools/list: ")) == before
    assert seen[0] == seen[1] == seen[2]
    await happens(lambda: rig.running() <= others)


async def test_clients_of_the_modern_era_share_a_process(rig: WorkstationRig) -> None:
    (rig.src / "file").write_text("text")
    started = set()
    for _ in range(3):
        async with rig.connect("http", "2026-07-28") as client:
            assert "filesystem_read" in {tool.name for tool in (await client.list_tools()).tools}
            await answer(client, "filesystem_read", path="file")
        started.add(rig.said(f"{SERVER} started"))
    assert len(started) == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_the_catalog_follows_the_configuration(rig: WorkstationRig, mode: str) -> None:
    for chosen, style, name in (("common", "slash", "git/log"), ("all", "underscore", "git_blame")):
        rig.configure(tools=chosen, tool_name_style=style)
        async with rig.connect("http", mode) as client:
            assert name in {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("mode", ERAS)
async def test_timeout_seconds_ends_where_the_call_timeout_does(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "Makefile").write_text(SLOW)
    async with rig.connect("http", mode) as client:
        for seconds in (1801, 7200):
            error = await refused(client, "ci_build", timeout_seconds=seconds)
            assert error.code == -32602
            assert "1800 at most" in error.message
    assert not (rig.src / "begun").exists()


def test_the_bridge_waits_longer_than_any_call_may_take(rig: WorkstationRig) -> None:
    manifest = json.loads((rig.vendor / "servers" / SERVER / "manifest.json").read_text())
    (most,) = (each for each in manifest["transports"][0]["args"] if each.startswith("--call-timeout="))
    patience = manifest["runtime"]["callTimeout"]
    # What a call has started is ended after its time, and says what it wrote: that takes some seconds more.
    assert patience >= float(most.partition("=")[2]) + 15
    assert f"{patience:g} s without an answer or progress" in rig.page(SERVER)


async def test_the_call_timeout_of_the_manifest_is_the_bridges(rig: WorkstationRig) -> None:
    """A manifest with less time than its server takes: the bridge gives the call up, and nothing of it goes on."""
    hasty = rig.vendor / "servers/hasty"
    hasty.mkdir()
    manifest = json.loads((rig.vendor / "servers" / SERVER / "manifest.json").read_text())
    (hasty / "manifest.json").write_text(json.dumps(manifest | {"id": "hasty", "runtime": {"callTimeout": 2}}))
    rig.done("config", "set", "hasty", f'roots=["{rig.work}"]')
    (rig.work / "Makefile").write_text(SLOW)
    async with rig.connect("http", "legacy", server="hasty") as client:
        error = await refused(client, "ci_build", timeout_seconds=600)
        assert (rig.work / "begun").exists()
        assert (error.code, error.message) == (-32000, "Tool execution timeout after 2 s")
        await happens(lambda: not rig.commands())


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_too_many_is_told_when_to_come_again(rig: WorkstationRig, mode: str) -> None:
    rig.configure(rate=1)
    async with rig.connect("http", mode) as client:
        said = await asyncio.gather(*(client.call_tool("filesystem_list", {}) for _ in range(8)))
    errors = [(each.meta or {})["org.mcpd/error"] for each in said if each.is_error]
    assert errors
    for error in errors:
        assert error["code"] == -32005
        assert 0 < error["retry_after"] <= 1


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_ends_what_it_runs(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "Makefile").write_text(SLOW)
    (rig.src / "file").write_text("text")
    async with rig.connect("http", mode) as client:
        call = asyncio.create_task(client.call_tool("ci_build", {"timeout_seconds": 600}))
        await happens((rig.src / "begun").exists)
        assert rig.commands()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await happens(lambda: not rig.commands())
        assert (await answer(client, "filesystem_read", path="file"))["text"] == "text"


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_reaches_the_client(rig: WorkstationRig, mode: str) -> None:
    (rig.src / "Makefile").write_text("build:\n\t@for i in 1 2 3; do echo line $$i; sleep 0.4; done\n")
    told: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with rig.connect("http", mode) as client:
        assert not (await client.call_tool("ci_build", {}, progress_callback=on_progress)).is_error
    assert any("line" in each for each in told)


async def leave(rig: WorkstationRig, mode: str) -> None:
    """Be a client that goes in the middle of a call: by the end of its session, or of its connection."""
    arguments = {"name": "ci_build", "arguments": {"timeout_seconds": 600}}
    path, headers = f"{rig.url}/mcp/{SERVER}", {"Authorization": f"Bearer {rig.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        if mode == "legacy":
            session = await asyncio.to_thread(rig.client, SERVER)
            session.http.close()
            message, own = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}, session.headers
        else:
            message, own = modern("tools/call", **arguments)
            own["Mcp-Name"] = "ci_build"
        call = asyncio.create_task(http.post(path, json=message, headers=own))
        await happens((rig.src / "begun").exists)
        if mode == "legacy":
            assert (await http.delete(path, headers=own)).is_success
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def cancel(rig: WorkstationRig, mode: str) -> None:
    """Be a client that cancels a call and then goes."""
    async with rig.connect("http", mode) as client:
        await refused(client, "filesystem_read", path="nothing")
        call = asyncio.create_task(client.call_tool("ci_build", {"timeout_seconds": 600}))
        await happens((rig.src / "begun").exists)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await happens(lambda: not rig.commands())


async def test_at_the_end_nothing_is_left(rig: WorkstationRig) -> None:
    (rig.src / "Makefile").write_text(SLOW)

    async def all_of_it() -> None:
        for mode in ERAS:
            for way in (leave, cancel):
                await way(rig, mode)
                await happens(lambda: not rig.commands())
                (rig.src / "begun").unlink()

    await all_of_it()
    before = rig.descriptors()
    await all_of_it()
    await happens(lambda: all(rig.descriptors()[name] <= before[name] for name in before))
    rig.stop("mcpd-bridge")
    await happens(lambda: not rig.running())
    rig.start_bridge()
