# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bundles that come over the bus, and what registries vouch for of them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import zipfile
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import NotAuthorized, SignatureInvalid
from mcpd.paths import Scope
from mcpd.trust.signing import new_key, sign
from tests.bus.inside import served
from tests.bus.polkit_mock import TEMPLATE, people, polkitd
from tests.bus.test_bus_catalog import entry, write

if TYPE_CHECKING:
    from tests.bus.harness import Machine

PREFIX = "org.mcpd.mcp1."


def packed_as(machine: Machine, server_id: str) -> tuple[bytes, str]:
    """A bundle called late, which a registry that a trusted key signed has as *server_id*, and its sha256."""
    secret, public = new_key()
    machine.paths.system.trusted_keys.mkdir(parents=True)
    (machine.paths.system.trusted_keys / "admin.pem").write_bytes(public)
    packed = io.BytesIO()
    manifest = {
        "manifest_version": "0.3", "name": "late", "version": "1.0.0", "description": "d", "author": {"name": "a"},
        "server": {"type": "node", "entry_point": "i.js", "mcp_config": {"command": "node", "args": ["i.js"]}},
    }  # fmt: skip
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    source = {"type": "mcpb", "url": "https://x.example/x.mcpb", "sha256": sha256}
    registry = machine.paths.system.sources_list.with_name("late.json")
    data = write(registry, {**entry("late", transports=[], source=source), "id": server_id})
    registry.with_name("late.json.sig").write_bytes(sign(data, secret))
    machine.paths.system.sources_list.write_text(f"{registry.as_uri()}\n")
    return packed.getvalue(), sha256


async def test_a_bundle_that_is_vouched_for_under_another_id_is_like_any_other(machine: Machine) -> None:
    data, sha256 = packed_as(machine, "com.example.late")
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        await core.catalog.refresh()
        for action in ("install-trusted", "install-untrusted"):
            await mock.answer(PREFIX + action, "yes")
        for options in ({"sha256": sha256}, {"sha256": sha256, "unverified": True, "dry-run": True}):
            read, write_end = os.pipe()
            os.write(write_end, data)
            os.close(write_end)
            call = one.manager.call("InstallBundle", "ha{sv}", [0, options], fds=[read])
            if "unverified" in options:
                await call
            else:
                with pytest.raises(SignatureInvalid, match=r"as late: .* under another id.*'unverified'"):
                    await call
            os.close(read)
        asked_for = [asking[1].removeprefix(PREFIX) for asking in await mock.calls()]
        assert asked_for == ["install-trusted", "install-untrusted"]


async def test_a_bundle_must_still_be_vouched_for_when_it_has_arrived(machine: Machine) -> None:
    data, sha256 = packed_as(machine, "late")
    read, write_end = os.pipe()
    async with (
        people(machine) as (one, _, uids, third),
        served(machine, scope=Scope.SYSTEM, uids=uids) as core,
        polkitd(machine, third, TEMPLATE) as mock,
    ):
        await core.catalog.refresh()
        await mock.answer(PREFIX + "install-trusted", "yes")
        options = {"sha256": sha256.upper()}
        call = asyncio.create_task(one.manager.call("InstallBundle", "ha{sv}", [0, options], fds=[read]))
        while not await mock.calls():
            await asyncio.sleep(0.01)
        core.keys.remove("admin")
        os.write(write_end, data)
        os.close(write_end)
        with pytest.raises(NotAuthorized, match="not signed by a trusted key as late; the key was removed"):
            await call
        assert list(core.bundles.iterdir()) == []
        assert core.installer.jobs.list() == []
    os.close(read)
