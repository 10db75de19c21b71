# SPDX-License-Identifier: LGPL-2.1-or-later
"""Updates that wait for approval, pinning, and what is kept of each generation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mcpd.errors import Busy, InvalidArgument, InvalidManifest, NotFound, ReadOnly
from mcpd.files import WriteLock
from mcpd.model import Manifest
from mcpd.paths import Paths, Scope
from mcpd.store import Generation, InstalledServer, Store
from tests.unit.store.store_trees import document, foreign, hold, install, names_in, text_of_tree

if TYPE_CHECKING:
    from pathlib import Path

ONE = "com.example.one"
TOOLS = [{"name": "add", "description": "Adds"}]


def parsed(version: str, **more: Any) -> Manifest:
    return Manifest.parse(document(version=version, **more), "test")


def approve(store: Store, number: int) -> InstalledServer:
    """Approve of what waits, which proves itself."""
    store.approve(ONE, number)
    store.prune(ONE)
    return store.get(ONE)


def test_a_pending_update_is_listed_and_not_used(user: Store) -> None:
    install(user)
    assert (user.get(ONE).pending, user.get(ONE).pending_generation) == ("", 0)
    assert hold(user) == 2
    server = user.get(ONE)
    assert server.manifest is not None
    assert (server.manifest.version, server.pending, server.pending_generation) == ("1", "2", 2)
    assert user.list() == [server]
    assert user.held(ONE) == 2
    assert user.active_generation(ONE) == 1
    assert user.generations(ONE) == [1]
    assert user.generation_manifest(ONE, 2).version == "2"


def test_a_rollback_never_activates_a_pending_update(user: Store) -> None:
    install(user)
    hold(user)
    with pytest.raises(NotFound, match="earlier"):
        user.rollback(ONE)
    with pytest.raises(NotFound, match="is pending approval"):
        user.rollback(ONE, 2)


def test_a_pending_update_survives_pruning_and_recovery_and_displaces_no_earlier_generation(paths: Paths) -> None:
    store = Store(paths, Scope.USER, keep_generations=2)
    install(store, version="1")
    install(store, version="2")
    hold(store, "3")
    store.prune(ONE)
    Store(paths, Scope.USER).recover()
    assert store.generations(ONE) == [1, 2]
    assert store.held(ONE) == 3


def test_an_approved_update_runs_with_the_current_configuration(user: Store) -> None:
    install(user, config={"api_key": "a", "endpoint": "x"})
    number = hold(user, config={"endpoint": "given", "timeout": 7})
    user.set_config(ONE, {"endpoint": "y"})
    user.set_secret(ONE, "api_key", "b")
    server = approve(user, number)
    assert server.manifest is not None
    assert (server.manifest.version, server.pending, server.pending_generation) == ("2", "", 0)
    assert user.launch_manifest(ONE).values == {"timeout": 7, "endpoint": "y", "api_key": "b"}
    assert user.held(ONE) is None
    assert user.generations(ONE) == [1, 2]
    user.rollback(ONE)
    assert user.held(ONE) is None
    assert user.rollback(ONE, 2).generation.name == "2"


def test_only_the_generation_that_was_named_is_approved(user: Store) -> None:
    install(user)
    with pytest.raises(NotFound, match="has no pending update"):
        user.approve(ONE, 2)
    hold(user)
    with pytest.raises(InvalidArgument, match="the pending update is generation 2, not 3"):
        user.approve(ONE, 3)
    assert user.active_generation(ONE) == 1


def test_the_number_of_a_dropped_update_is_not_used_again(user: Store) -> None:
    install(user)
    hold(user)
    with pytest.raises(InvalidArgument, match="the pending update is generation 2, not 3"):
        user.drop_held(ONE, 3)
    assert user.held(ONE) == 2
    user.drop_held(ONE, 2)
    user.drop_held(ONE)
    assert user.held(ONE) is None
    assert user.get(ONE).pending == ""
    assert hold(user, "3") == 3
    with pytest.raises(InvalidArgument):
        user.approve(ONE, 2)


def test_a_newer_update_replaces_the_pending_one(paths: Paths, user: Store) -> None:
    install(user)
    hold(user, "2", TOOLS)
    assert user.get(ONE).pending == "2"
    assert hold(user, "3") == 3
    assert (user.get(ONE).pending, user.get(ONE).pending_generation) == ("3", 3)
    assert names_in(paths.user.generations / ONE) == ["1", "3", "held"]


def test_a_pending_update_is_removed_once_a_newer_generation_has_passed_its_trial(paths: Paths, user: Store) -> None:
    install(user)
    hold(user)
    install(user, version="3")
    assert user.held(ONE) is None
    assert user.get(ONE).pending == ""
    user.rollback(ONE)
    assert user.held(ONE) == 2
    user.rollback(ONE, 3)
    user.prune(ONE)
    user.rollback(ONE)
    assert user.held(ONE) is None
    assert names_in(paths.user.generations / ONE) == ["1", "3"]


def test_a_generation_can_be_held_once_another_one_is_active(user: Store) -> None:
    install(user)
    active = install(user, version="2")
    generation = Generation(ONE, 2, active.generation)
    user.set_tools(ONE, TOOLS)
    with pytest.raises(InvalidArgument, match="is active"):
        user.hold(generation, parsed("2"))
    user.rollback(ONE)
    user.hold(generation, parsed("2"))
    assert user.generation_tools(ONE, 2) == TOOLS
    user.discard(generation)
    assert user.held(ONE) == 2
    with pytest.raises(NotFound):
        user.rollback(ONE, 2)


def test_an_update_of_a_server_that_is_not_installed_cannot_be_held(user: Store, system: Store, tmp_path: Path) -> None:
    install(system)
    generation = user.new_generation(ONE)
    with pytest.raises(NotFound, match="not installed"):
        user.hold(generation, parsed("2"))
    user.discard(generation)
    assert ONE not in names_in(tmp_path / "user/share/generations")


def test_secrets_given_with_a_pending_update_stay_secret(user: Store, tmp_path: Path) -> None:
    install(user)
    hold(user, config={"api_key": "hush"})
    assert "hush" not in text_of_tree(tmp_path)
    approve(user, 2)
    assert user.launch_manifest(ONE).values["api_key"] == "hush"
    hold(user, "3", config={"api_key": "other"})
    assert approve(user, 3).manifest is not None
    assert user.launch_manifest(ONE).values["api_key"] == "hush"


def test_an_update_of_another_tools_server_can_be_held(paths: Paths, user: Store) -> None:
    foreign(paths.user.installed, config={"api_key": "hush", "endpoint": "x"})
    number = hold(user)
    assert user.get(ONE).pending_generation == number == user.held(ONE)
    user.recover()
    assert approve(user, number).pending == ""
    assert user.launch_manifest(ONE).values == {"timeout": "30", "endpoint": "x", "api_key": "hush"}
    assert (user.rollback(ONE).generation / "server.py").read_text() == "# foreign\n"


def test_users_see_pending_updates_of_the_system(user: Store, system: Store) -> None:
    install(system)
    hold(system)
    assert user.get(ONE).pending == "2"
    assert user.held(ONE) is None


def test_a_removal_removes_the_pending_update(paths: Paths, user: Store, tmp_path: Path) -> None:
    install(user)
    hold(user, tools=TOOLS)
    user.remove(ONE)
    assert [path for path in tmp_path.rglob("*") if ONE in path.name] == []
    install(user)
    assert user.held(ONE) is None
    hold(user)
    user.drop_held(ONE)
    user.remove(ONE)
    assert names_in(paths.user.generations) == [".lock"]


def test_a_pending_update_without_a_version_is_shown_by_its_generation(user: Store) -> None:
    install(user)
    hold(user, "")
    assert (user.get(ONE).pending, user.get(ONE).pending_generation) == ("", 2)


@pytest.mark.parametrize("target", ["../1", "1", "x", "/", "0", "9" * 30, "nothing"])
def test_an_invalid_marker_is_ignored(paths: Paths, user: Store, target: str) -> None:
    install(user)
    (paths.user.generations / ONE / "held").symlink_to(target)
    assert user.held(ONE) is None
    assert user.get(ONE).pending == ""
    user.recover()
    assert hold(user) == 2
    user.remove(ONE)
    assert ONE not in names_in(paths.user.generations)


def test_a_pending_update_with_a_broken_manifest_is_refused(user: Store) -> None:
    install(user)
    hold(user)
    (user.generation_path(ONE, 2) / "manifest.json").write_text("{")
    assert user.get(ONE).pending == ""
    with pytest.raises(InvalidManifest):
        user.approve(ONE, 2)
    assert user.active_generation(ONE) == 1
    user.drop_held(ONE)


def test_each_generation_has_its_own_tool_catalog(user: Store) -> None:
    install(user)
    user.set_tools(ONE, [])
    number = hold(user, tools=TOOLS)
    assert user.generation_tools(ONE, 1) == []
    assert user.generation_tools(ONE, number) == TOOLS
    approve(user, number)
    assert user.tools(ONE) == TOOLS
    for call in (user.generation_tools, user.generation_path, user.generation_manifest):
        with pytest.raises(NotFound):
            call(ONE, 9)


def test_the_pin_is_in_the_manifest(user: Store) -> None:
    origin = {"registry": "https://registry.test", "pinned": False, "else": 1}
    install(user, origin=origin, config={"api_key": "a", "endpoint": "x"})
    for pinned in (True, False):
        user.set_pinned(ONE, pinned)
        found = json.loads(user.manifest_path(ONE).read_text())
        assert found["origin"] == {**origin, "pinned": pinned}
        assert user.launch_manifest(ONE).values == {"timeout": "30", "endpoint": "x", "api_key": "a"}


def test_a_server_stays_pinned_whichever_version_is_chosen(user: Store) -> None:
    def is_pinned() -> bool:
        return json.loads(user.manifest_path(ONE).read_text()).get("origin", {}).get("pinned") is True

    install(user)
    install(user, version="2")
    hold(user, "3", origin={"registry": "https://registry.test"})
    user.set_pinned(ONE, True)
    approve(user, 3)
    assert is_pinned()
    user.rollback(ONE, 1)
    assert not is_pinned()
    user.rollback(ONE, 3)
    user.rollback(ONE, 1, keep_pin=True)
    assert is_pinned()
    user.set_pinned(ONE, False)
    user.rollback(ONE, 3, keep_pin=True)
    assert not is_pinned()
    user.set_pinned(ONE, True)
    install(user, version="4")
    assert is_pinned()
    number = hold(user, "5")
    user.set_pinned(ONE, False)
    approve(user, number)
    assert not is_pinned()


def test_pinning_another_tools_server_hides_its_secrets(paths: Paths, user: Store, tmp_path: Path) -> None:
    foreign(paths.user.installed, config={"api_key": "hush"}, theirs={"a": 1})
    user.set_pinned(ONE, True)
    found = json.loads(user.manifest_path(ONE).read_text())
    assert found["origin"] == {"pinned": True}
    assert found["theirs"] == {"a": 1}
    assert "hush" not in text_of_tree(tmp_path)
    assert user.launch_manifest(ONE).values["api_key"] == "hush"


def test_servers_that_this_scope_does_not_write_cannot_be_pinned(paths: Paths, user: Store, system: Store) -> None:
    with pytest.raises(NotFound):
        user.set_pinned(ONE, True)
    install(system)
    foreign(paths.vendor, "vendor")
    elsewhere = foreign(paths.home, "linked")
    paths.user.installed.mkdir(parents=True)
    (paths.user.installed / "linked").symlink_to(elsewhere)
    for server_id in (ONE, "vendor", "linked"):
        with pytest.raises(ReadOnly):
            user.set_pinned(server_id, True)
    foreign(paths.user.installed, "odd", origin="somewhere")
    with pytest.raises(InvalidManifest, match="origin"):
        user.set_pinned("odd", True)


def test_a_generation_whose_trial_was_interrupted_is_rolled_back(paths: Paths) -> None:
    def try_out(version: str) -> Store:
        store = Store(paths, Scope.USER)
        generation = store.new_generation(ONE)
        (generation.path / "server.py").write_text("")
        store.activate(generation, parsed(version), on_trial=True)
        assert store.get(ONE).generation == generation.path
        store.recover()  # It lives.
        assert store.get(ONE).generation == generation.path
        return store

    store = Store(paths, Scope.USER)
    for version in ("1", "2", "3"):
        install(store, version=version)
    store.rollback(ONE, 1)
    killed = try_out("4")
    del killed  # Its lock goes with it, as with a process.
    release_locks(paths)
    Store(paths, Scope.USER).recover()
    assert store.active_generation(ONE) == 1
    assert store.generations(ONE) == [1, 2, 3]

    try_out("4").prune(ONE)
    Store(paths, Scope.USER).recover()
    assert store.active_generation(ONE) == 4

    other = try_out("5")
    other.rollback(ONE, 4)
    with pytest.raises(NotFound):
        other.rollback(ONE, 5)
    other.hold(Generation(ONE, 5, other.generation_path(ONE, 5)), parsed("5"))
    Store(paths, Scope.USER).recover()
    assert (store.active_generation(ONE), store.held(ONE)) == (4, 5)


def test_a_generation_that_passed_its_trial_stays_while_others_hold_the_lock(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(paths, Scope.USER)
    install(store)
    generation = store.new_generation(ONE)
    store.activate(generation, parsed("2"), on_trial=True)
    lock = WriteLock(paths.user.generations / ".lock", wait=0.05)
    monkeypatch.setattr(store, "_lock", lock)
    with WriteLock(paths.user.generations / ".lock").hold(), pytest.raises(Busy):
        store.prune(ONE)
    Store(paths, Scope.USER).recover()
    assert store.active_generation(ONE) == 2


def release_locks(paths: Paths) -> None:
    """What the end of the process that built generations does: their marks are no longer locked."""
    for marker in paths.user.generations.glob("*/.*~building"):
        data = marker.read_bytes()
        marker.unlink()
        marker.write_bytes(data)
