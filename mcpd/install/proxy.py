# SPDX-License-Identifier: LGPL-2.1-or-later
"""The HTTP proxy that is the only access to the network for pip and npm.

A package can name any URL for a dependency, and pip and npm connect there before anyone has consented. Therefore
their sandbox has a network namespace with only a loopback interface, where :mod:`mcpd.install.proxied` listens; mcpd
accepts the connections, and connects only to allowed destinations.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import os
import socket
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from mcpd.catalog.registries import is_loopback, is_public, normal_host
from mcpd.model import printable, strip_credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from mcpd.install.hostconfig import HostConfig

PROXIED: Final = Path(__file__).with_name("proxied.py")
SOCKET: Final = "proxy"
"""Name of the socket over which the listening socket is passed."""
PROXY_URL: Final = "http://proxy.invalid"
"""Value of variables that are to have the address of the proxy, which is known only inside the sandbox."""
PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
CONNECT_TIMEOUT: Final = 30.0
"""Seconds for a connection to one address."""
_CHUNK: Final = 64 * 1024
_HOP: Final = (b"connection:", b"keep-alive:", b"proxy-")
"""Prefixes of headers that are meant for the proxy and not forwarded."""
_CLOSE: Final = b"Connection: close"
_END: Final = b"\r\n\r\n"
_PORTS: Final = {"http": 80, "https": 443}

log = logging.getLogger(__name__)


class _Failed(Exception):
    """A refused request; the arguments are an HTTP status and the reason."""


class Proxy:
    """The proxy for one sandboxed command."""

    def __init__(self, host: HostConfig, *, public: bool = False) -> None:
        """*host* contains the allowed registries, and the host's own proxies.

        *public* also allows other hosts, over https and only at public addresses.
        """
        self.refused: list[str] = []
        """Refused destinations, as URLs or as host and port."""
        self._origins = origins(host.locations)
        self._proxies = host.proxies
        self._public = public
        self._reached: dict[tuple[str, int], str] = {}
        """Addresses of successful connections, by host and port."""
        self._first: dict[tuple[str, int], asyncio.Lock] = {}
        self._listening: asyncio.Task[asyncio.Server] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: Callable[[int], None] = lambda _count: None

    @asynccontextmanager
    async def serving(
        self, directory: Path, arrived: Callable[[int], None] = lambda _count: None
    ) -> AsyncIterator[None]:
        """Serve on the listener passed over a socket in *directory*; call *arrived* with each number of bytes."""
        self._arrived = arrived
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as handover:
            parent = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # The address of a unix socket is limited to 107 bytes, which the path of a generation may exceed.
                handover.bind(f"/proc/self/fd/{parent}/{SOCKET}")
            finally:
                os.close(parent)
            loop.add_reader(handover, self._accept_listener, handover)
            try:
                yield
            finally:
                loop.remove_reader(handover)
                (directory / SOCKET).unlink(missing_ok=True)
                if self._listening is not None:
                    (await self._listening).close()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept_listener(self, handover: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(handover)
        for fd in socket.recv_fds(handover, 1, 1)[1]:
            listener = socket.socket(fileno=fd)
            self._listening = asyncio.create_task(asyncio.start_server(self._connected, sock=listener))

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle the only request of a connection."""
        try:
            request = _Request.parse(await reader.readuntil(_END))
            proxy = self._proxy(request)
            place = request.host, request.port
            # npm opens many connections at once; only the first one to a host should look up its name.
            is_later = proxy is not None or place in self._reached
            async with nullcontext() if is_later else self._first.setdefault(place, asyncio.Lock()):
                server_reader, server_writer = await self._connect(request, proxy)
            try:
                if request.is_tunnel and proxy is None:
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    server_writer.write(request.forwarded(proxy))
                if not request.is_tunnel:
                    writer.write(_closing(await server_reader.readuntil(_END)))
                await _until_one_ends(_pump(reader, server_writer), _pump(server_reader, writer, self._arrived))
            finally:
                server_writer.close()
        except (_Failed, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            writer.write(_failure(error))
        finally:
            # Data already written is still sent.
            writer.close()

    async def _connect(
        self, request: _Request, proxy: SplitResult | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the destination of *request* if it is allowed, or to the *proxy* for it."""
        place = request.host, request.port
        addresses = [self._reached.get(place, request.host)]
        if place not in self._origins and place not in self._reached:
            if not (self._public and request.is_tunnel and request.port == _PORTS["https"]):
                raise self._refuse(request.target)
            try:
                addresses = await _addresses(request.host)
            except socket.gaierror:
                if proxy is None:  # a proxy may be able to resolve more names
                    raise
            else:
                if not all(is_public(address) for address in addresses):
                    raise self._refuse(request.target)
        if proxy is None:
            connection = await _connect(addresses, request.port)
            self._reached[place] = connection[1].get_extra_info("peername")[0]
            return connection
        return await _connect([proxy.hostname or ""], origin(proxy.geturl())[1], ssl=proxy.scheme == "https" or None)

    def _refuse(self, target: str) -> _Failed:
        log.info("proxy: refused %s", printable(target))
        self.refused.append(strip_credentials(printable(target)))
        return _Failed("403", "not a configured registry")

    def _proxy(self, request: _Request) -> SplitResult | None:
        """Return the host's proxy for *request*; None if its destination is this machine or needs no proxy."""
        chosen, exceptions = self._proxies.get(request.url.scheme, ""), self._proxies.get("no", "")
        if not chosen or is_loopback(request.host) or _is_exception(request.host, request.port, exceptions):
            return None
        proxy = urlsplit(chosen if "://" in chosen else f"http://{chosen}")
        if proxy.scheme not in _PORTS or not proxy.hostname:
            raise _Failed("400", f"proxies of the type {proxy.scheme} are not supported")
        return proxy


@dataclass(frozen=True, slots=True)
class _Request:
    """Request line and headers of a request."""

    method: str
    target: str
    url: SplitResult
    host: str
    port: int
    headers: tuple[bytes, ...]

    @classmethod
    def parse(cls, head: bytes) -> Self:
        """Parse *head*, which ends with an empty line. Raises ValueError."""
        line, *headers = head.removesuffix(_END).split(b"\r\n")
        method, target, _ = line.decode("ascii").split(" ")
        if method not in ("CONNECT", "GET", "HEAD"):
            raise ValueError(f"{method} is not supported")
        url = urlsplit(f"https://{target}" if method == "CONNECT" else target)
        return cls(method, target, url, *origin(url.geturl()), tuple(headers))

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    def forwarded(self, proxy: SplitResult | None) -> bytes:
        """Return the request line and headers to send to the server, or to *proxy*."""
        target = self.target if proxy else urlunsplit(("", "", self.url.path or "/", self.url.query, ""))
        headers = [header for header in self.headers if not header.lower().startswith(_HOP)]
        if proxy is not None and proxy.username is not None:
            headers.append(_credentials(proxy))
        # One request per connection, so that no request to another host can follow.
        headers += [] if self.is_tunnel else [_CLOSE]
        return b"\r\n".join((f"{self.method} {target} HTTP/1.1".encode(), *headers)) + _END


def origins(urls: Iterable[str]) -> set[tuple[str, int]]:
    """Return the host and port of each URL in *urls* that has a host."""
    found = set()
    for url in urls:
        with suppress(ValueError):
            found.add(origin(url))
    return {place for place in found if place[0]}


def origin(url: str) -> tuple[str, int]:
    """Return host and port of *url*; the host is empty if it has none. Raises ValueError for an invalid URL."""
    parts = urlsplit(url)
    return normal_host(parts.hostname or ""), parts.port or _PORTS.get(parts.scheme, 0)


def _is_exception(host: str, port: int, exceptions: str) -> bool:
    """Return whether *host* matches *exceptions*, which have the format of ``no_proxy``."""
    for entry in exceptions.replace(",", " ").split():
        name = entry.lower().lstrip("*").lstrip(".")
        if not name or name in (host, f"{host}:{port}") or host.endswith(f".{name}"):
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return False


async def _addresses(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def _connect(
    hosts: Iterable[str], port: int, *, ssl: bool | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of *hosts* that answers. Raises :class:`OSError`."""
    failure = OSError("unknown host")
    for host in hosts:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await asyncio.open_connection(host, port, ssl=ssl, happy_eyeballs_delay=0.25)
        except OSError as error:
            failure = error
    raise failure


def _credentials(proxy: SplitResult) -> bytes:
    pair = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
    return b"Proxy-Authorization: Basic " + base64.b64encode(pair.encode())


def _closing(head: bytes) -> bytes:
    """Return *head*, the status line and headers of a response, with ``Connection: close``."""
    line, *headers = head.removesuffix(_END).split(b"\r\n")
    return b"\r\n".join((line, *(each for each in headers if not each.lower().startswith(_HOP)), _CLOSE)) + _END


def _failure(error: Exception) -> bytes:
    """Return the response to a request that failed with *error*; npm shows its reason, and retries after a 5xx."""
    if isinstance(error, _Failed):
        status, reason = error.args
    elif isinstance(error, socket.gaierror):
        status, reason = "502" if error.errno == socket.EAI_AGAIN else "400", error.strerror
    elif isinstance(error, ValueError):
        status, reason = "400", "malformed request"
    else:
        status, reason = "502", getattr(error, "strerror", None) or str(error) or "timed out"
    return f"HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii", "replace")


async def _until_one_ends(*directions: Coroutine[None, None, None]) -> None:
    """Wait until one direction has ended: with HTTP, the other one is then finished, too."""
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Callable[[int], None] = lambda _count: None
) -> None:
    while data := await reader.read(_CHUNK):
        passed(len(data))
        writer.write(data)
        await writer.drain()
