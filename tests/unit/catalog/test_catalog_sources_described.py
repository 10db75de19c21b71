# SPDX-License-Identifier: LGPL-2.1-or-later
"""RegistryLists that a file ``NAME.toml`` describes."""

from __future__ import annotations

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.catalog.registries import RegistryLine, RegistryLists
from mcpd.errors import InvalidArgument, NotFound, ReadOnly
from mcpd.paths import Paths, Scope
from tests.unit.catalog.catalog_paths import paths_below

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.com/r.json"
API = "https://example.com/v0.1/servers"


@pytest.fixture
def user_sources(paths: Paths) -> RegistryLists:
    return RegistryLists(paths, Scope.USER)


@pytest.fixture
def system_sources(paths: Paths) -> RegistryLists:
    return RegistryLists(paths, Scope.SYSTEM)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def said(line: RegistryLine) -> tuple[str, str, str, str, str]:
    return line.url, line.name, line.type, line.signature, line.key


def test_a_file_describes_a_source(paths: Paths, user_sources: RegistryLists) -> None:
    write(
        paths.user.sources_dir / "full.toml", f'url = "{URL}"\ntype = "registry"\nsignature = "required"\nkey = "ex"\n'
    )
    write(paths.user.sources_dir / "least.toml", 'url = "file:///srv/r.json" # mine\n')
    write(paths.system.sources_dir / "sys.toml", 'url = "file:///srv/all"\ntype = "directory"\nsignature = "off"\n')
    lines = user_sources.lines()
    assert [said(line) for line in lines] == [
        (URL, "full", "registry", "required", "ex"),
        ("file:///srv/r.json", "least", "registry", "warn", ""),
        ("file:///srv/all", "sys", "directory", "off", ""),
    ]
    assert [line.read_only for line in lines] == [False, False, True]
    assert lines[0].origin == paths.user.sources_dir / "full.toml"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (API, "official"),
        ("https://example.com/v0/servers/", "official"),
        ("http://127.0.0.1:8000/v0/servers?x=1", "official"),
        ("file:///v0/servers", "registry"),
        ("file:///v0/servers/", "directory"),
        ("https://example.com/servers/", "registry"),
        ("https://example.com/servers", "registry"),
        (URL, "registry"),
    ],
)
def test_what_a_url_stands_for_by_itself(paths: Paths, user_sources: RegistryLists, url: str, kind: str) -> None:
    write(paths.user.sources_list, f"{url}\n")
    assert [line.type for line in user_sources.lines()] == [kind]
    write(paths.user.sources_dir / "a.toml", f'url = "{url}"\n')
    assert [(line.name, line.type) for line in user_sources.lines()] == [("a", kind)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'url' is missing"),
        ("url = 5", "url: not a string"),
        ('url = "foo"', "url: 'foo'"),
        ('url = "http://example.com/r"', "url: "),
        (f'url = "{URL}"\ntype = "rss"', "type: "),
        (f'url = "{URL}"\nsignature = "maybe"', "signature: use 'required', 'warn' or 'off', not 'maybe'"),
        (f'url = "{URL}"\nsignature = true', "signature: use "),
        (f'url = "{URL}"\nkey = "../x"', "key: '../x' is not a key name"),
        (f'url = "{URL}"\nkey = "x\\n"', "key: "),
        (f'url = "{URL}"\nkey = ""', "key: "),
        (f'url = "{URL}"\nkeys = "x"', "there is no key 'keys'; known keys: url, type, signature, key"),
        (f'url = "{URL}"\ntype = "directory"', "type: "),
        (f'url = "{API}"\nsignature = "required"', "signature: "),
        (f'url = "{API}"\nkey = "x"', "key: "),
        (f'url = "{URL}"\ntype = "official"\nkey = "x"', "key: "),
        ('url = "file:///x"\ntype = "official"', "type: "),
        ("url", "Expected"),
        (f"url = {'[' * 10_000}", "nested"),
        (f'url = "{URL}"\n"\\u0000" = 1', "x00'; known keys"),
        ("#" * 70_000, "65536"),
    ],
    ids=range(20),
)
def test_a_wrong_description_is_listed_with_its_fault(
    paths: Paths, user_sources: RegistryLists, text: str, fault: str
) -> None:
    file = paths.user.sources_dir / "bad.toml"
    write(file, text)
    write(paths.user.sources_dir / "z.toml", 'url = "https://good.example/"\n')
    bad, good = user_sources.lines()
    assert (bad.state, bad.name, bad.origin) == ("invalid", "bad", file)
    assert bad.problem.startswith(f"{file}: ")
    assert bad.problem.count(str(file)) == 1
    assert fault in bad.problem
    assert good.state == "new"


