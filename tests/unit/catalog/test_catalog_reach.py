# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where registries may send mcpd, by what they say and by how their servers answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from mcpd.catalog import fetch
from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.listing import describe
from mcpd.catalog.registries import check_entry_url, check_url
from mcpd.catalog.results import Query
from mcpd.errors import InvalidArgument, SourceUnavailable
from mcpd.model import Entry
from tests.unit.catalog.catalog_server import answer, registry, serving, sources

if TYPE_CHECKING:
    from mcpd.catalog import Catalog
    from mcpd.paths import Paths

FAR = "https://example.com/r.json"
HERE = [
    "file:///etc/passwd",
    "https://localhost/",
    "https://LOCALHOST./",
    "https://a.localhost/",
    "https://127.0.0.1:8443/",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0.0.0.0/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "http://127.0.0.1/",
    "https://ｌocalhost/",
    "https://①27.0.0.1/",
    "https://127。0｡0．1/",
    "https://local\ufe00host/",
    "https://localhost.localdomain/",
    "https://ip6-localhost/",
    "https://IP6-loopback./",
    "https://169.254.169.254/",
    "https://0xa9fea9fe/",
    "https://[fe80::1]/",
    "https://[::ffff:169.254.1.1]/",
]


@pytest.mark.parametrize("url", HERE, ids=range(len(HERE)))
def test_a_registry_elsewhere_names_nothing_of_this_machine(url: str) -> None:
    with pytest.raises(InvalidArgument):
        check_entry_url(url, FAR)


ARCHIVE = {"type": "archive", "url": "file:///srv/a.zip", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("fields", "registry", "fault"),
    [
        ({"source": ARCHIVE}, FAR, "source.url: file:///srv/a.zip: a registry on the network cannot refer to files"),
        ({"source": ARCHIVE}, "file:///srv/r.json", ""),
        ({"source": ARCHIVE}, "", ""),
        ({"source": ARCHIVE | {"url": "https://127.0.0.1/a.zip"}}, FAR, "a service on this machine"),
        ({"source": ARCHIVE | {"url": "http://a.example/a.zip"}}, "file:///srv/r.json", "use https"),
        (
            {"source": ARCHIVE | {"url": "https://x:y@a.example/a.zip"}},
            "file:///srv/r.json",
            "cannot contain a password",
        ),
        ({"source": {"type": "local", "path": "/srv"}}, FAR, "cannot refer to files on this machine as a source"),
        ({"source": {"type": "local", "path": "/srv"}}, "file:///srv/r.json", ""),
        ({"source": {"type": "git", "url": "file:///srv/a.git"}}, FAR, "cannot refer to files on this machine"),
        ({"source": {"type": "git", "url": "https://x:y@a.example/a.git"}}, FAR, ""),
        ({"manifest": "file:///srv/m.json", "transports": []}, FAR, "manifest: file:///srv/m.json: a registry on"),
        ({"manifest": "https://a.example/m.json", "transports": []}, FAR, ""),
    ],
)
def test_what_names_a_place_out_of_reach_is_listed_as_not_installable(
    fields: dict[str, Any], registry: str, fault: str
) -> None:
    listed = {"id": "a", "name": "A", "summary": "s", "version": "1", "transports": [{"type": "stdio", "command": "x"}]}
    entry = Entry.parse(listed | fields, "test")
    found = describe(entry, registry)
    assert found["installable"] is not bool(fault)
    assert fault in found.get("problem", "")


async def test_a_registry_on_the_network_offers_no_file_of_this_machine(paths: Paths, user: Catalog) -> None:
    async with serving() as server:
        server.answers = {"/r.json": answer(registry("far", source=ARCHIVE))}
        sources(paths, f"{server.base}/r.json")
        await user.refresh()
    assert user.query(Query(installable=True))[0] == []
    ((found,), _) = user.query(Query(installable=False))
    assert (found.id, "cannot refer to files on this machine" in found.fields["problem"]) == ("far", True)


def test_what_may_be_named() -> None:
    for url, origin in (
        ("https://other.example/", FAR),
        ("https://localhost.example/", FAR),
        ("http://127.0.0.1/x", "http://localhost:8000/"),
        ("https://localhost/", "file:///srv/r.json"),
        ("file:///srv/x", "file:///srv/r.json"),
        ("file:///srv/x", ""),
        ("https://169.254.1.1/", "https://169.254.1.2/"),
        ("https://169.254.1.1/", "file:///srv/r.json"),
        ("https://faß.example/", FAR),
    ):
        assert check_entry_url(url, origin) == url
    with pytest.raises(InvalidArgument):
        check_entry_url("file:///etc/passwd", "http://localhost:8000/")
    with pytest.raises(InvalidArgument, match="link-local"):
        check_entry_url("https://169.254.169.254/", "http://localhost:8000/")


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://ｌocalhost:80/x", "http://localhost/x"),
        ("http://①27.0.0.1:8000/", "http://127.0.0.1:8000/"),
        ("https://Ｅxample。com/", "https://example.com/"),
        ("https://faß.example/", "https://faß.example/"),
    ],
    ids=range(4),
)
def test_a_host_is_the_same_in_digits_and_letters_of_any_script(url: str, normal: str) -> None:
    assert check_url(url) == normal


@pytest.mark.parametrize(
    "url",
    [
        "https://good%40127.0.0.1/",
        "https://%6cocalhost/",
        "https://a％2f.example/",
        "https://a＼b/",
        "http://local\ufe00host/",
        "http://localhost.localdomain/",
    ],
    ids=range(6),
)
def test_hosts_that_programs_read_differently_are_none(url: str) -> None:
    with pytest.raises(InvalidArgument):
        check_url(url)


@pytest.mark.parametrize(
    ("there", "fault"),
    [
        ("http://127.0.0.1:8001/", "another service"),
        ("http://localhost:8000/", "another service"),
        ("http://127.0.0.1/", "another service"),
        ("/b", "404"),
        ("https://example.com/", "404"),
        ("https://localhost/", "404"),
    ],
    ids=range(6),
)
async def test_over_http_one_service_of_this_machine_does_not_lead_to_another(
    monkeypatch: pytest.MonkeyPatch, there: str, fault: str
) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(302, headers={b"Location": there.encode()}) if len(asked) == 1 else httpx2.Response(404)

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(fetch, "_open", lambda _seconds: client)
    async with Fetcher(seconds=5, max_bytes=1000) as fetcher:
        with pytest.raises(SourceUnavailable, match=fault):
            await fetcher.fetch("http://127.0.0.1:8000/a")
    assert len(asked) == (2 if fault == "404" else 1)


@pytest.mark.parametrize("url", HERE, ids=range(len(HERE)))
async def test_nor_does_its_server_lead_here(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(302, headers={b"Location": url.encode()})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(fetch, "_open", lambda _seconds: client)
    async with Fetcher(seconds=5, max_bytes=1000) as fetcher:
        with pytest.raises(SourceUnavailable, match=r"redirects|Invalid IDNA hostname"):
            await fetcher.fetch(FAR)
    assert asked == [FAR]
