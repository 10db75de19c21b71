# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose word counts for an installed server: updates and installations over what is there already."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import AlreadyInstalled, ReadOnly
from mcpd.install import InstallOptions
from mcpd.paths import Scope
from mcpd.store import Store
from tests.install.install_parts import World, index, local, project, wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HELLO = "org.test.hello"
OTHER = "file:///other.json"


def installed(world: World) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(world.store.manifest_path(HELLO).read_text())
    return manifest


def arguments(world: World) -> list[str]:
    return list(installed(world)["transports"][0]["args"])


async def test_a_registry_that_comes_later_takes_no_server_over(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.install(local(source))
    world.shelf.put(local(source, "dual", version="9.0"))
    assert world.updates() == {}
    for ids, reinstall in (((), False), ((HELLO,), False), ((HELLO,), True)):
        job = await world.update(*ids, reinstall=reinstall)
        assert job.error is None
    assert world.store.generations(HELLO) == [1]
    with pytest.raises(AlreadyInstalled, match=f"not from a registry.*{world.shelf.origin}.*install --reinstall"):
        await world.fetch(local(source, "dual", version="9.0"))
    assert arguments(world) == ["server.py", "ok"]
    assert (await world.fetch(local(source, "dual", version="9.0"), reinstall=True)).error is None
    assert arguments(world) == ["server.py", "dual"]
    assert installed(world)["origin"]["registry"] == world.shelf.origin


@pytest.mark.parametrize("by_registry", [True, False], ids=["of a registry", "brought"])
async def test_what_a_caller_brings_takes_no_server_from_elsewhere_over(
    world: World, tmp_path: Path, by_registry: bool
) -> None:
    wanted = [{"key": "api_key", "label": "Key", "sensitive": True}]
    first = local(project(tmp_path / "src"), configurableProperties=wanted)
    await (world.fetch if by_registry else world.install)(first)
    world.store.set_secret(HELLO, "api_key", "sk-1")
    other = local(project(tmp_path / "other"), "dual", version="9.0", configurableProperties=wanted)
    with pytest.raises(AlreadyInstalled, match=r"from .*install --reinstall"):
        await world.install(other)
    assert arguments(world) == ["server.py", "ok"]
    assert (await world.install(other, reinstall=True)).error is None
    assert arguments(world) == ["server.py", "dual"]
    assert (await world.install({**other, "version": "9.1"})).error is None


async def test_a_program_without_a_package_source_takes_the_place_of_no_other(world: World, tmp_path: Path) -> None:
    server = (project(tmp_path / "src") / "server.py").read_text()
    first = {**local(tmp_path), "source": None, "configurableProperties": [{"key": "api_key", "sensitive": True}]}
    first["transports"] = [{"type": "stdio", "command": "python3", "args": ["-c", server, "ok"]}]
    assert (await world.install(first)).error is None
    world.store.set_secret(HELLO, "api_key", "sk-1")
    other = {**first, "version": "9.0"}
    other["transports"] = [{"type": "stdio", "command": "python3", "args": ["-c", server, "dual"]}]
    with pytest.raises(AlreadyInstalled, match=r"from another source.*install --reinstall"):
        await world.install(other)
    assert (await world.install({**first, "version": "1.1"})).error is None
    assert arguments(world)[-1] == "ok"
    assert (await world.install(other, reinstall=True)).error is None
    assert arguments(world)[-1] == "dual"


async def test_another_registry_updates_nothing_either(world: World, tmp_path: Path) -> None:
    source, first = project(tmp_path / "src"), world.shelf.origin
    await world.fetch(local(source))
    world.shelf.put(local(source, version="2.0"))
    world.shelf.origin = OTHER
    assert world.updates() == {}
    await world.update(HELLO)
    await world.update(HELLO, reinstall=True)
    with pytest.raises(AlreadyInstalled, match=f"from {first}.*{OTHER}"):
        await world.fetch(local(source, version="2.0"))
    assert world.store.generations(HELLO) == [1]
    world.shelf.origin = first
    assert world.updates() == {HELLO: "2.0"}
    await world.update(HELLO)
    assert installed(world)["version"] == "2.0"


async def test_the_registry_of_a_server_updates_it_though_another_comes_first(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source))
    world.shelf.put(local(source, "dual", version="2.0"))
    own = world.shelf.offers([HELLO])[HELLO]
    world.shelf.origin = OTHER
    world.shelf.put(local(source, "pages", version="3.0"))
    others = world.shelf.offers([HELLO])[HELLO]
    monkeypatch.setattr(world.shelf, "offers", lambda _ids: {HELLO: [*others, *own]})
    assert world.updates() == {HELLO: "2.0"}
    await world.update()
    assert arguments(world) == ["server.py", "dual"]


