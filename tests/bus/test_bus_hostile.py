# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one client passes costs the others nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mcpd import errors
from mcpd.bus import arguments, codec
from mcpd.bus.arguments import READ_TIMEOUT, read_all, save_all
from mcpd.bus.authorization import OwnUser
from mcpd.bus.caller import Callers
from mcpd.bus.connection import Match
from mcpd.bus.dispatcher import MAX_CALL, Dispatcher
from mcpd.bus.names import MANAGER, PEER, ROOT
from mcpd.bus.object_manager import Objects
from mcpd.bus.transport import Fds, Frame
from tests.bus.harness import PATIENCE, RawClient, connected, error_text

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.bus.client import Client
    from mcpd.bus.core import Core
    from tests.bus.harness import PrivateBus


def connected_sockets(kind: str, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = stack.enter_context(socket.create_connection(listener.getsockname()))
            return ours, stack.enter_context(listener.accept()[0])
    if kind == "udp":
        ours = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ours.bind(("127.0.0.1", 0))
        return ours, ours
    pair = socket.socketpair(socket.AF_UNIX, getattr(socket, f"SOCK_{kind.upper()}"))
    return stack.enter_context(pair[0]), stack.enter_context(pair[1])


@pytest.mark.parametrize("kind", ["tcp", "udp", "dgram", "seqpacket"])
async def test_a_socket_that_would_block_is_refused(core: Core, client: Client, kind: str) -> None:
    with ExitStack() as stack:
        ours, _theirs = connected_sockets(kind, stack)
        with pytest.raises(errors.InvalidArgument, match="Unix stream"):
            await client.manager.call("SetSecret", "ssha{sv}", ["x", "token", 0, {}], fds=[ours.fileno()])


async def test_a_blocking_unix_stream_blocks_nobody(
    core: Core, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "READ_TIMEOUT", 120.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = client.manager.call("SetSecret", "ssha{sv}", ["x", "token", 0, {}], fds=[ours.fileno()])
        pending = asyncio.create_task(call)
        for part in (b"a", b"b", b"c"):
            await client.manager.call("ListServers", "a{sv}", [{}])
            theirs.sendall(part)
        assert not pending.done()
        theirs.shutdown(socket.SHUT_WR)
        await pending
    assert core.store.launch_manifest("x").values["token"] == "abc"


async def test_a_stream_is_read_up_to_the_limit() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 11)
        with pytest.raises(errors.LimitExceeded, match="10 bytes"):
            await read_all(ours.fileno(), 10, "it", READ_TIMEOUT)
        assert os.get_blocking(ours.fileno())


@pytest.mark.parametrize("fault", ["no-directory", "too-large"])
async def test_what_cannot_be_written_is_not_called_a_fault_of_reading(tmp_path: Path, fault: str) -> None:
    path = tmp_path / ("none/bundle" if fault == "no-directory" else "bundle")
    there = os.memfd_create("bundle")
    os.write(there, b"x" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if fault == "too-large":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        with pytest.raises(errors.McpdError, match=f"^writing {path}: "):
            await save_all(there, path, 10_000, "the bundle", PATIENCE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(there)
    assert list(tmp_path.iterdir()) == []


def options(signatures: list[str]) -> bytes:
    """An ``a{sv}`` of empty arrays, one of each of *signatures*."""
    out = bytearray(8)
    for number, signature in enumerate(signatures):
        out += bytes(-len(out) % 8)
        key = b"%x" % number
        out += struct.pack("<I", len(key)) + key + b"\0"
        out += bytes([len(signature)]) + signature.encode() + b"\0"
        out += bytes(-len(out) % 4) + bytes(4)
        out += bytes(-len(out) % 8)
    struct.pack_into("<I", out, 0, len(out) - 8)
    return bytes(out)


def nested(number: int, depth: int, width: int) -> str:
    members = "".join("yn"[int(digit)] for digit in f"{number:0{width}b}")
    return "a" + "(" * depth + members + ")" * depth


@pytest.mark.parametrize(
    ("signatures", "fault"),
    [
        ([nested(0, 2, 60)], "at most 64 characters"),
        ([nested(0, 9, 10)], "nested too deeply"),
        ([nested(number, 1, 20) for number in range(1000, 1300)], "too many types"),
    ],
    ids=["long", "deep", "many"],
)
async def test_variants_of_costly_types_are_refused(
    core: Core, client: Client, bus: PrivateBus, signatures: list[str], fault: str
) -> None:
    body = options(signatures)
    assert len(body) < MAX_CALL
    with RawClient(bus.address) as raw:
        serial = raw.call("ListServers", signature="a{sv}", body=body)
        name, text = await asyncio.to_thread(raw.reply, serial)
    assert name == errors.InvalidArgument.dbus_name
    assert fault in error_text(text)
    assert await client.manager.call("ListServers", "a{sv}", [{}])


def test_variants_of_many_known_types_are_read() -> None:
    signatures = [nested(number, 2, 12) for number in range(100)]
    (found,) = codec.unmarshal("a{sv}", options(signatures * 30))
    assert len(found) == 3000


def test_variants_within_variants_are_read_to_the_limit_of_d_bus() -> None:
    value = codec.Variant("s", "x")
    for _ in range(60):
        value = codec.Variant("v", value)
    assert codec.unmarshal("v", codec.marshal("v", [value])) == ["x"]
    for _ in range(10):
        value = codec.Variant("v", value)
    with pytest.raises(codec.WireError, match="too deeply"):
        codec.unmarshal("v", codec.marshal("v", [value]))


async def test_a_call_that_is_given_up_before_it_began_keeps_no_descriptor() -> None:
    read, write = os.pipe()
    handlers: list[Any] = []
    connection: Any = SimpleNamespace(serve=handlers.append, congested=False)
    objects = Objects(connection, lambda _uid: ())
    objects.add(ROOT, SimpleNamespace(interface=MANAGER, properties=dict))
    dispatcher = Dispatcher(connection, objects, Callers(connection), OwnUser())
    dispatcher.start()
    frame = Frame(1, 0, 1, True, b"", Fds([read]), path=ROOT, interface=PEER, member="Ping", sender=":1.1")
    handlers[0](frame)
    await dispatcher.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)


async def test_who_subscribes_second_is_served_when_the_first_gives_up(bus: PrivateBus) -> None:
    async with connected(bus) as listener, connected(bus) as speaker:
        match = Match(member="Something")
        heard = asyncio.Event()
        first = asyncio.create_task(listener.subscribe(match, lambda _: None))
        second = asyncio.create_task(listener.subscribe(match, lambda _: heard.set()))
        await asyncio.sleep(0)
        first.cancel()
        await second
        speaker.emit("/x", "org.example.X", "Something")
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
        (await second)()


async def test_a_match_that_the_bus_refuses_is_refused_to_all_who_wait_for_it(bus: PrivateBus) -> None:
    async with connected(bus) as listener:
        for number in range(32):
            await listener.subscribe(Match(member=f"M{number}"), lambda _: None)
        both = [listener.subscribe(Match(member="OneMore"), lambda _: None) for _ in range(2)]
        refused = await asyncio.gather(*both, return_exceptions=True)
        assert [isinstance(each, errors.McpdError) for each in refused] == [True, True]
