# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries from a real server on loopback, well-behaved and not."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.catalog import Catalog, cache
from mcpd.errors import NotFound, SourceUnavailable
from mcpd.model import Registry, parse_registry
from mcpd.paths import Paths, Scope
from mcpd.settings import CatalogSettings, Settings
from mcpd.store.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def registry(*ids: str, **more: Any) -> bytes:
    entries = [
        {
            "id": server_id,
            "name": server_id.title(),
            "summary": f"About {server_id}",
            "version": "1",
            "transports": [{"type": "sse", "url": "https://example.com/"}],
            **more,
        }
        for server_id in ids
    ]
    return json.dumps({"version": "1.0", "updated": "2026-01-01T00:00:00Z", "servers": entries}).encode()


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Sends exactly the bytes it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.hold = asyncio.Event()
        self.base = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            self.requests.append((path, headers))
            data = self.answers.get(path, answer(b"", "404 Not Found"))
            if headers.get("if-none-match") == '"same"':
                data = answer(b"", "304 Not Modified")
            writer.write(data)
            if path == "/slow":
                await self.hold.wait()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    server.base = f"https://localhost:{port}" if context is not None else f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        server.hold.set()
        listener.close()
        await listener.wait_closed()


def sources(paths: Paths, *urls: str) -> None:
    paths.user.sources_list.parent.mkdir(parents=True, exist_ok=True)
    paths.user.sources_list.write_text("\n".join(urls))


def ids(catalog: Catalog) -> list[str]:
    return [found.entry.id for found in catalog.entries()]


