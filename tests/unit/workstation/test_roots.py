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


def test_the_users_home_is_filled_in() -> None:
    home = Path("/home/somebody")
    assert expanded(["~", "~/src", "/srv"], home) == (home, home / "src", Path("/srv"))
    for path in ("src", "~other/src", "", "./x", "/x\0y", "/srv/../etc", "~/..", "/srv/link/.."):
        with pytest.raises(InvalidConfig, match="absolute path"):
            expanded([path], home)
