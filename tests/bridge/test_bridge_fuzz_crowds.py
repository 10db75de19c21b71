# SPDX-License-Identifier: LGPL-2.1-or-later
"""Crowds of clients that do nothing, do it slowly, or leave: others are served, and nothing of them stays."""

from __future__ import annotations

import json
import random
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.bridge.bridge_harness import COMMAND, PATIENCE, call, eventually, initialize, text_of
from tests.bridge.fuzzing import Neighbour, abort, connect, exchange, nonce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.bridge.bridge_harness import Bridge

HEAD = b"POST /mcp/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CROWD = 10_000
IDLE = 20
"""Seconds after which an unused session ends."""


def post(message: object, extra: bytes = b"") -> bytes:
    body = json.dumps(message).encode()
    return HEAD + extra + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} descriptors, and may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_10000_idle_connections_do_not_keep_others_from_being_served(fuzzed_bridge: Callable[..., Bridge]) -> None:
    neighbour = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}"))
    with ExitStack() as stack:
        crowd = []
        for number in range(CROWD):
            crowd.append(connect(neighbour.bridge))
            stack.callback(abort, crowd[-1])
            if number % 500 == 0:
                neighbour.check()
        neighbour.check()
        assert neighbour.bridge.fds() < CROWD / 2
        # Those who do not say what they want are refused in the end, and there is room for others again.
        eventually(lambda: is_served(neighbour.bridge), "a new connection is served while the crowd stands there")
        neighbour.check()
    neighbour.check_the_rest()


def is_served(bridge: Bridge) -> bool:
    with connect(bridge) as connection:
        return [reply.status for reply in exchange(connection, [HEALTH], 1)] == [200]


def test_what_is_never_sent_whole_reaches_no_server(fuzzed_bridge: Callable[..., Bridge], tmp_path: Path) -> None:
    wire = tmp_path / "wire"
    neighbour = Neighbour(fuzzed_bridge(f"--server=s={COMMAND} --wire {wire}"))
    whole = post(call("echo", 1, text="half of this is not sent"))
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 2 + b'{"' + b"\r\n0\r\n"
    for number in range(60):
        connection = connect(neighbour.bridge)
        connection.sendall(chunked if number % 4 == 0 else whole[: -1 - number])
        if number % 3 == 0:
            abort(connection)
        elif number % 3 == 1:
            connection.close()
        else:
            connection.shutdown(socket.SHUT_WR)
            assert not connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
    neighbour.check_the_rest()
    assert "half of this" not in wire.read_text()


def test_clients_that_leave_in_the_middle_of_their_calls_leave_nothing(fuzzed_bridge: Callable[..., Bridge]) -> None:
    neighbour = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}", f"--idle-timeout={IDLE}"))
    chance = random.Random(7)
    session = b"Mcp-Session-Id: %b\r\n" % neighbour.clients[0].headers["Mcp-Session-Id"].encode()
    messages = [
        call("echo", 1, text="late", delay=0.02),
        call("echo", 1, text="at once"),
        call("progress", 1, {"progressToken": 1}, steps=4, delay=0.005),
        call("big", 1, size=2_000_000),
        call("log", 1, text="x"),
        initialize(1),
    ]
    over = threading.Event()

    def leave(connection: socket.socket, patience: float) -> None:
        time.sleep(chance.random() * patience)
        (abort if chance.random() < 0.5 else socket.socket.close)(connection)

    def watch() -> None:
        while not over.is_set():
            neighbour.check()

    with ThreadPoolExecutor(8) as pool:
        watching = pool.submit(watch)
        for number in range(600):
            connection = connect(neighbour.bridge)
            message = messages[number % len(messages)]
            connection.sendall(post(message, session if number % 2 and message["method"] == "tools/call" else b""))
            if message["method"] == "initialize":
                leave(connection, 0)
            else:
                pool.submit(leave, connection, 0.04)
        try:
            # Who had the answer nevertheless has a session, whose process is there until it was idle for long enough.
            neighbour.check_processes()
        finally:
            over.set()
        watching.result(PATIENCE)
    neighbour.check_the_rest()


def test_who_sends_one_byte_a_second_is_not_waited_for(fuzzed_bridge: Callable[..., Bridge]) -> None:
    neighbour = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}"))
    with connect(neighbour.bridge) as slow:
        try:
            for number in range(40):
                slow.sendall(HEAD[number : number + 1])
                slow.settimeout(1)
                try:
                    assert slow.recv(1) == b""
                    break
                except TimeoutError:
                    neighbour.check()
        except ConnectionError:
            pass
        assert number < 20
    neighbour.check_the_rest()


def test_slow_readers_of_many_answers_get_all_of_them_right(fuzzed_bridge: Callable[..., Bridge]) -> None:
    neighbour = Neighbour(fuzzed_bridge(f"--server=s={COMMAND}"))
    texts = [nonce() + "x" * 100_000 for _ in range(60)]
    with connect(neighbour.bridge) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(b"".join(post(call("echo", text[:20], text=text)) for text in texts))
        neighbour.check()
        replies = exchange(connection, [], len(texts))
    assert [text_of(json.loads(reply.body)) for reply in replies] == texts
    neighbour.check_the_rest()
