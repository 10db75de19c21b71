# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the fuzz tests have in common: raw connections, a neighbour who has to be served, and how long to wait."""

from __future__ import annotations

import itertools
import os
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httptools

from tests.bridge.bridge_harness import PATIENCE, call, descendants, eventually, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bridge.bridge_harness import Bridge

numbers = itertools.count()


def nonce() -> str:
    """A text that no other call has."""
    return f"nonce-{next(numbers)}-{os.getpid()}"


@dataclass
class Reply:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class Replies:
    """The replies that come over a connection, one after the other."""

    def __init__(self) -> None:
        self.whole: list[Reply] = []
        self._parser = httptools.HttpResponseParser(self)
        self._now = Reply()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._now = Reply()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._now.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        self.whole.append(self._now)


def connect(bridge: Bridge) -> socket.socket:
    where = urlsplit(bridge.url)
    found = socket.create_connection((where.hostname, where.port), PATIENCE)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def abort(connection: socket.socket) -> None:
    """Leave with a reset, as a process does that is killed with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """*data*, cut at the positions that *cuts* stand for."""
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(marks)]


def exchange(connection: socket.socket, parts: Sequence[bytes], count: int) -> list[Reply]:
    """Send *parts*, each by itself; the replies until there are *count*, or the bridge ends the connection."""
    replies = Replies()
    try:
        for part in parts:
            connection.sendall(part)
        while len(replies.whole) < count and (data := connection.recv(65536)):
            replies.feed(data)
    except ConnectionError:
        # A connection that the bridge closes may be reset while there is still something to send.
        pass
    return replies.whole


class Neighbour:
    """A client with a session and one without, who do nothing wrong and are served right, whatever others do."""

    def __init__(self, bridge: Bridge, argument: str = "text", server: str = "s") -> None:
        self.bridge = bridge
        self.argument = argument
        self.clients = [bridge.client(server).open(), bridge.client(server)]
        self.check()
        self.remember()

    def remember(self) -> None:
        """What there is now may stay."""
        self.before = (self.bridge.fds(), len(descendants(self.bridge.pid)), rss(self.bridge.pid))

    def check(self) -> None:
        for client in self.clients:
            identity, text = f"id-{nonce()}", nonce()
            answer = client.ask(call("echo", identity, **{self.argument: text}))
            assert (answer["id"], text_of(answer)) == (identity, text)

    def check_processes(self) -> None:
        """No further process is left; tells which, and what the bridge said, if there is one."""
        try:
            eventually(lambda: len(descendants(self.bridge.pid)) <= self.before[1], "the processes ended")
        except AssertionError as error:
            left = descendants(self.bridge.pid)
            metrics = self.clients[1].http.get("/metrics").text
            numbers = [line for line in metrics.splitlines() if "process" in line or "session" in line]
            raise AssertionError(f"{error}\n{left}\n{numbers}\n{self.bridge.said()[-4000:]}") from None

    def check_the_rest(self, memory: int = 48 << 20) -> None:
        """Nothing is left: no descriptor, no process, and no more than *memory* bytes."""
        fds, _, size = self.before
        self.check()
        eventually(lambda: self.bridge.fds() <= fds, "the descriptors are closed")
        self.check_processes()
        eventually(lambda: rss(self.bridge.pid) <= size + memory, "the memory is given back")
        assert "Traceback" not in self.bridge.said()


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def is_response(message: Any, identity: object) -> bool:
    """Whether *message* answers the request *identity*, with either a result or an error."""
    return (
        isinstance(message, dict)
        and message.get("jsonrpc") == "2.0"
        and message.get("id") == identity
        and type(message.get("id")) is type(identity)
        and ("result" in message) != ("error" in message)
    )