async def test_S11_registries_are_fetched_merged_and_kept(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one", "two")), "/b": answer(registry("two", "three"))}
        sources(paths, f"{server.base}/a", f"{server.base}/b")
        steps: list[tuple[int, int]] = []
        assert await user.refresh(lambda done, total: steps.append((done, total))) == []
        assert steps == [(1, 2), (2, 2)]
    assert ids(user) == ["one", "three", "two"]
    assert user.find("two").origin == f"{server.base}/a"
    assert [(line.state, line.problem, line.updated > 0) for line in user.sources()] == [("ready", "", True)] * 2
    with pytest.raises(NotFound, match="'four'"):
        user.find("four")


async def test_S9_the_cache_serves_without_a_network_and_after_a_restart(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"))}
        sources(paths, f"{server.base}/a")
        await user.refresh()
    again = Catalog(paths, Scope.USER, Settings())
    assert ids(again) == ["one"]
    with pytest.raises(SourceUnavailable, match=f"{server.base}/a"):
        await again.refresh()
    assert ids(again) == ["one"]
    assert again.sources()[0].state == "offline"
    assert server.base in again.sources()[0].problem


async def test_an_unchanged_registry_is_not_sent_again(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"), ETag='"same"')}
        sources(paths, f"{server.base}/a")
        await user.refresh()
        await user.refresh()
        assert [headers.get("if-none-match") for _, headers in server.requests] == [None, '"same"']
    assert ids(user) == ["one"]
    assert user.sources()[0].state == "ready"


async def test_packed_answers_are_unpacked(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(gzip.compress(registry("one")), Content_Encoding="gzip")}
        sources(paths, f"{server.base}/a")
        assert await user.refresh() == []
    assert ids(user) == ["one"]


BAD = {
    "large": (answer(b" " * 200_000), "larger than 100000 bytes"),
    "endless": (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 50_000_000, "larger than 100000 bytes"),
    "bomb": (answer(gzip.compress(b" " * 10_000_000), Content_Encoding="gzip"), "larger than 100000 bytes"),
    "cut-bomb": (answer(gzip.compress(registry("x"))[:-20], Content_Encoding="gzip"), "ends in the middle"),
    "half": (answer(registry("x")).replace(b"Content-Length: ", b"Content-Length: 1"), "/bad"),
    "half-unsized": (b"HTTP/1.1 200 OK\r\n\r\n" + registry("x")[:-10], "not JSON"),
    "not-json": (answer(b"<html>"), "not JSON"),
    "not-a-registry": (answer(b"[]"), "'servers'"),
    "nested": (answer(b"[" * 90_000), "/bad: n"),
    "not-text": (answer(b"\xff\xfe\xfa"), "UTF-8"),
    "missing": (answer(b"", "404 Not Found"), "answers 404"),
    "broken": (answer(b"", "500 Oh"), "answers 500"),
    "to-a-file": (answer(b"", "302 Found", Location="file:///etc/passwd"), "redirects from http to file"),
    "to-http": (answer(b"", "302 Found", Location="http://example.com/"), "not allowed"),
    "nowhere": (answer(b"", "302 Found", Location="/bad"), "more than 5 times"),
    "odd": (answer(b"x", Content_Encoding="br"), "'br'"),
    "no-http": (b"SSH-2.0-OpenSSH\r\n\r\n", "/bad"),
    "closed": (b"", "/bad"),
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_bad_source_is_named_and_the_others_still_work(paths: Paths, user: Catalog, fault: str) -> None:
    data, expected = BAD[fault]
    async with serving() as server:
        server.answers = {"/bad": answer(registry("old"))}
        sources(paths, f"{server.base}/bad", f"{server.base}/good")
        await user.refresh()
        server.answers = {"/bad": data, "/good": answer(registry("good"))}
        (failure,) = await user.refresh()
        assert f"{server.base}/bad" in failure.message
        assert expected in failure.message
    assert ids(user) == ["good", "old"]
    assert [line.state for line in user.sources()] == ["offline", "ready"]


async def test_a_source_that_never_ends_is_given_up(paths: Paths) -> None:
    catalog = Catalog(paths, Scope.USER, Settings(catalog=CatalogSettings(timeout=2)))
    async with serving() as server:
        server.answers = {"/slow": b"HTTP/1.1 200 OK\r\n\r\n{", "/good": answer(registry("good"))}
        sources(paths, f"{server.base}/slow", f"{server.base}/good")
        (failure,) = await catalog.refresh()
        assert failure.message == f"{server.base}/slow: no complete answer within 2 s"
    assert ids(catalog) == ["good"]
    assert catalog.sources()[0].state == "failed"


async def test_settings_that_are_read_again_count(paths: Paths, tmp_path: Path) -> None:
    settings = Settings().model_copy()
    catalog = Catalog(paths, Scope.USER, settings)
    (tmp_path / "r.json").write_bytes(registry("a", description="x" * 2000))
    catalog.add_source((tmp_path / "r.json").as_uri())
    object.__setattr__(settings, "catalog", CatalogSettings(max_bytes=1024))
    with pytest.raises(SourceUnavailable, match="larger than 1024 bytes"):
        await catalog.refresh()


async def test_redirects_are_followed(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(b"", "301 Moved", Location="/b"), "/b": answer(registry("one"))}
        sources(paths, f"{server.base}/a")
        await user.refresh()
    assert user.find("one").origin == f"{server.base}/a"


async def test_files_are_sources_too(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "my registry.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/my%20registry.json", f"file://{tmp_path}/none.json", f"file://{tmp_path}")
    failures = await user.refresh()
    assert ids(user) == ["one"]
    assert sorted(failure.message.rsplit(": ")[-1] for failure in failures) == [
        "No such file or directory",
        "not a regular file",
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_tls_is_checked(paths: Paths, user: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "1",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with serving(context) as server:
        server.answers = {"/a": answer(registry("one"))}
        sources(paths, f"{server.base}/a")
        monkeypatch.setenv("no_proxy", "localhost")
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(SourceUnavailable):
            await user.refresh()
        assert server.requests == []
        # Trust is all that was missing.
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await user.refresh() == []
        assert [path for path, _ in server.requests] == ["/a"]
    assert ids(user) == ["one"]


async def test_S36_faulty_entries_are_problems(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    data = json.loads(registry("good"))
    data["servers"] += [{"id": "../../x"}, 3, {"id": "evil", "transports": 1}]
    (tmp_path / "r.json").write_text(json.dumps(data))
    sources(paths, f"file://{tmp_path}/r.json")
    assert await user.refresh() == []
    assert ids(user) == ["good"]
    assert len(user.problems()) == 3


async def test_a_damaged_copy_counts_as_none(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/r.json")
    await user.refresh()
    (copy,) = (paths.user.cache / "registries").iterdir()
    copy.write_text("{")
    assert ids(user) == []
    await user.refresh()
    assert ids(user) == ["one"]


async def test_a_removed_source_offers_nothing(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    user.add_source(f"file://{tmp_path}/r.json")
    await user.refresh()
    assert ids(user) == ["one"]
    user.remove_source(f"file://{tmp_path}/r.json")
    assert ids(user) == []


async def test_query_finds_words_and_pages(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(25)]
    (tmp_path / "r.json").write_bytes(registry(*names, description="Über alles", categories=["mcp", "Mcp-Web"]))
    sources(paths, f"file://{tmp_path}/r.json")
    await user.refresh()
    assert [found.entry.id for found in user.query("ABOUT s7")[0]] == ["s7"]
    assert len(user.query("über")[0]) == 25
    assert len(user.query(category="mcp-web")[0]) == 25
    assert user.query("nothing") == ([], "")
    seen: list[str] = []
    cursor = ""
    while True:
        page, cursor = user.query(cursor=cursor, limit=10)
        assert len(page) <= 10
        seen += [found.entry.id for found in page]
        if not cursor:
            break
    assert seen == sorted(names)


async def test_without_sources_there_is_nothing_to_do(user: Catalog) -> None:
    assert await user.refresh() == []
    assert user.entries() == []


def test_an_idle_catalog_loads_no_http_client() -> None:
    code = "import sys, mcpd.catalog; sys.exit('httpx2' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )


async def test_what_was_fetched_is_parsed_once(paths: Paths, user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(data: object, origin: str) -> Registry:
        parsed.append(origin)
        return parse_registry(data, origin)

    monkeypatch.setattr(cache, "parse_registry", parse)
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"), ETag='"same"')}
        sources(paths, f"{server.base}/a")
        await user.refresh()
        assert ids(user) == ["one"]
        first = user.sources()[0].updated
        await user.refresh()
        assert ids(user) == ["one"]
        assert user.sources()[0].updated >= first
        assert len(parsed) == 1
        copy = next((paths.user.cache / "registries").iterdir())
        write_atomic(copy, copy.read_bytes().replace(b'"one"', b'"two"'))
        assert ids(user) == ["two"]


async def test_offers_are_all_entries_in_order_of_the_sources(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    for name, entries in (("a", registry("one", "two")), ("b", registry("two"))):
        (tmp_path / name).write_bytes(entries)
    sources(paths, *((tmp_path / name).as_uri() for name in "ab"))
    await user.refresh()
    origins = {key: [found.origin.rpartition("/")[2] for found in value] for key, value in user.offers().items()}
    assert origins == {"one": ["a"], "two": ["a", "b"]}
