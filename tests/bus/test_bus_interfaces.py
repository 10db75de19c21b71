# SPDX-License-Identifier: LGPL-2.1-or-later
"""Manager, Server, Job and Session, through the client that mcpctl and the bridge use."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import errors
from mcpd.bus import arguments
from mcpd.bus.client import Client, Handle, variant
from mcpd.bus.connection import Connection, Match
from mcpd.bus.names import PROPERTIES, ROOT, SERVER, SESSION
from tests.bus.harness import Machine, connected, next_signal

if TYPE_CHECKING:
    from mcpd.bus.core import Core


async def test_servers_have_the_keys_of_the_design(core: Core, client: Client) -> None:
    broken, x = await client.manager.call("ListServers", "a{sv}", [{}])
    assert x == {
        "id": "x", "name": "X", "summary": "The server x", "description": "Repeats", "version": "1.0",
        "scope": "user", "state": "installed", "licenses": ["MIT"], "categories": ["tools"],
        "transports": [{"type": "stdio", "command": "cat"}], "permissions": ["network"], "sandboxed": False,
        "configured": True, "pinned": False, "installable": True, "verified": False, "sharing": "session",
        "run-as": "user",
    }  # fmt: skip
    assert (broken["state"], broken["scope"], broken["id"]) == ("broken", "user", "b.broken")
    assert "manifest.json" in broken["problem"]
    server, path = await client.manager.call("GetServer", "s", ["x"])
    assert path == "/org/mcpd/Mcp1/server/x"
    assert {key: value for key, value in server.items() if key not in {"configurable-properties", "digest"}} == x
    path = await client.manager.call("GetManifestPath", "s", ["x"])
    assert json.loads(Path(path).read_text())["id"] == "x"
    with pytest.raises(errors.NotFound, match="'no'"):
        await client.manager.call("GetServer", "s", ["no"])


async def test_the_tools_of_a_server_are_known_once_it_was_asked(core: Core, client: Client) -> None:
    with pytest.raises(errors.NotFound, match="has no recorded tools"):
        await client.manager.call("GetTools", "s", ["x"])
    tools = [{"name": "grüßen", "inputSchema": {"type": "object"}}]
    core.store.set_tools("x", tools)
    assert json.loads(await client.manager.call("GetTools", "s", ["x"])) == tools
    with pytest.raises(errors.NotFound, match="'no'"):
        await client.manager.call("GetTools", "s", ["no"])


async def test_a_server_by_itself_tells_how_it_is_run_and_configured(
    core: Core, client: Client, machine: Machine
) -> None:
    secret = {"key": "token", "sensitive": True, "required": True, "default": "s3cret", "label": "Token"}
    machine.install(
        "y",
        where=machine.paths.user.installed,
        runtime={"callTimeout": 90, "idleTimeout": 5.5},
        configurableProperties=[{"key": "count", "type": "integer", "default": 3, "description": "How many"}, secret],
    )
    server, _ = await client.manager.call("GetServer", "s", ["y"])
    assert (server["call-timeout"], server["idle-timeout"]) == (90.0, 5.5)
    assert server["configurable-properties"] == [
        {"key": "count", "type": "integer", "default": 3, "description": "How many", "sensitive": False,
         "required": False},
        {"key": "token", "label": "Token", "sensitive": True, "required": True},
    ]  # fmt: skip
    broken, _ = await client.manager.call("GetServer", "s", ["b.broken"])
    assert broken["state"] == "broken"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"id": "x"}, ["x"]),
        ({"state": ["broken", "disabled"]}, ["b.broken"]),
        ({"category": "tools"}, ["x"]),
        ({"category": "games"}, []),
        ({"text": "REPEATS server"}, ["x"]),
        ({"configured": True, "scope": "user", "interactive": False, "unheard-of": 3}, ["x"]),
        ({"scope": "system"}, []),
    ],
)
async def test_servers_are_filtered(core: Core, client: Client, wanted: dict[str, Any], found: list[str]) -> None:
    listed = await client.manager.call("ListServers", "a{sv}", [wanted])
    assert [server["id"] for server in listed if server["id"] in {"x", "b.broken"}] == found


@pytest.mark.parametrize("value", [{"a": "b"}, [["x"]], [{}], 1, b"x"])
async def test_a_filter_of_another_type_is_refused(core: Core, client: Client, value: object) -> None:
    with pytest.raises(errors.InvalidArgument, match="filter 'id' must be a string"):
        await client.manager.call("ListServers", "a{sv}", [{"id": value}])


async def test_a_server_is_an_object_whose_properties_change(core: Core, client: Client, machine: Machine) -> None:
    server = client.server("x")
    before = await server.properties()
    assert (before["Id"], before["RunAs"], before["Licenses"], before["BugUrl"]) == ("x", "user", ["MIT"], "")
    async with client.signals(interface=PROPERTIES) as signals:
        machine.install("x", where=machine.paths.user.installed, version="2.0")
        await client.manager.call("ListServers", "a{sv}", [{}])
        changed = await next_signal(signals, "PropertiesChanged")
    assert changed.path == server.path
    assert changed.args[0] == SERVER
    assert changed.args[1]["Version"] == "2.0"
    assert "Id" not in changed.args[1]


async def test_managed_objects_are_the_listing(core: Core, client: Client) -> None:
    managed, _ = await client.invoke(ROOT, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", "", [], [], None)
    assert set(managed) == {"/org/mcpd/Mcp1/server/x", "/org/mcpd/Mcp1/server/b_2ebroken"}
    assert managed["/org/mcpd/Mcp1/server/x"] == {SERVER: await client.server("x").properties()}
    manager = await client.manager.properties()
    assert (manager["Scope"], manager["Features"]) == ("user", ["spawn", "launcher:plain"])


async def test_configuration_and_secrets(core: Core, client: Client) -> None:
    assert await client.manager.call("GetConfig", "s", ["x"]) == ({"level": "low"}, [])
    changes = {"count": 3, "list": ["a", "b"], "level": variant("high")}
    await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", changes, {}])
    read, write = os.pipe()
    os.write(write, b"s3cret")
    os.close(write)
    await client.manager.call("SetSecret", "ssha{sv}", ["x", "token", 0, {}], fds=[read])
    os.close(read)
    values, secrets = await client.manager.call("GetConfig", "s", ["x"])
    assert (values, secrets) == ({"level": "high", "count": 3, "list": ["a", "b"]}, ["token"])
    assert core.store.launch_manifest("x").values["token"] == "s3cret"

    await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {}, {"unset": ["level", "count"]}])
    memfd = os.memfd_create("empty")
    await client.manager.call("SetSecret", "ssha{sv}", ["x", "token", 0, {}], fds=[memfd])
    os.close(memfd)
    assert await client.manager.call("GetConfig", "s", ["x"]) == ({"level": "low", "list": ["a", "b"]}, [])


@pytest.mark.parametrize("value", [b"bytes", variant(0, "h"), variant("/o", "g")])
async def test_a_value_is_one_that_json_has(core: Core, client: Client, value: Any) -> None:
    if getattr(value, "signature", "") == "g":
        value = variant("s", "g")
        await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {"level": value}, {}])
        return
    with pytest.raises(errors.InvalidArgument, match="level: a value must be"):
        await client.manager.call("SetConfig", "sa{sv}a{sv}", ["x", {"level": value}, {}])


async def test_a_secret_has_a_size_and_an_end(core: Core, client: Client, tmp_path: Any, monkeypatch: Any) -> None:
    call = ("SetSecret", "ssha{sv}", ["x", "token", 0, {}])
    memfd = os.memfd_create("long")
    os.write(memfd, b"x" * (60 * 1024))
    await client.manager.call(*call, fds=[memfd])
    os.write(memfd, b"x" * (4 * 1024 + 1))
    with pytest.raises(errors.LimitExceeded, match="65536 bytes"):
        await client.manager.call(*call, fds=[memfd])
    os.close(memfd)

    file = tmp_path / "file"
    file.write_text("x")
    with file.open() as opened, pytest.raises(errors.InvalidArgument, match="not a file"):
        await client.manager.call(*call, fds=[opened.fileno()])
    with tempfile.TemporaryFile(dir="/dev/shm") as opened, pytest.raises(errors.InvalidArgument, match="not a file"):
        await client.manager.call(*call, fds=[opened.fileno()])
    with open("/dev/zero") as zero, pytest.raises(errors.InvalidArgument, match="pipe or a memfd"):  # noqa: PTH123
        await client.manager.call(*call, fds=[zero.fileno()])

    latin = os.memfd_create("latin")
    os.write(latin, b"\xff")
    with pytest.raises(errors.InvalidArgument, match="UTF-8"):
        await client.manager.call(*call, fds=[latin])
    os.close(latin)

    monkeypatch.setattr("mcpd.bus.arguments.read_all.__defaults__", (0.2,))
    read, write = os.pipe()
    os.write(write, b"begin")
    with pytest.raises(errors.TimedOut, match="no end of file"):
        await client.manager.call(*call, fds=[read])
    os.close(read)
    os.close(write)


async def test_a_blocking_pipe_blocks_nobody(core: Core, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "READ_TIMEOUT", 120.0)
    read, write = os.pipe()
    pending = asyncio.create_task(
        client.manager.call("SetSecret", "ssha{sv}", ["x", "token", 0, {}], fds=[read], timeout=120)
    )
    for part in (b"a", b"b", b"c"):
        await client.manager.call("ListServers", "a{sv}", [{}])
        os.write(write, part)
        gc.collect()
    assert not pending.done()
    os.close(write)
    os.close(read)
    await pending
    assert core.store.launch_manifest("x").values["token"] == "abc"


async def test_spawn_without_fds_gives_the_ends_of_pipes(core: Core, client: Client) -> None:
    async with client.signals(interface=SESSION) as signals:
        path, ends = await client.spawn("x")
        os.write(ends[0], b"hello\n")
        assert await asyncio.to_thread(os.read, ends[1], 100) == b"hello\n"
        (session,) = await client.manager.call("ListSessions")
        assert (session["path"], session["server-id"], session["owner-uid"]) == (path, "x", os.getuid())
        properties = await client.session(path).properties()
        assert (properties["ServerId"], properties["Pid"], properties["State"]) == ("x", session["pid"], "running")
        os.close(ends[0])
        exited = await next_signal(signals, "Exited")
    assert (exited.path, exited.args) == (path, ["success", 0])
    assert await asyncio.to_thread(os.read, ends[1], 100) == b""
    os.close(ends[1])
    assert await client.manager.call("ListSessions") == []


async def test_spawn_with_fds_connects_the_server_to_them(core: Core, client: Client) -> None:
    server_in, ours_in = os.pipe()
    ours_out, server_out = os.pipe()
    path, ends = await client.spawn("x", {0: server_in, 1: server_out})
    os.close(server_in)
    os.close(server_out)
    assert ends == {}
    os.write(ours_in, b"ping")
    assert await asyncio.to_thread(os.read, ours_out, 10) == b"ping"
    await client.session(path).call("Stop", "a{sv}", [{}])
    assert await asyncio.to_thread(os.read, ours_out, 10) == b"", "nobody else holds the other end"
    os.close(ours_in)
    os.close(ours_out)


@pytest.mark.parametrize(
    ("fds", "flags", "options"),
    [({0: 0}, 0, {}), ({0: 0, 1: 0, 3: 0}, 0, {}), ({}, 8, {}), ({0: 0, 1: 7}, 0, {}), ({}, 0, {"environment": [1]})],
    ids=["stdin-only", "fd-3", "flag", "index", "environment"],
)
async def test_spawn_refuses_what_it_does_not_know(
    core: Core, client: Client, fds: dict[int, int], flags: int, options: dict[str, Any]
) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    with pytest.raises(errors.InvalidArgument):
        await client.manager.call("Spawn", "sa{uh}ta{sv}", ["x", fds, flags, options], fds=[null])
    os.close(null)
    assert core.sessions.list() == []


async def test_a_client_that_leaves_loses_its_sessions(core: Core, client: Client, machine: Machine) -> None:
    async with client.signals(interface="org.freedesktop.DBus.ObjectManager") as signals:
        async with connected(machine.bus) as leaving:
            path, ends = await Client(leaving, system=False).spawn("x")
        removed = await next_signal(signals, "InterfacesRemoved")
    assert removed.args[0] == path
    assert core.sessions.list() == []
    for fd in ends.values():
        os.close(fd)


async def test_the_end_of_a_session_is_told_to_its_owner_only(core: Core, client: Client, machine: Machine) -> None:
    async with connected(machine.bus) as other:
        heard: list[Any] = []
        await other.subscribe(Match(interface=SESSION), heard.append)
        async with client.signals(interface=SESSION) as signals:
            path, ends = await client.spawn("x")
            await client.session(path).call("Stop", "a{sv}", [{}])
            await next_signal(signals, "Exited")
        await other.call_bus("GetId")
    assert heard == []
    for fd in ends.values():
        os.close(fd)


async def test_a_bad_manifest_is_refused(core: Core, client: Client) -> None:
    memfd = os.memfd_create("manifest")
    os.write(memfd, b"{not json")
    with pytest.raises(errors.InvalidManifest):
        await client.manager.call("InstallManifest", "ha{sv}", [0, {}], fds=[memfd])
    with pytest.raises(errors.InvalidArgument, match="'consent' must be true or false"):
        await client.manager.call("InstallManifest", "ha{sv}", [0, {"consent": "yes"}], fds=[memfd])
    os.close(memfd)


async def test_sources_come_and_go(core: Core, client: Client) -> None:
    url = "https://registry.example.com/servers.json"
    async with client.signals(member="CatalogChanged") as signals:
        await client.manager.call("AddSource", "sa{sv}", [url, {}])
        await next_signal(signals, "CatalogChanged")
    (source,) = await client.manager.call("ListSources")
    assert (source["url"], source["state"], source["read-only"], source["scope"]) == (url, "new", False, "user")
    assert await client.manager.call("ListAvailable", "a{sv}s", [{"text": "x"}, ""]) == ([], "")
    await client.manager.call("RemoveSource", "sa{sv}", [url, {}])
    assert await client.manager.call("ListSources") == []


async def test_a_fault_of_mcpd_shows_a_number_and_no_traceback(
    core: Core, client: Client, monkeypatch: Any, caplog: Any
) -> None:
    def fail(**_how: Any) -> None:
        raise RuntimeError("secret /some/path")

    monkeypatch.setattr(core.store, "list", fail)
    with pytest.raises(errors.McpdError) as caught:
        await client.manager.call("ListServers", "a{sv}", [{}])
    assert type(caught.value) is errors.McpdError
    assert "secret" not in caught.value.message
    number = caught.value.message.partition("number ")[2][:8]
    assert number in caplog.text
    assert "secret /some/path" in caplog.text


async def test_what_a_reply_cannot_carry_is_our_fault(core: Core, client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(core.store, "manifest_path", lambda _id: "a\0b")
    with pytest.raises(errors.McpdError, match="internal error"):
        await client.manager.call("GetManifestPath", "s", ["x"])


async def test_nothing_is_left_open(core: Core, client: Client) -> None:
    async def one() -> None:
        path, ends = await client.spawn("x")
        await client.session(path).call("Stop", "a{sv}", [{}])
        for fd in ends.values():
            os.close(fd)

    await one()
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
    for _ in range(5):
        await one()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    assert threading.active_count() <= threads + 5
    assert Handle(1) == 1


async def test_the_client_says_when_mcpd_is_not_there(machine: Machine) -> None:
    async with await Connection.open(machine.bus.address) as connection:
        client = Client(connection, system=True)
        with pytest.raises(errors.ServiceUnavailable, match="systemctl start mcpd"):
            await client.manager.call("ListServers", "a{sv}", [{}])
    with pytest.raises(errors.ServiceUnavailable, match="cannot connect"):
        await Connection.open("unix:path=/nonexistent/bus")
