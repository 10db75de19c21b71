# SPDX-License-Identifier: LGPL-2.1-or-later
"""The path jail: what is refused by its text, by what lies there, and while somebody changes it."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.errors import InvalidArgument, McpdError, NotAuthorized, NotFound
from mcpd.servers.workstation.jail import HERE
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """A root with a file, a directory and what lies outside."""
    with Workbench(tmp_path, roots=2) as made:
        (made.root / "file").write_text("inside\n")
        (made.root / "directory").mkdir()
        (made.root / "directory" / "file").write_text("inside, too\n")
        yield made


def read(bench: Workbench, path: str) -> bytes:
    with bench.jail.file(bench.jail.place(path)) as fd:
        return os.read(fd, 100)


def look(bench: Workbench, path: str, *, links: bool = True) -> None:
    with bench.jail.opened(bench.jail.place(path), links=links):
        """It can be opened."""


@pytest.mark.parametrize("path", ["file", "./file", "directory//./file"])
def test_paths_from_the_first_root_are_read(bench: Workbench, path: str) -> None:
    assert read(bench, path).startswith(b"inside")


def test_absolute_paths_into_a_root_are_read(bench: Workbench) -> None:
    (bench.roots[1] / "other").write_text("inside the second\n")
    assert read(bench, str(bench.root / "file")) == b"inside\n"
    assert read(bench, f"{bench.roots[1]}//other") == b"inside the second\n"


def test_a_root_under_the_name_it_was_configured_with(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("root")
    with Workbench(tmp_path) as bench:
        (bench.root / "file").write_text("inside\n")
        with Workbench.of(bench, roots=(tmp_path / "link",)) as linked:
            assert read(linked, str(tmp_path / "link/file")) == b"inside\n"
            assert read(linked, str(bench.root / "file")) == b"inside\n"
            assert linked.jail.place("file").path == str(bench.root / "file")


def test_paths_from_the_users_home(bench: Workbench) -> None:
    (bench.home / "src").mkdir()
    (bench.home / "src" / "file").write_text("at home\n")
    with Workbench.of(bench, roots=(bench.home / "src",)) as made:
        assert read(made, "~/src/file") == b"at home\n"
        for path in ("~/other", "~root/file", "~"):
            with pytest.raises((NotAuthorized, NotFound)):
                read(made, path)
        (bench.home / "src" / "~").mkdir()
        (bench.home / "src" / "~" / "file").write_text("called so\n")
        assert read(made, "./~/file") == b"called so\n"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "not empty"),
        ("fi\0le", "NUL"),
        ("../outside/secret", r"'\.\.'"),
        ("directory/../../outside/secret", r"'\.\.'"),
        ("directory/..", r"'\.\.'"),
        ("x" * 5000, "4096 bytes"),
        ("half \ud800 pair", "surrogate"),
    ],
)
def test_what_is_no_acceptable_path(bench: Workbench, path: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        bench.jail.place(path)


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/proc/self/root/etc/passwd", "/proc/self/cwd", "/root"])
def test_absolute_paths_elsewhere_name_the_roots(bench: Workbench, path: str) -> None:
    with pytest.raises(NotAuthorized, match="outside the directories that may be touched") as caught:
        bench.jail.place(path)
    assert str(bench.root) in caught.value.message


def test_a_root_is_no_prefix_of_a_name(bench: Workbench) -> None:
    (bench.directory / "rooted").mkdir()
    for path in (bench.directory / "rooted", Path(f"{bench.root}ed"), Path(str(bench.root).upper())):
        with pytest.raises(NotAuthorized, match="outside"):
            bench.jail.place(str(path / "file"))


@pytest.mark.parametrize(
    "target",
    ["../outside", "/etc", "/proc/self/root", "/proc/self/fd", "directory/../../outside", "//proc/self/cwd/..", "."],
)
def test_symlinks_that_lead_out_are_refused(bench: Workbench, target: str) -> None:
    (bench.root / "link").symlink_to(target)
    names = {"../outside": "secret", "/etc": "passwd", "/proc/self/root": "etc/passwd"}
    if target == ".":
        assert read(bench, "link/file") == b"inside\n"
        return
    for path in ("link", f"link/{names.get(target, 'secret')}"):
        with (
            pytest.raises(NotAuthorized, match="leads out of the root, by a symlink"),
            bench.jail.opened(bench.jail.place(path)),
        ):
            pass


def test_an_absolute_symlink_into_the_root_is_refused_too(bench: Workbench) -> None:
    (bench.root / "link").symlink_to(bench.root / "file")
    with pytest.raises(NotAuthorized, match="by a symlink"):
        read(bench, "link")


def test_a_symlink_that_stays_inside_is_followed(bench: Workbench) -> None:
    (bench.root / "directory" / "link").symlink_to("../file")
    assert read(bench, "directory/link") == b"inside\n"
    with (
        pytest.raises(NotAuthorized, match="not followed"),
        bench.jail.opened(bench.jail.place("directory/link"), links=False),
    ):
        pass


def test_symlinks_in_a_circle(bench: Workbench) -> None:
    (bench.root / "a").symlink_to("b")
    (bench.root / "b").symlink_to("a")
    with pytest.raises(NotAuthorized, match="too many"):
        read(bench, "a")


def test_hard_links_are_refused_unless_allowed(bench: Workbench) -> None:
    (bench.root / "copy").hardlink_to(bench.outside / "secret")
    with pytest.raises(NotAuthorized, match=r"hard link.*allow_hard_links"):
        read(bench, "copy")
    with Workbench.of(bench, allow_hard_links=True) as allowing:
        assert read(allowing, "copy") == b"nobody's business\n"


def test_what_is_no_file_is_not_even_opened(bench: Workbench) -> None:
    os.mkfifo(bench.root / "pipe")
    with pytest.raises(InvalidArgument, match="is a named pipe, not a file"):
        read(bench, "pipe")
    with pytest.raises(InvalidArgument, match="is a directory, not a file"):
        read(bench, "directory")
    with pytest.raises(NotFound, match="does not exist"):
        read(bench, "nothing")
    with pytest.raises(InvalidArgument, match="not a directory"):
        read(bench, "file/below")


@pytest.mark.parametrize(
    "name", [".git", ".GIT", ".Git.", ".g\u200cit", "git~1", "GIT~1", ".git::$INDEX_ALLOCATION", ".ｇｉｔ"]
)
def test_what_belongs_to_git_is_not_changed(bench: Workbench, name: str) -> None:
    (bench.root / "directory" / name).mkdir()
    for path in (f"directory/{name}", f"directory/{name}/config"):
        with pytest.raises(NotAuthorized, match="belongs to git"), bench.jail.parent(bench.jail.place(path)):
            pass


def test_nor_by_way_of_a_symlink(bench: Workbench) -> None:
    (bench.root / ".git" / "hooks").mkdir(parents=True)
    (bench.root / "innocent").symlink_to(".git/hooks")
    with (
        pytest.raises(NotAuthorized, match="belongs to git"),
        bench.jail.parent(bench.jail.place("innocent/pre-commit")),
    ):
        pass


def test_roots_themselves_stay(bench: Workbench) -> None:
    for path in (".", str(bench.root), f"{bench.roots[1]}/."):
        with pytest.raises(NotAuthorized, match="one of the roots"), bench.jail.parent(bench.jail.place(path)):
            pass


def test_names_like_gits_are_nobodys(bench: Workbench) -> None:
    for name in (".gitignore", "git", ".github", "x.git"):
        with bench.jail.parent(bench.jail.place(name)) as (_, found):
            assert found == name


@given(
    path=st.text(max_size=60)
    | st.lists(st.sampled_from(["..", ".", "", "a", "/", "root", "~", "\0", "link"])).map("/".join)
)
def test_any_path_is_in_a_root_or_refused(path: str) -> None:
    bench = _SHARED.bench
    try:
        place = bench.jail.place(path)
    except (InvalidArgument, NotAuthorized):
        return
    parts = place.relative.split("/")
    assert place.relative == HERE or not {"", ".", ".."} & set(parts)
    assert place.path.startswith(str(place.root.path))


class _Shared:
    """One bench for all examples of a property."""

    bench: Workbench


_SHARED = _Shared()


@pytest.fixture(scope="module", autouse=True)
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with Workbench(tmp_path_factory.mktemp("shared")) as made:
        _SHARED.bench = made
        yield


class Swapper:
    """A thread that makes a directory a symlink that leads out, and back, all the time."""

    def __init__(self, bench: Workbench) -> None:
        self.directory, self.away = bench.root / "swapped", bench.root / "away"
        self.link = bench.root / "link"
        self.directory.mkdir()
        (self.directory / "secret").write_text("inside\n")
        self.link.symlink_to("../outside")
        self.swaps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _swap(self) -> None:
        while not self._stop.is_set():
            self.directory.rename(self.away)
            self.link.rename(self.directory)
            self.directory.rename(self.link)
            self.away.rename(self.directory)
            self.swaps += 1


def test_ten_thousand_reads_while_a_directory_is_swapped_for_a_symlink(bench: Workbench) -> None:
    place = bench.jail.place("swapped/secret")
    outcomes: dict[str, int] = {}
    with Swapper(bench) as swapper:
        for number in itertools.count():
            if number >= 10_000 and outcomes.get("inside\n") and swapper.swaps:
                break
            try:
                with bench.jail.file(place) as fd:
                    found = os.read(fd, 100).decode()
            except McpdError as fault:
                found = type(fault).__name__
            outcomes[found] = outcomes.get(found, 0) + 1
    assert "nobody's business\n" not in outcomes
    assert set(outcomes) <= {"inside\n", "NotFound", "NotAuthorized", "McpdError", "InvalidArgument"}


def test_nothing_is_made_outside_while_a_directory_is_swapped(bench: Workbench) -> None:
    before = bench.fingerprint()
    place = bench.jail.place("swapped/new")
    made = 0
    with Swapper(bench):
        for number in itertools.count():
            if number >= 2_000 and made:
                break
            try:
                with bench.jail.parent(place) as (directory, name):
                    fd = os.open(f"{name}{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=directory)
                    os.close(fd)
                    made += 1
            except McpdError:
                continue
    assert bench.fingerprint() == before
