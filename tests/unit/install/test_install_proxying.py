# SPDX-License-Identifier: LGPL-2.1-or-later
"""The proxy of pip and npm, asked as they ask it."""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog.registries import is_public
from mcpd.install.hostconfig import HostConfig
from mcpd.install.proxy import SOCKET, Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

NOTHING: Mapping[str, str] = {}


class Server:
    """Answers every connection with its name, and keeps what it was sent first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []
        self.at = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\n\r\n{self.name}".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(name: str) -> AsyncIterator[Server]:
    made = Server(name)
    server = await asyncio.start_server(made, "127.0.0.1", 0)
    made.at = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def asking(proxy: Proxy, directory: Path) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Hand *proxy* a listening socket as the sandbox does; gives a function that sends a request to it."""
    async with proxy.serving(directory):
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as handover, listener:
            handover.connect(str(directory / SOCKET))
            socket.send_fds(handover, [b"\0"], [listener.fileno()])

        async def ask(head: str, rest: str = "") -> str:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(f"{head} HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\n\r\n{rest}".encode())
            answer = await reader.read()
            writer.close()
            return answer.decode()

        yield ask


def configured(*locations: str, proxies: Mapping[str, str] = NOTHING) -> HostConfig:
    return HostConfig({}, (), locations, proxies)


async def test_the_registry_is_asked_once_for_each_connection(tmp_path: Path) -> None:
    async with serving("registry") as registry:
        proxy = Proxy(configured(f"http://{registry.at}/npm/"))
        async with asking(proxy, tmp_path) as ask:
            answer = await ask(f"GET http://{registry.at}/npm/x?y=1")
    assert registry.asked == ["GET /npm/x?y=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"]
    assert answer == "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nregistry"
    assert proxy.refused == []


