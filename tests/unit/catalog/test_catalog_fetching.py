# SPDX-License-Identifier: LGPL-2.1-or-later
"""Registries from a real server on loopback, well-behaved and not."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mcpd.catalog import Catalog, Query, ingest
from mcpd.errors import McpdError, NotFound, SourceUnavailable
from mcpd.formats.registry import parse_item
from mcpd.paths import Paths, Scope
from mcpd.settings import CatalogSettings, Settings
from mcpd.trust.keys import Keys
from tests.unit.catalog.catalog_server import DATE, answer, ids, registry, serving, sources

if TYPE_CHECKING:
    from pathlib import Path

    from mcpd.model import Entry

pytestmark = pytest.mark.process


async def test_registries_are_fetched_merged_and_kept(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one", "two")), "/b": answer(registry("two", "three"))}
        sources(paths, f"{server.base}/a", f"{server.base}/b")
        steps: list[tuple[int, int]] = []
        assert await user.refresh(lambda done, total: steps.append((done, total))) == []
        assert steps == [(1, 2), (2, 2)]
    assert ids(user) == ["one", "three", "two"]
    assert user.find("two").origin == f"{server.base}/a"
    lines = user.sources()
    assert [(line.state, line.entries, line.updated > 0) for line in lines] == [("ready", 2, True)] * 2
    assert "not signed" in lines[0].problem
    with pytest.raises(NotFound, match="'four'"):
        user.find("four")


async def test_the_cache_serves_without_a_network_and_after_a_restart(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"))}
        sources(paths, f"{server.base}/a")
        await user.refresh()
    again = Catalog(paths, Scope.USER, Settings(), Keys(paths, Scope.USER))
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
        asked = [headers.get("if-none-match") for path, headers in server.requests if path == "/a"]
        assert asked == [None, '"same"']
    assert ids(user) == ["one"]
    assert user.sources()[0].state == "ready"


async def test_what_cannot_be_sent_back_is_not_kept(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"), ETag='"\u00e9"', Last_Modified="\u00e9")}
        sources(paths, f"{server.base}/a")
        assert await user.refresh() == []
        assert await user.refresh() == []
        assert not any("if-none-match" in headers for _, headers in server.requests)


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
    "cut-bomb": (answer(gzip.compress(registry("x"))[:-20], Content_Encoding="gzip"), "is incomplete"),
    "packed-and-more": (
        answer(gzip.compress(registry("x")) + b" " * 500_000, Content_Encoding="gzip"),
        "has trailing data",
    ),
    "half": (answer(registry("x")).replace(b"Content-Length: ", b"Content-Length: 1"), "/bad"),
    "half-unsized": (b"HTTP/1.1 200 OK\r\n\r\n" + registry("x")[:-10], "not JSON"),
    "not-json": (answer(b"<html>"), "not JSON"),
    "not-a-registry": (answer(b"[]"), "'servers'"),
    "nested": (answer(b"[" * 90_000), "/bad: n"),
    "not-text": (answer(b"\xff\xfe\xfa"), "not JSON"),
    "missing": (answer(b"", "404 Not Found"), "status 404"),
    "broken": (answer(b"", "500 Oh"), "status 500"),
    "to-a-file": (answer(b"", "302 Found", Location="file:///etc/passwd"), "redirects from http to file"),
    "to-http": (answer(b"", "302 Found", Location="http://example.com/"), "not allowed"),
    "nowhere": (answer(b"", "302 Found", Location="/bad"), "more than 5 redirects"),
    "nonsense": (answer(b"", "302 Found", Location="http://["), "not allowed"),
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
    catalog = Catalog(paths, Scope.USER, Settings(catalog=CatalogSettings(timeout=2)), Keys(paths, Scope.USER))
    async with serving() as server:
        server.answers = {"/slow": b"HTTP/1.1 200 OK\r\n\r\n{", "/good": answer(registry("good"))}
        sources(paths, f"{server.base}/slow", f"{server.base}/good")
        (failure,) = await catalog.refresh()
        assert failure.message == f"{server.base}/slow: no complete response within 2 s"
    assert ids(catalog) == ["good"]
    assert catalog.sources()[0].state == "failed"


async def test_settings_that_are_read_again_count(paths: Paths, tmp_path: Path) -> None:
    settings = Settings().model_copy()
    catalog = Catalog(paths, Scope.USER, settings, Keys(paths, Scope.USER))
    (tmp_path / "r.json").write_bytes(registry("a", description="x" * 2000))
    catalog.add_source((tmp_path / "r.json").as_uri())
    object.__setattr__(settings, "catalog", CatalogSettings(max_bytes=1024))
    with pytest.raises(SourceUnavailable, match="larger than 1024 bytes"):
        await catalog.refresh()


async def test_no_proxy_sees_what_stays_on_this_machine(
    paths: Paths, user: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server, serving() as proxy:
        server.answers = {"/a": answer(registry("one"))}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.base)
        monkeypatch.delenv("no_proxy", raising=False)
        sources(paths, f"{server.base}/a", f"{server.base.replace('127.0.0.1', 'localhost')}/a")
        assert await user.refresh() == []
        assert proxy.requests == []
    assert ids(user) == ["one"]


async def test_redirects_are_followed(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(b"", "301 Moved", Location="/b"), "/b": answer(registry("one"))}
        sources(paths, f"{server.base}/a")
        await user.refresh()
    assert user.find("one").origin == f"{server.base}/a"


async def test_no_cookies_are_kept(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        redirect = answer(b"", "301 Moved", Location="/b", Set_Cookie="known=yes")
        server.answers = {"/a": redirect, "/b": answer(registry("one"), Set_Cookie="known=yes")}
        sources(paths, f"{server.base}/a", f"{server.base}/b")
        assert await user.refresh() == []
        assert len(server.requests) >= 3
        assert not any("cookie" in headers for _, headers in server.requests)


async def test_files_are_sources_too(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "my registry.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/my%20registry.json", f"file://{tmp_path}/none.json", f"file://{tmp_path}")
    failures = await user.refresh()
    assert ids(user) == ["one"]
    assert sorted(f.message.removeprefix(f"file://{tmp_path}").partition(";")[0] for f in failures) == [
        "/none.json: No such file or directory",
        ": a directory, but listed as a file",
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
        assert [path for path, _ in server.requests] == ["/a", "/a.sig"]
    assert ids(user) == ["one"]


async def test_faulty_entries_are_problems(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    data = json.loads(registry("good"))
    data["servers"] += [{"id": "../../x"}, 3, {"id": "evil", "transports": 1}]
    (tmp_path / "r.json").write_text(json.dumps(data))
    sources(paths, f"file://{tmp_path}/r.json")
    assert await user.refresh() == []
    assert ids(user) == ["good"]
    assert len(user.problems()) == 3


@pytest.mark.parametrize("content", [b"{", b"SQLite format 3\0" + b"x" * 5000, b""])
async def test_a_damaged_database_counts_as_none(paths: Paths, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/r.json")
    paths.user.cache.mkdir(parents=True)
    (paths.user.cache / "catalog.sqlite").write_bytes(content)
    user = Catalog(paths, Scope.USER, Settings(), Keys(paths, Scope.USER))
    assert ids(user) == []
    await user.refresh()
    assert ids(user) == ["one"]


async def test_a_foreign_database_is_replaced(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/r.json")
    paths.user.cache.mkdir(parents=True)
    foreign = sqlite3.connect(paths.user.cache / "catalog.sqlite")
    foreign.executescript("CREATE TABLE entry (x); PRAGMA user_version = 99;")
    foreign.close()
    assert ids(user) == []
    await user.refresh()
    assert ids(user) == ["one"]


async def test_a_cache_that_is_cleared_meanwhile_is_made_anew(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/r.json")
    await user.refresh()
    assert ids(user) == ["one"]
    shutil.rmtree(paths.user.cache)
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


async def test_without_sources_there_is_nothing_to_do(user: Catalog) -> None:
    assert await user.refresh() == []
    assert ids(user) == []


def test_an_idle_catalog_loads_no_http_client() -> None:
    code = "import sys, mcpd.catalog; sys.exit('httpx2' in sys.modules or 'sqlite3' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )


async def test_what_did_not_change_is_not_parsed_again(
    paths: Paths, user: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def parse(label: str, data: memoryview | bytes, origin: str, key: str = "") -> Entry:
        parsed.append(label)
        return parse_item(label, data, origin, key)

    monkeypatch.setattr(ingest, "parse_item", parse)
    sources(paths, f"file://{tmp_path}/r.json")
    for names, expected in (("one two", 2), ("one two", 0), ("one three two", 1), ("three", 0), ("one", 1)):
        parsed.clear()
        (tmp_path / "r.json").write_bytes(registry(*names.split()))
        assert await user.refresh() == []
        assert ids(user) == sorted(names.split())
        assert len(parsed) == expected
        assert {hit.id for hit in user.query(Query(text="about"))[0]} == set(names.split())


async def test_dates_do_where_there_is_no_etag(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/a": answer(registry("one"), Last_Modified=DATE)}
        sources(paths, f"{server.base}/a")
        await user.refresh()
        await user.refresh()
        assert [h.get("if-modified-since") for path, h in server.requests if path == "/a"] == [None, DATE.lower()]
    assert ids(user) == ["one"]


async def test_offers_are_all_entries_in_order_of_the_sources(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    for name, entries in (("a", registry("one", "two")), ("b", registry("two"))):
        (tmp_path / name).write_bytes(entries)
    sources(paths, *((tmp_path / name).as_uri() for name in "ab"))
    await user.refresh()
    origins = {
        key: [found.origin.rpartition("/")[2] for found in value]
        for key, value in user.offers(["one", "two", "three"]).items()
    }
    assert origins == {"one": ["a"], "two": ["a", "b"]}
    assert user.find("two", (tmp_path / "b").as_uri()).origin.endswith("/b")
    with pytest.raises(NotFound, match="does not offer"):
        user.find("one", (tmp_path / "b").as_uri())
    assert [hit.origin.rpartition("/")[2] for hit in user.query(Query())[0]] == ["a", "a"]
    assert [hit.id for hit in user.query(Query(source=(tmp_path / "b").as_uri()))[0]] == ["two"]
    user.remove_source((tmp_path / "a").as_uri())
    assert [(hit.id, hit.origin.rpartition("/")[2]) for hit in user.query(Query())[0]] == [("two", "b")]


async def test_an_entry_with_too_many_properties_is_a_fault(user: Catalog, tmp_path: Path) -> None:
    many = [{"key": f"k{number}"} for number in range(513)]
    data = json.loads(registry("good", configurableProperties=many[:512]))
    data["servers"] += json.loads(registry("bad", configurableProperties=many))["servers"]
    (tmp_path / "r.json").write_text(json.dumps(data))
    user.add_source((tmp_path / "r.json").as_uri())
    assert await user.refresh() == []
    assert ids(user) == ["good"]
    (fault,) = user.sources()[0].faults
    assert "bad" in fault
    assert "configurableProperties: has 513 members; at most 512 are allowed" in fault


async def test_an_unwritable_cache_is_an_error_of_the_refresh_alone(
    paths: Paths, user: Catalog, tmp_path: Path
) -> None:
    (tmp_path / "r.json").write_bytes(registry("one"))
    sources(paths, f"file://{tmp_path}/r.json")
    paths.user.cache.parent.mkdir(parents=True, exist_ok=True)
    paths.user.cache.write_text("in the way")
    assert ids(user) == []
    with pytest.raises(McpdError, match=r"r\.json"):
        await user.refresh()
    assert ids(user) == []


async def test_a_fault_in_a_list_forgets_nothing(paths: Paths, user: Catalog, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(registry(name))
    sources(paths, (tmp_path / "a").as_uri())
    user.add_source((tmp_path / "b").as_uri(), name="b", signature="off")
    await user.refresh()
    before = [line.updated for line in user.sources()]
    description = paths.user.sources_dir / "b.toml"
    text = description.read_text()
    description.write_text(text.replace("off", "of"))
    paths.user.sources_list.rename(tmp_path / "list")
    os.mkfifo(paths.user.sources_list)
    other = tmp_path / "c"
    other.write_bytes(registry("c"))
    (paths.user.sources_dir / "c.list").write_text(other.as_uri())
    await user.refresh()
    assert ids(user) == ["c"]
    assert [line.state for line in user.sources()] == ["invalid", "invalid", "ready"]
    assert str(paths.user.sources_list) in user.sources()[0].problem
    description.write_text(text)
    (tmp_path / "list").rename(paths.user.sources_list)
    assert ids(user) == ["a", "b", "c"]
    assert [line.updated for line in user.sources()][:2] == before
