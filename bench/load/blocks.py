# SPDX-License-Identifier: LGPL-2.1-or-later
"""Short blocks of load on one target. Each returns its figures by name."""

from __future__ import annotations

import select
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.load.session import Client, Direct
from bench.load.wire import READ_SIZE, Wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.load.session import Maker
    from bench.load.target import Target

MIB: Final = 1 << 20
SILENCE: Final = 20.0
"""Seconds without an answer after which a load has failed."""


def latency(target: Target, calls: int, tool: str = "echo", size: int = 0) -> dict[str, float]:
    """One call after the other on one connection: microseconds at the median, and processor time of a call."""
    session = target.session()
    if isinstance(session, Client):
        session.http.connect()
    make = session.maker(tool, size)
    for number in range(max(3, calls // 20)):
        session.call(*make(number))
    before = target.cpu()
    took = [session.call(*make(number)) for number in range(calls)]
    figures = {"p50": statistics.median(took) * 1e6}
    if target.pid:
        figures["cpu"] = (target.cpu() - before) / calls * 1e6
    return figures


def large(target: Target, calls: int) -> dict[str, float]:
    """A result and an argument of 1 MiB, in milliseconds."""
    return {
        "result": latency(target, calls, "blob", MIB)["p50"] / 1e3,
        "argument": latency(target, calls, "count", MIB)["p50"] / 1e3,
    }


def opening(target: Target, times: int) -> dict[str, float]:
    """Connection and handshake, in milliseconds."""
    took = []
    for _ in range(times):
        client = target.client()
        start = time.perf_counter()
        client.open()
        took.append(time.perf_counter() - start)
        client.close()
    return {"open": statistics.median(took) * 1e3}


def load(target: Target, connections: int, seconds: float, *, sessions: bool) -> dict[str, float]:
    """As many calls in flight as there are connections: of one session, or each of a session of its own."""
    base = target.session()
    if isinstance(base, Direct):
        raise TypeError("a pipe has no connections")
    clients = [target.client().open() for _ in range(connections)] if sessions else [
        base.another() for _ in range(connections)
    ]  # fmt: skip
    before = target.cpu()
    try:
        done = _run(clients, seconds)
        spent = target.cpu() - before
    finally:
        for client in clients:
            if client.http.sock is not None:
                client.http.sock.setblocking(True)
            if sessions:
                client.close()
            else:
                client.http.close()
    return {"rate": done / seconds, "cpu": spent / max(done, 1) * 1e6}


def _run(clients: Sequence[Client], seconds: float) -> int:
    poll = select.epoll()
    known: dict[int, tuple[Client, Maker]] = {}
    number = done = 0

    def push(client: Client, make: Maker) -> None:
        nonlocal number
        number += 1
        raw, client.http.token = make(number)
        client.http.reset()
        if client.http.sock is not None:
            client.http.sock.send(raw)

    for client in clients:
        sock = client.http.connect()
        sock.setblocking(False)
        known[sock.fileno()] = (client, client.maker())
        poll.register(sock.fileno(), select.EPOLLIN)
        push(*known[sock.fileno()])
    end = time.perf_counter() + seconds
    live = len(clients)
    while live:
        ready = poll.poll(SILENCE)
        if not ready:
            raise Wrong(f"{live} calls were not answered within {SILENCE:g} s")
        for fd, _ in ready:
            client, make = known[fd]
            if client.http.sock is None or not client.http.feed(client.http.sock.recv(READ_SIZE)):
                continue
            client.http.check(client.http.token)
            if time.perf_counter() < end:
                done += 1
                push(client, make)
            else:
                live -= 1
    poll.close()
    return done