async def test_a_tunnel_leads_to_the_registry(tmp_path: Path) -> None:
    async with (
        serving("registry") as registry,
        asking(Proxy(configured(f"https://{registry.at}")), tmp_path) as ask,
    ):
        answer = await ask(f"CONNECT {registry.at}", "encrypted\r\n\r\n")
    assert registry.asked == ["encrypted\r\n\r\n"]
    assert answer.startswith("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize("proxies", [{}, {"http": "http://proxy.test", "https": "http://proxy.test"}])
@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(
    "request_line",
    [
        "GET http://127.0.0.1:8080/x",
        "GET http://elsewhere.test/x",
        "GET http://registry.test:8080/x",
        "CONNECT registry.test:22",
        "CONNECT 127.0.0.1:443",
        "CONNECT localhost:443",
        "CONNECT 0.0.0.0:443",
        "CONNECT 10.0.0.1:443",
        "CONNECT 192.168.1.1:443",
        "CONNECT 169.254.169.254:443",
        "CONNECT 100.64.0.1:443",
        "CONNECT 224.0.0.1:443",
        "CONNECT [::1]:443",
        "CONNECT [::ffff:127.0.0.1]:443",
        "CONNECT [64:ff9b::10.0.0.1]:443",
        "CONNECT [fe80::1]:443",
        "CONNECT [fd00::1]:443",
    ],
)
async def test_nothing_beside_the_registry_is_asked_on_this_machine_and_its_networks(
    tmp_path: Path, request_line: str, proxies: Mapping[str, str], *, public: bool
) -> None:
    proxy = Proxy(configured("https://registry.test/", "http://registry.test/", proxies=proxies), public=public)
    async with asking(proxy, tmp_path) as ask:
        assert (await ask(request_line)).startswith("HTTP/1.1 403 ")
    assert proxy.refused == [request_line.partition(" ")[2]]


async def test_other_hosts_are_asked_only_where_they_may_be(tmp_path: Path) -> None:
    async with serving("proxy") as upstream:
        host = configured("https://registry.test", proxies={"https": f"http://{upstream.at}"})
        for public in (False, True):
            proxy = Proxy(host, public=public)
            async with asking(proxy, tmp_path) as ask:
                answer = await ask("CONNECT elsewhere.test:443", "encrypted\r\n\r\n")
            assert answer.startswith("HTTP/1.1 200" if public else "HTTP/1.1 403")
            assert proxy.refused == ([] if public else ["elsewhere.test:443"])
    assert len(upstream.asked) == 1


async def test_the_proxy_that_is_configured_is_asked_with_its_password(tmp_path: Path) -> None:
    async with serving("proxy") as upstream:
        way = f"http://user:p%40ss@{upstream.at}"
        host = configured("http://plain.test/", "https://registry.test", proxies={"http": way, "https": way})
        async with asking(Proxy(host), tmp_path) as ask:
            assert (await ask("GET http://plain.test/x")).endswith("proxy")
            await ask("CONNECT registry.test:443")
    plain, tunnel = upstream.asked
    secret = base64.b64encode(b"user:p@ss").decode()
    assert plain.startswith("GET http://plain.test/x HTTP/1.1\r\n")
    assert tunnel.startswith("CONNECT registry.test:443 HTTP/1.1\r\n")
    assert f"Proxy-Authorization: Basic {secret}\r\n" in plain
    assert f"Proxy-Authorization: Basic {secret}\r\n" in tunnel


@pytest.mark.parametrize("exceptions", ["registry.test", ".test, other", "*", "registry.test:80"])
async def test_no_proxy_is_asked_for_exceptions(tmp_path: Path, exceptions: str) -> None:
    async with serving("proxy") as upstream:
        host = configured("http://registry.test", proxies={"http": f"http://{upstream.at}", "no": exceptions})
        async with asking(Proxy(host), tmp_path) as ask:
            # There is no such host, or nobody to ask for it.
            assert (await ask("GET http://registry.test/x")).startswith(("HTTP/1.1 400 ", "HTTP/1.1 502 "))
    assert upstream.asked == []


async def test_no_proxy_is_asked_for_this_machine(tmp_path: Path) -> None:
    async with serving("proxy") as upstream, serving("registry") as registry:
        host = configured(f"http://{registry.at}", proxies={"http": f"http://{upstream.at}"})
        async with asking(Proxy(host), tmp_path) as ask:
            assert (await ask(f"GET http://{registry.at}/x")).endswith("registry")
    assert upstream.asked == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("POST http://registry.test/x", "400 malformed request"),
        ("GET http://[registry.test/x", "400 malformed request"),
        ("nonsense", "400 malformed request"),
        ("CONNECT registry.test:443", "400 proxies of the type socks5 are not supported"),
    ],
)
async def test_what_the_proxy_cannot_do_is_said(tmp_path: Path, line: str, said: str) -> None:
    host = configured("http://registry.test", "https://registry.test", proxies={"https": "socks5://127.0.0.1:1080"})
    async with asking(Proxy(host), tmp_path) as ask:
        assert (await ask(line)).startswith(f"HTTP/1.1 {said}\r\n")


async def test_a_registry_that_is_not_there_is_no_refusal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        at = "{}:{}".format(*closed.getsockname())
    proxy = Proxy(configured(f"http://{at}"))
    async with asking(proxy, tmp_path) as ask:
        assert (await ask(f"GET http://{at}/x")).startswith("HTTP/1.1 502 ")
    assert proxy.refused == []


@pytest.mark.parametrize(("error", "status"), [(socket.EAI_AGAIN, 502), (socket.EAI_NONAME, 400)])
async def test_only_a_name_that_may_be_known_later_is_worth_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, status: int
) -> None:
    def failing(*_args: object, **_options: object) -> None:
        raise socket.gaierror(error, "not now")

    monkeypatch.setattr(socket, "getaddrinfo", failing)
    async with asking(Proxy(configured("https://registry.test"), public=True), tmp_path) as ask:
        assert (await ask("CONNECT elsewhere.test:443")).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::7f00:1", "::ffff:10.0.0.1", "fe80::1%eth0", "fec0::1",
     "fd00::1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::101:101", "2002:a00:1::1"],
)  # fmt: skip
def test_no_spelling_of_a_private_address_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)