def test_files_that_cannot_be_read_are_listed(paths: Paths, user_sources: RegistryLists) -> None:
    directory = paths.user.sources_dir
    directory.mkdir(parents=True)
    os.mkfifo(directory / "a.toml")
    (directory / "b.toml").mkdir()
    (directory / "c.toml").symlink_to("nowhere")
    (directory / "d.toml").write_bytes(b'url = "\xff"')
    (directory / ".hidden.toml").write_text("")
    assert [(line.name, line.state) for line in user_sources.lines()] == [(name, "invalid") for name in "abcd"]


def test_a_description_counts_more_than_a_line(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.user.sources_list, f"https://first.example/\n{URL}\n")
    write(paths.user.sources_dir / "a.toml", f'url = "{URL}#x"\nsignature = "required"\n')
    assert [(line.name, line.signature) for line in user_sources.lines()] == [("", "warn"), ("a", "required")]
    write(paths.user.sources_dir / "a.toml", f'url = "{URL}"\nsignature = "sometimes"\n')
    assert [line.state for line in user_sources.lines()] == ["new", "invalid"]


def test_the_users_own_word_on_a_source_counts(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.system.sources_dir / "sys.toml", f'url = "{URL}"\nsignature = "required"\nkey = "ex"\n')
    user_sources.add(URL)
    (line,) = user_sources.lines()
    assert said(line) == (URL, "", "registry", "required", "ex")
    assert (line.scope, line.read_only) == (Scope.USER, False)
    user_sources.add(URL, name="mine", signature="off")
    assert [said(line) for line in user_sources.lines()] == [(URL, "mine", "registry", "off", "")]
    user_sources.remove(URL)
    assert [said(line) for line in user_sources.lines()] == [(URL, "sys", "registry", "required", "ex")]


def test_a_fault_of_the_administrators_is_no_way_around(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.system.sources_dir / "sys.toml", f'url = "{URL}"\nsignature = "require"\n')
    user_sources.add(URL)
    (line,) = user_sources.lines()
    assert line.state == "invalid"
    assert "sys.toml: signature" in line.problem


def test_no_url_removes_nothing(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.user.sources_dir / "a.toml", "")
    with pytest.raises(NotFound):
        user_sources.remove("")
    assert (paths.user.sources_dir / "a.toml").exists()


