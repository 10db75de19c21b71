# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of configurations, also with symlinks that are exchanged meanwhile."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.clients.audit import Audit
from mcpd.clients.drafts import Drafts
from mcpd.clients.tree import Tree, mark
from mcpd.errors import InvalidArgument, InvalidConfig, McpdError, NoSpace, ReadOnly
from mcpd.paths import Scope
from tests.unit.clients.signed_parts import Clock, Site, contents, mode, not_mine, payload_of

if TYPE_CHECKING:
    from collections.abc import Callable


def test_files_are_where_the_source_document_says(tree: Tree) -> None:
    root = tree.root
    assert tree.artifacts == root / "artifacts"
    assert tree.index("cursor", "default") == root / "index/cursor/default.json"
    assert tree.draft("cursor", "default") == root / "drafts/cursor/default.json"
    assert tree.deployment("cursor", "default") == root / "deployments/cursor/default.json"
    assert tree.verification_key == root / "verification_key.pem"
    assert tree.verification_key_raw == root / "verification_key.raw"
    assert tree.audit == root / "audit.jsonl"


def test_reading_makes_nothing(tree: Tree) -> None:
    assert tree.read(tree.index("cursor", "default")) is None
    assert not tree.root.exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "A", "a/b", "../a", "a\n", "a b", "é", "a~", "a" * 65, "\0"]
)
def test_what_is_no_id_names_no_file(tree: Tree, name: str) -> None:
    for place in (tree.index, tree.draft, tree.deployment):
        with pytest.raises(InvalidArgument, match="not the id of a client"):
            place(name, "default")
        with pytest.raises(InvalidArgument, match="not the id of a profile"):
            place("cursor", name)


@given(st.text(), st.text())
def test_no_id_leads_out_of_the_tree(client: str, profile: str) -> None:
    tree = Tree(Path("/tree"), Scope.USER)
    with suppress(InvalidArgument):
        assert Path(os.path.normpath(tree.index(client, profile))).relative_to(tree.root / "index").parts == (
            client,
            f"{profile}.json",
        )


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(
    ("scope", "directory", "file"), [(Scope.USER, 0o700, 0o600), (Scope.SYSTEM, 0o755, 0o644)], ids=["user", "system"]
)
def test_who_may_read(tmp_path: Path, scope: Scope, directory: int, file: int, umask: int) -> None:
    tree = Tree(tmp_path / "var/tree", scope)
    before = os.umask(umask)
    try:
        tree.write(tree.index("cursor", "default"), b"{}")
        tree.write(tree.keys / "secret.pem", b"secret", private=True)
        for path in (tree.verification_key, tree.verification_key_raw):
            tree.write(path, b"public")
    finally:
        os.umask(before)
    for path in (tree.root, tree.root / "index", tree.root / "index/cursor", tree.keys):
        assert mode(path) == directory
    assert mode(tree.index("cursor", "default")) == file
    assert mode(tree.keys / "secret.pem") == 0o600
    assert mode(tree.verification_key) == mode(tree.verification_key_raw) == 0o644
    assert mode(tree.root / ".lock") == 0o600


