# SPDX-License-Identifier: LGPL-2.1-or-later
"""A full disk stops a change before its first step."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import McpdError, NoSpace
from mcpd.files import make_directory, write_atomic
from mcpd.model import Manifest
from mcpd.paths import Paths, Scope
from mcpd.store import Generation, Store
from tests.unit.store.store_trees import document, failing_write, foreign, hold, install, layout, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

ONE = "com.example.one"

CHANGES: dict[str, Callable[[Store], object]] = {
    "set-config": lambda store: store.set_config(ONE, {"endpoint": "new"}),
    "set-secret": lambda store: store.set_secret(ONE, "api_key", "new"),
    "install": lambda store: install(store, "another", config={"api_key": "x"}),
    "update": lambda store: install(store, version="9", config={"api_key": "new", "endpoint": "new"}),
    "rollback": lambda store: store.rollback(ONE, 1),
    "pin": lambda store: store.set_pinned(ONE, True),
    "hold": lambda store: store.hold(*built(store), [{"name": "add"}]),
    "approve": lambda store: (store.approve(ONE, 3), store.prune(ONE)),
    "prove": lambda store: (store.activate(*built(store), on_trial=True), store.prune(ONE)),
}


def built(store: Store) -> tuple[Generation, Manifest]:
    return store.new_generation(ONE), Manifest.parse(document(version="9", config={"api_key": "new"}), "test")


def state(store: Store) -> list[Any]:
    return [
        (s.id, s.manifest and s.manifest.to_json(), s.problem, s.pending_generation, store.launch_manifest(s.id).values)
        for s in store.list()
    ]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small file system here; the next test simulates one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    assert shutil.disk_usage(place).free == 0


def finish(store: Store, change: str, generation: Generation | None) -> None:
    """The part of *change* that is the store's."""
    if generation is None:
        CHANGES[change](store)
        return
    config = {"api_key": "new", "endpoint": "new"}
    store.activate(generation, Manifest.parse(document(generation.server_id, "9", config=config), "test"))


def store_below(root: Path) -> Store:
    return Store(Paths(layout(Scope.USER, root / "u"), layout(Scope.SYSTEM, root / "s"), root / "v", root), Scope.USER)


@pytest.mark.parametrize("change", CHANGES)
def test_a_full_disk_leaves_the_old_state(small: Path, change: str) -> None:
    store = store_below(small)
    install(store, config={"api_key": "old", "endpoint": "old"})
    install(store, version="2")
    hold(store, "3")
    before = state(store)
    server_id = {"update": ONE, "install": "another"}.get(change)
    generation = store.new_generation(server_id) if server_id is not None else None
    fill(small)
    with pytest.raises(NoSpace):
        finish(store, change, generation)
    assert state(store_below(small)) == before
    (small / "filler").unlink()
    store = store_below(small)
    store.recover()
    assert state(store) == before
    CHANGES[change](store)
    assert state(store) != before


def test_a_full_disk_does_not_stop_a_removal(small: Path) -> None:
    store = store_below(small)
    install(store, "other", config={"api_key": "x"})
    install(store, config={"api_key": "x"})
    foreign(small / "u/share/installed", "plain", config={"api_key": "x"})
    fill(small)
    store.remove(ONE)
    store.remove("plain")
    assert [s.id for s in store.list()] == ["other"]
    assert [name for name in names_in(small / "u/share/installed") if name.startswith(".")] == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("change", CHANGES)
def test_any_write_that_fails_leaves_the_old_state(
    user: Store, paths: Paths, change: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(user, config={"api_key": "old", "endpoint": "old"})
    install(user, version="2")
    hold(user, "3")
    before = state(user)
    kinds: set[bool] = set()
    for failing in range(1, 100):
        with failing_write(monkeypatch, failing, number):
            try:
                CHANGES[change](user)
            except McpdError as error:
                kinds.add(isinstance(error, NoSpace))
            else:
                break
        again = Store(paths, Scope.USER)
        again.recover()
        if state(again) != before:
            # Only the very last step, which makes a finished change last, may fail after the change.
            break
    assert failing >= 3
    assert kinds == {number != errno.EIO}
    assert state(Store(paths, Scope.USER)) != before


def test_write_atomic_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old", 0o600)

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NoSpace, match=r"file: full.*Free some space"):
        write_atomic(tmp_path / "file", b"new")
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_write_atomic_ignores_the_umask_and_long_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1000]))
    old = os.umask(0o077)
    try:
        write_atomic(tmp_path / "file", b"x" * 10_000, 0o644)
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "file").stat().st_size == 10_000


def test_a_directory_that_another_process_made_meanwhile_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, real = tmp_path / "private", Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, **how: bool) -> None:
        if self == private:
            real(self, 0o700)
        real(self, mode, **how)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    make_directory(private / "shown")
    assert private.stat().st_mode & 0o777 == 0o700
    assert (private / "shown").stat().st_mode & 0o777 == 0o755