def test_lists_that_cannot_be_read_are_listed(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.user.sources_dir / "b.list", f"{URL}\n")
    os.mkfifo(paths.user.sources_dir / "a.list")
    write(paths.system.sources_dir, "no directory")
    write(paths.system.sources_list, "#" * 2_000_000)
    lines = user_sources.lines()
    assert [(line.origin.name, line.state) for line in lines] == [
        ("a.list", "invalid"),
        ("b.list", "new"),
        ("sources.list", "invalid"),
    ]
    assert all(line.read_only for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which takes root")
def test_what_an_administrator_asks_is_not_undone(paths: Paths, system_sources: RegistryLists) -> None:
    system_sources.add(URL, name="a", signature="off")
    theirs = paths.system.sources_dir / "z.toml"
    write(theirs, f'url = "{URL}"\nsignature = "required"\n')
    os.chown(theirs, 1, 1)
    assert [(line.name, line.signature, line.read_only) for line in system_sources.lines()] == [("z", "required", True)]
    with pytest.raises(ReadOnly, match=r"z\.toml"):
        system_sources.add(URL, name="a", signature="warn")
    system_sources.remove(URL)
    system_sources.add(URL)
    assert sorted(path.name for path in paths.system.sources_dir.iterdir()) == ["z.toml"]
    with pytest.raises(ReadOnly, match=r"z\.toml"):
        system_sources.remove(URL)


@pytest.mark.parametrize("scope", list(Scope), ids=str)
def test_adding_and_removing(paths: Paths, scope: Scope) -> None:
    sources = RegistryLists(paths, scope)
    sources.add(URL, name="example", type="registry", signature="required", key="ex")
    file = paths.layout(scope).sources_dir / "example.toml"
    assert tomllib.loads(file.read_text()) == {"url": URL, "type": "registry", "signature": "required", "key": "ex"}
    (line,) = sources.lines()
    assert said(line) == (URL, "example", "registry", "required", "ex")
    assert (line.scope, line.read_only, line.origin) == (scope, False, file)
    assert not sources.writable.exists()
    sources.remove("https://EXAMPLE.com/r.json")
    assert not file.exists()
    assert sources.lines() == []
    with pytest.raises(NotFound):
        sources.remove(URL)


def test_a_listed_source_is_changed_to_what_is_said(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.user.sources_list, f"# mine\n{URL}\nhttps://other.example/\n")
    with pytest.raises(InvalidArgument, match="name"):
        user_sources.add(URL, signature="required")
    user_sources.add(URL, name="ex", signature="required")
    assert paths.user.sources_list.read_text() == "# mine\nhttps://other.example/\n"
    file = paths.user.sources_dir / "ex.toml"
    file.write_text(f"# by hand\n{file.read_text()}")
    user_sources.add(URL, key="k")
    user_sources.add(URL, name="ex", signature="off")
    user_sources.add(URL)
    assert file.read_text().startswith("# by hand\n")
    assert tomllib.loads(file.read_text()) == {"url": URL, "signature": "off", "key": "k"}
    assert [line.name for line in user_sources.lines()] == ["", "ex"]
    with pytest.raises(InvalidArgument, match="'ex'"):
        user_sources.add(URL, name="another", signature="off")
    with pytest.raises(InvalidArgument, match="another registry"):
        user_sources.add("https://third.example/", name="ex")


def test_a_description_that_is_a_link_stays_one(paths: Paths, user_sources: RegistryLists, tmp_path: Path) -> None:
    there = tmp_path / "dotfiles/ex.toml"
    write(there, f'url = "{URL}"\n')
    paths.user.sources_dir.mkdir(parents=True)
    link = paths.user.sources_dir / "ex.toml"
    link.symlink_to(there)
    user_sources.add(URL, signature="off")
    assert link.is_symlink()
    assert tomllib.loads(there.read_text())["signature"] == "off"
    user_sources.remove(URL)
    assert there.exists()
    assert not link.is_symlink()


@pytest.mark.parametrize(
    "options",
    [
        {"name": "../x"},
        {"name": ".x"},
        {"name": "a b"},
        {"name": "x" * 65},
        {"name": "a", "type": "rss"},
        {"name": "a", "signature": "no"},
        {"name": "a", "key": "no/key"},
        {"name": "a", "key": "x\n"},
        {"name": "a", "key": "\ud800"},
        {"name": "a", "type": "official", "signature": "required"},
        {"name": "a", "type": "directory"},
        {"type": "registry"},
    ],
    ids=range(12),
)
def test_what_is_refused_leaves_nothing(paths: Paths, user_sources: RegistryLists, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        user_sources.add(URL, **options)
    assert caught.value.message.isprintable()
    assert not paths.user.sources_dir.exists()
    assert not paths.user.sources_list.exists()


def test_a_change_that_does_not_fit_leaves_the_file(paths: Paths, user_sources: RegistryLists) -> None:
    user_sources.add(URL, name="a", signature="required")
    before = (paths.user.sources_dir / "a.toml").read_bytes()
    with pytest.raises(InvalidArgument, match="signature: "):
        user_sources.add(URL, type="official")
    assert (paths.user.sources_dir / "a.toml").read_bytes() == before


def test_adding_what_is_described_wrongly_tells_so(paths: Paths, user_sources: RegistryLists) -> None:
    write(paths.user.sources_dir / "a.toml", f'url = "{URL}"\nsignature = "no"\n')
    with pytest.raises(InvalidArgument, match=r"a\.toml: signature"):
        user_sources.add(URL)
    user_sources.add(URL, signature="off")
    assert [line.state for line in user_sources.lines()] == ["new"]
    user_sources.remove(URL)
    assert user_sources.lines() == []


def test_descriptions_added_at_once(user_sources: RegistryLists) -> None:
    def add(number: int) -> bool:
        try:
            user_sources.add(f"https://{number}.example/", name=f"n{number % 10}", signature="off")
        except InvalidArgument:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(add, range(40))) == 10
    assert len(user_sources.lines()) == 10


@given(data=st.binary(max_size=300))
def test_any_description_can_be_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    paths = paths_below(tmp_path_factory.mktemp("any"))
    paths.user.sources_dir.mkdir(parents=True)
    (paths.user.sources_dir / "a.toml").write_bytes(data)
    (line,) = RegistryLists(paths, Scope.USER).lines()
    assert line.url.isprintable()
    assert line.problem.isprintable()


@given(
    url=st.sampled_from([URL, API, "file:///srv/x"]),
    name=st.one_of(st.text(max_size=8), st.just("ok")),
    kind=st.sampled_from(["", "registry", "official", "directory", "x"]),
    signature=st.sampled_from(["", "required", "warn", "off", "x"]),
    key=st.one_of(st.text(max_size=8), st.just("ok")),
)
def test_what_is_added_is_listed_so(
    tmp_path_factory: pytest.TempPathFactory, url: str, name: str, kind: str, signature: str, key: str
) -> None:
    sources = RegistryLists(paths_below(tmp_path_factory.mktemp("any")), Scope.USER)
    try:
        sources.add(url, name=name, type=kind, signature=signature, key=key)
    except InvalidArgument:
        assert sources.lines() == []
        return
    (line,) = sources.lines()
    assert (line.url, line.state, line.name, line.signature, line.key) == (url, "new", name, signature or "warn", key)
    assert kind in ("", line.type)
