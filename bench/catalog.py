# SPDX-License-Identifier: LGPL-2.1-or-later
"""The catalog: fetching a registry of 20,000 entries, fetching it again, and searching it through D-Bus."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import statistics
import threading
import time
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from bench.processes import peak
from mcpd.bus.client import Client, connect
from tests.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.figures import Report

ENTRIES: Final = 20_000
CHANGED: Final = 200
AGAIN: Final = 20
SEARCHES: Final = 500
TEXT: Final = 840
"""Bytes of an entry, about; what the official registry's have on average."""
COMMON: Final = (
    "server", "files", "search", "database", "weather", "calendar", "browser", "documents", "issues", "pages", "time",
    "images", "messages", "graph", "memory", "cloud", "metrics", "tickets", "code", "repository",
)  # fmt: skip
"""Words that very many entries have."""
SYLLABLES: Final = ("ba", "co", "di", "fu", "ga", "hel", "in", "jo", "ka", "lum", "mer", "no", "or", "pi", "que", "ras")


def measure(report: Report) -> None:
    """All of it, on a machine of its own, with the registry on the loopback."""
    words = _words()
    entries = [_entry(number, words) for number in range(ENTRIES)]
    with Rig() as rig, _served(_registry(entries)) as site:
        os.environ.update(rig.environ)
        pid = rig.start_daemon().pid
        size = len(site.body) / 1e6
        asyncio.run(_refreshes(site, pid, entries, f"{ENTRIES:,} entries, {size:.0f} MB", report))
        asyncio.run(_searches(_texts(entries, words), report))


class _Site(ThreadingHTTPServer):
    """One file, with an ETag."""

    daemon_threads = True
    body = b""

    def put(self, body: bytes) -> None:
        """Serve *body* from now on."""
        self.body = body
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Site

    def do_GET(self) -> None:
        """Answer with the file, or that it is the same; nothing else is there, no signature for example."""
        body, status = self.server.body, HTTPStatus.OK
        if self.path != "/registry.json":
            body, status = b"", HTTPStatus.NOT_FOUND
        elif self.headers.get("If-None-Match") == self.server.etag:
            body, status = b"", HTTPStatus.NOT_MODIFIED
        self.send_response(status)
        if status is not HTTPStatus.NOT_FOUND:
            self.send_header("ETag", self.server.etag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _served(body: bytes) -> Iterator[_Site]:
    site = _Site(("127.0.0.1", 0), _Handler)
    site.put(body)
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()
        thread.join()


async def _refreshes(site: _Site, pid: int, entries: list[dict[str, Any]], what: str, report: Report) -> None:
    url = f"http://127.0.0.1:{site.server_address[1]}/registry.json"
    async with connect(system=False) as bus:
        await bus.manager.call("AddSource", "sa{sv}", [url, {}])
        report.add("refresh of a registry for the first time", await _refresh(bus), 3, "s", what)
        report.add("mcpd's memory at its peak in that", peak(pid), 100, "MB", "VmHWM, Python and all")
        found, _ = await bus.manager.call("ListAvailable", "a{sv}s", [{"limit": 1, "text": entries[-1]["id"]}, ""])
        if [entry["id"] for entry in found] != [entries[-1]["id"]]:
            raise RuntimeError(f"{entries[-1]['id']} is not in the catalog after the refresh")
        spent = [await _refresh(bus) for _ in range(AGAIN)]
        report.add("refresh of one that has not changed", statistics.median(spent) * 1e3, 100, "ms", f"{AGAIN} times")
        for number in range(0, ENTRIES, ENTRIES // CHANGED):
            entries[number]["version"] = "9.9.9"
        site.put(_registry(entries))
        how = f"{CHANGED} of {ENTRIES:,} entries"
        report.add("refresh of one that has changed a little", await _refresh(bus), 3, "s", how)
        report.add("mcpd's memory at its peak in all of these", peak(pid), 100, "MB", "VmHWM, Python and all")


async def _refresh(bus: Client) -> float:
    """Seconds from the call to the end of its job."""
    began = time.perf_counter()
    done = await bus.run_job("Refresh", "a{sv}", [{}])
    spent = time.perf_counter() - began
    done.check()
    return spent


async def _searches(texts: list[str], report: Report) -> None:
    spent: list[float] = []
    found = 0
    async with connect(system=False) as bus:
        for text in texts:
            began = time.perf_counter()
            entries, _ = await bus.manager.call("ListAvailable", "a{sv}s", [{"text": text}, ""])
            spent.append(time.perf_counter() - began)
            found += len(entries)
    how = f"{len(texts)} texts, each once, {found / len(texts):.0f} entries to an answer on average, with reading it"
    report.add("search through D-Bus, p95", statistics.quantiles(spent, n=100)[94] * 1e3, 20, "ms", how)
    report.add("the same, median", statistics.median(spent) * 1e3, 20, "ms", how)


def _texts(entries: list[dict[str, Any]], words: list[str]) -> list[str]:
    """What people type: words that few or many entries have, beginnings of words, several words, ids."""
    chance = random.Random(2)
    kinds = (
        lambda: chance.choice(words),
        lambda: chance.choice(words)[: chance.randint(2, 4)],
        lambda: f"{chance.choice(COMMON)} {chance.choice(words)}",
        lambda: f"{chance.choice(COMMON)} {chance.choice(COMMON)[:3]}",
        lambda: str(chance.choice(entries)["id"]),
    )
    texts: dict[str, None] = dict.fromkeys(COMMON)
    while len(texts) < SEARCHES:
        texts[kinds[len(texts) % len(kinds)]()] = None
    return list(texts)


def _words() -> list[str]:
    chance = random.Random(1)
    return ["".join(chance.choices(SYLLABLES, k=chance.randint(2, 4))) for _ in range(5000)]


def _registry(entries: list[dict[str, Any]]) -> bytes:
    return json.dumps({"version": "1.0", "updated": "2026-01-01T00:00:00Z", "servers": entries}).encode()


def _entry(number: int, words: list[str]) -> dict[str, Any]:
    chance = random.Random(number)
    name = f"{chance.choice(words)}-{chance.choice(COMMON)}"
    kind, package = ("npm", f"@{name}/server") if number % 2 else ("pypi", f"{name}-server")
    entry: dict[str, Any] = {
        "id": f"com.example.{name}-{number}",
        "name": name.replace("-", " ").title(),
        "summary": _sentence(chance, words, 8),
        "version": f"1.{number % 20}.{number % 7}",
        "author": chance.choice(words).title(),
        "homepage": f"https://example.com/{name}",
        "license": "MIT",
        "categories": ["mcp", f"mcp-{chance.choice(COMMON)}"],
        "transports": [{"type": "stdio", "command": f"{name}-server", "args": ["--unit", "{config.unit}"]}],
        "source": {"type": kind, "package": package, "version": "1.0.0", "sha256": f"{number:064x}"},
        "permissions": ["network"],
        "configurableProperties": [{"key": "unit", "label": "Unit", "default": "metric", "target": "arg"}],
    }
    while len(json.dumps(entry)) < TEXT:
        entry["description"] = f"{entry.get('description', '')} {_sentence(chance, words, 12)}".strip()
    return entry


def _sentence(chance: random.Random, words: list[str], length: int) -> str:
    said = [chance.choice(COMMON if chance.random() < 0.3 else words) for _ in range(length)]
    return " ".join(said).capitalize() + "."
