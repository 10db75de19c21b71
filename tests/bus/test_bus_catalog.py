# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a software centre asks about servers that could be installed, and what vouches for them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import manager
from mcpd.bus.client import Client
from mcpd.bus.codec import Variant
from mcpd.bus.dispatcher import MAX_REPLY
from mcpd.bus.names import ROOT
from mcpd.errors import InvalidArgument, InvalidManifest, LimitExceeded, NotFound, ReadOnly, SystemInstanceOnly
from mcpd.install.updates import Update
from mcpd.model import Manifest
from mcpd.paths import Scope
from mcpd.trust.signing import new_key, sign
from tests.bus.harness import PATIENCE, connected, next_signal
from tests.bus.inside import served
from tests.bus.polkit_mock import people
from tests.unit.catalog.catalog_server import answer, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcpd.bus.core import Core
    from tests.bus.harness import Machine

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def entry(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"org.test.{name}",
        "name": name.title(),
        "summary": f"The {name}",
        "version": "1.0",
        "transports": [{"type": "stdio", "command": "npx", "args": ["-y", f"@test/{name}"]}],
        "source": {"type": "npm", "package": f"@test/{name}", "version": "1.0.0"},
        **fields,
    }


def write(path: Path, *entries: dict[str, Any], updated: str = "2026-01-01T00:00:00Z") -> bytes:
    data = json.dumps({"version": "1.0", "updated": updated, "servers": entries}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


async def refreshed(client: Client) -> None:
    (await client.run_job("Refresh", "a{sv}", [{}])).check()


async def available(client: Client, **query: Any) -> list[str]:
    found, _ = await client.manager.call("ListAvailable", "a{sv}s", [query, ""])
    return [record["id"].removeprefix("org.test.") for record in found]


@pytest.fixture
async def stocked(core: Core, client: Client, tmp_path: Path) -> Core:
    """An mcpd with one registry; ``x`` is installed, and offered as well."""
    write(
        tmp_path / "r.json",
        entry("clock", categories=["mcp-productivity"], description="Tells the time of day", icon="clock"),
        entry("weather", categories=["mcp-web"], homepage="https://weather.example", permissions=["network"]),
        entry("boxed", source={"type": "oci", "image": "x"}),
        {**entry("x"), "id": "x", "version": "9.0"},
    )
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    return core


async def test_entries_are_found_by_what_a_frontend_filters_by(stocked: Core, client: Client, tmp_path: Path) -> None:
    assert sorted(await available(client)) == ["boxed", "clock", "weather", "x"]
    assert await available(client, text="time day") == ["clock"]
    assert await available(client, text="weath") == ["weather"]
    assert await available(client, category="mcp-web") == ["weather"]
    assert await available(client, installable=False) == ["boxed"]
    assert "boxed" not in await available(client, installable=True)
    assert await available(client, installed=True) == ["x"]
    assert "x" not in await available(client, installed=False)
    assert await available(client, updatable=True) == []
    assert await available(client, installed=True, updatable=True) == []
    assert len(await available(client, source=(tmp_path / "r.json").as_uri())) == 4
    assert await available(client, source="https://other.example/r.json") == []
    with pytest.raises(InvalidArgument, match="'installed'"):
        await available(client, installed="yes")
    assert stocked.updates == {}


def lacking(name: str, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in entry(name).items() if key not in fields}


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (lacking("a", "source"), "it has a stdio transport but no source"),
        (lacking("a", "name", "summary"), "it has no name, summary"),
        (lacking("a", "version"), "it has no version"),
        (lacking("a", "source") | {"manifest": "https://a.example/m.json"}, "it has a stdio transport but no source"),
        (entry("a", scope="system"), "it is a server for the whole system; install it there with"),
        (entry("a", runtime={"runAs": "system"}), "it is a server for the whole system; install it there with"),
    ],
)
async def test_what_cannot_be_installed_is_not_offered_as_installable(
    core: Core, client: Client, tmp_path: Path, offered: dict[str, Any], reason: str
) -> None:
    write(tmp_path / "r.json", offered, entry("b"))
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    assert await available(client) == ["a", "b"]
    assert await available(client, installable=True) == ["b"]
    assert await available(client, installable=False) == ["a"]
    for shown in (
        await client.manager.call("GetAvailable", "sa{sv}", ["org.test.a", {}]),
        (await client.manager.call("ListAvailable", "a{sv}s", [{}, ""]))[0][0],
    ):
        assert shown["installable"] is False
        assert shown["problem"].startswith(reason)
    with pytest.raises((InvalidManifest, SystemInstanceOnly), match=f"(?i){reason[:15]}|a server for the whole system"):
        await client.manager.call("Install", "sa{sv}", ["org.test.a", {}])


