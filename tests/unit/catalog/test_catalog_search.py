# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looking for entries: words, filters, pages, and texts that mean something to the database."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.catalog import Catalog, Query, search
from mcpd.errors import InvalidArgument
from mcpd.paths import Paths, Scope
from mcpd.settings import Settings
from mcpd.trust.keys import Keys
from tests.unit.catalog.catalog_paths import paths_below
from tests.unit.catalog.catalog_server import ids, registry

if TYPE_CHECKING:
    from pathlib import Path


def entry(server_id: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(registry(server_id))["servers"][0]
    return found | more


async def filled(paths: Paths, file: Path, *entries: object) -> Catalog:
    catalog = Catalog(paths, Scope.USER, Settings(), Keys(paths, Scope.USER))
    file.write_text(json.dumps({"version": "1", "updated": "2026-01-01", "servers": entries}))
    catalog.add_source(file.as_uri(), name="all", signature="off")
    await catalog.refresh()
    return catalog


def hits(catalog: Catalog, text: str = "", **more: Any) -> list[str]:
    return [hit.id for hit in catalog.query(Query(text=text, **more))[0]]


async def test_every_word_has_to_begin_one_of_the_entry(paths: Paths, tmp_path: Path) -> None:
    catalog = await filled(
        paths,
        tmp_path / "r.json",
        entry("com.example.weather", description="Über alles", categories=["Climate Data"]),
        entry("com.example.files", description="weathered files"),
    )
    assert hits(catalog, "WEATHER") == ["com.example.weather", "com.example.files"]
    assert hits(catalog, "weath über") == ["com.example.weather"]
    assert hits(catalog, "uber") == ["com.example.weather"]
    assert hits(catalog, "clim") == ["com.example.weather"]
    assert hits(catalog, "eather") == []
    assert hits(catalog, "weather nothing") == []
    assert hits(catalog, "weather & files") == ["com.example.files"]
    assert hits(catalog, "example.files") == ["com.example.files"]


async def test_the_best_matches_come_first(paths: Paths, tmp_path: Path) -> None:
    filler = [entry(f"x{number}", summary="a git thing", description="git " * 20) for number in range(20)]
    catalog = await filled(paths, tmp_path / "r.json", *filler, entry("com.example.git"), entry("git"), entry("git2"))
    found = hits(catalog, "git")
    assert found[0] == "git"
    assert set(found[1:3]) == {"git2", "com.example.git"}
    assert len(found) == 23


async def test_filters_narrow_with_and_without_a_text(paths: Paths, tmp_path: Path) -> None:
    oci = {"type": "oci", "package": "x"}
    stdio = [{"type": "stdio", "command": "x"}]
    catalog = await filled(
        paths,
        tmp_path / "r.json",
        entry("a", categories=["Web"]),
        entry("b", categories=["web", "files"]),
        entry("c", source=oci, transports=stdio),
    )
    for text in ("", "about"):
        assert sorted(hits(catalog, text, category="WEB")) == ["a", "b"]
        assert sorted(hits(catalog, text, installable=True)) == ["a", "b"]
        assert hits(catalog, text, installable=False) == ["c"]
        assert sorted(hits(catalog, text, only=frozenset({"a", "c", "zz"}))) == ["a", "c"]
        assert hits(catalog, text, only=frozenset()) == []
        assert hits(catalog, text, without=frozenset({"a", "b"})) == ["c"]
        assert hits(catalog, text, category="we") == []
        assert hits(catalog, text, source="https://example.com/") == []
        assert len(hits(catalog, text, source=(tmp_path / "r.json").as_uri())) == 3
    (listing,) = catalog.query(Query(installable=False))[0]
    assert listing.fields["installable"] is False
    assert "container" in listing.fields["problem"]
    with pytest.raises(InvalidArgument):
        catalog.query(Query(source="ftp://example.com/"))


async def test_the_entry_of_a_registry_that_comes_later_can_be_wanted(paths: Paths, tmp_path: Path) -> None:
    catalog = await filled(paths, tmp_path / "a.json", entry("x"), entry("y"))
    first, second = (tmp_path / "a.json").as_uri(), (tmp_path / "b.json").as_uri()
    (tmp_path / "b.json").write_text(json.dumps({"version": "1", "servers": [entry("x"), entry("z")]}))
    catalog.add_source(second)
    await catalog.refresh()
    offers = frozenset({("x", second), ("y", first), ("z", first), ("nothing", second)})
    for text in ("", "about"):
        found, _ = catalog.query(Query(text=text, offers=offers))
        assert sorted((hit.id, hit.origin) for hit in found) == [("x", second), ("y", first)]
        assert hits(catalog, text, offers=offers, source=second) == ["x"]
        assert hits(catalog, text, offers=offers, only=frozenset({"y", "z"})) == ["y"]
        assert hits(catalog, text, offers=frozenset()) == []


@pytest.mark.parametrize("text", ["", "about"])
async def test_pages_hold_everything_once(
    paths: Paths, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_RANKED", 10)
    monkeypatch.setattr(search, "_CHUNKS", (3, 5))
    names = [f"s{number}" for number in range(45)]
    catalog = await filled(paths, tmp_path / "r.json", *(entry(name) for name in names))
    seen: list[str] = []
    cursor = ""
    while True:
        page, cursor = catalog.query(Query(text=text), cursor, 10)
        assert len(page) <= 10
        seen += [found.id for found in page]
        if not cursor:
            break
    assert sorted(seen) == sorted(names)
    if not text:
        assert seen == sorted(names)


async def test_of_too_many_matches_those_by_name_come_first(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_RANKED", 5)
    many = [entry(f"x{number}", summary="weather") for number in range(20)]
    catalog = await filled(paths, tmp_path / "r.json", *many, entry("z.weather"))
    found = hits(catalog, "weather")
    assert found[0] == "z.weather"
    assert len(found) == 21


@pytest.mark.parametrize("cursor", ["x", "-1", "1e3", "9" * 30, "\0"])
async def test_a_cursor_of_somebody_else_is_refused(paths: Paths, tmp_path: Path, cursor: str) -> None:
    catalog = await filled(paths, tmp_path / "r.json", entry("a"))
    with pytest.raises(InvalidArgument, match=r"^cursor .*; start with ''$"):
        catalog.query(Query(text="about"), cursor)


async def test_a_text_without_end_is_refused(paths: Paths, tmp_path: Path) -> None:
    catalog = await filled(paths, tmp_path / "r.json", entry("a"))
    for text in ("a " * 33, "a" * 1001):
        with pytest.raises(InvalidArgument, match="text"):
            catalog.query(Query(text=text))


SYNTAX = ['"', "'", "*", "a*", "AND", "a AND", "NOT a", "OR", "NEAR(a b)", "^a", "id:a", "{id} : a", "a\0b", "(", "-a"]


@given(
    text=st.one_of(
        st.sampled_from(SYNTAX), st.text(max_size=40), st.lists(st.sampled_from(SYNTAX), max_size=6).map(" ".join)
    )
)
def test_no_text_is_syntax(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    catalog = _shared(tmp_path_factory)
    found, following = catalog.query(Query(text=text, category=text[:3]), "", 10)
    assert following == ""
    assert all(hit.id in ("and", "near") for hit in found)
    catalog.query(Query(text=text))


async def test_operators_are_words(paths: Paths, tmp_path: Path) -> None:
    catalog = await filled(paths, tmp_path / "r.json", entry("and"), entry("near"), entry("c-sharp", summary="c++"))
    assert hits(catalog, "AND") == ["and"]
    assert hits(catalog, "NOT near") == []
    assert hits(catalog, "id:and") == []
    assert hits(catalog, "+++") == []
    assert hits(catalog, "c++") == ["c-sharp"]


_SHARED: list[Catalog] = []


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    if not _SHARED:
        root = tmp_path_factory.mktemp("search")
        paths = paths_below(root)
        _SHARED.append(asyncio.run(filled(paths, root / "r.json", entry("and"), entry("near"))))
    return _SHARED[0]


WRONG: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "id", "name", "summary", "version", "transports", "source", "description", "author", "homepage", "icon",
    "categories", "license", "size", "screenshots", "platforms", "permissions", "configurableProperties", "manifest",
    "integrity", "origin", "server", "_meta", "tools", "packages", "remotes", "$schema",
)  # fmt: skip


@given(
    wrong=st.lists(st.one_of(WRONG, st.dictionaries(st.sampled_from(FIELDS), WRONG, max_size=6)), max_size=4),
    field=st.sampled_from(FIELDS),
    value=WRONG,
    as_map=st.booleans(),
)
def test_good_entries_stay_whatever_the_others_are(
    tmp_path_factory: pytest.TempPathFactory, wrong: list[Any], field: str, value: Any, as_map: bool
) -> None:
    root = tmp_path_factory.mktemp("wrong")
    paths = paths_below(root)
    entries = [entry("first"), *wrong, entry("spoilt") | {field: value}, entry("last")]
    servers: Any = {f"{n}": each for n, each in enumerate(entries)} if as_map else entries
    catalog = Catalog(paths, Scope.USER, Settings(), Keys(paths, Scope.USER))
    (root / "r.json").write_text(json.dumps({"servers": servers}))
    catalog.add_source((root / "r.json").as_uri())
    # JSON has no NaN, and text with half of a character is none: such a file is refused as a whole.
    if "NaN" in (text := (root / "r.json").read_text()) or "Infinity" in text:
        return
    assert asyncio.run(catalog.refresh()) == []
    assert {"first", "last"} <= set(ids(catalog))
    (line,) = catalog.sources()
    assert line.entries == len(ids(catalog))
    for found in catalog.query(Query())[0]:
        assert catalog.find(found.id).entry.id == found.id
        json.dumps(found.fields)
    (root / "r.json").write_bytes(registry("first"))
    assert asyncio.run(catalog.refresh()) == []
    assert ids(catalog) == ["first"]
    assert catalog.sources()[0].faults == ()


@pytest.mark.parametrize("text", ["", "about"])
async def test_a_page_ends_where_it_says_too_much(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    names = [f"e{number}" for number in range(7)]
    catalog = await filled(paths, tmp_path / "r.json", *(entry(name, description="x " * 500) for name in names))
    monkeypatch.setattr(search, "MAX_BYTES", 3000)
    pages: list[list[str]] = []
    cursor = ""
    while cursor or not pages:
        found, cursor = catalog.query(Query(text=text), cursor)
        pages.append([hit.id for hit in found])
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert sorted(name for page in pages for name in page) == names
    monkeypatch.setattr(search, "MAX_BYTES", 10)
    assert len(catalog.query(Query(text=text))[0]) == 1


async def test_only_the_beginning_of_a_long_description_is_looked_through(paths: Paths, tmp_path: Path) -> None:
    long = f"early {'x ' * 100_000}late"
    catalog = await filled(paths, tmp_path / "r.json", entry("a", description=long))
    assert (hits(catalog, "early"), hits(catalog, "late")) == (["a"], [])
    assert catalog.find("a").entry.description == long


async def test_faults_are_counted_and_the_first_hundred_kept(paths: Paths, tmp_path: Path) -> None:
    catalog = await filled(paths, tmp_path / "r.json", entry("good"), *range(250))
    (line,) = catalog.sources()
    assert (line.entries, len(line.faults), line.faults[-1]) == (1, 101, "and 150 more errors")
    assert len(catalog.problems()) == 100
    assert "entry 1" in line.faults[0]


async def test_of_one_id_the_first_entry_counts(paths: Paths, tmp_path: Path) -> None:
    first, second = entry("a", version="1"), entry("a", version="2")
    catalog = await filled(paths, tmp_path / "r.json", first, second, entry("b"))
    assert catalog.find("a").entry.version == "1"
    assert "'a'" in catalog.sources()[0].faults[0]
    (tmp_path / "r.json").write_text(json.dumps({"servers": [second, first, entry("b")]}))
    await catalog.refresh()
    assert catalog.find("a").entry.version == "2"
    assert ids(catalog) == ["a", "b"]
    assert hits(catalog, "about") == hits(catalog, "about", only=frozenset({"a", "b"}))
