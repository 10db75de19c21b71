# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.catalog.registries import RegistryLists, check_url
from mcpd.errors import InvalidArgument, NotFound, ReadOnly
from mcpd.paths import Paths, Scope
from tests.unit.catalog.catalog_paths import paths_below

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def user(paths: Paths) -> RegistryLists:
    return RegistryLists(paths, Scope.USER)


@pytest.fixture
def system(paths: Paths) -> RegistryLists:
    return RegistryLists(paths, Scope.SYSTEM)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def urls(sources: RegistryLists) -> list[str]:
    return [line.url for line in sources.lines()]


def test_user_sources_come_first_and_win(paths: Paths, user: RegistryLists) -> None:
    write(paths.user.sources_list, "https://a.example/r.json\nhttps://B.example:443/r.json\n")
    write(paths.system.sources_list, "https://b.example/r.json#x\nhttps://c.example/r.json\nhttps://A.EXAMPLE/r.json\n")
    lines = user.lines()
    assert [line.url for line in lines] == [
        "https://a.example/r.json",
        "https://B.example:443/r.json",
        "https://c.example/r.json",
    ]
    assert [line.scope for line in lines] == [Scope.USER, Scope.USER, Scope.SYSTEM]
    assert [line.read_only for line in lines] == [False, False, True]
    assert [line.state for line in lines] == ["new"] * 3


def test_comments_and_empty_lines_are_ignored(paths: Paths, user: RegistryLists) -> None:
    write(
        paths.user.sources_list,
        "\ufeff# MCP Registry RegistryLists\r\n\r\n  https://a.example/r.json  \r\n\t# no\n   \n",
    )
    assert urls(user) == ["https://a.example/r.json"]


def test_fragments_are_read_in_order_of_their_names(paths: Paths, user: RegistryLists) -> None:
    for name, url in (("20-b.list", "b"), ("10-a.list", "a"), (".hidden.list", "no"), ("y", "no")):
        write(paths.user.sources_dir / name, f"https://{url}.example/\n")
    assert urls(user) == ["https://a.example/", "https://b.example/"]


def test_the_system_instance_reads_and_writes_the_systems_lists_only(paths: Paths, system: RegistryLists) -> None:
    write(paths.user.sources_list, "https://user.example/\n")
    write(paths.system.sources_list, "# admin\nhttps://admin.example/\n")
    system.add("https://new.example/r.json")
    assert urls(system) == ["https://admin.example/", "https://new.example/r.json"]
    assert (paths.system.sources_dir / "50-mcpd.list").read_text() == "https://new.example/r.json\n"
    assert paths.system.sources_list.read_text() == "# admin\nhttps://admin.example/\n"
    with pytest.raises(ReadOnly, match=r"sources\.list"):
        system.remove("https://admin.example/")
    system.remove("https://NEW.example/r.json")
    assert urls(system) == ["https://admin.example/"]


def test_editing_preserves_every_other_line(paths: Paths, user: RegistryLists) -> None:
    before = "# mine\r\nhttps://a.example/\n\n#https://b.example/\n  https://b.example/ \n\x8f bad"
    paths.user.sources_list.parent.mkdir(parents=True)
    paths.user.sources_list.write_bytes(before.encode("latin-1"))
    user.add("https://c.example/")
    user.add("https://C.example")
    assert paths.user.sources_list.read_bytes() == (before + "\nhttps://c.example/\n").encode("latin-1")
    user.remove("https://b.example")
    user.remove("https://c.example/")
    after = "# mine\r\nhttps://a.example/\n\n#https://b.example/\n\x8f bad\n"
    assert paths.user.sources_list.read_bytes() == after.encode("latin-1")


def test_a_list_that_is_a_link_stays_one(paths: Paths, user: RegistryLists, tmp_path: Path) -> None:
    write(tmp_path / "dotfiles/sources.list", "https://a.example/\n")
    paths.user.sources_list.parent.mkdir(parents=True)
    paths.user.sources_list.symlink_to(tmp_path / "dotfiles/sources.list")
    user.add("https://b.example/")
    assert paths.user.sources_list.is_symlink()
    assert (tmp_path / "dotfiles/sources.list").read_text() == "https://a.example/\nhttps://b.example/\n"


def test_removing_what_is_not_listed(paths: Paths, user: RegistryLists) -> None:
    with pytest.raises(NotFound, match="nothing"):
        user.remove("https://nothing.example/")
    write(paths.system.sources_list, "https://system.example/\n")
    with pytest.raises(ReadOnly):
        user.remove("https://system.example/")
    user.add("https://system.example/")
    assert [line.scope for line in user.lines()] == [Scope.USER]
    user.remove("https://system.example/")
    assert [line.scope for line in user.lines()] == [Scope.SYSTEM]


def test_lines_that_cannot_be_sources_are_listed_with_their_problem(paths: Paths, user: RegistryLists) -> None:
    write(paths.user.sources_list, "http://a.example/\nfoo\nhttps://ok.example/\n")
    assert [(line.state, bool(line.problem)) for line in user.lines()] == [
        ("invalid", True),
        ("invalid", True),
        ("new", False),
    ]
    user.remove("foo")
    assert urls(user) == ["http://a.example/", "https://ok.example/"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "foo",
        "http://example.com/r.json",
        "http://127.0.0.1.example.com/",
        "ftp://example.com/",
        "https://",
        "https:///path",
        "https://user:pw@example.com/",
        "https://exa mple.com/",
        "https://example.com/\nhttps://evil.example/",
        "https://example.com:99999/",
        "file://host/path",
        "file:relative",
        "javascript:alert(1)",
        "https://[::1/",
    ],
)
def test_urls_that_are_refused(user: RegistryLists, paths: Paths, url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        user.add(url)
    assert "pw" not in caught.value.message
    assert not paths.user.sources_list.exists()


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://Example.COM:443", "https://example.com/"),
        ("https://example.com/a?b=C#d", "https://example.com/a?b=C"),
        ("http://localhost:8000/r", "http://localhost:8000/r"),
        ("http://[::1]:80/r", "http://[::1]/r"),
        ("http://127.0.0.2/r", "http://127.0.0.2/r"),
        ("file:///a/../b%20c", "file:///b%20c"),
        ("file://localhost//x", "file:///x"),
    ],
)
def test_urls_are_compared_in_their_normal_form(url: str, normal: str) -> None:
    assert check_url(url) == normal
    assert check_url(normal) == normal


@given(st.text())
def test_any_text_is_a_source_or_an_invalid_argument(text: str) -> None:
    normal = "file:///"
    try:
        normal = shown = check_url(text)
    except InvalidArgument as error:
        shown = error.message
    assert shown.isprintable()
    assert normal.startswith(("https://", "file:///", "http://"))


@given(st.lists(st.text(max_size=30)))
def test_any_list_can_be_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    root = tmp_path_factory.mktemp("any")
    paths = paths_below(root)
    paths.user.sources_list.parent.mkdir(parents=True)
    paths.user.sources_list.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    assert all(line.url.isprintable() for line in RegistryLists(paths, Scope.USER).lines())


def test_sources_added_at_once_are_all_there(user: RegistryLists) -> None:
    wanted = [f"https://{number}.example/" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(user.add, wanted))
    assert sorted(urls(user)) == sorted(wanted)
