# SPDX-License-Identifier: LGPL-2.1-or-later
"""The API of the official registry: pages, what changed since, and servers that do not keep to it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcpd.catalog import official
from mcpd.errors import SourceUnavailable
from mcpd.formats.registry import OfficialItem, parse_page
from tests.unit.catalog.catalog_server import Server, answer, ids, serving

if TYPE_CHECKING:
    from mcpd.catalog import Catalog

META = "io.modelcontextprotocol.registry/official"
API = "/v0.1/servers"
WHOLE = f"{API}?limit=100&version=latest"


def item(name: str, *, version: str = "1.0.0", status: str = "active", latest: bool = True, at: str = "01") -> Any:
    return {
        "server": {
            "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
            "name": name,
            "description": f"About {name}",
            "version": version,
            "packages": [
                {"registryType": "npm", "identifier": "x", "version": version, "transport": {"type": "stdio"}}
            ],
        },
        "_meta": {META: {"status": status, "isLatest": latest, "updatedAt": f"2026-01-{at}T00:00:00Z"}},
    }


def page(*items: Any, cursor: str = "") -> bytes:
    metadata = {"count": len(items)} | ({"nextCursor": cursor} if cursor else {})
    return answer(json.dumps({"servers": items, "metadata": metadata}).encode())


def since(server: Server) -> dict[str, list[str]]:
    return parse_qs(urlsplit(server.requests[-1][0]).query)


async def test_all_pages_and_later_what_changed(user: Catalog) -> None:
    async with serving() as server:
        server.answers = {
            WHOLE: page(item("com.example/a"), item("com.example/b", at="03"), cursor="c&1"),
            f"{WHOLE}&cursor=c%261": page(item("com.example/c", at="02"), item("com.example/gone", status="deleted")),
        }
        user.add_source(f"{server.base}{API}")
        assert await user.refresh() == []
        assert ids(user) == ["com.example.a", "com.example.b", "com.example.c"]
        assert user.sources()[0].type == "official"
        changed = page(
            item("com.example/a", status="deleted", at="05"),
            item("com.example/b", version="2.0.0", at="04"),
            item("com.example/c", version="0.9.0", latest=False, at="04"),
            item("com.example/new", at="04"),
        )
        server.answers = _Any(changed)
        assert await user.refresh() == []
        assert since(server) == {
            "limit": ["100"],
            "updated_since": ["2026-01-03T00:00:00.000000Z"],
            "include_deleted": ["true"],
        }
        assert ids(user) == ["com.example.b", "com.example.c", "com.example.new"]
        assert user.find("com.example.b").entry.version == "2.0.0"
        assert user.find("com.example.c").entry.version == "1.0.0"
        assert not user.find("com.example.b").verified
        server.answers = _Any(page())
        await user.refresh()
        assert since(server)["updated_since"] == ["2026-01-05T00:00:00.000000Z"]
        assert user.sources()[0].entries == 3


async def test_a_failed_page_fails_the_source_and_what_was_there_stays(user: Catalog) -> None:
    async with serving() as server:
        server.answers = {WHOLE: page(item("com.example/a"))}
        user.add_source(f"{server.base}{API}")
        await user.refresh()
        for broken in (answer(b"", "500 Oh"), answer(b"{"), answer(b"[]"), page(item("com.example/b"), cursor="same")):
            server.answers = _Any(broken)
            with pytest.raises(SourceUnavailable):
                await user.refresh()
            assert ids(user) == ["com.example.a"]
            assert user.sources()[0].state == "offline"


async def test_a_page_of_too_many_items_is_refused(user: Catalog) -> None:
    async with serving() as server:
        server.answers = {WHOLE: page(*[1] * 1000)}
        user.add_source(f"{server.base}{API}")
        assert await user.refresh() == []
        server.answers = _Any(page(*[1] * 1001))
        with pytest.raises(SourceUnavailable, match=rf"{server.base}.*at most 1000 items"):
            await user.refresh()


async def test_a_page_is_parsed_once(user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(data: bytes, origin: str) -> list[OfficialItem]:
        parsed.append(origin)
        return parse_page(data, origin)

    monkeypatch.setattr(official, "parse_page", parse)
    async with serving() as server:
        server.answers = {WHOLE: page(item("com.example/a"))}
        user.add_source(f"{server.base}{API}")
        await user.refresh()
    assert len(parsed) == 1


async def test_all_pages_together_have_a_size(user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        user.add_source(f"{server.base}{API}")
        monkeypatch.setattr(official, "MAX_BYTES", 1000)
        server.answers[WHOLE] = page(*(item(f"com.example/{n}") for n in range(9)))
        with pytest.raises(SourceUnavailable, match="its pages have more than 1000 bytes in total"):
            await user.refresh()
    assert ids(user) == []


async def test_what_comes_piece_by_piece_is_limited_as_a_whole(user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "MAX_BYTES", 3000)
    async with serving() as server:
        user.add_source(f"{server.base}{API}")
        server.answers[WHOLE] = page(*(item(f"com.example/a{n}") for n in range(4)))
        await user.refresh()
        with pytest.raises(SourceUnavailable, match="404"):
            await user.refresh()
        server.answers[server.requests[-1][0]] = page(*(item(f"com.example/b{n}", at="02") for n in range(4)))
        with pytest.raises(SourceUnavailable, match="its entries have more than 3000 bytes in total"):
            await user.refresh()
    assert len(ids(user)) == 4


async def test_all_pages_together_have_a_time(user: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(dict[str, bytes]):
        def get(self, key: str, _default: object = None) -> bytes:
            return page(cursor=str(hash(key)))

    monkeypatch.setattr(official, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(official, "MAX_PAGES", 10**9)
    async with serving() as server:
        server.answers = Endless()
        user.add_source(f"{server.base}{API}")
        async with asyncio.timeout(120):
            with pytest.raises(SourceUnavailable, match=rf"^{server.base}{API}: not all of its pages"):
                await user.refresh()


async def test_faulty_items_are_named_and_the_others_stay(user: Catalog) -> None:
    async with serving() as server:
        taken = item("com.example.a")
        server.answers = {WHOLE: page(item("com.example/a"), 3, {"server": 3}, taken)}
        user.add_source(f"{server.base}{API}")
        await user.refresh()
        assert ids(user) == ["com.example.a"]
        assert len(user.sources()[0].faults) == 3
        server.answers = _Any(page(item("com.example.a", version="2.0.0", at="09")))
        await user.refresh()
        assert user.find("com.example.a").entry.version == "1.0.0"
        assert "com.example/a" in user.sources()[0].faults[0]


async def test_only_the_name_that_has_an_id_can_give_it_up(user: Catalog) -> None:
    async with serving() as server:
        server.answers = {WHOLE: page(item("com.example/a.b"))}
        user.add_source(f"{server.base}{API}")
        await user.refresh()
        assert ids(user) == ["com.example.a.b"]
        server.answers = _Any(page(item("com.example.a/b", status="deleted", at="05")))
        await user.refresh()
        assert ids(user) == ["com.example.a.b"]
        server.answers = _Any(
            page(item("com.example/a.b", status="deleted", at="06"), item("com.example.a/b", at="06"))
        )
        await user.refresh()
        assert user.find("com.example.a.b").entry.model_dump()["origin"]["name"] == "com.example.a/b"


async def test_faults_stay_until_they_are_mended(user: Catalog) -> None:
    async with serving() as server:
        wrong = item("com.example/b")
        wrong["server"]["packages"] = 3
        server.answers = {WHOLE: page(item("com.example/a"), wrong)}
        user.add_source(f"{server.base}{API}")
        await user.refresh()
        assert len(user.sources()[0].faults) == 1
        server.answers = _Any(page(item("com.example/c", at="04")))
        await user.refresh()
        await user.refresh()
        assert len(user.sources()[0].faults) == 1
        server.answers = _Any(page(item("com.example/b", at="05")))
        await user.refresh()
        assert user.sources()[0].faults == ()


async def test_what_changes_while_pages_are_read_is_asked_for_again(user: Catalog) -> None:
    now = datetime.now(UTC)
    fresh = item("com.example/a")
    fresh["_meta"][META]["updatedAt"] = (now - timedelta(seconds=5)).isoformat()
    async with serving() as server:
        server.answers = _Any(page(fresh))
        user.add_source(f"{server.base}{API}")
        await user.refresh()
        await user.refresh()
        asked = datetime.fromisoformat(since(server)["updated_since"][0])
        assert now - timedelta(hours=1) < asked < now - timedelta(seconds=60)


class _Any(dict[str, bytes]):
    """The same answer to everything."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def get(self, _key: str, _default: object = None) -> bytes:
        return self._data