def test_what_was_written_is_read(tree: Tree) -> None:
    path = tree.draft("cursor", "default")
    for data in (b"one", b"", b"two"):
        tree.write(path, data)
        assert tree.read(path) == data
    assert [each.name for each in path.parent.iterdir()] == ["default.json"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _symlink(path: Path) -> None:
    (path.parent / "other").write_bytes(b"other")
    path.symlink_to("other")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": _fifo,
    "symlink": _symlink,
    "dangling": _dangling,
    "socket": _socket,
    "directory": Path.mkdir,
    "huge": _huge,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_ours_is_refused(tree: Tree, kind: str) -> None:
    path = tree.root / "place"
    tree.root.mkdir()
    KINDS[kind](path)
    gc.collect()  # else descriptors of earlier tests may be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidConfig, match=str(path)):
        tree.read(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_nothing_is_written_or_cleared_away_through_a_symlink_out_of_the_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", Scope.USER)
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = outside / ".default.json.0123456789ab~tmp"
    kept.write_text("mine")
    tree.drafts.mkdir(parents=True)
    (tree.drafts / "cursor").symlink_to(outside)
    (outside / "default.json").write_text("mine too")
    for change in (
        lambda: tree.write(tree.draft("cursor", "default"), b"{}"),
        lambda: Drafts(tree, Clock()).clear("cursor", "default"),
    ):
        with pytest.raises(InvalidConfig, match="a symlink that points outside"):
            change()
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        kept.name: "mine",
        "default.json": "mine too",
    }


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def _attempts(tree: Tree, path: Path) -> list[Callable[[], object]]:
    return [
        lambda: tree.write(path, b"{}"),
        lambda: tree.stage(path, b"{}"),
        lambda: tree.prepare(path.parent),
        lambda: tree.read(path),
        lambda: tree.status(path),
        lambda: tree.remove(path),
        lambda: tree.names(path.parent),
        lambda: tree.directory(path.parent).__enter__(),
    ]


@pytest.mark.parametrize("what", ["root", "drafts", "drafts/cursor"])
@pytest.mark.parametrize("target", ["outside", "nowhere", "beside"])
def test_no_symlink_in_the_tree_is_followed_wherever_it_leads(tmp_path: Path, what: str, target: str) -> None:
    tree = Tree(tmp_path / "root", Scope.USER)
    path = tree.draft("cursor", "default")
    tree.write(path, b"mine")
    place = tree.root if what == "root" else tree.root / what
    place.rename(place.with_name("beside"))
    if target == "outside":
        place.with_name("beside").rename(tmp_path / "outside")
        place.symlink_to(tmp_path / "outside")
    else:
        place.symlink_to(target)
    before, descriptors = contents(tmp_path), _descriptors()
    for attempt in _attempts(tree, path):
        with pytest.raises(InvalidConfig, match=f"^{place}: a symlink"):
            attempt()
    assert contents(tmp_path) == before
    assert _descriptors() == descriptors


def test_the_tree_may_lie_behind_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "disk/home").mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk/home")
    tree = Tree(tmp_path / "home/below/tree", Scope.USER)
    path = tree.draft("cursor", "default")
    tree.write(path, b"mine")
    assert (tmp_path / "disk/home/below/tree/drafts/cursor/default.json").read_bytes() == tree.read(path) == b"mine"
    assert tree.remove(path) is True


@pytest.mark.parametrize("name", ["../outside/file", "drafts/../../outside/file", "/etc/hostname"])
def test_what_is_not_in_the_tree_is_none_of_its_files(tree: Tree, name: str) -> None:
    tree.write(tree.root / "file", b"x")
    (tree.root.parent / "outside").mkdir()
    for attempt in _attempts(tree, tree.root / name):
        with pytest.raises(InvalidConfig, match="not in"):
            attempt()
    assert list((tree.root.parent / "outside").iterdir()) == []


def test_what_is_missing_is_no_error(tree: Tree) -> None:
    path = tree.draft("cursor", "default")
    for _ in range(2):
        assert (tree.read(path), tree.status(path), tree.names(path.parent), tree.remove(path)) == (
            None,
            None,
            [],
            False,
        )
        with pytest.raises(McpdError, match="drafts/cursor"), tree.directory(path.parent):
            pass
        assert not tree.drafts.exists()
        tree.write(tree.root / "file", b"x")


def test_a_file_is_removed_and_a_directory_is_not(tree: Tree) -> None:
    path = tree.draft("cursor", "default")
    descriptors = _descriptors()
    tree.write(path, b"{}")
    assert tree.names(path.parent) == ["default.json"]
    assert tree.remove(path) is True
    assert tree.remove(path) is False
    target = tree.root / "target"
    target.write_bytes(b"kept")
    path.symlink_to(target)
    assert tree.remove(path) is True
    assert target.read_bytes() == b"kept"
    path.mkdir()
    with pytest.raises(McpdError, match=f"removing {path}"):
        tree.remove(path)
    assert tree.names(path) == []
    assert tree.names(target) == []
    assert _descriptors() == descriptors


@pytest.mark.parametrize("kind", ["fifo", "symlink", "dangling", "socket", "huge"])
def test_writing_replaces_it_and_follows_nothing(tree: Tree, kind: str) -> None:
    path = tree.root / "place"
    tree.root.mkdir()
    KINDS[kind](path)
    tree.write(path, b"ours")
    assert tree.read(path) == b"ours"
    assert mode(path) == 0o600
    if kind == "symlink":
        assert (tree.root / "other").read_bytes() == b"other"


def test_a_directory_in_the_way_is_an_error(tree: Tree) -> None:
    (tree.root / "place").mkdir(parents=True)
    with pytest.raises(McpdError, match="place"):
        tree.write(tree.root / "place", b"ours")
    assert (tree.root / "place").is_dir()


