# SPDX-License-Identifier: LGPL-2.1-or-later
"""The faults of D-Bus libraries (research on dbus-next and dbus-fast), each against the running daemon."""

from __future__ import annotations

import asyncio
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.bus import codec
from mcpd.bus.names import DBUS, INTROSPECTABLE, MANAGER, OBJECT_MANAGER, PEER, PROPERTIES, ROOT
from mcpd.errors import McpdError
from tests.bus.harness import PATIENCE, RawClient, error_text, start_bus, string

if TYPE_CHECKING:
    from mcpd.bus.client import Client
    from tests.bus.harness import Machine

FLOOD = 400
INVALID = "org.freedesktop.DBus.Error.InvalidArgs"
EMPTY_DICT = b"\0" * 8
SECRET = "ssha{sv}"


def secret_body(index: int) -> bytes:
    body = string("x") + b"\0\0" + string("k") + b"\0\0" + struct.pack("<I", index)
    return body + b"\0" * 4 + b"\0" * (-(len(body) + 4) % 8)


def target(link: Path) -> str:
    """Where *link* leads, or nowhere if it is gone."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


async def alive(client: Client) -> bool:
    await client.manager.call("ListServers", "a{sv}", [{}])
    return True


async def test_a_full_socket_does_not_end_the_connection(machine: Machine, client: Client) -> None:
    for number in range(50):
        machine.install(f"big{number}", description="x" * 10_000)
    daemon = await machine.serve()
    with RawClient(machine.bus.address) as raw:
        serials = {raw.call("ListServers", signature="a{sv}", body=EMPTY_DICT) for _ in range(40)}
        # Nothing is read until everything waits; 20 MB do not fit into any socket.
        assert await alive(client)

        def replies() -> list[int]:
            sizes: dict[int, int] = {}
            for _, fields, body in raw.messages():
                if fields.get(5) in serials:
                    sizes[fields[5]] = len(body)
                if len(sizes) == len(serials):
                    break
            return list(sizes.values())

        sizes = await asyncio.to_thread(replies)
    assert min(sizes) > 500_000
    assert daemon.process.returncode is None


async def test_fds_are_closed_wherever_they_come(machine: Machine, client: Client) -> None:
    daemon = await machine.serve()
    null = os.open("/dev/null", os.O_RDONLY)
    wrong: list[dict[str, Any]] = [
        {"member": "ListServers", "signature": "a{sv}", "body": EMPTY_DICT},  # not asked for
        {"member": "NoSuch"},
        {"member": "ListServers", "signature": "h", "body": struct.pack("<I", 0)},  # not its signature
        {"member": "Ping", "interface": PEER, "path": "/nowhere"},
        {"member": "Ping", "interface": "org.example.None", "path": ROOT, "destination": "org.mcpd.Mcp1"},
        {"member": "Introspect", "interface": INTROSPECTABLE},
        {"member": "SetSecret", "signature": SECRET, "body": secret_body(0)},  # no such server
        {"member": "SetSecret", "signature": SECRET, "body": secret_body(9)},  # no such index
        {"member": "InvalidSignal", "kind": 4},
        {"member": "ListServers", "signature": "a{sv}", "body": EMPTY_DICT, "flags": 1},  # wants no answer
        {"member": "NoReply", "kind": 2, "fields": [(5, "u", 4242)]},
    ]
    await alive(client)
    before = daemon.fds()
    with RawClient(machine.bus.address) as raw:
        for round_ in range(FLOOD // len(wrong)):
            for message in wrong:
                raw.call(passing=[null] * (1 + round_ % 3), **message)
        last = raw.call("Ping", interface=PEER)
        await asyncio.to_thread(raw.reply, last)
    os.close(null)
    await alive(client)
    async with asyncio.timeout(PATIENCE):
        while daemon.fds() > before:
            await alive(client)
    assert daemon.fds() <= before


async def test_an_fd_index_without_fd_touches_nothing(machine: Machine, client: Client) -> None:
    machine.install("x", configurableProperties=[{"key": "k", "sensitive": True}])
    daemon = await machine.serve()
    with RawClient(machine.bus.address) as raw:
        for index in (*range(24), 0xFFFF_FFFF):
            error, body = await asyncio.to_thread(
                raw.reply, raw.call("SetSecret", signature=SECRET, body=secret_body(index))
            )
            assert error == INVALID
            assert f"file descriptor {index}" in error_text(body)
    assert await alive(client)
    assert daemon.process.returncode is None


async def test_received_fds_are_not_inherited(machine: Machine, client: Client) -> None:
    machine.install("x", configurableProperties=[{"key": "k", "sensitive": True}])
    daemon = await machine.serve()
    await alive(client)
    table = Path(f"/proc/{daemon.pid}/fd")
    read, write = os.pipe()
    pending = asyncio.create_task(client.manager.call("SetSecret", SECRET, ["x", "k", 0, {}], fds=[read]))
    inode = f"pipe:[{os.fstat(read).st_ino}]"
    received: list[Path] = []
    async with asyncio.timeout(PATIENCE):
        while not received:
            await alive(client)
            received = [fd for fd in table.iterdir() if target(fd) == inode]
    info = Path(f"/proc/{daemon.pid}/fdinfo/{received[0].name}").read_text()
    flags = int(re.findall(r"flags:\s*(\d+)", info)[0], 8)
    os.close(write)
    os.close(read)
    await pending
    assert flags & os.O_CLOEXEC


async def test_objects_come_and_go_at_the_managers_path(machine: Machine, client: Client) -> None:
    await machine.serve()
    await alive(client)
    async with client.signals(interface=OBJECT_MANAGER) as signals:
        directory = machine.install("com.example.new")
        await alive(client)
        added = await asyncio.wait_for(signals.get(), PATIENCE)
        (directory / "manifest.json").unlink()
        directory.rmdir()
        await alive(client)
        removed = await asyncio.wait_for(signals.get(), PATIENCE)
    path = "/org/mcpd/Mcp1/server/com_2eexample_2enew"
    assert (added.path, added.member, added.args[0]) == (ROOT, "InterfacesAdded", path)
    assert added.args[1]["org.mcpd.Mcp1.Server"]["Id"] == "com.example.new"
    assert (removed.path, removed.member, removed.args) == (
        ROOT, "InterfacesRemoved", [path, ["org.mcpd.Mcp1.Server"]],
    )  # fmt: skip


async def test_more_clients_are_served_than_match_rules_are_granted(machine: Machine, client: Client) -> None:
    await machine.serve()
    raws = [RawClient(machine.bus.address) for _ in range(40)]
    try:
        for raw in raws:
            serial = raw.call("ListServers", signature="a{sv}", body=EMPTY_DICT)
            assert await asyncio.to_thread(raw.reply, serial) == ("", b"\0" * 4)
    finally:
        for raw in raws:
            raw.sock.close()
    assert await alive(client)


async def test_the_interface_may_be_left_out_of_a_call(machine: Machine, short_tmp: Path) -> None:
    machine.bus.stop()
    machine.bus = start_bus(short_tmp, any_interface=True)
    try:
        await machine.serve()
        with RawClient(machine.bus.address) as raw:
            reply = await asyncio.to_thread(raw.reply, raw.call("GetMachineId", interface=None))
            listed = await asyncio.to_thread(
                raw.reply, raw.call("ListServers", interface=None, signature="a{sv}", body=EMPTY_DICT)
            )
    finally:
        machine.bus.stop()
    assert reply[0] == ""
    assert len(reply[1]) == 4 + 32 + 1
    assert listed == ("", b"\0" * 4)


@pytest.mark.parametrize(
    "message",
    [
        {"fields": [(60, "s", "zz")]},
        {"flags": 0x80},
        {"kind": 9},
        {"fields": [(9, "u", 3)]},
        {"signature": "a{sv}", "body": struct.pack("<II", 8, 0) + b"\xff" * 8},
        {"signature": "v", "body": b"\x01v\0" * 40},
        {"destination": "org.mcpd.Mcp1", "path": "/org/mcpd/Mcp1/server/" + "a" * 2000},
    ],
    ids=["field", "flag", "type", "fd-count", "broken-body", "nested", "path"],
)
async def test_a_malformed_message_harms_nobody_else(machine: Machine, client: Client, message: dict[str, Any]) -> None:
    daemon = await machine.serve()
    with RawClient(machine.bus.address) as raw:
        raw.call(**({"member": "ListServers"} | message))
        assert await alive(client)
    assert await alive(client)
    assert daemon.process.returncode is None
    assert "Traceback" not in daemon.log()


async def test_signatures_made_up_by_callers_are_not_kept(machine: Machine, client: Client) -> None:
    daemon = await machine.serve()
    with RawClient(machine.bus.address) as raw:
        for count in range(1200):
            numbers, nothings = count % 200, 1 + count // 200
            empty = (b"\0" * 5 + b"\0" * 3) * nothings
            body = b"\0" * (numbers + -numbers % 4) + empty[:-3]
            raw.call("ListServers", signature="y" * numbers + "s" * nothings, body=body, flags=1)
        await asyncio.to_thread(raw.reply, raw.call("Ping", interface=PEER))
    assert daemon.process.returncode is None
    for cache in (codec.split, codec.readers, codec._writers):
        assert cache.cache_info().maxsize is not None


async def test_senders_and_flags_are_not_mixed_up(machine: Machine, client: Client) -> None:
    machine.install("x")
    machine.settings["MCPD_RUNTIME_SANDBOX"] = "off"
    await machine.serve()
    raws = [RawClient(machine.bus.address) for _ in range(8)]
    try:
        # Spawn is answered much later than ListSessions, which must still speak of its own caller only.
        body = string("x") + b"\0" * 2 + b"\0" * 8 + b"\0" * 8 + b"\0" * 8
        spawned = [raw.call("Spawn", signature="sa{uh}ta{sv}", body=body) for raw in raws]
        replies = [await asyncio.to_thread(raw.reply, serial) for raw, serial in zip(raws, spawned, strict=True)]
    finally:
        for raw in raws:
            raw.sock.close()
    paths = {reply[1][4 : 4 + struct.unpack_from("<I", reply[1])[0]] for reply in replies}
    assert len(paths) == len(raws), replies


async def test_introspection_is_the_contract(machine: Machine, client: Client) -> None:
    machine.install("com.example.one")
    await machine.serve()
    xml, _ = await client.invoke(ROOT, INTROSPECTABLE, "Introspect", "", [], [], None)
    assert 'name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="const"' in xml
    assert 'name="org.qtproject.QtDBus.QtTypeName.Out0" value="QList&lt;QVariantMap&gt;"' in xml
    assert '<arg name="secrets_set" type="as" direction="out"' in xml
    assert f'<interface name="{MANAGER}">' in xml
    assert '<node name="server"' in xml
    below, _ = await client.invoke(ROOT + "/server", INTROSPECTABLE, "Introspect", "", [], [], None)
    assert '<node name="com_2eexample_2eone"' in below
    root, _ = await client.invoke("/", INTROSPECTABLE, "Introspect", "", [], [], None)
    assert '<node name="org"' in root


@pytest.mark.parametrize(
    ("member", "signature", "args", "error"),
    [
        ("Get", "ss", [MANAGER, "Nothing"], "UnknownProperty"),
        ("Get", "ss", ["org.example.No", "X"], "UnknownInterface"),
        ("Set", "ssv", [MANAGER, "Version", "9"], "PropertyReadOnly"),
        ("Set", "ssv", [MANAGER, "Nothing", "9"], "UnknownProperty"),
        ("GetAll", "s", ["org.example.No"], "UnknownInterface"),
        ("Nothing", "", [], "UnknownMethod"),
        ("GetAll", "u", [3], "InvalidArgs"),
    ],
)
async def test_properties_refuse_what_is_not_there(
    machine: Machine, client: Client, member: str, signature: str, args: list[Any], error: str
) -> None:
    await machine.serve()
    with pytest.raises(McpdError) as caught:
        await client.invoke(ROOT, PROPERTIES, member, signature, args, [], None)
    assert caught.value.dbus_name == f"org.freedesktop.DBus.Error.{error}"


async def test_too_long_and_too_many_calls_are_refused(machine: Machine, client: Client) -> None:
    daemon = await machine.serve()
    with RawClient(machine.bus.address) as raw:
        long = struct.pack("<I", 1_000_000) + b"\0" * 4 + b"\0" * 1_000_000
        error, body = await asyncio.to_thread(raw.reply, raw.call("ListServers", signature="at", body=long))
        assert error == "org.freedesktop.DBus.Error.LimitsExceeded"
        assert "file descriptor" in error_text(body)
        null = os.open("/dev/null", os.O_RDONLY)
        error, _ = await asyncio.to_thread(
            raw.reply, raw.call("ListServers", signature="a{sv}", body=EMPTY_DICT, passing=[null] * 17)
        )
        assert error == "org.freedesktop.DBus.Error.LimitsExceeded"
        os.close(null)
    assert await alive(client)
    assert daemon.process.returncode is None


async def test_one_sender_cannot_hold_more_than_its_share(machine: Machine, client: Client) -> None:
    machine.install("x", configurableProperties=[{"key": "k", "sensitive": True}])
    daemon = await machine.serve()
    read, write = os.pipe()
    with RawClient(machine.bus.address) as raw:
        for _ in range(128):
            raw.call("SetSecret", signature=SECRET, body=secret_body(0), passing=[read])
        refused = raw.call("SetSecret", signature=SECRET, body=secret_body(0), passing=[read])
        error, _ = await asyncio.to_thread(raw.reply, refused)
        assert error == "org.freedesktop.DBus.Error.LimitsExceeded"
        assert await alive(client), "others are served"
        os.close(write)
        os.close(read)
    assert daemon.process.returncode is None


async def test_the_bus_policy_lets_only_our_interfaces_through(machine: Machine) -> None:
    await machine.serve()
    with RawClient(machine.bus.address) as raw:
        error, _ = await asyncio.to_thread(raw.reply, raw.call("Foo", interface="org.example.Other"))
        assert error == "org.freedesktop.DBus.Error.AccessDenied"
        error, _ = await asyncio.to_thread(raw.reply, raw.call("Ping", interface=PEER))
        assert error == ""
        name = string("org.mcpd.Mcp1") + b"\0" * 2 + struct.pack("<I", 4)
        error, _ = await asyncio.to_thread(
            raw.reply, raw.call("RequestName", destination=DBUS, path="/org/freedesktop/DBus", interface=DBUS,
                                signature="su", body=name),
        )  # fmt: skip
        assert error == ""  # the test's user may; the name is not given away though
