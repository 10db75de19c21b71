# SPDX-License-Identifier: LGPL-2.1-or-later
"""What GetServer tells the bridge of a server's processes: when others are to be started, and what they speak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd import errors
from mcpd.bus.client import variant
from mcpd.bus.names import ROOT
from tests.bus.harness import next_signal

if TYPE_CHECKING:
    from mcpd.bus.client import Client
    from mcpd.bus.core import Core


async def digest(client: Client) -> str:
    return str((await client.manager.call("GetServer", "s", ["x"]))[0]["digest"])


async def test_the_digest_changes_with_manifest_values_and_secrets_alone(core: Core, client: Client) -> None:
    path = Path(await client.manager.call("GetManifestPath", "s", ["x"]))
    manifest = json.loads(path.read_text())
    properties = [{"key": "word"}, {"key": "token", "sensitive": True}]
    path.write_text(json.dumps({**manifest, "configurableProperties": properties}))
    seen = [await digest(client)]
    assert await digest(client) == seen[0]
    async with client.signals(path=ROOT, member="CatalogChanged") as signals:
        core.store.set_config("x", {"word": "other"})
        seen.append(await digest(client))
        await next_signal(signals, "CatalogChanged")
        core.store.set_secret("x", "token", "s3cret")
        seen.append(await digest(client))
        await next_signal(signals, "CatalogChanged")
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": "2.0"}))
        seen.append(await digest(client))
        await next_signal(signals, "CatalogChanged")
        assert len(set(seen)) == 4
        assert await digest(client) == seen[-1]
        path.unlink()
        await client.manager.call("ListServers", "a{sv}", [{}])
        await next_signal(signals, "CatalogChanged")


async def test_the_eras_are_those_of_the_lock_file(core: Core, client: Client) -> None:
    async def protocols() -> object:
        return (await client.manager.call("GetServer", "s", ["x"]))[0].get("protocols")

    assert await protocols() is None
    path = Path(await client.manager.call("GetManifestPath", "s", ["x"]))
    for recorded, shown in (
        ({"handshake": "2025-11-25", "modern": True}, ["handshake", "modern"]),
        ({"handshake": "", "modern": True}, ["modern"]),
        ({"handshake": "2025-06-18", "modern": False}, ["handshake"]),
    ):
        path.with_name(".mcpd-lock.json").write_text(json.dumps({"version": 1, "protocol": recorded}))
        assert await protocols() == shown


async def test_the_number_of_tools_is_that_of_when_they_were_last_listed(core: Core, client: Client) -> None:
    async def tools() -> object:
        return (await client.manager.call("GetServer", "s", ["x"]))[0].get("tools")

    assert await tools() is None
    for listed in ([], [{"name": "a"}, {"name": "b"}]):
        core.store.set_tools("x", listed)
        assert await tools() == len(listed)


async def test_a_start_can_be_authorized_without_starting_anything(core: Core, client: Client) -> None:
    assert await client.spawn("x", options={"check": True}) == ("/", {})
    assert core.sessions.list() == []
    with pytest.raises(errors.NotAuthorized, match="caller-uid"):
        await client.spawn("x", options={"check": True, "caller-uid": variant(1, "u")})
