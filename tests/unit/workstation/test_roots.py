# SPDX-License-Identifier: LGPL-2.1-or-later
"""What may be touched: the configured roots, and what the client's own leave of them."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcpd.errors import InvalidConfig, NotAuthorized, NotFound
from mcpd.servers.given_paths import expanded
from tests.unit.workstation.bench import Workbench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """Two roots, in the first a project with a symlink that leads out."""
    with Workbench(tmp_path, roots=2) as made:
        (made.root / "project" / "below").mkdir(parents=True)
        (made.root / "out").symlink_to("../outside")
        yield made


def left(bench: Workbench, *uris: str) -> list[str]:
    """The roots that the client's *uris* leave."""
    return [root.path for root in bench.roots_found.narrowed(uris).roots]


def test_the_clients_roots_narrow(bench: Workbench) -> None:
    first, second = map(str, bench.roots)
    assert left(bench, (bench.root / "project").as_uri()) == [f"{first}/project"]
    assert left(bench, bench.directory.as_uri()) == [first, second]
    assert left(bench, bench.root.as_uri(), (bench.roots[1]).as_uri() + "/") == [first, second]
    assert left(bench, (bench.root / "project").as_uri(), bench.root.as_uri()) == [f"{first}/project", first]
    assert left(bench, f"file://localhost{first}/project/./below/..") == [f"{first}/project"]


def test_a_client_that_names_none_says_nothing(bench: Workbench) -> None:
    assert left(bench) == [str(root) for root in bench.roots]


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc", "file:///nothing", "file://elsewhere/etc", "https://example.org/", "", "file:", "file:///%00",
        "file://[::1", "file:///proc/self/root",
    ],
)  # fmt: skip
def test_what_is_not_configured_is_left_out(bench: Workbench, uri: str) -> None:
    assert left(bench, uri) == []
    with pytest.raises(NotAuthorized, match="client's own roots are not in"):
        bench.roots_found.narrowed([uri]).place("file")


def test_a_root_of_the_client_is_led_nowhere(bench: Workbench) -> None:
    for path in ("out", "out/deeper", "nothing", "project/../../outside"):
        assert left(bench, f"{bench.root.as_uri()}/{path}") == []


def test_a_file_is_no_root(bench: Workbench) -> None:
    (bench.root / "file").touch()
    assert left(bench, (bench.root / "file").as_uri()) == []


def test_percent_encoded_names(bench: Workbench) -> None:
    (bench.root / "a b%ü").mkdir()
    assert left(bench, (bench.root / "a b%ü").as_uri()) == [f"{bench.root}/a b%ü"]


def test_a_root_stays_open_as_long_as_somebody_may_need_it(bench: Workbench) -> None:
    jail = bench.roots_found.narrowed([(bench.root / "project").as_uri()])
    place, fd = jail.place("below"), jail.roots[0].fd
    del jail
    gc.collect()
    with bench.jail.opened(place):
        os.fstat(fd)
    del place
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("again", [False, True])
def test_a_root_that_is_not_where_it_was(bench: Workbench, *, again: bool) -> None:
    narrowed = bench.roots_found.narrowed([(bench.root / "project").as_uri()])
    bench.root.rename(bench.directory / "elsewhere")
    if again:
        (bench.root / "project").mkdir(parents=True)
    for jail in (bench.jail, narrowed, bench.roots_found.narrowed([(bench.root / "project").as_uri()])):
        for path in (".", "file", str(bench.root / "project" / "file")):
            with pytest.raises(NotFound, match=f"^{bench.root}.* was moved or deleted .*; start the server again"):
                jail.check_root(path)
    bench.jail.check_root(str(bench.roots[1] / "file"))
    (bench.directory / "elsewhere").rename(bench.directory / "further")
    with pytest.raises(NotFound):
        bench.jail.check_root("file")


def test_a_root_that_is_gone(bench: Workbench) -> None:
    bench.roots[1].rmdir()
    bench.jail.check_root("file")
    with pytest.raises(NotFound, match="was moved or deleted"):
        bench.jail.check_root(str(bench.roots[1]))


@pytest.fixture
def with_gaps(tmp_path: Path) -> Iterator[Workbench]:
    """A root that is there, between one that is not and one that is a file."""
    with Workbench(tmp_path) as made:
        file = made.directory / "file"
        file.touch()
        with Workbench.of(made, roots=(made.directory / "gone", made.root, file)) as gaps:
            yield gaps


def test_a_root_that_is_missing_costs_nothing_but_itself(with_gaps: Workbench) -> None:
    jail, gone = with_gaps.jail, with_gaps.directory / "gone"
    assert [root.path for root in jail.roots] == [str(with_gaps.root)]
    assert jail.place(f"{with_gaps.root}/x").path == f"{with_gaps.root}/x"
    why = r"was not there when the server started \(No such file or directory\); create it and start the server again"
    for path in (gone, gone / "x"):
        with pytest.raises(NotAuthorized, match=f"^'{path}': the configured root {gone} {why}"):
            jail.place(str(path))
    with pytest.raises(NotAuthorized, match=r"/file was not there .*it is not a directory"):
        jail.place(str(with_gaps.directory / "file"))
    with pytest.raises(NotAuthorized, match=f"may be touched: {with_gaps.root} \\(missing: {gone}, .*/file\\)$"):
        jail.place(str(with_gaps.outside))


def test_relative_paths_do_not_lead_to_the_next_root(with_gaps: Workbench) -> None:
    expected = f"begin at the first root: .*/gone was not there .*; absolute paths may lead into {with_gaps.root}$"
    for path in ("x", "."):
        with pytest.raises(NotAuthorized, match=expected):
            with_gaps.jail.place(path)


def test_a_root_that_is_made_later_stays_closed(with_gaps: Workbench) -> None:
    (with_gaps.directory / "gone").mkdir()
    with pytest.raises(NotAuthorized, match="start the server again"):
        with_gaps.jail.place(str(with_gaps.directory / "gone"))


def test_a_client_is_told_of_its_own_roots_that_are_missing(with_gaps: Workbench) -> None:
    gone = with_gaps.directory / "gone"
    narrowed = with_gaps.roots_found.narrowed([(gone / "project").as_uri()])
    for path in ("x", str(gone / "project")):
        with pytest.raises(NotAuthorized, match=f"the configured root {gone} was not there"):
            narrowed.place(path)
    with pytest.raises(NotAuthorized, match="may be touched: none"):
        narrowed.place(str(with_gaps.root))
    narrowed = with_gaps.roots_found.narrowed([with_gaps.root.as_uri()])
    assert narrowed.place("x").path == f"{with_gaps.root}/x"
    assert [root.path for root in with_gaps.roots_found.narrowed([with_gaps.directory.as_uri()]).roots] == [
        str(with_gaps.root)
    ]


def test_the_users_home_is_filled_in() -> None:
    home = Path("/home/somebody")
    assert expanded(["~", "~/src", "/srv"], home) == (home, home / "src", Path("/srv"))
    for path in ("src", "~other/src", "", "./x", "/x\0y", "/srv/../etc", "~/..", "/srv/link/.."):
        with pytest.raises(InvalidConfig, match="absolute path"):
            expanded([path], home)
