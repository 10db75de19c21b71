# SPDX-License-Identifier: LGPL-2.1-or-later
"""The installations of a server that are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import NotFound
from mcpd.install.history import GenerationInfo, history, rollback_target
from mcpd.install.lockfile import LOCK_FILE, write_lock
from mcpd.install.sources.base import Outcome
from mcpd.model import Entry, Manifest
from mcpd.paths import Layout, Paths, Scope
from mcpd.store import Store

if TYPE_CHECKING:
    from pathlib import Path

ONE = "com.example.one"
HERE = "https://registry.test/list.json"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    def layout(scope: Scope) -> Layout:
        root = tmp_path / str(scope)
        names = ("settings", "installed", "secrets", "state", "cache", "runtime", "overlay", "scripts", "contents")
        places: dict[str, Any] = {name: root / name for name in (*names, "orchestration", "deployments")}
        return Layout(scope=scope, sources_list=root / "sources.list", **places)

    return Paths(
        user=layout(Scope.USER), system=layout(Scope.SYSTEM), vendor=tmp_path / "vendor", home=tmp_path / "home"
    )


def put(store: Store, version: str, *, hold: bool = False, lock: bool = True, resolved: Any = ()) -> None:
    generation = store.new_generation(ONE)
    if lock:
        entry = Entry.parse({"id": ONE}, "test")
        verified = "ours" if version == "2" else ""
        write_lock(generation.path, entry, Outcome(resolved=dict(resolved)), registry=HERE, verified=verified)
    manifest = Manifest.parse({"id": ONE, "version": version, "origin": {"registry": HERE}}, "test")
    if hold:
        store.hold(generation, manifest)
    else:
        store.activate(generation, manifest)


def shown(found: list[GenerationInfo]) -> list[tuple[object, ...]]:
    return [(info.number, info.version, info.state, info.resolved, info.verified) for info in found]


def test_all_installations_are_told_the_newest_first(paths: Paths) -> None:
    store = Store(paths, Scope.USER)
    put(store, "1", resolved={"sha256": "c" * 64})
    put(store, "2", resolved={"rev": "a" * 40, "version": "2"})
    put(store, "3", resolved={"version": "3.0"})
    store.rollback(ONE)
    put(store, "4", hold=True)
    found = history(store, ONE)
    assert shown(found) == [
        (4, "4", "pending", "", False),
        (3, "3", "previous", "3.0", False),
        (2, "2", "active", "a" * 40, True),
        (1, "1", "previous", "c" * 64, False),
    ]
    assert {info.registry for info in found} == {HERE}
    assert all(info.installed > 1.7e9 for info in found)


def test_one_on_trial_is_told_too(paths: Paths) -> None:
    store = Store(paths, Scope.USER)
    put(store, "1")
    generation = store.new_generation(ONE)
    store.activate(generation, Manifest.parse({"id": ONE, "version": "2"}, "test"), on_trial=True)
    assert [(info.number, info.state) for info in history(store, ONE)] == [(2, "active"), (1, "previous")]
    store.prune(ONE)


@pytest.mark.parametrize(
    "lock", ["", "[]", '{"resolved": 1, "installed": "yesterday", "registry": 3}', '{"installed": 1}']
)
def test_what_the_lock_file_does_not_tell_is_left_open(paths: Paths, lock: str) -> None:
    store = Store(paths, Scope.USER)
    put(store, "1", lock=False)
    path = store.generation_path(ONE, 1)
    (path / LOCK_FILE).write_text(lock)
    [info] = history(store, ONE)
    assert (info.registry, info.resolved, info.verified) == (HERE, "", False)
    assert info.installed == path.stat().st_mtime


def test_a_broken_manifest_hides_no_installation(paths: Paths) -> None:
    store = Store(paths, Scope.USER)
    put(store, "1")
    put(store, "2")
    (store.generation_path(ONE, 1) / "manifest.json").write_text("{")
    assert [(info.number, info.version) for info in history(store, ONE)] == [(2, "2"), (1, "")]


def test_what_mcpd_did_not_install_has_no_history(paths: Paths) -> None:
    store = Store(paths, Scope.USER)
    with pytest.raises(NotFound):
        history(store, ONE)
    directory = paths.vendor / ONE
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text('{"id": "com.example.one"}')
    assert history(store, ONE) == []


@pytest.mark.parametrize(
    ("locks", "expected"),
    [
        pytest.param(['{"content": "a"}', '{"content": "b"}', '{"content": "b"}'], 1, id="the same twice"),
        pytest.param(['{"content": "a"}', "{", "{"], 2, id="broken"),
        pytest.param(['{"content": "a"}', "{}", "{}"], 2, id="nothing told"),
        pytest.param(
            ['{"content": "a"}', *['{"content": "b", "source": {"type": "local"}}'] * 2],
            2,
            id="directory of no version",
        ),
    ],
)
def test_the_way_back_passes_over_what_is_known_to_be_the_same(paths: Paths, locks: list[str], expected: int) -> None:
    store = Store(paths, Scope.USER)
    for number, lock in enumerate(locks, 1):
        put(store, str(number), lock=False)
        (store.generation_path(ONE, number) / LOCK_FILE).write_text(lock)
    assert rollback_target(store, ONE) == expected
