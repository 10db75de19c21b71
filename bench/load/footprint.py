# SPDX-License-Identifier: LGPL-2.1-or-later
"""What mcpd-bridge takes when nothing happens, and what is left after much has."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.load import peers
from bench.load.target import Target
from bench.processes import descendants, open_fds, pss

if TYPE_CHECKING:
    from bench.figures import Report
    from bench.load.session import Client

SESSIONS: Final = 2000
STREAMS: Final = 500
DROPPED: Final = 10_000
CONFIGURED: Final = 50
IDLE_TIMEOUT: Final = 5


def measure(report: Report) -> None:
    """All of it, on bridges of their own."""
    server = peers.echo_server()
    _idle(server, report)
    _dropped(server, report)
    _configured(server, report)


def _idle(server: str, report: Report) -> None:
    # As many sessions of one caller as are measured here are more than it gets by default.
    target = Target("mcpd-bridge", peers.ours("--sharing", "caller"), server)
    try:
        target.start()
        time.sleep(0.5)
        report.add("PSS of the idle bridge", pss(target.pid), 40, "MiB", "smaps_rollup, after one call")
        clients = [_session(target) for _ in range(100)]
        before = pss(target.pid)
        clients += [_session(target) for _ in range(SESSIONS)]
        each = (pss(target.pid) - before) / SESSIONS * 1024
        report.add("PSS of an idle session", each, 8, "KiB", f"{SESSIONS} of them, `--sharing caller`, no connection")
        before = pss(target.pid)
        for client in clients[:STREAMS]:
            _open_stream(client)
        each = (pss(target.pid) - before) / STREAMS * 1024
        report.add("PSS of an open GET stream", each, 40, "KiB", f"{STREAMS} of them")
        for client in clients[:STREAMS]:
            client.http.close()
    finally:
        target.stop()


def _dropped(server: str, report: Report) -> None:
    options = ("--sharing", "caller", "--idle-timeout", str(IDLE_TIMEOUT))
    target = Target("mcpd-bridge", peers.ours(*options), server)
    try:
        target.start()
        for _ in range(DROPPED // 10):
            _session(target)
        time.sleep(2 * IDLE_TIMEOUT + 2)
        processes, fds, memory = len(descendants(target.pid)), open_fds(target.pid), pss(target.pid)
        for _ in range(DROPPED):
            _session(target)
        time.sleep(2 * IDLE_TIMEOUT + 2)
        how = f"{DROPPED:,} dropped without DELETE, idle time-out {IDLE_TIMEOUT} s, after 1,000 that warmed it up"
        report.add("processes left by sessions", len(descendants(target.pid)) - processes, 0, "", how)
        report.add("descriptors left by sessions", open_fds(target.pid) - fds, 0, "", how)
        report.add("memory left by sessions", (pss(target.pid) / memory - 1) * 100, 10, "%", how)
    finally:
        target.stop()


def _configured(server: str, report: Report) -> None:
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "servers.json"
        servers = {f"s{number}": {"command": server} for number in range(CONFIGURED)}
        config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        target = Target("mcpd-bridge", peers.ours("--config", str(config), "--idle-timeout", "1"), server)
        try:
            target.start()
            time.sleep(4)
            how = f"{CONFIGURED} configured, none in use"
            report.add("processes of unused servers", len(descendants(target.pid)), 0, "", how)
            report.add("PSS with unused servers", pss(target.pid), 40, "MiB", how)
        finally:
            target.stop()


def _session(target: Target) -> Client:
    """A session whose client does not keep its connection."""
    client = target.client().open()
    client.http.close()
    return client


def _open_stream(client: Client) -> None:
    sock = client.http.connect()
    sock.sendall(client.http.request(b"", b"GET").replace(b"application/json, text/event-stream", b"text/event-stream"))
    if not sock.recv(4096).startswith(b"HTTP/1.1 200"):
        raise ValueError("the stream was not opened")
