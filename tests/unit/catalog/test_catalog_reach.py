# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where registries may send mcpd, by what they say and by how their servers answer."""

from __future__ import annotations

import httpx2
import pytest

from mcpd.catalog import fetch
from mcpd.catalog.fetch import Fetcher
from mcpd.catalog.reach import check_entry_url
from mcpd.catalog.urls import check_source_url
from mcpd.errors import InvalidArgument, SourceUnavailable

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


def test_what_may_be_named() -> None:
    for url, registry in (
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
        assert check_entry_url(url, registry) == url
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
    assert check_source_url(url) == normal


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
        check_source_url(url)


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
        return httpx2.Response(302, headers={"Location": there.encode()}) if len(asked) == 1 else httpx2.Response(404)

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
        return httpx2.Response(302, headers={"Location": url.encode()})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(fetch, "_open", lambda _seconds: client)
    async with Fetcher(seconds=5, max_bytes=1000) as fetcher:
        with pytest.raises(SourceUnavailable, match=r"redirects|Invalid IDNA hostname"):
            await fetcher.fetch(FAR)
    assert asked == [FAR]
