# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcpd-remote`` over HTTP+SSE and WebSocket, where all messages share one connection."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.server import ServerConnection, serve

from tests.servers.remote_harness import (
    INITIALIZED,
    PATIENCE,
    Asked,
    answer,
    call,
    far_server,
    initialize,
    remote,
    request,
    scripted,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.servers.remote_harness import FarServer


@pytest.fixture(scope="module")
def old() -> Iterator[FarServer]:
    with far_server("sse") as server:
        yield server


async def test_a_conversation_with_the_sdk_over_sse(old: FarServer, tmp_path: Path) -> None:
    async with remote(tmp_path, {"type": "sse", "url": old.url}) as client:
        greeted = await client.ask(initialize("hello", "2024-11-05"))
        assert (greeted["id"], greeted["result"]["protocolVersion"]) == ("hello", "2024-11-05")
        await client.send(INITIALIZED)
        identities: list[object] = [*range(30), *map(str, range(30))]
        await client.send(*(call("echo", identity, text=f"{identity!r}") for identity in identities))
        heard = [await client.receive() for _ in identities]
        assert sorted(text_of(message) for message in heard) == sorted(map(repr, identities))
        assert all(repr(message["id"]) == text_of(message) for message in heard)
        await client.send(call("count", 7, meta={"progressToken": 5}, to=2))
        assert [(await client.receive()).get("method") for _ in range(3)] == ["notifications/progress"] * 2 + [None]
        assert await client.end() == 0


class Far:
    """What a WebSocket server of these tests saw."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[Any] = []
        self.heard: list[Any] = []
        self.connections: list[ServerConnection] = []


@asynccontextmanager
async def far_socket(tls: ssl.SSLContext | None = None) -> AsyncIterator[Far]:
    """Answers like a server that also has ways to misbehave."""
    far = Far()

    async def serve_one(connection: ServerConnection) -> None:
        assert connection.request is not None
        far.headers.append(connection.request.headers)
        far.connections.append(connection)
        async for text in connection:
            message = json.loads(text)
            far.heard.append(message)
            method = message.get("method", "")
            if method == "initialize":
                result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {}}
                await connection.send(json.dumps(answer(message["id"], result)))
            elif method == "hang up":
                await connection.close(1011, "no more")
            elif method == "garbage":
                await connection.send("{nonsense")
                await connection.send(json.dumps(answer("nobody's", {})))
                await connection.send(json.dumps(answer(message["id"], {"still": "there"}), indent=1))
            elif method == "huge":
                await connection.send("x" * (64 * 2**20 + 1))
            elif method == "ask":
                await connection.send(json.dumps(request("roots/list", "r")))
            elif "id" in message and method:
                await connection.send(json.dumps(answer(message["id"], {"n": message["id"]})))

    async with serve(serve_one, "127.0.0.1", 0, subprotocols=["mcp"], ssl=tls) as server:  # type: ignore[list-item]
        port = next(iter(server.sockets)).getsockname()[1]
        far.url = f"{'wss' if tls else 'ws'}://127.0.0.1:{port}/mcp"
        yield far


async def test_a_conversation_over_websocket(tmp_path: Path) -> None:
    async with far_socket() as far:
        transport = {"type": "websocket", "wsUrl": far.url, "headers": {"Authorization": "Bearer {config.KEY}"}}
        async with remote(tmp_path, transport, config={"KEY": "abc"}) as client:
            await client.greet()
            identities: list[object] = [*range(100), *map(str, range(100)), 1.5]
            await client.send(*(request("ping", identity) for identity in identities))
            heard = [await client.receive() for _ in identities]
            assert all(message["result"] == {"n": message["id"]} for message in heard)
            assert sorted(repr(message["id"]) for message in heard) == sorted(map(repr, identities))
            asked = await client.ask(request("ask", "mine"))
            assert (asked["method"], asked["id"]) == ("roots/list", "r")
            await client.send(answer("r", {"roots": []}), request("ping", "end"))
            await client.receive()
            assert answer("r", {"roots": []}) in far.heard
            assert await client.end() == 0
        assert far.headers[0]["Authorization"] == "Bearer abc"
        assert far.headers[0]["Sec-WebSocket-Protocol"] == "mcp"


async def test_a_dropped_websocket_is_greeted_again(tmp_path: Path) -> None:
    async with far_socket() as far, remote(tmp_path, {"type": "websocket", "wsUrl": far.url}) as client:
        await client.greet()
        await client.send(request("waits", "never"))
        await client.receive()
        failed = await client.ask(request("hang up", 3))
        assert (failed["id"], "before the answer" in failed["error"]["message"]) == (3, True)
        assert (await client.ask(request("ping", 4)))["result"] == {"n": 4}
        assert [message.get("method") for message in far.heard].count("initialize") == 2
        again = [message["method"] for message in far.heard[-3:]]
        assert again == ["initialize", "notifications/initialized", "ping"]
        # Nobody asks anything, and it is there again all the same.
        await far.connections[-1].close()
        async with asyncio.timeout(PATIENCE):
            while len(far.connections) < 3:
                await asyncio.sleep(0.05)


async def test_garbage_over_websocket_is_left_out_and_what_is_too_large_ends_the_connection(tmp_path: Path) -> None:
    async with far_socket() as far, remote(tmp_path, {"type": "websocket", "wsUrl": far.url}) as client:
        await client.greet()
        assert await client.ask(request("garbage", 1)) == answer(1, {"still": "there"})
        failed = await client.ask(request("huge", 2))
        assert (failed["id"], failed["error"]["code"]) == (2, -32603)
        assert (await client.ask(request("ping", 3)))["result"] == {"n": 3}


async def test_two_requests_with_one_id_are_not_mixed_up(tmp_path: Path) -> None:
    async with far_socket() as far, remote(tmp_path, {"type": "websocket", "wsUrl": far.url}) as client:
        await client.greet()
        await client.send(request("ask", 1))
        assert (await client.receive())["method"] == "roots/list"
        refused = await client.ask(request("ping", 1))
        assert (refused["id"], refused["error"]["code"]) == (1, -32600)


async def test_a_dropped_stream_of_events_is_greeted_again(tmp_path: Path) -> None:
    streams: list[Asked] = []

    async def respond(asked: Asked) -> None:
        if asked.method == "GET":
            streams.append(asked)
            await asked.events()
            await asked.write(f"event: endpoint\ndata: /messages?s={len(streams)}\n\n")
            await asked.gone()
            return
        await asked.reply(202)
        message = asked.message
        stream = streams[int(asked.path.rpartition("=")[2]) - 1]
        if message["method"] == "drop":
            stream.writer.close()
        elif message["method"] == "initialize":
            await stream.event(answer(message["id"], {"protocolVersion": "2024-11-05", "capabilities": {}}))
        elif "id" in message:
            await stream.event(answer(message["id"], {"stream": asked.path}))

    async with scripted(respond) as server, remote(tmp_path, {"type": "sse", "url": f"{server.origin}/sse"}) as client:
        await client.greet()
        assert (await client.ask(request("x", 1)))["result"] == {"stream": "/messages?s=1"}
        failed = await client.ask(request("drop", 2))
        assert (failed["id"], "before the answer" in failed["error"]["message"]) == (2, True)
        assert (await client.ask(request("x", 3)))["result"] == {"stream": "/messages?s=2"}


async def test_a_stream_without_an_endpoint_is_an_error(tmp_path: Path) -> None:
    async def respond(asked: Asked) -> None:
        await asked.events()
        await asked.write("event: other\ndata: x\n\n")

    async with scripted(respond) as server, remote(tmp_path, {"type": "sse", "url": f"{server.origin}/sse"}) as client:
        failed = await client.ask(initialize(1))
        assert (failed["id"], failed["error"]["code"]) == (1, -32603)


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody vouches for, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file, private = directory / "cert.pem", directory / "key.pem"
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, private)
    return file, context


@pytest.mark.parametrize("kind", ["streamable-http", "sse", "websocket"])
async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, kind: str) -> None:
    file, context = certificate(tmp_path)
    async with far_socket(context) as far:
        url = {"wsUrl": far.url} if kind == "websocket" else {"url": far.url.replace("wss", "https")}
        async with remote(tmp_path, {"type": kind, **url}) as client:
            failed = await client.ask(initialize(1))
            assert "certificate" in failed["error"]["message"].lower()
        assert far.headers == []
        async with remote(tmp_path, {"type": kind, **url}, environ={"SSL_CERT_FILE": str(file)}) as client:
            found = await client.ask(initialize(1))
            assert "certificate" not in json.dumps(found).lower()
            assert ("result" in found) == (kind == "websocket")