async def test_the_systems_instance_offers_what_is_for_the_whole_system(machine: Machine, tmp_path: Path) -> None:
    write(tmp_path / "r.json", entry("a", scope="system"), entry("b", runtime={"runAs": "system"}), entry("c"))
    listed = machine.paths.system.sources_list
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text((tmp_path / "r.json").as_uri() + "\n")
    async with served(machine, scope=Scope.SYSTEM, uids={}), connected(machine.bus) as connection:
        client = Client(connection, system=True)
        assert await available(client, installable=True) == ["a", "b", "c"]
        assert await available(client, installable=False) == []
        assert (await client.manager.call("GetAvailable", "sa{sv}", ["org.test.a", {}]))["installable"] is True


async def test_a_registry_that_is_added_is_read_at_once(core: Core, client: Client, tmp_path: Path) -> None:
    await core.all_read.wait()
    write(tmp_path / "r.json", entry("clock"))
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    assert await available(client) == ["clock"]
    (source,) = await client.manager.call("ListSources")
    assert (source["state"], source["entries"]) == ("ready", 1)


async def test_a_registry_that_is_listed_by_hand_is_read(
    core: Core, client: Client, machine: Machine, tmp_path: Path
) -> None:
    await core.all_read.wait()
    write(tmp_path / "r.json", entry("clock"))
    listed = machine.paths.user.sources_list
    listed.parent.mkdir(parents=True, exist_ok=True)
    async with client.signals(path=ROOT, member="CatalogChanged") as signals:
        listed.write_text((tmp_path / "r.json").as_uri() + "\n")
        while not any(source["state"] == "ready" for source in await client.manager.call("ListSources")):
            await next_signal(signals, "CatalogChanged")
    assert await available(client) == ["clock"]


async def test_a_registry_is_new_while_it_is_read(core: Core, client: Client) -> None:
    await core.all_read.wait()
    async with slow_registry() as (url, asked, go_on), client.signals(path=ROOT, member="CatalogChanged") as signals:
        await client.manager.call("AddSource", "sa{sv}", [url, {}])
        await asked.wait()
        (source,) = await client.manager.call("ListSources")
        assert (source["state"], source["problem"]) == ("new", "")
        go_on.set()
        while (await client.manager.call("ListSources"))[0]["state"] == "new":
            await next_signal(signals, "CatalogChanged")
    (source,) = await client.manager.call("ListSources")
    assert source["state"] == "ready"