def test_a_file_in_the_way_of_a_directory_is_an_error(tree: Tree) -> None:
    tree.root.mkdir()
    (tree.root / "index").write_text("")
    path = tree.index("cursor", "default")
    assert tree.read(path) is None
    with pytest.raises(McpdError, match="index"):
        tree.write(path, b"{}")


def test_the_limit_is_the_callers(tree: Tree) -> None:
    path = tree.root / "file"
    tree.write(path, b"12345")
    assert tree.read(path, 5) == b"12345"
    with pytest.raises(InvalidConfig, match="larger than 4 bytes"):
        tree.read(path, 4)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o602, 0o601])
def test_a_private_file_is_nobody_elses_to_read(tree: Tree, bits: int) -> None:
    path = tree.keys / "secret"
    tree.write(path, b"secret", private=True)
    assert tree.read(path, private=True) == b"secret"
    path.chmod(bits)
    assert tree.read(path) == b"secret"
    with pytest.raises(InvalidConfig, match="chmod 600"):
        tree.read(path, private=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_private_file_is_nobody_elses(tree: Tree) -> None:
    path = tree.keys / "secret"
    tree.write(path, b"secret", private=True)
    os.chown(path, 12345, -1)
    with pytest.raises(InvalidConfig, match="12345"):
        tree.read(path, private=True)


def test_what_a_killed_writer_left_is_cleared_away(tree: Tree) -> None:
    path = tree.draft("cursor", "default")
    tree.write(path, b"one")
    left = [path.with_name(f".{name}.0123456789ab~tmp") for name in ("default.json", "other.json")]
    for each in left:
        each.write_bytes(b"half")
    odd = path.with_name(".odd.0123456789ab~tmp")
    odd.mkdir()
    kept = path.with_name("kept~")
    kept.write_bytes(b"not ours")
    tree.write(path, b"two")
    assert sorted(path.parent.iterdir()) == sorted([path, kept, odd])


def test_its_holder_may_take_the_lock_again(tree: Tree) -> None:
    with tree.lock(), tree.lock():
        tree.write(tree.root / "file", b"x")
    with tree.lock():
        assert tree.read(tree.root / "file") == b"x"


def test_the_lock_is_released_after_an_error(tree: Tree) -> None:
    with pytest.raises(KeyError), tree.lock():
        raise KeyError
    with Tree(tree.root, Scope.USER).lock():
        assert (tree.root / ".lock").exists()


def test_who_may_not_write_is_told(passable: Path) -> None:
    tree = Tree(passable / "tree", Scope.SYSTEM)
    path = tree.index("cursor", "default")
    tree.write(path, b"{}")
    with not_mine(tree.root):
        assert tree.read(path) == b"{}"
        for change in (lambda: tree.write(path, b"other"), lambda: tree.write(tree.root / "new", b"other")):
            with pytest.raises(ReadOnly, match=str(tree.root)):
                change()
    assert tree.read(path) == b"{}"
    assert not (tree.root / "new").exists()


def test_who_may_not_make_it_is_told(passable: Path) -> None:
    tree = Tree(passable / "below/tree", Scope.SYSTEM)
    (passable / "below").mkdir(mode=0o755)
    with not_mine(passable), pytest.raises(ReadOnly, match="tree"), tree.lock():
        pass
    assert not tree.root.exists()


def test_a_full_disk_changes_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree.root / "file"
    tree.write(path, b"old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NoSpace):
        tree.write(path, b"new")
    assert tree.read(path) == b"old"
    assert sorted(each.name for each in tree.root.iterdir()) == [".lock", "file"]


def test_a_mark_changes_with_the_file(tree: Tree) -> None:
    path = tree.root / "file"
    assert mark(path) is None
    tree.write(path, b"one")
    os.utime(path, (1, 1))
    one = mark(path)
    assert one is not None
    assert mark(path) == one
    tree.write(path, b"two")
    os.utime(path, (1, 1))
    two = mark(path)
    assert two not in (None, one)
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    assert mark(path) != two


def test_a_file_that_is_too_new_has_no_mark(tree: Tree) -> None:
    path = tree.root / "file"
    tree.write(path, b"one")
    os.utime(path, (2**33, 2**33))
    assert mark(path) is None


WRITES = 3000
CALLS = ("open", "mkdir", "stat", "rename", "unlink", "symlink", "listdir", "fsync", "replace", "lstat", "link")


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