@pytest.mark.parametrize(
    ("same", "version", "update"), [(True, "2.0", True), (True, "1.0", False), (False, "2.0", False)]
)
async def test_a_server_of_another_tool_is_told_by_its_source(
    world: World, tmp_path: Path, *, same: bool, version: str, update: bool
) -> None:
    source = project(tmp_path / "src")
    directory = project(world.paths.user.installed / HELLO)
    (directory / "manifest.json").write_text(json.dumps({**local(source), "installDir": str(directory)}))
    offered = local(source if same else project(tmp_path / "else"), "dual", version=version)
    world.shelf.put(offered)
    assert (HELLO in world.updates()) is update
    await world.update(HELLO)
    assert (arguments(world) == ["server.py", "dual"]) is update
    if not update:
        with pytest.raises(AlreadyInstalled):
            await world.fetch(offered)


async def test_a_broken_server_is_replaced_on_request_only(world: World, tmp_path: Path) -> None:
    source = project(tmp_path / "src")
    await world.fetch(local(source))
    manifest = world.store.manifest_path(HELLO)
    manifest.write_text("{}[]")
    assert (await world.update(HELLO)).error is None
    assert world.store.get(HELLO).problem
    assert (await world.update(HELLO, reinstall=True, consent=True)).error is None
    assert not world.store.get(HELLO).problem


async def test_a_server_with_a_problem_still_belongs_to_its_origin(world: World, tmp_path: Path) -> None:
    document = local(project(tmp_path / "src"))
    await world.install(document)
    overlay = world.paths.user.overlay / f"{HELLO}.json"
    overlay.parent.mkdir(parents=True, exist_ok=True)
    overlay.write_text("nonsense")
    assert world.store.get(HELLO).problem
    with pytest.raises(AlreadyInstalled, match="not from a registry"):
        await world.fetch(document)


async def test_the_same_version_is_installed_once(world: World, tmp_path: Path) -> None:
    nameless = local(project(tmp_path / "src"), version="")
    await world.install(nameless)
    with pytest.raises(AlreadyInstalled) as refused:
        await world.install(nameless)
    assert str(refused.value.message) == (
        f"{HELLO} is already installed; to install it again, request a reinstallation (mcpctl install --reinstall)"
    )
    assert (await world.install({**nameless, "version": "1.0"})).error is None
    with pytest.raises(AlreadyInstalled, match=f"{HELLO} 1.0 is already installed"):
        await world.install({**nameless, "version": "1.0"})
    assert (await world.install({**nameless, "version": "1.0"}, reinstall=True)).error is None
    assert world.store.generations(HELLO) == [1, 2, 3]


async def test_another_requested_version_is_a_change(
    world: World, tmp_path: Path, own_index: pytest.MonkeyPatch
) -> None:
    wheels = [wheel(tmp_path / "wheels", version=version) for version in ("1.0", "1.1", "1.2")]
    own_index.setenv("PIP_INDEX_URL", index(tmp_path, *wheels))

    def at(version: str) -> dict[str, Any]:
        pin = {"version": version} if version else {}
        return {
            "id": HELLO,
            "name": "Hello",
            "summary": "Hi",
            "source": {"type": "pypi", "package": "fake-server", **pin},
        }

    assert (await world.install(at("1.0"))).error is None
    assert (await world.install(at("1.1"))).error is None
    assert installed(world)["version"] == "1.1"
    for same in (at("1.1"), at("")):
        with pytest.raises(AlreadyInstalled, match=r"1\.1 is already installed"):
            await world.install(same)
    assert (await world.install(at(""), version="1.2")).error is None
    assert installed(world)["version"] == "1.2"
    with pytest.raises(AlreadyInstalled, match=r"1\.2 is already installed"):
        await world.install(at(""), version="1.2")
    assert (await world.install(at("1.0"))).error is None
    assert installed(world)["version"] == "1.0"
    assert world.store.active_generation(HELLO) == 4


async def test_an_update_of_another_layer_is_refused(world: World, tmp_path: Path) -> None:
    system = Store(world.paths, Scope.SYSTEM)
    directory = project(world.paths.system.installed / HELLO)
    (directory / "manifest.json").write_text(json.dumps(local(tmp_path)))
    assert system.get(HELLO).writable
    with pytest.raises(ReadOnly):
        await world.update(HELLO)


async def test_the_catalog_is_read_once_and_beside_the_loop(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project(tmp_path / "src")
    for name in ("one", "two", "three"):
        await world.fetch(local(source, id=name))
        world.shelf.put(local(source, id=name, version="2.0"))
    loop, threads = asyncio.get_running_loop(), []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(*args: object) -> Any:
            threads.append(threading.get_ident())
            # Never answered if the loop itself is in here.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
            return original(*args)

        return look

    for name in ("find", "offers"):
        monkeypatch.setattr(world.shelf, name, watched(getattr(world.shelf, name)))
    await world.installer.update(["one", "two", "three"], InstallOptions(), os.getuid())
    assert len(threads) == 1
    for job in world.installer.jobs.list():
        await job.wait()
    with pytest.raises(AlreadyInstalled):
        await world.installer.install("one", InstallOptions(), os.getuid())
    assert len(threads) == 2
    assert threading.get_ident() not in threads