@asynccontextmanager
async def slow_registry() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """The URL of a registry whose server answers once the second event is set, and the event that it was asked."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    body = b'{"version": "1.0", "servers": []}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/r.json", asked, go_on


async def test_pages_follow_each_other(stocked: Core, client: Client) -> None:
    seen: list[str] = []
    cursor = ""
    for _ in range(4):
        found, cursor = await client.manager.call("ListAvailable", "a{sv}s", [{"limit": 1}, cursor])
        seen += [record["id"] for record in found]
        if not cursor:
            break
    assert sorted(seen) == ["org.test.boxed", "org.test.clock", "org.test.weather", "x"]


async def test_entries_with_much_to_say_fill_pages_sooner(core: Core, client: Client, tmp_path: Path) -> None:
    entries = [entry(f"long{number:02}", description="word " * 40_000) for number in range(50)]
    write(tmp_path / "r.json", *entries)
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    for text in ("", "word"):
        pages, cursor = list[list[str]](), ""
        while cursor or not pages:
            query = {"limit": 500, "text": text}
            found, cursor = await client.manager.call("ListAvailable", "a{sv}s", [query, cursor])
            pages.append([record["id"] for record in found])
        assert len(pages) > 1
        seen = [server_id for page in pages for server_id in page]
        assert sorted(seen) == [f"org.test.long{number:02}" for number in range(50)]


async def test_what_no_bus_carries_is_not_sent(core: Core, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"name": "t", "description": "x" * MAX_REPLY}]
    monkeypatch.setattr(type(core.store), "held", lambda _store, _server_id: 2)
    monkeypatch.setattr(type(core.store), "generation_tools", lambda _store, _server_id, _number: tools)
    with pytest.raises(LimitExceeded, match=f"GetPending .* {MAX_REPLY}; ask for less"):
        await client.manager.call("GetPending", "s", ["x"])
    assert [server["id"] for server in await client.manager.call("ListServers", "a{sv}", [{"id": "x"}])] == ["x"]


async def test_an_entry_tells_all_that_a_frontend_shows(stocked: Core, client: Client, tmp_path: Path) -> None:
    weather = await client.manager.call("GetAvailable", "sa{sv}", ["org.test.weather", {}])
    assert weather["state"] == "available"
    assert (weather["installable"], weather["verified"]) == (True, False)
    assert weather["origin"] == (tmp_path / "r.json").as_uri()
    assert weather["source"] == {"type": "npm", "package": "@test/weather", "version": "1.0.0"}
    assert weather["homepage"] == "https://weather.example"
    assert weather["permissions"] == ["network"]
    boxed = await client.manager.call("GetAvailable", "sa{sv}", ["org.test.boxed", {}])
    assert boxed["installable"] is False
    assert "container" in boxed["problem"]
    x = await client.manager.call("GetAvailable", "sa{sv}", ["x", {}])
    assert (x["state"], x["version"], x["available-version"]) == ("installed", "1.0", "9.0")
    with pytest.raises(NotFound):
        await client.manager.call("GetAvailable", "sa{sv}", ["org.test.nothing", {}])
    with pytest.raises(NotFound):
        await client.manager.call("GetAvailable", "sa{sv}", ["x", {"source": "https://other.example/"}])


@pytest.mark.parametrize("registry", ["a.json", "other.json"])
async def test_only_the_registry_a_server_came_from_updates_it(
    core: Core, client: Client, machine: Machine, tmp_path: Path, registry: str
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    write(first, {**entry("y"), "version": "2.0"})
    write(second, {**entry("y"), "version": "3.0"})
    origin = {"registry": (tmp_path / registry).as_uri()}
    machine.install("org.test.y", where=machine.paths.user.installed, origin=origin)
    for path in (first, second):
        await client.manager.call("AddSource", "sa{sv}", [path.as_uri(), {}])
    await refreshed(client)
    expected = {first: ("updatable", "1.0", "2.0"), second: ("installed", "1.0", "")}
    if registry == "other.json":
        expected[first] = ("installed", "1.0", "")
    for path, said in expected.items():
        source = {"source": path.as_uri()}
        ((listed,), _) = await client.manager.call("ListAvailable", "a{sv}s", [source, ""])
        shown = await client.manager.call("GetAvailable", "sa{sv}", ["org.test.y", source])
        for record in (listed, shown):
            assert (record["state"], record["version"], record.get("available-version", "")) == said
    assert ("org.test.y" in core.updates) is (registry == "a.json")


async def test_what_can_be_updated_is_shown_as_the_registry_has_it_that_updates_it(
    core: Core, client: Client, machine: Machine, tmp_path: Path
) -> None:
    first, second = (tmp_path / "a.json").as_uri(), (tmp_path / "b.json").as_uri()
    write(tmp_path / "a.json", entry("y", version="1.0"))
    write(tmp_path / "b.json", entry("y", version="2.0"))
    machine.install("org.test.y", where=machine.paths.user.installed, origin={"registry": second})
    for url in (first, second):
        await client.manager.call("AddSource", "sa{sv}", [url, {}])
    await refreshed(client)
    assert core.updates == {"org.test.y": ("2.0", second)}
    for more in ({}, {"installed": True}, {"text": "the y"}, {"source": second}):
        found, _ = await client.manager.call("ListAvailable", "a{sv}s", [{"updatable": True, **more}, ""])
        shown = [(record["origin"], record["state"], record["available-version"]) for record in found]
        assert shown == [(second, "updatable", "2.0")]
    assert await available(client, updatable=True, source=first) == []
    assert await available(client, updatable=False) == []
    assert await available(client, updatable=True, installed=False) == []


async def test_an_update_that_names_no_version_is_one_everywhere(
    core: Core, client: Client, machine: Machine, tmp_path: Path
) -> None:
    registry = (tmp_path / "r.json").as_uri()
    write(tmp_path / "r.json", entry("y", version="", env={"MODE": "other"}))
    origin = {"registry": registry, "content": "1-another"}
    machine.install("org.test.y", where=machine.paths.user.installed, version="", origin=origin)
    await client.manager.call("AddSource", "sa{sv}", [registry, {}])
    await refreshed(client)
    assert core.updates == {"org.test.y": ("", registry)}
    (server,) = await client.manager.call("ListServers", "a{sv}", [{"id": "org.test.y"}])
    assert (server["state"], server.get("available-version", "")) == ("updatable", "")
    assert await available(client, updatable=True) == ["y"]
    shown = await client.manager.call("GetAvailable", "sa{sv}", ["org.test.y", {}])
    assert (shown["state"], shown.get("available-version", "")) == ("updatable", "")


async def test_whoever_shows_the_catalog_is_told_of_an_installation(
    core: Core, client: Client, machine: Machine
) -> None:
    def let_be(server_id: str) -> None:
        """What was written just now is looked at again and again."""
        os.utime(machine.paths.user.installed / server_id / "manifest.json", (1, 1))

    for server_id in ("x", "b.broken"):
        let_be(server_id)
    await core.all_read.wait()
    for _ in range(2):
        await client.manager.call("ListServers", "a{sv}", [{}])
    async with client.signals(path=ROOT, member="CatalogChanged") as signals:
        for _ in range(2):
            await client.manager.call("ListServers", "a{sv}", [{}])
        assert signals.empty()
        machine.install("org.test.y", where=machine.paths.user.installed)
        let_be("org.test.y")
        await client.manager.call("ListServers", "a{sv}", [{}])
        await next_signal(signals, "CatalogChanged")


async def test_of_two_looks_for_updates_the_later_has_the_last_word(core: Core) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def look() -> dict[str, Update]:
        if begun.is_set():
            return {}
        begun.set()
        go_on.wait(PATIENCE)
        return {"x": Update("2.0", "https://registry.test/r.json")}

    looking = replace(core, installer=SimpleNamespace(updates=look))  # type: ignore[arg-type]
    first = asyncio.create_task(looking.look_for_updates())
    await asyncio.to_thread(begun.wait, PATIENCE)
    second = asyncio.create_task(looking.look_for_updates())
    await asyncio.wait([second], timeout=0.1)
    go_on.set()
    await asyncio.gather(first, second)
    assert looking.updates == {}


async def test_what_waits_is_refused_over_the_bus(core: Core, client: Client) -> None:
    generation = core.store.new_generation("x")
    core.store.hold(generation, Manifest.parse({"id": "x", "version": ""}, "test"))
    (server,) = await client.manager.call("ListServers", "a{sv}", [{"id": "x"}])
    assert server["pending-version"] == f"generation {generation.number}"
    update, _ = await client.manager.call("GetPending", "s", ["x"])
    assert (update["generation"], update["version"]) == (generation.number, server["pending-version"])
    with pytest.raises(NotFound, match="no such pending update"):
        (await client.run_job("Approve", "sa{sv}", ["x", {"drop": True, "generation": Variant("u", 9)}])).check()
    (await client.run_job("Approve", "sa{sv}", ["x", {"drop": True}])).check()
    assert core.store.held("x") is None
    (server,) = await client.manager.call("ListServers", "a{sv}", [{"id": "x"}])
    assert (server["version"], "pending-version" in server) == ("1.0", False)
    with pytest.raises(NotFound, match="x has no pending update"):
        await client.manager.call("Approve", "sa{sv}", ["x", {"drop": True}])


async def test_of_what_is_installed_it_is_told_who_vouched_for_that(
    machine: Machine, core: Core, client: Client, tmp_path: Path
) -> None:
    secret, public = new_key()
    data = write(tmp_path / "r.json", {**entry("x"), "id": "x", "version": "9.0"}, entry("clock"))
    (tmp_path / "r.json.sig").write_bytes(sign(data, secret))
    await client.manager.call("AddKey", "ssa{sv}", ["honest", public.decode(), {}])
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    found, _ = await client.manager.call("ListAvailable", "a{sv}s", [{}, ""])
    assert {record["id"]: record["verified"] for record in found} == {"org.test.clock": True, "x": False}
    assert (await client.manager.call("GetAvailable", "sa{sv}", ["x", {}]))["verified"] is False
    machine.install("vouched", where=machine.paths.user.installed, origin={"verified": "honest"})
    shown = {name: (await client.manager.call("GetServer", "s", [name]))[0] for name in ("x", "vouched")}
    assert {name: server.get("signed-by") for name, server in shown.items()} == {"x": None, "vouched": "honest"}
    assert core.store.get("x").id == "x"


async def test_long_records_are_not_kept(core: Core, client: Client, tmp_path: Path) -> None:
    long = entry("long", description="word " * 2000)
    write(tmp_path / "r.json", entry("short"), long)
    await client.manager.call("AddSource", "sa{sv}", [(tmp_path / "r.json").as_uri(), {}])
    await refreshed(client)
    manager._record_cache.clear()
    for _ in range(2):
        assert sorted(await available(client)) == ["long", "short"]
        assert [record.values["id"] for record in manager._record_cache.values()] == ["org.test.short"]


async def test_icons_come_as_files(core: Core, client: Client) -> None:
    async with serving() as server:
        server.answers["/i.png"] = answer(PNG, content_type="image/png")
        icon = f"{server.base}/i.png"
        body = json.dumps({"version": "1.0", "servers": [entry("clock", icon=icon), entry("named", icon="clock")]})
        server.answers["/r.json"] = answer(body.encode())
        await client.manager.call("AddSource", "sa{sv}", [f"{server.base}/r.json", {}])
        await refreshed(client)
        (index, media_type), fds = await client.manager.call_fds("GetIcon", "sa{sv}", ["org.test.clock", {}])
        with fds:
            assert media_type == "image/png"
            assert os.pread(fds.get(index), 1000, 0) == PNG
        with pytest.raises(NotFound, match="a theme icon"):
            await client.manager.call("GetIcon", "sa{sv}", ["org.test.named", {}])
        with pytest.raises(NotFound):
            await client.manager.call("GetIcon", "sa{sv}", ["x", {}])
    assert core.catalog.sources()[0].entries == 2


async def test_keys_are_listed_added_and_removed(core: Core, client: Client) -> None:
    _, public = new_key()
    await client.manager.call("AddKey", "ssa{sv}", ["friend", public.decode(), {}])
    (key,) = await client.manager.call("ListKeys")
    assert (key["name"], key["scope"], key["read-only"]) == ("friend", "user", False)
    assert key["fingerprint"].startswith("SHA256:")
    with pytest.raises(InvalidArgument):
        await client.manager.call("AddKey", "ssa{sv}", ["other", "no key", {}])
    await client.manager.call("RemoveKey", "sa{sv}", ["friend", {}])
    assert await client.manager.call("ListKeys") == []
    with pytest.raises(NotFound):
        await client.manager.call("RemoveKey", "sa{sv}", ["friend", {}])
    assert core.keys.list() == []


async def test_a_source_is_described_and_tells_how_it_is(core: Core, client: Client, tmp_path: Path) -> None:
    secret, public = new_key()
    registry = tmp_path / "r.json"
    data = write(registry, entry("clock"), {"id": "org.test.bad", "transports": "nonsense"})
    registry.with_name("r.json.sig").write_bytes(sign(data, secret))
    await client.manager.call("AddKey", "ssa{sv}", ["friend", public.decode(), {}])
    options = {"name": "own", "signature": "required", "key": "friend"}
    await client.manager.call("AddSource", "sa{sv}", [registry.as_uri(), options])
    await refreshed(client)
    (source,) = await client.manager.call("ListSources")
    assert (source["state"], source["entries"], source["type"]) == ("ready", 1, "registry")
    assert (source["signature"], source["key"], source["signed-by"]) == ("required", "friend", "friend")
    assert any("org.test.bad" in fault and "transports" in fault for fault in source["faults"])
    assert (await client.manager.call("GetAvailable", "sa{sv}", ["org.test.clock", {}]))["verified"] is True
    await client.manager.call("RemoveKey", "sa{sv}", ["friend", {}])
    (source,) = await client.manager.call("ListSources")
    assert source["state"] == "untrusted"
    assert await available(client) == []
    assert core.catalog.sources()[0].entries == 0 or source["entries"] >= 0


async def test_what_another_layer_brought_is_not_pinned(machine: Machine) -> None:
    machine.install("y", where=machine.paths.system.installed, scope="system")
    async with (
        people(machine) as (one, _, uids, _third),
        served(machine, scope=Scope.USER, uids=uids) as core,
    ):
        with pytest.raises(ReadOnly):
            await one.manager.call("SetPinned", "sba{sv}", ["y", True, {}])
        assert await asyncio.to_thread(core.store.held, "y") is None
