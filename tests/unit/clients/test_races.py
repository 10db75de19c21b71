# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whoever may write in a tree leads nobody out of it, whenever a directory is exchanged for a symlink."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from signed_parts import Clock, Site, contents, payload_of

from mcpd.clients.audit import Audit
from mcpd.clients.publishing import Drafts
from mcpd.clients.tree import Tree
from mcpd.errors import McpdError
from mcpd.paths import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRITES = 3000
CALLS = ("open", "mkdir", "stat", "rename", "unlink", "symlink", "listdir", "fsync", "replace", "lstat", "link")


@pytest.fixture
def work() -> Iterator[Path]:
    """In memory where that can be: thousands of writes each wait for the disk several times."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def precious(place: Path, directory: Path) -> dict[str, bytes]:
    """Files of the user's at *place*, with the names and left-overs of those in *directory*; returns what they hold."""
    place.mkdir()
    names = {*(path.name for path in directory.iterdir() if path.is_file()), "default.json", "audit.jsonl"}
    for name in names:
        (place / name).write_bytes(b"precious")
        (place / f".{name}.0123456789ab~tmp").write_bytes(b"precious")
    return contents(place)


def exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, bytes(one), -100, bytes(other), ctypes.c_uint(2)) != 0:
        pytest.skip("this file system exchanges nothing")


def test_a_directory_that_is_exchanged_all_the_time_leads_nowhere(work: Path) -> None:
    tree = Tree(work / "tree", Scope.USER)
    drafts = Drafts(tree, Clock())
    drafts.put("cursor", "default", payload_of("one"), None)
    place, link = tree.draft("cursor", "default").parent, tree.drafts / "link"
    # As long as no write has got through, the first draft is what there is.
    own = (None, b"from the tree", tree.read(tree.draft("cursor", "default")))
    outside = work / "outside"
    before = precious(outside, place)
    link.symlink_to(outside)
    exchange(place, link)
    exchange(place, link)
    ended = threading.Event()

    def flip() -> None:
        libc = ctypes.CDLL(None)
        while not ended.is_set():
            for _ in range(50):
                libc.renameat2(-100, bytes(place), -100, bytes(link), ctypes.c_uint(2))

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for number in range(WRITES):
            with suppress(McpdError):
                tree.write(tree.draft("cursor", "default"), b"from the tree")
            with suppress(McpdError):
                assert tree.read(tree.draft("cursor", "default")) in own, number
            with suppress(McpdError):
                tree.remove(tree.draft("cursor", "default"))
            if number % 10 == 0:
                with suppress(McpdError):
                    drafts.clear("cursor", "default")
                with suppress(McpdError):
                    assert "audit.jsonl" not in tree.names(place), number
    finally:
        ended.set()
        thread.join()
    assert contents(outside) == before


def _rotate(site: Site) -> None:
    site.keys.initialize(regenerate=True)


def _sign(site: Site) -> None:
    site.keys.sign(b"data")


def _record(site: Site) -> None:
    Audit(site.tree, site.clock).record("event", client_id="", profile_id="", outcome="ok")


def _put(site: Site) -> None:
    Drafts(site.tree, site.clock).put("cursor", "default", payload_of("two"), None)


def _clear(site: Site) -> None:
    Drafts(site.tree, site.clock).clear("cursor", "default")


def _look(site: Site) -> None:
    assert Drafts(site.tree, site.clock).get("cursor", "default") is None


def _publish(site: Site) -> None:
    site.publish(payload_of("new"))


def _history(site: Site) -> None:
    site.again().releases.history(*(site.again().releases.published() or [("cursor", "default")])[0])


@pytest.mark.parametrize(
    ("directory", "change"),
    [
        ("drafts", _put), ("drafts/cursor", _put), ("drafts/cursor", _clear), ("drafts/cursor", _look),
        ("keys", _rotate), ("keys", _sign), ("keys", _publish), ("artifacts", _publish), ("index", _publish),
        ("index/cursor", _publish), ("index", _history), ("index/cursor", _history), ("artifacts", _history),
        ("drafts", _record),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)  # fmt: skip
def test_a_directory_that_is_exchanged_before_any_step_leads_nowhere(
    work: Path, directory: str, change: Callable[[Site], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal, was_reached = 0, True
    while was_reached:
        fatal += 1
        site = Site(work / str(fatal) / "tree")
        site.publish()
        _put(site)
        if change is _look:
            site.tree.draft("cursor", "default").unlink()
        place, aside = site.tree.root / directory, site.tree.root / "aside"
        outside = work / str(fatal) / "outside"
        before = precious(outside, place)
        was_reached = _exchanged(monkeypatch, fatal, place, aside, outside, change, site)
        monkeypatch.undo()
        assert contents(outside) == before, f"exchanged before step {fatal}"
    assert fatal > 4


def _exchanged(
    monkeypatch: pytest.MonkeyPatch,
    fatal: int,
    place: Path,
    aside: Path,
    outside: Path,
    change: Callable[[Site], None],
    site: Site,
) -> bool:
    """Do *change*, and exchange *place* for a symlink before its call number *fatal*; says whether that was reached."""
    steps = 0
    rename, symlink = os.rename, os.symlink

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == fatal:
                rename(place, aside)
                symlink(outside, place)
            return real(*arguments, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    with suppress(McpdError):
        change(site)
    return steps >= fatal
