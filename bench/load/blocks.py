# SPDX-License-Identifier: LGPL-2.1-or-later
"""Short blocks of load on one target. Each returns its figures by name."""

from __future__ import annotations

import select
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.load.session import Client, Direct, has_id
from bench.load.wire import READ_SIZE, Wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.load.session import Maker
    from bench.load.target import Target

MIB: Final = 1 << 20
APART: Final = 10_000_000
"""Calls that one client of a load makes at most."""
SILENCE: Final = 20.0
"""Seconds without an answer after which a load has failed."""


def latency(target: Target, calls: int, tool: str = "echo", size: int = 0) -> dict[str, float]:
    """One call after the other on one connection: microseconds at the median, and processor time of a call."""
    session = target.session()
    if isinstance(session, Client):
        session.http.connect()
    make = session.maker(tool, size)
    for number in range(max(3, calls // 20)):
        session.call(*make(number, number))
    before = target.cpu()
    took = [session.call(*make(number, number)) for number in range(calls)]
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
        # Ids differ within a session; independent clients all begin with the same.
        done = _run(clients, seconds, apart=0 if sessions else APART)
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


@dataclass(slots=True)
class _InFlight:
    """A client with a call in flight, which counts the ids of its calls up from *identity*."""

    client: Client
    make: Maker
    identity: int

    def push(self, number: int) -> None:
        self.identity += 1
        raw, token = self.make(number, self.identity)
        http = self.client.http
        http.reset()
        http.token = token
        if http.sock is not None:
            http.sock.send(raw)

    def pull(self) -> bool:
        """Read on; true once the answer is there, and raises :class:`Wrong` if it is not the one to the call."""
        http = self.client.http
        if http.sock is None or not http.feed(http.sock.recv(READ_SIZE)):
            return False
        http.check(http.token)
        if not has_id(http.buffer, self.identity):
            raise Wrong(f"an answer with another id: {bytes(http.buffer[-200:])!r}")
        return True


def _run(clients: Sequence[Client], seconds: float, apart: int) -> int:
    poll = select.epoll()
    known: dict[int, _InFlight] = {}
    number = done = 0
    for place, client in enumerate(clients):
        sock = client.http.connect()
        sock.setblocking(False)
        known[sock.fileno()] = _InFlight(client, client.maker(), place * apart)
        poll.register(sock.fileno(), select.EPOLLIN)
    for flight in known.values():
        number += 1
        flight.push(number)
    end = time.perf_counter() + seconds
    live = len(clients)
    while live:
        ready = poll.poll(SILENCE)
        if not ready:
            raise Wrong(f"{live} calls were not answered within {SILENCE:g} s")
        for fd, _ in ready:
            flight = known[fd]
            if not flight.pull():
                continue
            if time.perf_counter() < end:
                done += 1
                number += 1
                flight.push(number)
            else:
                live -= 1
    poll.close()
    return done
